/** Lines at the top that say what is wrong, until it is resolved or the user has dismissed them. */

import { button, element } from "./dom.js";

export class Notices {
  /** @type {Map<string, HTMLElement>} */
  #shown = new Map();
  #place;

  /** @param {HTMLElement} place */
  constructor(place) {
    this.#place = place;
  }

  /**
   * @param {string} key there is one notice per key
   * @param {string} text
   * @param {{ label: string, action: () => void }} [remedy]
   */
  show(key, text, remedy) {
    this.hide(key);
    const close = button("Dismiss", () => this.hide(key), { class: "link-button" });
    const help = remedy === undefined ? close : button(remedy.label, remedy.action, { class: "link-button" });
    const notice = element("div", { class: "notice", role: "alert" }, element("p", {}, text), help);
    this.#shown.set(key, notice);
    this.#place.append(notice);
  }

  /** @param {string} key */
  hide(key) {
    this.#shown.get(key)?.remove();
    this.#shown.delete(key);
  }
}
