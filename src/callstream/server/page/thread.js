/**
 * A thread, folded from the records of its runs: the items of the timeline, in order. Pure.
 *
 * Items are only added, and those that changed are named in `changed`; so a view updates only what is new.
 *
 * @typedef {import("./record.js").Record} Record
 * @typedef {import("./api.js").RunRow} RunRow
 * @typedef {Call | Saying | Note} Item
 */

import { Call } from "./call.js";

const ANSWERS = new Set(["call_executing", "call_returned", "call_failed", "call_discarded"]);

/** Text of a message: a user's input, or an assistant's text or reasoning, which grows. */
export class Saying {
  /** the text added since it was last taken */
  #fresh = "";

  /**
   * @param {"input" | "text" | "reasoning"} kind
   * @param {string} role
   * @param {Record} record
   */
  constructor(kind, role, record) {
    this.kind = kind;
    this.role = role;
    this.author = record.author ?? null;
    this.at = record.at;
    this.length = 0;
    this.isFinished = false;
    /** @type {readonly string[]} the kinds of the parts that are not text */
    this.attachments = [];
    /** how many calls it is nested in */
    this.depth = 0;
    this.messageId = record.event.message_id ?? "";
    /** whether its response was cut when the run's process died: the model was asked again */
    this.isVoid = false;
  }

  /** @param {string} text */
  append(text) {
    this.#fresh += text;
    this.length += text.length;
  }

  takeText() {
    const taken = this.#fresh;
    this.#fresh = "";
    return taken;
  }
}

/** An event that does not change: a response ended, the state changed, a call was answered, another process took over. */
export class Note {
  /**
   * @param {"response" | "state" | "answer" | "resumed"} kind
   * @param {Record} record
   * @param {Call | null} [call] the one that was answered
   */
  constructor(kind, record, call = null) {
    this.kind = kind;
    this.at = record.at;
    this.event = record.event;
    this.call = call;
    this.depth = 0;
    this.messageId = "";
    this.isVoid = false;
  }
}

/** One run. `records` are all that arrived, in the order of their numbers; `items` are what they show. */
export class Run {
  /** @param {RunRow} row */
  constructor(row) {
    this.runId = row.run_id;
    this.startedAt = row.started_at;
    this.endedAt = row.ended_at;
    this.outcome = row.outcome;
    this.reason = row.reason;
    /** how many processes have worked on it */
    this.attempt = 1;
    /** @type {Record[]} */
    this.records = [];
    /** @type {Item[]} */
    this.items = [];
    /** @type {string | null} the agent that spoke first; others are named where they speak */
    this.author = null;
    /** @type {Map<string, Saying>} the text that a message is writing, by message */
    this.writing = new Map();
    /** @type {Map<string, string>} the call whose tool asked for a response, by response */
    this.nested = new Map();
    /** @type {Map<string, string>} the same by message */
    this.within = new Map();
    /** @type {import("./feed.js").FeedState} whether its records arrive */
    this.feedState = "connecting";
    /** the place in the run up to which its records are folded */
    this.foldedTo = 0;
  }

  /** The number of the last record that has arrived. */
  get lastSeq() {
    return this.records.at(-1)?.seq ?? 0;
  }
}

export class Thread {
  /** whether records have arrived that belong before others that are folded already */
  #isOutOfOrder = false;

  /** @param {string} threadId */
  constructor(threadId) {
    this.threadId = threadId;
    /** @type {Map<string, Run>} by id, the oldest first */
    this.runs = new Map();
    /** @type {Map<string, Call>} */
    this.calls = new Map();
    /** @type {Set<Item | Run>} */
    this.changed = new Set();
    /** is incremented when everything has to be shown again */
    this.generation = 0;
  }

  /** The active run, if there is one: the newest. */
  get activeRun() {
    return [...this.runs.values()].reverse().find((run) => run.outcome === null) ?? null;
  }

  /**
   * Adds runs that are not here yet. If they are older than those that are, everything is rebuilt.
   *
   * @param {RunRow[]} rows
   * @returns {Run[]} the runs that were added, the oldest first
   */
  add(rows) {
    const missing = rows.filter((row) => !this.runs.has(row.run_id)).map((row) => new Run(row));
    if (missing.length === 0) return [];
    missing.sort((a, b) => a.startedAt - b.startedAt);
    const newest = [...this.runs.values()].at(-1);
    const inOrder = newest === undefined || missing[0].startedAt >= newest.startedAt;
    const runs = [...this.runs.values(), ...missing];
    if (!inOrder) runs.sort((a, b) => a.startedAt - b.startedAt);
    this.runs = new Map(runs.map((run) => [run.runId, run]));
    if (inOrder) for (const run of missing) this.changed.add(run);
    else this.#refold();
    return missing;
  }

  /**
   * Takes in the next record of a run. One that has arrived before, as after a reconnect, changes nothing.
   *
   * @param {Record} record
   */
  take(record) {
    const run = this.runs.get(record.run_id);
    if (run === undefined || record.seq <= run.lastSeq) return;
    run.records.push(record);
    this.changed.add(run);
    // A compacted record has the number of its last piece. It is read in the place of its first.
    if (placeOf(record) < run.foldedTo) this.#isOutOfOrder = true;
    if (this.#isOutOfOrder) return;
    run.foldedTo = record.seq;
    this.#fold(run, record);
  }

  /** To be called before anything is shown. */
  settle() {
    if (this.#isOutOfOrder) this.#refold();
  }

  /**
   * @param {Run} run
   * @param {import("./feed.js").FeedState} state
   */
  setFeedState(run, state) {
    run.feedState = state;
    this.changed.add(run);
  }

  /**
   * Drops a run's records from that one on, because compaction has folded them and they come again.
   *
   * @param {string} runId
   * @param {number} first
   */
  dropFrom(runId, first) {
    const run = this.runs.get(runId);
    if (run === undefined) return;
    run.records = run.records.filter((record) => record.seq < first);
    this.#refold();
  }

  #refold() {
    this.#isOutOfOrder = false;
    this.generation += 1;
    this.calls = new Map();
    this.changed = new Set();
    for (const run of this.runs.values()) {
      run.items = [];
      run.writing = new Map();
      run.nested = new Map();
      run.within = new Map();
      run.foldedTo = run.lastSeq;
      const inOrder = run.records.toSorted((a, b) => placeOf(a) - placeOf(b));
      for (const record of inOrder) this.#fold(run, record);
    }
  }

  /**
   * @param {Run} run
   * @param {Record} record
   */
  #fold(run, record) {
    const { event } = record;
    run.author ??= record.author ?? null;
    if (event.within !== undefined) {
      run.nested.set(record.response_id ?? "", event.within);
      run.within.set(event.message_id ?? "", event.within);
    }
    switch (event.type) {
      case "run_started":
        run.startedAt = record.at;
        return;
      case "run_ended":
        run.outcome = event.outcome ?? "finished";
        run.reason = event.reason ?? null;
        run.endedAt = record.at;
        for (const saying of run.writing.values()) this.#finish(saying);
        return;
      case "run_resumed":
        run.attempt = event.attempt ?? 1;
        this.#makeVoid(run, new Set(event.void));
        this.#add(run, new Note("resumed", record), record);
        return;
      case "message_received":
        this.#received(run, record);
        return;
      case "message_started":
        return;
      case "text_appended":
      case "reasoning_appended":
        this.#said(run, record);
        return;
      case "message_ended":
        this.#endSaying(run, event.message_id ?? "");
        return;
      case "response_ended":
        this.#add(run, new Note("response", record), record);
        return;
      case "state_changed":
        this.#add(run, new Note("state", record), record);
        return;
      case "call_started": {
        if (event.message_id !== undefined) this.#endSaying(run, event.message_id);
        const call = new Call(event, record, record.author === run.author ? null : (record.author ?? null));
        this.calls.set(call.callId, call);
        this.#add(run, call, record);
        return;
      }
    }
    if (event.call_id !== undefined) this.#called(run, record);
  }

  /**
   * Marks items that no longer count, including the answers of models that tools of their calls asked. They stay in place.
   *
   * @param {Run} run
   * @param {Set<string>} messages
   */
  #makeVoid(run, messages) {
    for (const item of run.items) {
      const within = this.calls.get(run.within.get(item.messageId) ?? "");
      if (!messages.has(item.messageId) && !within?.isVoid) continue;
      item.isVoid = true;
      this.#endSaying(run, item.messageId);
      this.changed.add(item);
    }
  }

  /**
   * @param {Run} run
   * @param {Record} record
   */
  #received(run, record) {
    const saying = new Saying("input", record.event.role ?? "user", record);
    saying.append(record.event.text ?? "");
    saying.attachments = record.event.attachments ?? [];
    saying.isFinished = true;
    this.#add(run, saying, record);
  }

  /**
   * Text is added to the message's last text, unless reasoning or a call came in between: then a new one begins.
   *
   * @param {Run} run
   * @param {Record} record
   */
  #said(run, record) {
    const { event } = record;
    const kind = event.type === "text_appended" ? "text" : "reasoning";
    const messageId = event.message_id ?? "";
    let saying = run.writing.get(messageId);
    if (saying?.kind !== kind) {
      this.#endSaying(run, messageId);
      saying = new Saying(kind, "assistant", record);
      run.writing.set(messageId, saying);
      this.#add(run, saying, record);
    }
    saying.append(event.text ?? "");
    this.changed.add(saying);
  }

  /**
   * @param {Run} run
   * @param {Record} record
   */
  #called(run, record) {
    const call = this.calls.get(record.event.call_id);
    if (call === undefined) {
      // Its run is older than those that are shown.
      if (ANSWERS.has(record.event.type)) this.#add(run, new Note("answer", record), record);
      return;
    }
    const isAnswer = call.runId !== run.runId && call.state === "awaiting" && ANSWERS.has(record.event.type);
    call.take(record.event, record);
    this.changed.add(call);
    this.#asked(call);
    if (isAnswer) this.#add(run, new Note("answer", record, call), record);
  }

  /**
   * A question about another call is shown at that call, next to its arguments.
   *
   * @param {Call} call
   */
  #asked(call) {
    const paused = this.calls.get(call.question?.about ?? "");
    if (paused === undefined || paused.state !== "awaiting") return;
    const isOpen = call.state === "awaiting";
    paused.question = isOpen ? call.question : null;
    paused.isAsking = isOpen;
    call.isAsking = false;
    this.changed.add(paused);
  }

  /**
   * @param {Run} run
   * @param {string} messageId
   */
  #endSaying(run, messageId) {
    const saying = run.writing.get(messageId);
    if (saying === undefined) return;
    run.writing.delete(messageId);
    this.#finish(saying);
  }

  /** @param {Saying} saying */
  #finish(saying) {
    saying.isFinished = true;
    this.changed.add(saying);
  }

  /**
   * @param {Run} run
   * @param {Item} item
   * @param {Record} record
   */
  #add(run, item, record) {
    const within = run.nested.get(record.response_id ?? "");
    if (within !== undefined) item.depth = (this.calls.get(within)?.depth ?? 0) + 1;
    run.items.push(item);
    this.changed.add(item);
  }
}

/** @param {Record} record */
function placeOf(record) {
  return record.first_seq ?? record.seq;
}
