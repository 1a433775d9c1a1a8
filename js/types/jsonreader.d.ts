export class JsonReader {
    /**
     * `uniqueNames`, as the arguments of calls are read: a name that comes twice in an object is a mistake. Else its path
     * begins anew and the last value wins, as in `JSON.parse`.
     *
     * @param {{ maxDepth?: number, uniqueNames?: boolean }} [settings]
     */
    constructor({ maxDepth, uniqueNames }?: {
        maxDepth?: number;
        uniqueNames?: boolean;
    });
    /** @type {{ message: string, position: number } | null} the first mistake; nothing is read after it */
    error: {
        message: string;
        position: number;
    } | null;
    /** Whether the document's value is finished. */
    get complete(): boolean;
    /**
     * Reads on and returns what changed, up to the first mistake.
     *
     * @param {string} text
     * @returns {Change[]}
     */
    feed(text: string): Change[];
    /** The text is over: a number standing alone is finished now, and anything else that is not is a mistake. */
    end(): Change[];
    #private;
}
/**
 * JSON text in, changes out, while the text is still being written: the browser's twin of Python's `JsonStream`.
 *
 * - Chunk boundaries mean nothing: any split of a text gives the same changes, once adjacent appends are joined.
 * - What was shown is never taken back: half an escape, half a surrogate pair, half a number or half a literal is held
 *   back until it is whole.
 * - Every character is looked at once, but for what is held back: 11 characters at most.
 * - Numbers stay text, as they were written, so that big ones stay exact.
 */
export type ChangeKind = "open" | "append" | "set" | "close";
/**
 * all changes of one value share one array
 */
export type Path = readonly (string | number)[];
/**
 * JSON text in, changes out, while the text is still being written: the browser's twin of Python's `JsonStream`.
 *
 * - Chunk boundaries mean nothing: any split of a text gives the same changes, once adjacent appends are joined.
 * - What was shown is never taken back: half an escape, half a surrogate pair, half a number or half a literal is held
 *   back until it is whole.
 * - Every character is looked at once, but for what is held back: 11 characters at most.
 * - Numbers stay text, as they were written, so that big ones stay exact.
 */
export type Change = {
    kind: ChangeKind;
    path: Path;
    /**
     * open: `{` or `[`; append: text; set: the number or literal as written; close: empty
     */
    value: string;
};
/**
 * JSON text in, changes out, while the text is still being written: the browser's twin of Python's `JsonStream`.
 *
 * - Chunk boundaries mean nothing: any split of a text gives the same changes, once adjacent appends are joined.
 * - What was shown is never taken back: half an escape, half a surrogate pair, half a number or half a literal is held
 *   back until it is whole.
 * - Every character is looked at once, but for what is held back: 11 characters at most.
 * - Numbers stay text, as they were written, so that big ones stay exact.
 */
export type State = "value" | "first item" | "after item" | "first key" | "key" | "colon" | "after member" | "in key" | "in string" | "in number" | "end";
/**
 * JSON text in, changes out, while the text is still being written: the browser's twin of Python's `JsonStream`.
 *
 * - Chunk boundaries mean nothing: any split of a text gives the same changes, once adjacent appends are joined.
 * - What was shown is never taken back: half an escape, half a surrogate pair, half a number or half a literal is held
 *   back until it is whole.
 * - Every character is looked at once, but for what is held back: 11 characters at most.
 * - Numbers stay text, as they were written, so that big ones stay exact.
 */
export type Place = {
    path: Path;
    isArray: boolean;
    size: number;
    key: string;
    names: Set<string> | null;
    isDocument: boolean;
};
