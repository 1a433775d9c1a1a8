/**
 * One call, folded from its records and nothing else. Pure.
 *
 * @typedef {import("./jsonreader.js").Change} Change
 * @typedef {import("./record.js").CallEvent} CallEvent
 * @typedef {import("./record.js").Record} Record
 * @typedef {"started" | "args_streaming" | "args_complete" | "running_early" | "executing" | "awaiting" | "completed" | "failed"
 *   | "released" | "discarded"} CallState
 */

import { JsonReader } from "./jsonreader.js";

/** @type {{ [type: string]: CallState }} */
const STATE_AFTER = {
  args_appended: "args_streaming",
  call_completed: "args_complete",
  call_running_early: "running_early",
  call_executing: "executing",
  call_awaiting: "awaiting",
  call_returned: "completed",
  call_failed: "failed",
  call_released: "released",
  call_discarded: "discarded",
};
const BEFORE_ITS_END = new Set(["started", "args_streaming"]);
const FINAL = new Set(["completed", "failed", "released", "discarded"]);

export class Call {
  #reader = new JsonReader({ uniqueNames: true });
  /** @type {Change[]} what changed in the arguments since they were last taken */
  #changes = [];
  #hasAllArgs = false;
  /** @type {number | null} */
  #executingAt = null;
  /** @type {number | null} seconds in which the tool ran before it last began to wait */
  #ran = null;

  /**
   * @param {CallEvent} event its `call_started`
   * @param {Record} record
   * @param {string | null} [author] the agent that made it, where that is worth saying
   */
  constructor(event, record, author = null) {
    /** @readonly */
    this.kind = "call";
    this.callId = event.call_id;
    this.name = event.name ?? "";
    this.author = author;
    /** how many calls it is nested in */
    this.depth = 0;
    this.messageId = event.message_id ?? record.response_id ?? `message-${event.call_id}`;
    /** whether its response was cut when the run's process died: the model was asked again */
    this.isVoid = false;
    this.runId = record.run_id;
    this.isText = event.encoding === "text";
    /** @type {CallState} */
    this.state = "started";
    /** whether its tool began before the response had ended */
    this.ranEarly = false;
    this.at = record.at;
    this.argsText = "";
    this.pieces = 0;
    /** whether compaction has folded the pieces, so that their times are gone */
    this.isFolded = false;
    /** @type {number | null} */
    this.firstPieceAt = null;
    /** @type {number | null} */
    this.lastPieceAt = null;
    /** @type {number | null} */
    this.endedAt = null;
    /** @type {unknown} the last progress that it reported */
    this.progress = undefined;
    /** @type {unknown} */
    this.result = undefined;
    /** @type {string | null} */
    this.error = null;
    /** @type {string | null} */
    this.reason = null;
    /** @type {string | null} */
    this.detail = null;
    /** @type {import("./record.js").Question | null} the question, if there is more to it than its arguments */
    this.question = null;
    /** whether it is answered here, and not at another call */
    this.isAsking = false;
    /** @type {Record[]} */
    this.records = [record];
  }

  get isFinal() {
    return FINAL.has(this.state);
  }

  /** Whether its arguments are still being written. */
  get isWriting() {
    return BEFORE_ITS_END.has(this.state) || (this.state === "running_early" && !this.#hasAllArgs);
  }

  /** The error in the argument text, if it is not JSON. */
  get mistake() {
    return this.isText ? null : this.#reader.error;
  }

  /** Seconds from the call's start to the first piece of its arguments; null if unknown. */
  get timeToFirst() {
    return this.firstPieceAt === null || this.isFolded ? null : Math.max(0, this.firstPieceAt - this.at);
  }

  /** Pieces per second, over the time in which they came; null if unknown. */
  get piecesPerSecond() {
    if (this.isFolded || this.firstPieceAt === null || this.lastPieceAt === null || this.pieces < 2) return null;
    const seconds = this.lastPieceAt - this.firstPieceAt;
    return seconds > 0 ? (this.pieces - 1) / seconds : null;
  }

  /** How long the tool ran, without the time that it waited; null if it has not run, or if that is unknown. */
  get ranFor() {
    return this.isFinal ? this.#ran : null;
  }

  /** @param {number} at when the tool returned or began to wait */
  #stopRunning(at) {
    if (this.#executingAt === null) return;
    this.#ran = (this.#ran ?? 0) + Math.max(0, at - this.#executingAt);
    this.#executingAt = null;
  }

  /**
   * What changed in the arguments since the last time, adjacent appends joined.
   *
   * @returns {Change[]}
   */
  takeChanges() {
    const taken = this.#changes;
    this.#changes = [];
    return taken;
  }

  /**
   * Takes in one of its events.
   *
   * @param {CallEvent} event
   * @param {Record} record
   */
  take(event, record) {
    this.records.push(record);
    const state = STATE_AFTER[event.type];
    const isArgs = event.type === "args_appended" || event.type === "call_completed";
    if (state !== undefined && !(isArgs && this.ranEarly)) this.state = state;
    if (this.isFinal) {
      this.endedAt = record.at;
      this.#stopRunning(record.at);
    }
    switch (event.type) {
      case "args_appended":
        this.#append(event.text ?? "", record);
        break;
      case "call_completed":
        this.#hasAllArgs = true;
        if (this.pieces === 0) this.#takeWhole(event.args_json);
        if (this.isText) this.#queue([{ kind: "close", path: [], value: "" }]);
        else this.#queue(this.#reader.end());
        break;
      case "call_awaiting":
        this.question = event.question ?? null;
        this.isAsking = !event.is_paused;
        this.#stopRunning(record.at);
        break;
      case "call_running_early":
        this.ranEarly = true;
        this.#executingAt = record.at;
        break;
      case "call_executing":
        this.#executingAt = record.at;
        break;
      case "call_progressed":
        this.progress = event.data;
        break;
      case "call_returned":
        this.result = event.result ?? null;
        break;
      case "call_failed":
        this.error = event.error ?? "";
        break;
      case "call_discarded":
        this.reason = event.reason ?? null;
        this.detail = event.detail ?? null;
        break;
    }
  }

  /**
   * @param {string} text
   * @param {Record} record
   */
  #append(text, record) {
    this.argsText += text;
    this.pieces += 1;
    this.firstPieceAt ??= record.at;
    this.lastPieceAt = record.at;
    if (record.first_seq !== undefined && record.first_seq < record.seq) this.isFolded = true;
    this.#queue(this.isText ? [{ kind: "append", path: TEXT, value: text }] : this.#reader.feed(text));
  }

  /**
   * The arguments of a call that came without pieces.
   *
   * @param {string} [argsJson]
   */
  #takeWhole(argsJson) {
    if (this.isText) {
      this.argsText = argsJson === undefined ? "" : JSON.parse(argsJson);
      this.#queue([{ kind: "append", path: TEXT, value: this.argsText }]);
    } else {
      this.argsText = argsJson ?? "{}";
      this.#queue(this.#reader.feed(this.argsText));
    }
  }

  /** @param {Change[]} changes */
  #queue(changes) {
    for (const change of changes) {
      const last = this.#changes.at(-1);
      if (change.kind === "append" && last?.kind === "append" && last.path === change.path) last.value += change.value;
      else this.#changes.push(change);
    }
  }
}

/** @type {readonly string[]} the one path of a free-text call */
const TEXT = [];
