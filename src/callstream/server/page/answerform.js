/**
 * The form of a call that awaits an answer: yes or no with a comment, or any JSON.
 */

import { button, element, freshId } from "./dom.js";

export class AnswerForm {
  #comment;
  #json;
  #error = element("p", { class: "error", role: "alert", hidden: true });
  /** @type {HTMLButtonElement[]} */
  #buttons;
  #send;

  /**
   * @param {import("./call.js").Call} call
   * @param {(content: string) => Promise<void>} send takes JSON text; what it throws is shown
   */
  constructor(call, send) {
    this.#send = send;
    const title = freshId("answer");
    const commentId = freshId("comment");
    const jsonId = freshId("json");
    this.#comment = element("textarea", { id: commentId, rows: 1, dir: "auto" });
    this.#json = element("textarea", { id: jsonId, rows: 3, spellcheck: "false", class: "code" });
    this.#json.value = '{"approved": true}';
    const approve = button("Approve", () => void this.#decide(true), { class: "button primary" });
    const reject = button("Reject", () => void this.#decide(false), { class: "button danger" });
    const free = button("Send JSON", () => void this.#sendJson());
    this.#buttons = [approve, reject, free];
    this.element = element(
      "form",
      { class: "answer", "aria-labelledby": title },
      element("h4", { id: title }, `${call.name} waits for your answer`),
      element("label", { for: commentId }, "Comment (optional)"),
      this.#comment,
      element("div", { class: "buttons" }, approve, reject),
      element(
        "details",
        {},
        element("summary", {}, "Answer with JSON"),
        element("label", { for: jsonId }, "Answer"),
        this.#json,
        element("div", { class: "buttons" }, free),
      ),
      this.#error,
    );
    this.element.addEventListener("submit", (event) => event.preventDefault());
  }

  /** @param {boolean} approved */
  async #decide(approved) {
    const comment = this.#comment.value.trim();
    await this.#answer(JSON.stringify(comment === "" ? { approved } : { approved, comment }));
  }

  async #sendJson() {
    try {
      JSON.parse(this.#json.value);
    } catch (error) {
      this.#complain(`This is not JSON: ${error instanceof Error ? error.message : error}`);
      this.#json.focus();
      return;
    }
    await this.#answer(this.#json.value);
  }

  /** @param {string} content */
  async #answer(content) {
    this.#error.hidden = true;
    for (const each of this.#buttons) each.disabled = true;
    try {
      await this.#send(content);
    } catch (error) {
      this.#complain(error instanceof Error ? error.message : String(error));
      for (const each of this.#buttons) each.disabled = false;
    }
  }

  /** @param {string} message */
  #complain(message) {
    this.#error.textContent = message;
    this.#error.hidden = false;
  }
}
