/** Messages: the user's input, the assistant's text, and its reasoning, which can be folded away. */

import { element } from "./dom.js";
import { GrowingText } from "./growingtext.js";

export class SayingView {
  #text;
  #saying;

  /** @param {import("./thread.js").Saying} saying */
  constructor(saying) {
    this.#saying = saying;
    const who = saying.kind === "input" ? saying.role : (saying.author ?? "assistant");
    const isReasoning = saying.kind === "reasoning";
    const name = isReasoning ? `reasoning of ${who}` : `${who} said`;
    this.#text = new GrowingText(name, { isBoxed: false });
    const head = element("span", { class: "who" }, isReasoning ? "reasoning" : who);
    if (isReasoning) {
      this.element = element("details", { class: "saying reasoning" }, element("summary", {}, head), this.#text.element);
      this.element.setAttribute("open", "");
    } else {
      this.element = element("div", { class: `saying ${saying.kind}` }, head, this.#text.element);
    }
    for (const kind of saying.attachments) this.element.append(element("span", { class: "chip" }, kind));
    this.update();
  }

  update() {
    this.#text.append(this.#saying.takeText());
    this.element.classList.toggle("is-live", !this.#saying.isFinished);
  }
}
