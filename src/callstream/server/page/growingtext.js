/**
 * Text that grows, of any length and any script.
 *
 * It is split into blocks of a few thousand characters, so that the cost of adding text depends only on what is added: only
 * the last block is laid out again, and blocks out of sight are not laid out at all. A block ends at the end of a line, or
 * within a line that is longer than 16,000 characters. Only the first 200,000 characters of a text are shown, and the rest
 * on demand.
 */

import { button, element, setText } from "./dom.js";
import { EndOfScroll } from "./endofscroll.js";
import { count } from "./format.js";

const BLOCK = 4_000;
const LONGEST_BLOCK = 16_000;
const SHOWN = 200_000;
const PORTION = 400_000;
/** Fewer characters or lines need no button to fold them away. */
const FOLDABLE_CHARACTERS = 1_200;
const FOLDABLE_LINES = 16;

export class GrowingText {
  /** @type {Text | null} the text of the last block */
  #last = null;
  #shown = 0;
  #limit = SHOWN;
  #lines = 1;
  /** the text past the limit */
  #rest = "";
  /** whether the box is scrolled to its end, where it stays while text comes */
  #isAtEnd = true;
  #isFollowing;
  #count = element("span", { class: "growing-count" });
  #fold = button("Unfold", () => this.#toggle(), { class: "link-button", hidden: true });
  #more = button("Show all", () => this.showAll(), { class: "link-button", hidden: true });

  /**
   * @param {string} label what the text is, for those who cannot see where it stands
   * @param {{ isFollowing?: boolean, isBoxed?: boolean }} [options] whether it stays at its end while it grows; whether it
   *   scrolls in a box of its own, which the keyboard has to reach then
   */
  constructor(label, { isFollowing = false, isBoxed = true } = {}) {
    this.#isFollowing = isFollowing;
    const reachable = isBoxed ? { tabindex: "0", role: "group", "aria-label": label } : {};
    this.box = element("div", { class: "growing-box", ...reachable });
    this.foot = element("div", { class: "growing-foot" }, this.#count, this.#fold, this.#more);
    this.element = element("div", { class: "growing" }, this.box, this.foot);
    this.#fold.setAttribute("aria-label", `Unfold ${label}`);
    this.#more.setAttribute("aria-label", `Show all of ${label}`);
    this.label = label;
    const end = new EndOfScroll(this.box, 24);
    this.box.addEventListener("scroll", () => {
      this.#isAtEnd = end.isHeld();
    });
  }

  get length() {
    return this.#shown + this.#rest.length;
  }

  /** @param {string} text */
  append(text) {
    if (text === "") return;
    const room = this.#limit - this.#shown;
    if (room > 0) {
      const end = text.length <= room ? text.length : wholeCharacter(text, room);
      this.#write(text.slice(0, end));
      this.#rest += text.slice(end);
    } else {
      this.#rest += text;
    }
    this.#tell();
    if (this.#isFollowing && this.#isAtEnd) this.box.scrollTop = this.box.scrollHeight;
  }

  /** Shows the text past the limit, a portion per frame, so that the page stays usable meanwhile. */
  showAll() {
    this.#limit = Number.POSITIVE_INFINITY;
    this.#isAtEnd = false;
    const step = () => {
      const portion = this.#rest.slice(0, wholeCharacter(this.#rest, PORTION));
      this.#rest = this.#rest.slice(portion.length);
      this.#write(portion);
      this.#tell();
      if (this.#rest !== "") requestAnimationFrame(step);
    };
    step();
  }

  /** @param {string} text */
  #write(text) {
    let start = 0;
    while (start < text.length) {
      const length = this.#last?.length ?? 0;
      const end = start + blockEnd(text, start, length);
      const piece = text.slice(start, end);
      if (this.#last === null) {
        this.#last = document.createTextNode(piece);
        this.box.append(element("div", { class: "block", dir: "auto" }, this.#last));
      } else {
        this.#last.appendData(piece);
      }
      if (end < text.length || this.#last.length >= LONGEST_BLOCK) this.#last = null;
      start = end;
    }
    this.#shown += text.length;
    if (this.#lines < FOLDABLE_LINES) this.#lines += text.split("\n").length - 1;
  }

  #tell() {
    const isCut = this.#rest !== "";
    const shown = isCut ? `, the first ${count(this.#shown)} shown` : "";
    setText(this.#count, `${count(this.length)} characters${shown}`);
    this.#more.hidden = !isCut;
    this.#fold.hidden = this.length < FOLDABLE_CHARACTERS && this.#lines < FOLDABLE_LINES;
  }

  #toggle() {
    const isOpen = this.element.classList.toggle("is-unfolded");
    setText(this.#fold, isOpen ? "Fold" : "Unfold");
    this.#fold.setAttribute("aria-label", `${isOpen ? "Fold" : "Unfold"} ${this.label}`);
  }
}

/**
 * How many characters from the start on belong to a block that has that many already.
 *
 * @param {string} text
 * @param {number} start
 * @param {number} length
 */
function blockEnd(text, start, length) {
  const left = text.length - start;
  if (length + left <= BLOCK) return left;
  const line = text.indexOf("\n", start + Math.max(0, BLOCK - length));
  const longest = Math.max(1, LONGEST_BLOCK - length);
  if (line >= 0 && line - start < longest) return line - start + 1;
  return left <= longest ? left : wholeCharacter(text, start + longest) - start;
}

/**
 * The index, or the next one if it would cut a character in two.
 *
 * @param {string} text
 * @param {number} index
 */
function wholeCharacter(text, index) {
  if (index >= text.length) return text.length;
  const code = text.charCodeAt(index);
  return code >= 0xdc00 && code <= 0xdfff ? index + 1 : index;
}
