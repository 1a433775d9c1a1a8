/**
 * How far a running tool is. `{done, total, message}` is a bar and a sentence; anything else is shown as it is.
 */

import { element, setText } from "./dom.js";
import { count } from "./format.js";
import { JsonTree } from "./jsontree.js";

export class ProgressBar {
  #bar = element("progress", { "aria-label": "Progress" });
  #text = element("span", { class: "progress-text" });
  #other = element("div", { class: "progress-other" });

  constructor() {
    this.element = element("div", { class: "progress", hidden: true });
  }

  /**
   * @param {unknown} data
   * @param {boolean} isOver whether there is no more to come
   */
  show(data, isOver) {
    this.element.hidden = false;
    const { done, total, message } = partsOf(data);
    if (done === null && message === null) {
      this.#showOther(data);
      return;
    }
    if (this.#bar.parentElement === null) this.element.replaceChildren(this.#bar, this.#text);
    if (total !== null && total > 0 && done !== null) {
      this.#bar.max = total;
      this.#bar.value = Math.min(done, total);
    } else if (isOver) {
      this.#bar.max = 1;
      this.#bar.value = 1;
    } else {
      this.#bar.removeAttribute("value");
    }
    const figures = done === null ? "" : `${count(done)}${total === null ? "" : ` of ${count(total)}`}`;
    setText(this.#text, [figures, message ?? ""].filter((part) => part !== "").join(" · "));
  }

  /** @param {unknown} data */
  #showOther(data) {
    const tree = new JsonTree("progress");
    tree.show(data);
    this.#other.replaceChildren(tree.element);
    if (this.#other.parentElement === null) this.element.replaceChildren(this.#other);
  }
}

/**
 * @param {unknown} data
 * @returns {{ done: number | null, total: number | null, message: string | null }}
 */
function partsOf(data) {
  /** @type {{ [name: string]: unknown }} */
  const given = data !== null && typeof data === "object" && !Array.isArray(data) ? { ...data } : {};
  return {
    done: typeof given.done === "number" ? given.done : null,
    total: typeof given.total === "number" ? given.total : null,
    message: typeof given.message === "string" ? given.message : null,
  };
}
