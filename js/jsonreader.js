/**
 * JSON text in, changes out, while the text is still being written: the browser's twin of Python's `JsonStream`.
 *
 * - Chunk boundaries mean nothing: any split of a text gives the same changes, once adjacent appends are joined.
 * - What was shown is never taken back: half an escape, half a surrogate pair, half a number or half a literal is held
 *   back until it is whole.
 * - Every character is looked at once, but for what is held back: 11 characters at most.
 * - Numbers stay text, as they were written, so that big ones stay exact.
 *
 * @typedef {"open" | "append" | "set" | "close"} ChangeKind
 * @typedef {readonly (string | number)[]} Path all changes of one value share one array
 * @typedef {object} Change
 * @property {ChangeKind} kind
 * @property {Path} path
 * @property {string} value open: `{` or `[`; append: text; set: the number or literal as written; close: empty
 *
 * @typedef {"value" | "first item" | "after item" | "first key" | "key" | "colon" | "after member" | "in key" | "in string"
 *   | "in number" | "end"} State
 * @typedef {{ path: Path, isArray: boolean, size: number, key: string, names: Set<string> | null, isDocument: boolean }} Place
 */

/** @type {Record<State, string>} */
const EXPECTED = {
  value: "a value",
  "first item": "a value or ]",
  "after item": ", or ]",
  "first key": "a key in double quotes or }",
  key: "a key in double quotes",
  colon: ":",
  "after member": ", or }",
  "in key": "the rest of a key",
  "in string": "the rest of a string",
  "in number": "the rest of an array or object",
  end: "nothing but white space",
};
const LITERALS = { t: "true", f: "false", n: "null" };
/** @type {Record<string, string>} */
const ESCAPES = { '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };
const NUMBER = /^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[Ee][-+]?[0-9]+)?$/;
const NUMBER_END = /[^-+.0-9Ee]/g;
const SPECIAL = /["\\\u0000-\u001f]/g;
const HEX = /^[0-9A-Fa-f]*$/;
const SPACE = " \t\n\r";

export class JsonReader {
  /** @type {State} */
  #state = "value";
  /** @type {Place} the innermost place that is open */
  #top = { path: [], isArray: false, size: 0, key: "", names: null, isDocument: true };
  /** @type {Place[]} the places around it */
  #outer = [];
  /** @type {Path} of the string or number being read */
  #path = [];
  /** of the key or number being read */
  #text = "";
  /** half an escape, a surrogate pair or a literal */
  #held = "";
  /** where in the document the text of this feed begins, held text included */
  #start = 0;
  #length = 0;
  /** @type {Change[]} of the feed that is going on */
  #changes = [];
  #maxDepth;
  #uniqueNames;

  /**
   * `uniqueNames`, as the arguments of calls are read: a name that comes twice in an object is a mistake. Else its path
   * begins anew and the last value wins, as in `JSON.parse`.
   *
   * @param {{ maxDepth?: number, uniqueNames?: boolean }} [settings]
   */
  constructor({ maxDepth = 256, uniqueNames = false } = {}) {
    this.#maxDepth = maxDepth;
    this.#uniqueNames = uniqueNames;
    /** @type {{ message: string, position: number } | null} the first mistake; nothing is read after it */
    this.error = null;
  }

  /** Whether the document's value is finished. */
  get complete() {
    return this.#state === "end" && this.error === null;
  }

  /**
   * Reads on and returns what changed, up to the first mistake.
   *
   * @param {string} text
   * @returns {Change[]}
   */
  feed(text) {
    if (this.error !== null || text === "") return [];
    this.#start = this.#length - this.#held.length;
    this.#length += text.length;
    if (this.#held !== "") {
      text = this.#held + text;
      this.#held = "";
    }
    this.#changes = [];
    let index = 0;
    while (index < text.length && this.error === null) index = this.#step(text, index);
    return this.#changes;
  }

  /** The text is over: a number standing alone is finished now, and anything else that is not is a mistake. */
  end() {
    this.#changes = [];
    if (this.#state === "in number" && this.#outer.length === 0) this.#endNumber(this.#length);
    if (this.error === null && this.#state !== "end") {
      this.#fail(`expected ${EXPECTED[this.#state]}, got the end of the text`, this.#length);
    }
    return this.#changes;
  }

  /**
   * @param {string} text
   * @param {number} index
   * @returns {number} the index after what was read
   */
  #step(text, index) {
    switch (this.#state) {
      case "in string":
        return this.#readString(text, index, false);
      case "in key":
        return this.#readKey(text, index);
      case "in number":
        return this.#readNumber(text, index);
    }
    const character = text[index];
    if (SPACE.includes(character)) return index + 1;
    switch (this.#state) {
      case "first item":
        if (character === "]") return this.#endContainer(index);
        return this.#begin(text, index, character);
      case "value":
        return this.#begin(text, index, character);
      case "after item":
        if (character === "]") return this.#endContainer(index);
        if (character === ",") return this.#to("value", index);
        break;
      case "first key":
        if (character === "}") return this.#endContainer(index);
        if (character === '"') return this.#beginKey(text, index);
        break;
      case "key":
        if (character === '"') return this.#beginKey(text, index);
        break;
      case "colon":
        if (character === ":") return this.#to("value", index);
        break;
      case "after member":
        if (character === "}") return this.#endContainer(index);
        if (character === ",") return this.#to("key", index);
        break;
    }
    return this.#refuse(text, index);
  }

  /**
   * @param {State} state
   * @param {number} index
   */
  #to(state, index) {
    this.#state = state;
    return index + 1;
  }

  /**
   * @param {string} text
   * @param {number} index
   * @param {string} character
   */
  #begin(text, index, character) {
    if (character === '"') {
      this.#path = this.#nextPath();
      this.#state = "in string";
      return this.#readString(text, index + 1, true);
    }
    if (character === "{" || character === "[") return this.#beginContainer(index, character);
    if (character === "t" || character === "f" || character === "n") return this.#readLiteral(text, index, character);
    if (character === "-" || (character >= "0" && character <= "9")) {
      this.#path = this.#nextPath();
      this.#text = "";
      this.#state = "in number";
      return this.#readNumber(text, index);
    }
    return this.#refuse(text, index);
  }

  /** @returns {Path} */
  #nextPath() {
    const { path, isArray, isDocument, size, key } = this.#top;
    return isDocument ? path : [...path, isArray ? size : key];
  }

  /**
   * @param {number} index
   * @param {"{" | "["} character
   */
  #beginContainer(index, character) {
    if (this.#outer.length >= this.#maxDepth) {
      return this.#fail(`expected containers at most ${this.#maxDepth} deep, got a deeper one`, this.#start + index);
    }
    const path = this.#nextPath();
    const isArray = character === "[";
    this.#outer.push(this.#top);
    const names = isArray || !this.#uniqueNames ? null : new Set();
    this.#top = { path, isArray, size: 0, key: "", names, isDocument: false };
    this.#state = isArray ? "first item" : "first key";
    this.#changes.push({ kind: "open", path, value: character });
    return index + 1;
  }

  /** @param {number} index */
  #endContainer(index) {
    const { path } = this.#top;
    this.#top = /** @type {Place} */ (this.#outer.pop());
    this.#finish(path, "close", "");
    return index + 1;
  }

  /**
   * @param {string} text
   * @param {number} index
   */
  #beginKey(text, index) {
    this.#text = "";
    this.#state = "in key";
    return this.#readKey(text, index + 1);
  }

  /**
   * @param {string} text
   * @param {number} index
   */
  #readKey(text, index) {
    const [piece, end] = this.#stringText(text, index);
    this.#text += piece;
    if (end < text.length && this.error === null) {
      const { names } = this.#top;
      if (names?.has(this.#text)) {
        return this.#fail(`the name ${JSON.stringify(this.#text)} comes twice in an object`, this.#start + end);
      }
      names?.add(this.#text);
      this.#top.key = this.#text;
      this.#state = "colon";
    }
    return end + 1;
  }

  /**
   * @param {string} text
   * @param {number} index
   * @param {boolean} isFirst
   */
  #readString(text, index, isFirst) {
    const [piece, end] = this.#stringText(text, index);
    if (piece !== "" || isFirst) this.#changes.push({ kind: "append", path: this.#path, value: piece });
    if (end < text.length && this.error === null) this.#finish(this.#path, "close", "");
    return end + 1;
  }

  /**
   * The decoded text of a string from the index on, and where it ends: at its quote, or at the end of the text. What
   * cannot be decoded yet is held.
   *
   * @param {string} text
   * @param {number} index
   * @returns {[string, number]}
   */
  #stringText(text, index) {
    let decoded = "";
    for (;;) {
      SPECIAL.lastIndex = index;
      const special = SPECIAL.exec(text);
      if (special === null) {
        // Half a pair that is not escaped: deltas may be cut between its halves.
        const last = text.charCodeAt(text.length - 1);
        const end = text.length - (text.length > index && last >= 0xd800 && last <= 0xdbff ? 1 : 0);
        this.#held = text.slice(end);
        return [decoded + text.slice(index, end), text.length];
      }
      const at = special.index;
      decoded += text.slice(index, at);
      if (special[0] === '"') return [decoded, at];
      if (special[0] !== "\\") {
        this.#fail("expected control characters escaped in a string", this.#start + at);
        return [decoded, text.length];
      }
      const width = this.#escapeAt(text, at);
      if (width === 0) {
        if (this.error === null) this.#held = text.slice(at);
        return [decoded, text.length];
      }
      if (width === 2) {
        decoded += ESCAPES[text[at + 1]];
      } else {
        decoded += String.fromCharCode(parseInt(text.slice(at + 2, at + 6), 16));
        if (width === 12) decoded += String.fromCharCode(parseInt(text.slice(at + 8, at + 12), 16));
      }
      index = at + width;
    }
  }

  /**
   * How many characters the escape at the index has: 2, 6, or 12 for a surrogate pair; 0 if it is not all there yet.
   *
   * @param {string} text
   * @param {number} at
   */
  #escapeAt(text, at) {
    if (at + 1 >= text.length) return 0;
    const letter = text[at + 1];
    if (letter !== "u") {
      if (!(letter in ESCAPES)) this.#fail(`expected an escape of JSON in a string, got \\${letter}`, this.#start + at);
      return this.error === null ? 2 : 0;
    }
    const digits = text.slice(at + 2, at + 6);
    if (!HEX.test(digits)) {
      this.#fail(`expected an escape of JSON in a string, got \\u${digits}`, this.#start + at);
      return 0;
    }
    if (digits.length < 4) return 0;
    if (!isHighSurrogate(digits)) return 6;
    // Half a pair: it stays alone only once it is known that the other half does not follow.
    const next = text.slice(at + 6, at + 12);
    if (next === "" || next === "\\") return 0;
    if (!next.startsWith("\\u") || !HEX.test(next.slice(2))) return 6;
    if (next.length < 6) return 0;
    return isLowSurrogate(next.slice(2)) ? 12 : 6;
  }

  /**
   * @param {string} text
   * @param {number} index
   */
  #readNumber(text, index) {
    NUMBER_END.lastIndex = index;
    const after = NUMBER_END.exec(text);
    const end = after === null ? text.length : after.index;
    this.#text += text.slice(index, end);
    if (after !== null) this.#endNumber(this.#start + end);
    return end;
  }

  /** @param {number} position */
  #endNumber(position) {
    const text = this.#text;
    if (NUMBER.test(text)) this.#finish(this.#path, "set", text);
    else this.#fail(`expected a number of JSON, got ${text.slice(0, 40)}`, position - text.length);
  }

  /**
   * @param {string} text
   * @param {number} index
   * @param {"t" | "f" | "n"} letter
   */
  #readLiteral(text, index, letter) {
    const word = LITERALS[letter];
    const came = text.slice(index, index + word.length);
    if (came === word) this.#finish(this.#nextPath(), "set", word);
    else if (word.startsWith(came)) this.#held = came;
    else {
      let right = 0;
      while (came[right] === word[right]) right += 1;
      this.#fail(`expected ${word}, got ${came.slice(0, right + 1)}`, this.#start + index + right);
    }
    return index + word.length;
  }

  /**
   * @param {Path} path
   * @param {"set" | "close"} kind
   * @param {string} value
   */
  #finish(path, kind, value) {
    const { isDocument, isArray } = this.#top;
    this.#top.size += 1;
    this.#state = isDocument ? "end" : isArray ? "after item" : "after member";
    this.#changes.push({ kind, path, value });
  }

  /**
   * @param {string} text
   * @param {number} index
   */
  #refuse(text, index) {
    return this.#fail(`expected ${EXPECTED[this.#state]}, got ${JSON.stringify(text[index])}`, this.#start + index);
  }

  /**
   * @param {string} message
   * @param {number} position
   * @returns {number}
   */
  #fail(message, position) {
    this.error = { message, position };
    return Number.MAX_SAFE_INTEGER;
  }
}

/** @param {string} digits */
function isHighSurrogate(digits) {
  return /^[Dd][89ABab]/.test(digits);
}

/** @param {string} digits */
function isLowSurrogate(digits) {
  return /^[Dd][C-Fc-f]/.test(digits);
}
