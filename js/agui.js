/**
 * Threads of a Callstream server for `@ag-ui/client`, which leaves joining and coming back to its user.
 *
 *     const agent = new (joinable(HttpAgent))({ url: "https://example.com/agui", threadId });
 *     await connectThread(agent); // when the page loads, and when runAgent rejects
 *
 * Joining only reads: it never runs anything, so it may be repeated as often as needed.
 *
 * @typedef {object} Agent what is used of an `HttpAgent`
 * @property {(parameters?: any, subscriber?: any) => Promise<any>} connectAgent
 * @property {() => void} abortRun
 *
 * @typedef {object} Options
 * @property {AbortSignal} [signal] leaves the thread; the run goes on
 * @property {any} [subscriber] of `@ag-ui/client`, told of all events
 * @property {(state: "connecting" | "live" | "lost") => void} [onState]
 * @property {number} [firstPause] milliseconds before the second try; each further pause is twice as long
 * @property {number} [longestPause]
 */

import { refusal, rest } from "./rest.js";

/**
 * A class of agents that can join: `connectAgent()` shows the thread as it is, and its last run as it goes on.
 *
 * @template {new (...args: any[]) => any} T
 * @param {T} HttpAgent that of `@ag-ui/client`, or a subclass
 * @returns {T}
 */
export function joinable(HttpAgent) {
  return class extends HttpAgent {
    /** @param {{ threadId: string }} input */
    connect(input) {
      // Relative: keeps a prefix before /agui.
      const path = `threads/${encodeURIComponent(input.threadId)}/connect`;
      return new HttpAgent({ ...this, url: new URL(path, this.url).href }).run(input);
    }
  };
}

/**
 * Joins a thread and comes back whenever the connection is lost, until its last run has ended.
 *
 * Rejects if the server refuses for another reason than being busy or away.
 *
 * @param {Agent} agent
 * @param {Options} [options]
 * @returns {Promise<"ended" | "missing" | "left">} missing: the server has no such thread
 */
export async function connectThread(agent, { signal, subscriber = {}, onState, firstPause = 300, longestPause = 10_000 } = {}) {
  /** @type {() => void} */
  let leave = () => {};
  // A promise of its own: an aborted agent with an event on its way never settles.
  const left = new Promise((resolve) => {
    leave = () => (agent.abortRun(), resolve(undefined));
  });
  signal?.addEventListener("abort", leave);
  let pause = firstPause;
  try {
    while (!signal?.aborted) {
      let hasEnded = false;
      const watch = {
        ...subscriber,
        /** @param {any} told */
        onEvent(told) {
          if (pause !== firstPause || told.event.type === "RUN_STARTED") onState?.("live");
          pause = firstPause;
          hasEnded ||= told.event.type === "RUN_FINISHED" || told.event.type === "RUN_ERROR";
          return subscriber.onEvent?.(told);
        },
      };
      onState?.("connecting");
      try {
        await Promise.race([agent.connectAgent({}, watch), left]);
      } catch (error) {
        if (signal?.aborted) break;
        const status = refusal(error);
        if (status === 404) return "missing";
        if (status !== undefined) throw error;
      }
      if (hasEnded) return "ended";
      if (signal?.aborted) break;
      onState?.("lost");
      await rest(pause, signal);
      pause = Math.min(pause * 2, longestPause);
    }
    return "left";
  } finally {
    signal?.removeEventListener("abort", leave);
  }
}
