/**
 * Text that grows in an element, of any length.
 *
 * It stands in blocks of some thousand characters, each ending at a line's end where there is one. So adding text lays the
 * last block out again and nothing else, and `content-visibility: auto` for the blocks leaves out those that are not seen.
 */

const BLOCK = 4_000;
const LONGEST_BLOCK = 16_000;

export class GrowingText {
  #element;
  #shown = "";
  /** @type {Text | null} of the last block, while there is room in it */
  #last = null;

  /** @param {Element} element */
  constructor(element) {
    this.#element = element;
    element.replaceChildren();
  }

  /** @param {string} text all of it; only what is new is written */
  show(text) {
    if (!text.startsWith(this.#shown)) {
      this.#element.replaceChildren();
      this.#shown = "";
      this.#last = null;
    }
    for (let start = this.#shown.length; start < text.length; ) {
      const end = start + this.#room(text, start);
      if (this.#last === null) {
        const block = document.createElement("div");
        this.#last = block.appendChild(document.createTextNode(""));
        this.#element.append(block);
      }
      this.#last.appendData(text.slice(start, end));
      if (end < text.length || this.#last.length >= LONGEST_BLOCK) this.#last = null;
      start = end;
    }
    this.#shown = text;
  }

  /**
   * How much of the text after an index the last block takes.
   *
   * @param {string} text
   * @param {number} start
   */
  #room(text, start) {
    const length = this.#last?.length ?? 0;
    const left = text.length - start;
    if (length + left <= BLOCK) return left;
    const line = text.indexOf("\n", start + Math.max(0, BLOCK - length));
    const most = Math.max(1, LONGEST_BLOCK - length);
    if (line >= 0 && line - start < most) return line - start + 1;
    if (left <= most) return left;
    const isPair = /[\ud800-\udbff]/.test(text[start + most - 1]); // a block must not end within a character
    return isPair ? most + 1 : most;
  }
}
