export class ToolCalls {
    /** @param {{ schedule?: (publish: () => void) => void }} [options] when to publish: by default in the next frame */
    constructor({ schedule }?: {
        schedule?: (publish: () => void) => void;
    });
    /** @type {readonly string[]} the ids of all calls, in the order they began */
    ids: readonly string[];
    /** For `runAgent`, `connectAgent`, `agent.subscribe` and `connectThread`. */
    subscriber: {
        /** @param {{ event: any }} told */
        onEvent: ({ event }: {
            event: any;
        }) => void;
        /** @param {{ messages: readonly any[] }} told */
        onRunStartedEvent: ({ messages }: {
            messages: readonly any[];
        }) => void;
    };
    /**
     * @param {string} id
     * @returns {ToolCall | undefined}
     */
    call(id: string): ToolCall | undefined;
    /**
     * The arguments of a call as far as they are written, or the part of them at a path.
     *
     * @param {string} id
     * @param {readonly (string | number)[]} [path]
     * @returns {any} undefined if it is not there yet
     */
    field(id: string, path?: readonly (string | number)[]): any;
    /**
     * Calls a function whenever something about a call has changed, or, without an id, whenever a call has begun.
     *
     * @param {string | null} id
     * @param {() => void} listener
     * @returns {() => void} ends it
     */
    subscribe(id: string | null, listener: () => void): () => void;
    /** @param {any} event of AG-UI; those that say nothing about calls are ignored */
    take(event: any): void;
    /** @param {readonly any[]} messages of the AI SDK, whenever they have changed */
    takeChat(messages: readonly any[]): void;
    #private;
}
/**
 * writing: its arguments are being written;
 *   running: they are complete; awaiting: a person or the application has to answer
 */
export type CallState = "writing" | "running" | "awaiting" | "done" | "failed";
/**
 * never changes; there is a new one when something changed
 */
export type ToolCall = {
    id: string;
    name: string;
    state: CallState;
    /**
     * once they are complete; before that, see `field`
     */
    args: any;
    /**
     * as the stream has it: of AG-UI a text
     */
    result: any;
    /**
     * what the running tool reported last
     */
    progress: any;
    /**
     * what is asked, if the stream says it
     */
    question: any;
};
/**
 * The tool calls of a thread, from AG-UI events: what each is doing, and its arguments while they are written.
 *
 *     const calls = new ToolCalls();
 *     agent.runAgent({}, calls.subscriber); // or connectThread(agent, { subscriber: calls.subscriber })
 *     calls.subscribe(id, () => show(calls.field(id, ["content"])));
 *
 * - What `call` and `field` return changes at most once a frame, and only then are listeners called. A value that did not
 *   change is the same object as before.
 * - A client that joins again receives a call from its beginning. What is known already is not shown again, so a field that
 *   grows never shrinks in between.
 * - If the run's process dies in the middle of a response, another one asks the model again, and the calls of the half response
 *   are gone.
 */
export type Entry = {
    call: ToolCall;
    /**
     * as published
     */
    shown: ToolCall | undefined;
    stream: JsonStream;
    /**
     * all of the arguments so far
     */
    text: string;
    /**
     * how much of the text the stream that is being read has sent
     */
    seen: number;
    /**
     * of the AI SDK, which reads the text itself
     */
    input: any;
    /**
     * as published
     */
    value: any;
    isVoid: boolean;
    listeners: Set<() => void>;
};
import { JsonStream } from "./jsonstream.js";
