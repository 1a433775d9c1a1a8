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
 *
 * @typedef {"idle" | "connecting" | "live" | "lost"} ThreadState lost: it tries again soon
 * @typedef {"ended" | "missing" | "left"} End missing: the server has no such thread
 *
 * @typedef {object} Options
 * @property {string | URL} url where the server's `POST /agui` is
 * @property {string} threadId
 * @property {(event: any) => void} [onEvent] told of every AG-UI event
 * @property {(state: ThreadState) => void} [onState]
 * @property {typeof fetch} [fetch]
 * @property {RequestInit} [request] headers and credentials
 * @property {number} [firstPause] milliseconds before the second try; each further pause is about twice as long; between two
 *   looks for a later run, nine times as long
 * @property {number} [longestPause]
 */

import { refusal, rest } from "./rest.js";

/** Milliseconds of a portion. */
const PORTION = 8;

/** The server refused a request. */
export class Refused extends Error {
  /**
   * @param {number} status
   * @param {string} text
   */
  constructor(status, text) {
    super(`status ${status}: ${text.slice(0, 300)}`);
    this.status = status;
  }
}

export class Thread {
  #options;
  #left = new AbortController();
  #follows = false;
  /** the last run's */
  runId = "";

  /** @param {Options} options */
  constructor(options) {
    this.#options = { firstPause: 300, longestPause: 10_000, fetch: globalThis.fetch.bind(globalThis), ...options };
  }

  /**
   * Shows the thread, and follows its last run to its end through any number of lost connections.
   *
   * With `follow` it stays for later runs, of other tabs too, until `leave`; after `send`, `answer` and `run` as well.
   *
   * @param {{ follow?: boolean }} [options]
   * @returns {Promise<End>}
   */
  async join({ follow = false } = {}) {
    this.#follows = follow;
    return this.#follow(null);
  }

  /**
   * Says something, and follows the run to its end.
   *
   * @param {string} text
   */
  async send(text) {
    return this.run({ messages: [{ id: newId(), role: "user", content: text }] });
  }

  /**
   * Answers a call that awaits it, and follows the run to its end.
   *
   * @param {string} toolCallId
   * @param {unknown} answer
   */
  async answer(toolCallId, answer) {
    const content = typeof answer === "string" ? answer : JSON.stringify(answer);
    return this.run({ messages: [{ id: newId(), role: "tool", toolCallId, content }] });
  }

  /**
   * Runs the agent, and follows the run to its end. The server has the thread's earlier messages.
   *
   * @param {{ [name: string]: unknown }} input further fields of AG-UI's RunAgentInput
   * @returns {Promise<End>}
   */
  async run(input) {
    const empty = { messages: [], tools: [], context: [], state: {}, forwardedProps: {} };
    const end = await this.#follow({ ...empty, runId: newId(), protocolVersion: "1.0", ...input });
    if (end === "ended" && this.#follows) this.#follow(null, this.runId).catch(() => {});
    return end;
  }

  /** Stops the last run, if there is one. */
  async stop() {
    if (this.runId) await this.#post(`runs/${encodeURIComponent(this.runId)}/stop`, {});
  }

  /** Ends what is being followed. The run continues. */
  leave() {
    this.#follows = false;
    this.#left.abort();
    this.#left = new AbortController();
  }

  /**
   * @param {any} input null to join only
   * @param {string | null} known the run that was seen to its end
   * @returns {Promise<End>}
   */
  async #follow(input, known = null) {
    const stays = this.#follows;
    this.leave();
    this.#follows = stays;
    const { signal } = this.#left;
    const { threadId, onState, firstPause, longestPause } = this.#options;
    /** @type {unknown} why nobody knows yet whether the input has arrived */
    let doubt = null;
    let pause = firstPause;
    let isSent = !input;
    try {
      while (!signal.aborted) {
        onState?.(known ? "idle" : "connecting");
        try {
          if (known) await rest(9 * pause, signal);
          const path = isSent ? `threads/${encodeURIComponent(threadId)}/connect` : "";
          const response = await this.#post(path, isSent ? { known } : { ...input, threadId }, signal);
          if (response.status === 204) {
            // There is no thread, or no run but the one that is known.
            if (doubt) throw doubt;
            if (!stays) return "missing";
            known ||= "-";
            continue;
          }
          onState?.("live");
          pause = firstPause;
          const answers = isSent ? [] : input.messages.filter((/** @type {any} */ message) => message.role === "tool");
          isSent = true;
          const hasEnded = await this.#read(response, signal, answers);
          if (doubt && this.runId !== input.runId) throw doubt;
          doubt = null;
          if (hasEnded) {
            if (input || !stays) return "ended";
            known = this.runId;
            continue;
          }
        } catch (error) {
          if (signal.aborted) break;
          if (error === doubt || refusal(error)) throw doubt ?? error;
          if (!isSent) [isSent, doubt] = [true, error];
        }
        known = null;
        onState?.("lost");
        await rest(pause, signal);
        pause = Math.min(pause * 2, longestPause);
      }
      return "left";
    } finally {
      if (!signal.aborted) onState?.("idle");
    }
  }

  /**
   * @param {string} path beside the address of `POST /agui`, or nothing for that itself
   * @param {unknown} body
   * @param {AbortSignal} [signal]
   */
  async #post(path, body, signal) {
    const { url, fetch, request } = this.#options;
    const base = new URL(url, globalThis.location?.href);
    const headers = new Headers(request?.headers);
    headers.set("content-type", "application/json");
    const options = { ...request, method: "POST", body: JSON.stringify(body), headers, signal };
    const response = await fetch(path ? new URL(path, base) : base, options);
    if (!response.ok) throw new Refused(response.status, await response.text());
    return response;
  }

  /**
   * @param {Response} response
   * @param {AbortSignal} signal
   * @param {any[]} answers of which the server sends no event, since they came from here
   * @returns {Promise<boolean>} whether the run has ended
   */
  async #read(response, signal, answers) {
    const reader = /** @type {any} */ (response.body).pipeThrough(new TextDecoderStream()).getReader();
    const tell = (/** @type {any} */ event) => this.#options.onEvent?.(event);
    let hasEnded = false;
    let text = "";
    let since = performance.now();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return hasEnded;
      const frames = (text + value).split(/\r?\n\r?\n/);
      text = frames.pop() ?? "";
      for (const frame of frames) {
        if (performance.now() - since > PORTION) {
          await rest(0);
          since = performance.now();
        }
        if (signal.aborted) return false;
        const data = frame.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (!data.length) continue;
        const event = JSON.parse(data.map((line) => line.slice(5)).join("\n"));
        tell(event);
        if (event.type === "RUN_FINISHED" || event.type === "RUN_ERROR") hasEnded = true;
        if (event.type !== "RUN_STARTED") continue;
        this.runId = event.runId;
        hasEnded = false;
        for (const { id, ...answer } of answers.splice(0)) tell({ ...answer, type: "TOOL_CALL_RESULT", messageId: id });
      }
    }
  }
}

/** As random as a UUID; `crypto.randomUUID` is there for secure origins alone, and a server in a local net is none. */
function newId() {
  return crypto.getRandomValues(new Uint32Array(4)).join("-");
}
