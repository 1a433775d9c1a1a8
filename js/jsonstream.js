/**
 * JSON text in, changes and the value so far out, while the text is still being written.
 *
 * - A string that is being written shows its decoded beginning. Half an escape, half a surrogate pair, half a number or half
 *   a literal is held back, so nothing that was shown is taken back.
 * - What `value` returned never changes. It shares everything that is finished with the next value; asking for it after a
 *   delta costs a shallow copy of the containers that are open, and nothing if nobody asks.
 * - Each character is looked at once. Where only the growing text matters, use the changes: they carry what was added.
 *
 * @typedef {import("./jsonreader.js").Path} Path
 * @typedef {object} JsonChange
 * @property {"open" | "append" | "set" | "close"} kind
 * @property {Path} path
 * @property {any} value open: an empty object or array; append: the text added; set: a finished scalar
 */

import { JsonReader } from "./jsonreader.js";

export class JsonStream {
  #reader;
  /** @type {any} the document in an array, so that its value has a container like any other */
  #document = [];
  /** @type {any[]} the containers that are open, the document's first */
  #open = [this.#document];
  /** @type {(string | number)[]} by depth, where in its parent an open container stands */
  #keys = [0];
  /** @type {Path | null} of the string being written: all of its changes share one array */
  #writing = null;
  #isShared = false;

  /** @param {{ maxDepth?: number, uniqueNames?: boolean }} [settings] see `JsonReader` */
  constructor(settings = {}) {
    this.#reader = new JsonReader(settings);
  }

  /** What is known so far; undefined before the first value begins. @returns {any} */
  get value() {
    this.#isShared = true;
    return this.#document[0];
  }

  /** Whether the document's value is finished. */
  get complete() {
    return this.#reader.complete;
  }

  /** The first mistake, null if there is none. Nothing is read after it, and `value` stays what it was. */
  get error() {
    return this.#reader.error;
  }

  /**
   * Reads on and returns what changed.
   *
   * @param {string} text
   * @returns {JsonChange[]}
   */
  feed(text) {
    return this.#reader.feed(text).map((change) => this.#apply(change));
  }

  /**
   * The text is over. Returns the value; throws a SyntaxError if the text is not one JSON document.
   *
   * @returns {any}
   */
  close() {
    if (this.#reader.error === null) this.#reader.end().forEach((change) => this.#apply(change));
    const error = this.#reader.error;
    if (error !== null) throw new SyntaxError(`${error.message} at position ${error.position}`);
    return this.value;
  }

  /**
   * @param {import("./jsonreader.js").Change} change
   * @returns {JsonChange}
   */
  #apply({ kind, path, value }) {
    this.#own();
    const depth = this.#open.length - 1;
    switch (kind) {
      case "open": {
        const container = value === "[" ? [] : {};
        put(this.#open[depth], last(path), container);
        this.#open.push(container);
        this.#keys.push(last(path));
        return { kind, path, value: value === "[" ? [] : {} };
      }
      case "append": {
        // A duplicate key opens again: its first piece begins a new string.
        const before = this.#writing === path ? this.#open[depth][last(path)] : "";
        this.#writing = path;
        put(this.#open[depth], last(path), before + value);
        return { kind, path, value };
      }
      case "set": {
        const scalar = JSON.parse(value);
        put(this.#open[depth], last(path), scalar);
        return { kind, path, value: scalar };
      }
      case "close":
        if (this.#writing === path) {
          this.#writing = null;
        } else {
          this.#open.pop();
          this.#keys.pop();
        }
        return { kind, path, value: undefined };
    }
  }

  /** Copies the open containers if somebody has seen them, each into its copied parent. */
  #own() {
    if (!this.#isShared) return;
    this.#isShared = false;
    for (let depth = 0; depth < this.#open.length; depth += 1) {
      const container = this.#open[depth];
      const copy = Array.isArray(container) ? container.slice() : { ...container };
      if (depth > 0) put(this.#open[depth - 1], this.#keys[depth], copy);
      this.#open[depth] = copy;
    }
    this.#document = this.#open[0];
  }
}

/** @param {Path} path */
function last(path) {
  return path.length === 0 ? 0 : path[path.length - 1];
}

/**
 * @param {any} container
 * @param {string | number} key
 * @param {any} value
 */
function put(container, key, value) {
  // As JSON.parse does it: this name is a member like any other.
  if (key === "__proto__") Object.defineProperty(container, key, { value, writable: true, enumerable: true, configurable: true });
  else container[key] = value;
}
