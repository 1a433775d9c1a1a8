/** The server refused a request. */
export class Refused extends Error {
    /**
     * @param {number} status
     * @param {string} text
     */
    constructor(status: number, text: string);
    status: number;
}
export class Thread {
    /** @param {Options} options */
    constructor(options: Options);
    /** the last run's */
    runId: string;
    /**
     * Shows the thread, and follows its last run to its end through any number of lost connections.
     *
     * With `follow` it stays for later runs, of other tabs too, until `leave`; after `send`, `answer` and `run` as well.
     *
     * @param {{ follow?: boolean }} [options]
     * @returns {Promise<End>}
     */
    join({ follow }?: {
        follow?: boolean;
    }): Promise<End>;
    /**
     * Says something, and follows the run to its end.
     *
     * @param {string} text
     */
    send(text: string): Promise<End>;
    /**
     * Answers a call that awaits it, and follows the run to its end.
     *
     * @param {string} toolCallId
     * @param {unknown} answer
     */
    answer(toolCallId: string, answer: unknown): Promise<End>;
    /**
     * Runs the agent, and follows the run to its end. The server has the thread's earlier messages.
     *
     * @param {{ [name: string]: unknown }} input further fields of AG-UI's RunAgentInput
     * @returns {Promise<End>}
     */
    run(input: {
        [name: string]: unknown;
    }): Promise<End>;
    /** Stops the last run, if there is one. */
    stop(): Promise<void>;
    /** Ends what is being followed. The run continues. */
    leave(): void;
    #private;
}
/**
 * lost: it tries again soon
 */
export type ThreadState = "idle" | "connecting" | "live" | "lost";
/**
 * missing: the server has no such thread
 */
export type End = "ended" | "missing" | "left";
/**
 * A thread of a Callstream server without any other package: joins it, runs it, answers and stops, and comes back by itself.
 *
 *     const calls = new ToolCalls();
 *     const thread = new Thread({ url: "/agui", threadId, onEvent: (event) => calls.take(event) });
 *     await thread.join(); // what there is, then the last run as it goes on; { follow: true } for the runs after it too
 *     await thread.send("Write a page about tides.");
 *
 * Events are handled in portions of a few milliseconds, so that the page stays responsive. A lost request is not repeated: the
 * thread is joined, which only reads.
 */
export type Options = {
    /**
     * where the server's `POST /agui` is
     */
    url: string | URL;
    threadId: string;
    /**
     * told of every AG-UI event
     */
    onEvent?: ((event: any) => void) | undefined;
    onState?: ((state: ThreadState) => void) | undefined;
    fetch?: typeof fetch | undefined;
    /**
     * headers and credentials
     */
    request?: RequestInit | undefined;
    /**
     * milliseconds before the second try; each further pause is about twice as long; between two
     * looks for a later run, nine times as long
     */
    firstPause?: number | undefined;
    longestPause?: number | undefined;
};
