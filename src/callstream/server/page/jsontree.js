/**
 * A JSON value as a tree that fills in while it is being written.
 *
 * Nothing is built twice: a change adds a row, or text to the row that is being written. Work that does not fit into one
 * frame continues in the next; past 3,000 rows, a tree waits for a click, and queues the changes that come meanwhile.
 *
 * @typedef {import("./jsonreader.js").Change} Change
 * @typedef {import("./jsonreader.js").Path} Path
 * @typedef {{ list: HTMLElement, size: number, count: Text | null, isArray: boolean, rows: Map<string, HTMLElement> }} Branch
 */

import { button, element } from "./dom.js";
import { count, counted } from "./format.js";
import { Frame } from "./frame.js";
import { GrowingText } from "./growingtext.js";

const ROWS = 3_000;
/** Milliseconds of building per frame. */
const BUDGET = 8;
/** A longer string, or one of several lines, gets a box of its own. */
const INLINE = 72;

export class JsonTree {
  /** @type {Branch[]} the containers that are open, the outermost first */
  #open = [];
  #isOver = false;
  /** @type {StringValue | null} the string that is being written */
  #string = null;
  /** @type {Change[]} changes that wait for the next frame, or for a click */
  #waiting = [];
  /** how many of them are built already */
  #built = 0;
  /** @type {Set<Branch>} the containers that have grown */
  #grown = new Set();
  #frame = new Frame(() => this.#build());
  #rows = 0;
  #limit = ROWS;
  #label;
  #isLive;
  #more = button("", () => this.#showMore(), { class: "link-button", hidden: true });

  /**
   * @param {string} label what the value is, for those who cannot see where it stands
   * @param {{ isLive?: boolean }} [options] whether it is being written, so that its long strings stay at their ends
   */
  constructor(label, { isLive = false } = {}) {
    this.#label = label;
    this.#isLive = isLive;
    this.root = element("div", { class: "tree" });
    this.element = element("div", { class: "tree-frame" }, this.root, this.#more);
  }

  /** @param {Change[]} changes */
  take(changes) {
    if (changes.length === 0) return;
    const isIdle = this.#waiting.length === 0;
    for (const change of changes) this.#waiting.push(change);
    if (isIdle) this.#build();
  }

  /** Builds waiting changes: as many as fit into a frame, and not past the limit. */
  #build() {
    const waiting = this.#waiting;
    const end = performance.now() + BUDGET;
    while (this.#built < waiting.length && this.#rows < this.#limit && performance.now() < end) {
      this.#apply(waiting[this.#built]);
      this.#built += 1;
    }
    if (this.#built === waiting.length) {
      this.#waiting = [];
      this.#built = 0;
      if (this.#isOver) this.#string?.finish();
    }
    for (const { count, size, isArray } of this.#grown) {
      if (count !== null) count.data = counted(size, isArray ? "item" : "field");
    }
    this.#grown.clear();
    const isFull = this.#waiting.length > 0 && this.#rows >= this.#limit;
    this.#more.hidden = !isFull;
    if (isFull) this.#more.textContent = `Show more than ${count(this.#rows)} values`;
    else if (this.#waiting.length > 0) this.#frame.want();
  }

  /** No more changes come: open values stay as they are, and no longer count as being written. */
  stop() {
    this.#isOver = true;
    if (this.#waiting.length === 0) this.#string?.finish();
  }

  /**
   * Builds a complete value.
   *
   * @param {unknown} value
   */
  show(value) {
    /** @type {Change[]} */
    const changes = [];
    walk(value, [], changes);
    this.take(changes);
  }

  #showMore() {
    this.#limit += ROWS;
    this.#build();
  }

  /** @param {Change} change */
  #apply(change) {
    switch (change.kind) {
      case "open":
        this.#begin(change.path, change.value === "[");
        return;
      case "append":
        if (this.#string === null) {
          this.#string = new StringValue(this.#row(change.path), this.#nameOf(change.path), this.#isLive);
        }
        this.#string.append(change.value);
        return;
      case "set":
        this.#row(change.path).append(element("span", { class: `scalar ${kindOf(change.value)}` }, change.value));
        return;
      case "close":
        if (this.#string !== null) {
          this.#string.finish();
          this.#string = null;
        } else {
          this.#end();
        }
    }
  }

  /**
   * @param {Path} path
   * @param {boolean} isArray
   */
  #begin(path, isArray) {
    const list = element("ul", { class: isArray ? "items-of-array" : "members" });
    const rows = new Map();
    if (path.length === 0) {
      this.root.append(list);
      this.#open.push({ list, size: 0, count: null, isArray, rows });
      return;
    }
    const size = document.createTextNode(isArray ? "[ ]" : "{ }");
    const summary = element("summary", {}, keyOf(path), element("span", { class: "size" }, size));
    const row = this.#row(path, false);
    row.classList.add("is-branch");
    row.append(element("details", { open: true }, summary, list));
    this.#open.push({ list, size: 0, count: size, isArray, rows });
  }

  #end() {
    const branch = this.#open.pop();
    if (branch !== undefined && branch.size === 0 && branch.count === null) {
      branch.list.append(element("li", { class: "row dim" }, branch.isArray ? "empty array" : "no arguments"));
    }
  }

  /**
   * A new row for the value at the path. If a key occurs twice, its second value replaces the first, as in the document.
   *
   * @param {Path} path
   * @param {boolean} [withKey]
   * @returns {HTMLElement}
   */
  #row(path, withKey = true) {
    this.#rows += 1;
    const branch = this.#open.at(-1);
    if (branch === undefined) {
      const row = element("div", { class: "row" });
      this.root.append(row);
      return row;
    }
    const key = String(path[path.length - 1]);
    const row = element("li", { class: "row" }, withKey ? keyOf(path) : null);
    const before = branch.isArray ? undefined : branch.rows.get(key);
    if (before === undefined) branch.size += 1;
    else before.remove();
    if (!branch.isArray) branch.rows.set(key, row);
    branch.list.append(row);
    this.#grown.add(branch);
    return row;
  }

  /** @param {Path} path */
  #nameOf(path) {
    return path.length === 0 ? this.#label : path.join(" › ");
  }
}

/** A string: in its row while it is short, in a box of its own once it is not. */
class StringValue {
  /** @type {GrowingText | null} */
  #long = null;
  #short = element("bdi", { class: "string is-live" });
  #row;
  #name;
  #isLive;

  /**
   * @param {HTMLElement} row
   * @param {string} name
   * @param {boolean} isLive
   */
  constructor(row, name, isLive) {
    this.#row = row;
    this.#name = name;
    this.#isLive = isLive;
    row.append(this.#short);
  }

  /** @param {string} text */
  append(text) {
    if (this.#long !== null) {
      this.#long.append(text);
      return;
    }
    const before = this.#short.textContent ?? "";
    if (before.length + text.length <= INLINE && !text.includes("\n")) {
      this.#short.append(text);
      return;
    }
    this.#long = new GrowingText(this.#name, { isFollowing: this.#isLive });
    this.#long.element.classList.add("is-live");
    this.#short.replaceWith(this.#long.element);
    this.#row.classList.add("is-block");
    this.#long.append(before + text);
  }

  finish() {
    this.#short.classList.remove("is-live");
    this.#long?.element.classList.remove("is-live");
  }
}

/** @param {Path} path */
function keyOf(path) {
  const key = path[path.length - 1];
  if (typeof key === "number") return element("span", { class: "index" }, String(key));
  return element("bdi", { class: "key" }, key === "" ? '""' : key);
}

/** @param {string} text a number or literal */
function kindOf(text) {
  if (text === "true" || text === "false") return "boolean";
  return text === "null" ? "null" : "number";
}

/**
 * @param {unknown} value
 * @param {Path} path
 * @param {Change[]} changes
 */
function walk(value, path, changes) {
  if (typeof value === "string") {
    changes.push({ kind: "append", path, value }, { kind: "close", path, value: "" });
  } else if (value !== null && typeof value === "object") {
    changes.push({ kind: "open", path, value: Array.isArray(value) ? "[" : "{" });
    if (Array.isArray(value)) value.forEach((item, index) => walk(item, [...path, index], changes));
    else for (const [key, member] of Object.entries(value)) walk(member, [...path, key], changes);
    changes.push({ kind: "close", path, value: "" });
  } else {
    changes.push({ kind: "set", path, value: String(value) });
  }
}
