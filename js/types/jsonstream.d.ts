export class JsonStream {
    /** @param {{ maxDepth?: number, uniqueNames?: boolean }} [settings] see `JsonReader` */
    constructor(settings?: {
        maxDepth?: number;
        uniqueNames?: boolean;
    });
    /** What is known so far; undefined before the first value begins. @returns {any} */
    get value(): any;
    /** Whether the document's value is finished. */
    get complete(): boolean;
    /** The first mistake, null if there is none. Nothing is read after it, and `value` stays what it was. */
    get error(): {
        message: string;
        position: number;
    } | null;
    /**
     * Reads on and returns what changed.
     *
     * @param {string} text
     * @returns {JsonChange[]}
     */
    feed(text: string): JsonChange[];
    /**
     * The text is over. Returns the value; throws a SyntaxError if the text is not one JSON document.
     *
     * @returns {any}
     */
    close(): any;
    #private;
}
/**
 * JSON text in, changes and the value so far out, while the text is still being written.
 *
 * - A string that is being written shows its decoded beginning. Half an escape, half a surrogate pair, half a number or half
 *   a literal is held back, so nothing that was shown is taken back.
 * - What `value` returned never changes. It shares everything that is finished with the next value; asking for it after a
 *   delta costs a shallow copy of the containers that are open, and nothing if nobody asks.
 * - Each character is looked at once. Where only the growing text matters, use the changes: they carry what was added.
 */
export type Path = import("./jsonreader.js").Path;
/**
 * JSON text in, changes and the value so far out, while the text is still being written.
 *
 * - A string that is being written shows its decoded beginning. Half an escape, half a surrogate pair, half a number or half
 *   a literal is held back, so nothing that was shown is taken back.
 * - What `value` returned never changes. It shares everything that is finished with the next value; asking for it after a
 *   delta costs a shallow copy of the containers that are open, and nothing if nobody asks.
 * - Each character is looked at once. Where only the growing text matters, use the changes: they carry what was added.
 */
export type JsonChange = {
    kind: "open" | "append" | "set" | "close";
    path: Path;
    /**
     * open: an empty object or array; append: the text added; set: a finished scalar
     */
    value: any;
};
