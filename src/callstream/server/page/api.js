/**
 * The page's requests, all of them to its own server: every address is relative to the page's.
 *
 * @typedef {object} RunRow
 * @property {string} run_id
 * @property {string} thread_id
 * @property {string | null} principal
 * @property {"finished" | "failed" | "cancelled" | null} outcome null while it is active
 * @property {string | null} reason
 * @property {number} started_at
 * @property {number | null} ended_at
 * @property {number} last_seq
 *
 * @typedef {object} ThreadRow
 * @property {string} thread_id
 * @property {string | null} title
 * @property {number} runs
 * @property {boolean} active
 * @property {"finished" | "failed" | "cancelled" | null} outcome of its last run
 * @property {number} awaiting how many of its calls wait for an answer
 * @property {number} started_at
 * @property {number} updated_at
 *
 * @typedef {{ name: string, label: string | null, version: string }} Agent
 * @typedef {{ id: string, role: "user", content: string }
 *   | { id: string, role: "tool", toolCallId: string, content: string }} Message
 */

import { eventsOf } from "./eventstream.js";

/** How many runs of a thread are listed at most. */
export const MOST_RUNS = 500;
const TOKEN_KEY = "callstream.token";

/** The server refused a request. `message` is the server's own. */
export class Refused extends Error {
  /**
   * @param {number} status
   * @param {string} code
   * @param {string} message
   */
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** No server answered. */
export class Away extends Error {}

/**
 * Fires `away` when the server stops answering, `back` when it answers again, and `unknown` when it asks who we are.
 */
export class Api extends EventTarget {
  #isAway = false;

  get isAway() {
    return this.#isAway;
  }

  /** @param {string} token kept until the tab is closed */
  set token(token) {
    sessionStorage.setItem(TOKEN_KEY, token);
  }

  /** @returns {Promise<Agent>} */
  async agent() {
    return this.#json("api/agent");
  }

  /**
   * @param {number} limit
   * @returns {Promise<ThreadRow[]>} the newest first
   */
  async threads(limit) {
    return (await this.#json(`api/threads?limit=${limit}`)).threads;
  }

  /**
   * @param {string} threadId
   * @returns {Promise<RunRow[]>} the newest first; empty for a thread that does not exist
   */
  async runs(threadId) {
    try {
      return (await this.#json(`api/runs?thread_id=${encodeURIComponent(threadId)}&limit=${MOST_RUNS}`)).runs;
    } catch (error) {
      if (error instanceof Refused && error.status === 404) return [];
      throw error;
    }
  }

  /**
   * The records of a run after that number, as server-sent events.
   *
   * @param {string} runId
   * @param {number} after
   * @param {AbortSignal} signal
   */
  async events(runId, after, signal) {
    return this.#ask(`runs/${encodeURIComponent(runId)}/events?after=${after}`, { signal });
  }

  /**
   * @param {string} runId
   * @returns {Promise<{ outcome: string | null }>}
   */
  async stop(runId) {
    return this.#json(`runs/${encodeURIComponent(runId)}/stop`, { method: "POST", body: "{}" });
  }

  /**
   * Begins a run, and returns its id. The answer is read to its end but ignored: the journal has its content too, but a
   * server may be configured to stop a run whose client has disconnected.
   *
   * @param {string} threadId
   * @param {Message[]} messages
   * @returns {Promise<string>}
   */
  async run(threadId, messages) {
    const runId = newId();
    const input = { threadId, runId, messages, tools: [], context: [], state: {}, forwardedProps: {} };
    const response = await this.#ask("agui", {
      method: "POST",
      body: JSON.stringify(input),
      headers: { Accept: "text/event-stream" },
    });
    const events = eventsOf(response);
    const first = await events.next();
    if (!first.done) throwIfRefused(first.value[0].data);
    void drain(events);
    return response.headers.get("X-Run-Id") ?? runId;
  }

  /**
   * @param {string} path
   * @param {RequestInit} [options]
   */
  async #json(path, options) {
    const response = await this.#ask(path, options);
    return response.json();
  }

  /**
   * @param {string} path
   * @param {RequestInit} [options]
   * @returns {Promise<Response>} a successful one
   */
  async #ask(path, options = {}) {
    const headers = new Headers(options.headers);
    const token = sessionStorage.getItem(TOKEN_KEY);
    if (token !== null) headers.set("Authorization", `Bearer ${token}`);
    if (options.body !== undefined) headers.set("Content-Type", "application/json");
    let response;
    try {
      response = await fetch(new URL(path, document.baseURI), { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (options.signal?.aborted) throw error;
      this.#tell(true);
      throw new Away("The server does not answer.");
    }
    this.#tell(false);
    if (response.ok) return response;
    if (response.status === 401) this.dispatchEvent(new Event("unknown"));
    throw await refusal(response);
  }

  /** @param {boolean} isAway */
  #tell(isAway) {
    if (isAway === this.#isAway) return;
    this.#isAway = isAway;
    this.dispatchEvent(new Event(isAway ? "away" : "back"));
  }
}

/** @param {Response} response */
async function refusal(response) {
  try {
    const { code, message } = (await response.json()).error;
    return new Refused(response.status, String(code), String(message));
  } catch {
    return new Refused(response.status, "", `The server refused with status ${response.status}.`);
  }
}

/**
 * The error of a run that could not begin is its first event, since a stream has no other place for it.
 *
 * @param {string} data
 */
function throwIfRefused(data) {
  const event = JSON.parse(data);
  if (event.type === "RUN_ERROR") throw new Refused(200, String(event.code ?? ""), String(event.message));
}

/** @param {AsyncGenerator<unknown>} events */
async function drain(events) {
  try {
    while (!(await events.next()).done);
  } catch {
    // The feed of the run's records notices a lost connection, and reconnects.
  }
}

/** A random id (UUID 4). `crypto.randomUUID` exists only for secure origins, and a server on a local network is not one. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}
