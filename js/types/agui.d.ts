/**
 * A class of agents that can join: `connectAgent()` shows the thread as it is, and its last run as it goes on.
 *
 * @template {new (...args: any[]) => any} T
 * @param {T} HttpAgent that of `@ag-ui/client`, or a subclass
 * @returns {T}
 */
export function joinable<T extends new (...args: any[]) => any>(HttpAgent: T): T;
/**
 * Joins a thread and comes back whenever the connection is lost, until its last run has ended.
 *
 * Rejects if the server refuses for another reason than being busy or away.
 *
 * @param {Agent} agent
 * @param {Options} [options]
 * @returns {Promise<"ended" | "missing" | "left">} missing: the server has no such thread
 */
export function connectThread(agent: Agent, { signal, subscriber, onState, firstPause, longestPause }?: Options): Promise<"ended" | "missing" | "left">;
/**
 * what is used of an `HttpAgent`
 */
export type Agent = {
    connectAgent: (parameters?: any, subscriber?: any) => Promise<any>;
    abortRun: () => void;
};
/**
 * Threads of a Callstream server for `@ag-ui/client`, which leaves joining and coming back to its user.
 *
 *     const agent = new (joinable(HttpAgent))({ url: "https://example.com/agui", threadId });
 *     await connectThread(agent); // when the page loads, and when runAgent rejects
 *
 * Joining only reads: it never runs anything, so it may be repeated as often as needed.
 */
export type Options = {
    /**
     * leaves the thread; the run goes on
     */
    signal?: AbortSignal | undefined;
    /**
     * of `@ag-ui/client`, told of all events
     */
    subscriber?: any;
    onState?: ((state: "connecting" | "live" | "lost") => void) | undefined;
    /**
     * milliseconds before the second try; each further pause is twice as long
     */
    firstPause?: number | undefined;
    longestPause?: number | undefined;
};
