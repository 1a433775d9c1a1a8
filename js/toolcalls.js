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
 *
 * @typedef {"writing" | "running" | "awaiting" | "done" | "failed"} CallState writing: its arguments are being written;
 *   running: they are complete; awaiting: a person or the application has to answer
 * @typedef {object} ToolCall never changes; there is a new one when something changed
 * @property {string} id
 * @property {string} name
 * @property {CallState} state
 * @property {any} args once they are complete; before that, see `field`
 * @property {any} result as the stream has it: of AG-UI a text
 * @property {any} progress what the running tool reported last
 * @property {any} question what is asked, if the stream says it
 *
 * @typedef {object} Entry
 * @property {ToolCall} call
 * @property {ToolCall | undefined} shown as published
 * @property {JsonStream} stream
 * @property {string} text all of the arguments so far
 * @property {number} seen how much of the text the stream that is being read has sent
 * @property {any} input of the AI SDK, which reads the text itself
 * @property {any} value as published
 * @property {boolean} isVoid
 * @property {Set<() => void>} listeners
 */

import { JsonStream } from "./jsonstream.js";

/** @type {(publish: () => void) => void} */
const nextFrame = (publish) => void (globalThis.requestAnimationFrame ?? setTimeout)(publish);
/** @type {{ [state: string]: CallState }} of the AI SDK */
const CHAT_STATES = {
  "input-streaming": "writing",
  "approval-requested": "awaiting",
  "output-available": "done",
  "output-error": "failed",
  "output-denied": "failed",
};

export class ToolCalls {
  /** @type {Map<string, Entry>} */
  #entries = new Map();
  /** @type {Set<Entry>} */
  #dirty = new Set();
  /** @type {Set<() => void>} */
  #listeners = new Set();
  /** @type {Set<string>} calls that the last snapshot did not have, and that did not begin again since */
  #missing = new Set();
  #isScheduled = false;
  #schedule;

  /** @param {{ schedule?: (publish: () => void) => void }} [options] when to publish: by default in the next frame */
  constructor({ schedule = nextFrame } = {}) {
    this.#schedule = schedule;
    /** @type {readonly string[]} the ids of all calls, in the order they began */
    this.ids = [];
    /** For `runAgent`, `connectAgent`, `agent.subscribe` and `connectThread`. */
    this.subscriber = {
      /** @param {{ event: any }} told */
      onEvent: ({ event }) => this.take(event),
      /** @param {{ messages: readonly any[] }} told */
      onRunStartedEvent: ({ messages }) => this.#takeResults(messages),
    };
  }

  /**
   * @param {string} id
   * @returns {ToolCall | undefined}
   */
  call(id) {
    return this.#entries.get(id)?.shown;
  }

  /**
   * The arguments of a call as far as they are written, or the part of them at a path.
   *
   * @param {string} id
   * @param {readonly (string | number)[]} [path]
   * @returns {any} undefined if it is not there yet
   */
  field(id, path = []) {
    let value = this.#entries.get(id)?.value;
    for (const key of path) {
      if (typeof value !== "object" || value === null || !Object.hasOwn(value, key)) return undefined;
      value = value[key];
    }
    return value;
  }

  /**
   * Calls a function whenever something about a call has changed, or, without an id, whenever a call has begun.
   *
   * @param {string | null} id
   * @param {() => void} listener
   * @returns {() => void} ends it
   */
  subscribe(id, listener) {
    const listeners = id === null ? this.#listeners : this.#entry(id).listeners;
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }

  /** @param {any} event of AG-UI; those that say nothing about calls are ignored */
  take(event) {
    switch (event.type) {
      case "TOOL_CALL_START":
        return this.#start(event.toolCallId, event.toolCallName);
      case "TOOL_CALL_ARGS":
        return this.#write(this.#entry(event.toolCallId), event.delta);
      case "TOOL_CALL_END":
        if (this.#missing.has(event.toolCallId)) return this.#drop();
        return this.#complete(this.#entry(event.toolCallId));
      case "TOOL_CALL_RESULT":
        return this.#takeResults([event]);
      case "ACTIVITY_SNAPSHOT":
        return this.#takeProgress(event);
      case "MESSAGES_SNAPSHOT":
        return this.#takeMessages(event.messages);
      case "RUN_FINISHED":
        this.#drop();
        for (const id of event.outcome?.pendingToolCallIds ?? []) this.#ask(id);
        for (const asked of event.outcome?.interrupts ?? []) this.#ask(asked.toolCallId, { question: asked });
    }
  }

  /** @param {readonly any[]} messages of the AI SDK, whenever they have changed */
  takeChat(messages) {
    this.#missing = new Set(this.#entries.keys());
    for (const part of messages.flatMap((message) => message.parts)) {
      if (part.toolCallId === undefined) continue;
      const entry = this.#found(part.toolCallId);
      const state = part.preliminary ? "running" : (CHAT_STATES[part.state] ?? "running");
      const said = part.preliminary ? { progress: part.output } : { result: part.output ?? part.errorText };
      entry.input = part.input;
      this.#touch(entry);
      this.#set(entry, {
        name: part.toolName ?? part.type.slice("tool-".length),
        state,
        args: state === "writing" ? undefined : part.input,
        question: part.approval,
        ...said,
      });
    }
    this.#drop();
  }

  /** @param {readonly any[]} messages of AG-UI, whole */
  #takeMessages(messages) {
    this.#missing = new Set(this.#entries.keys());
    for (const message of messages) {
      for (const { id, function: called } of message.toolCalls ?? []) {
        this.#start(id, called.name);
        this.#write(this.#entry(id), called.arguments);
        this.#complete(this.#entry(id));
      }
      if (message.role === "activity") this.#takeProgress(message);
    }
    this.#takeResults(messages);
  }

  /** @param {readonly any[]} messages of which those of tools are results. A client gets no event for its own answers. */
  #takeResults(messages) {
    for (const { toolCallId, content } of messages) {
      if (toolCallId === undefined) continue;
      const state = /^\{\s*"error"\s*:/.test(content) ? "failed" : "done";
      this.#set(this.#entry(toolCallId), { state, result: content });
    }
  }

  /**
   * A call awaits an answer. A question of google-adk's is a call of its own, and names the call that waits for it.
   *
   * @param {string} id
   * @param {Partial<ToolCall>} [said]
   */
  #ask(id, said) {
    const entry = this.#entry(id);
    this.#set(entry, { state: "awaiting", ...said });
    const about = entry.call.args?.originalFunctionCall?.id;
    if (this.#entries.get(about)?.call.state === "running") this.#ask(about, said);
  }

  /** @param {any} activity */
  #takeProgress({ activityType, content }) {
    if (activityType !== "tool_progress") return;
    this.#set(this.#entry(content.toolCallId), { progress: content.progress });
  }

  /**
   * @param {string} id
   * @param {string} name
   */
  #start(id, name) {
    const entry = this.#found(id);
    entry.seen = 0;
    this.#set(entry, { name });
  }

  /**
   * Text that was known before the connection was lost may come again, in other pieces.
   *
   * @param {Entry} entry
   * @param {string} delta
   */
  #write(entry, delta) {
    const again = entry.text.slice(entry.seen, entry.seen + delta.length);
    if (!delta.startsWith(again)) this.#cut(entry);
    const added = delta.slice(entry.text.length - entry.seen);
    entry.seen += delta.length;
    if (added === "") return;
    entry.text += added;
    entry.stream.feed(added);
    this.#touch(entry);
  }

  /** @param {Entry} entry */
  #complete(entry) {
    if (entry.seen < entry.text.length) this.#cut(entry);
    const args = entry.stream.value;
    const state = entry.call.state === "writing" ? "running" : entry.call.state;
    this.#set(entry, { args, state });
  }

  /**
   * Another text than the one that was known: a call was written anew under its old id.
   *
   * @param {Entry} entry
   */
  #cut(entry) {
    entry.text = entry.text.slice(0, entry.seen);
    entry.stream = new JsonStream({ uniqueNames: true });
    entry.stream.feed(entry.text);
    this.#set(entry, { state: "writing", args: undefined });
  }

  /**
   * @param {string} id
   * @returns {Entry}
   */
  #entry(id) {
    let entry = this.#entries.get(id);
    if (entry === undefined) {
      /** @type {ToolCall} */
      const call = { id, name: "", state: "writing", args: undefined, result: undefined, progress: undefined, question: undefined };
      entry = { call, shown: undefined, stream: new JsonStream({ uniqueNames: true }), text: "", seen: 0, input: undefined, value: undefined, isVoid: false, listeners: new Set() };
      this.#entries.set(id, entry);
    }
    return entry;
  }

  /**
   * @param {string} id
   * @returns {Entry}
   */
  #found(id) {
    const entry = this.#entry(id);
    entry.isVoid = false;
    this.#missing.delete(id);
    return entry;
  }

  #drop() {
    for (const id of this.#missing) {
      const entry = this.#entry(id);
      entry.isVoid = true;
      this.#touch(entry);
    }
    this.#missing.clear();
  }

  /**
   * @param {Entry} entry
   * @param {Partial<ToolCall>} changes
   */
  #set(entry, changes) {
    const keys = /** @type {(keyof ToolCall)[]} */ (Object.keys(changes));
    if (entry.shown !== undefined && keys.every((key) => Object.is(entry.call[key], changes[key]))) return;
    entry.call = { ...entry.call, ...changes };
    this.#touch(entry);
  }

  /** @param {Entry} entry */
  #touch(entry) {
    this.#dirty.add(entry);
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    this.#schedule(() => this.#publish());
  }

  #publish() {
    this.#isScheduled = false;
    const dirty = [...this.#dirty];
    this.#dirty.clear();
    const listed = dirty.filter((entry) => entry.isVoid !== (entry.shown === undefined));
    if (listed.length > 0) {
      const begun = listed.filter((entry) => !entry.isVoid).map((entry) => entry.call.id);
      this.ids = [...this.ids.filter((id) => !this.#entries.get(id)?.isVoid), ...begun];
    }
    for (const entry of dirty) {
      entry.shown = entry.isVoid ? undefined : entry.call;
      entry.value = entry.isVoid ? undefined : entry.text === "" ? entry.input : entry.stream.value;
    }
    for (const entry of dirty) for (const listener of [...entry.listeners]) listener();
    if (listed.length > 0) for (const listener of [...this.#listeners]) listener();
  }
}
