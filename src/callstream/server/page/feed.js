/**
 * The records of one run: the existing ones, then new ones, whatever happens to the connection.
 *
 * If the connection is lost, or silent for longer than the server's heartbeats allow, it is reopened after the last record
 * received; so nothing is lost and nothing comes twice. An EventSource would not do: it cannot send a token, and does not
 * say why it was refused.
 *
 * @typedef {import("./record.js").Record} Record
 * @typedef {"connecting" | "live" | "lost" | "over"} FeedState
 *
 * @typedef {object} Listener
 * @property {(records: Record[]) => void} records
 * @property {(first: number) => void} compacted records from that number on are void, and come again
 * @property {(state: FeedState) => void} state
 */

import { Refused } from "./api.js";
import { eventsOf } from "./eventstream.js";
import { recordFrom } from "./record.js";

const SILENCE = 60_000;
const FIRST_PAUSE = 300;
const LONGEST_PAUSE = 10_000;
const TRIES_OF_A_MISSING_RUN = 4;

export class Feed {
  #aborted = new AbortController();
  #lastSeq = 0;
  #pause = FIRST_PAUSE;
  #misses = 0;
  /** @type {() => void} ends the current pause */
  #wake = () => {};

  /**
   * @param {import("./api.js").Api} api
   * @param {string} runId
   * @param {Listener} listener
   */
  constructor(api, runId, listener) {
    this.runId = runId;
    this.api = api;
    this.listener = listener;
  }

  /** Reads until the run is over or the feed is closed. */
  async run() {
    while (!this.#aborted.signal.aborted) {
      this.listener.state("connecting");
      try {
        if (await this.#read()) {
          this.listener.state("over");
          return;
        }
      } catch (error) {
        if (this.#aborted.signal.aborted) return;
        if (error instanceof Refused && this.#isFinal(error)) {
          this.listener.state("over");
          return;
        }
      }
      this.listener.state("lost");
      await this.#rest();
    }
  }

  /** Retries at once if it is waiting to do so. */
  hurry() {
    this.#pause = FIRST_PAUSE;
    this.#wake();
  }

  close() {
    this.#aborted.abort();
    this.#wake();
  }

  /** @returns {Promise<boolean>} whether the run is over */
  async #read() {
    const attempt = new AbortController();
    const stop = () => attempt.abort();
    this.#aborted.signal.addEventListener("abort", stop);
    let watchdog = setTimeout(stop, SILENCE);
    try {
      const response = await this.api.events(this.runId, this.#lastSeq, attempt.signal);
      this.listener.state("live");
      this.#pause = FIRST_PAUSE;
      const alive = () => {
        clearTimeout(watchdog);
        watchdog = setTimeout(stop, SILENCE);
      };
      for await (const events of eventsOf(response, alive)) if (this.#take(events)) return true;
      return false;
    } finally {
      clearTimeout(watchdog);
      this.#aborted.signal.removeEventListener("abort", stop);
    }
  }

  /**
   * @param {import("./eventstream.js").ServerEvent[]} events
   * @returns {boolean} whether the run is over
   */
  #take(events) {
    /** @type {Record[]} */
    let records = [];
    let isOver = false;
    for (const { type, data } of events) {
      // `end` only says that the stream is over, as it also does when the server shuts down: the last record ends a run.
      if (type === "compacted") {
        this.listener.records(records);
        records = [];
        const { first } = JSON.parse(data);
        this.#lastSeq = Math.min(this.#lastSeq, first - 1);
        this.listener.compacted(first);
      } else if (type === "message") {
        const record = recordFrom(data);
        this.#lastSeq = record.seq;
        records.push(record);
        if (record.event.type === "run_ended") isOver = true;
      }
    }
    if (records.length > 0) this.listener.records(records);
    return isOver;
  }

  /**
   * A run may be requested a moment before it exists; if it stays unknown, or is not ours, that is final.
   *
   * @param {Refused} error
   */
  #isFinal(error) {
    if (error.status !== 404) return error.status === 403;
    this.#misses += 1;
    return this.#misses >= TRIES_OF_A_MISSING_RUN;
  }

  async #rest() {
    const pause = this.#pause;
    this.#pause = Math.min(pause * 2, LONGEST_PAUSE);
    await new Promise((resolve) => {
      this.#wake = () => resolve(undefined);
      setTimeout(resolve, pause);
    });
  }
}
