/** The chat box. Enter sends, Shift+Enter is a new line; while a run is active, there is a stop button instead of send. */

import { button, element } from "./dom.js";

export class Composer {
  #input = element("textarea", {
    id: "message",
    rows: 1,
    dir: "auto",
    placeholder: "Write a message",
    "aria-label": "Message",
    enterkeyhint: "send",
  });
  #error = element("p", { class: "error", role: "alert", hidden: true });
  #isActive = false;
  #isSending = false;
  #actions;
  #send;
  #stop;

  /**
   * @param {HTMLFormElement} form
   * @param {{ send: (text: string) => Promise<void>, stop: () => void }} actions what `send` throws is shown
   */
  constructor(form, actions) {
    this.#actions = actions;
    this.#send = element("button", { type: "submit", class: "button primary" }, "Send");
    this.#stop = button("Stop", actions.stop, { class: "button danger", hidden: true });
    form.append(this.#error, element("div", { class: "composer-row" }, this.#input, this.#send, this.#stop));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#submit();
    });
    this.#input.addEventListener("input", () => this.#fit());
    this.#input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      void this.#submit();
    });
  }

  /** @param {boolean} isActive whether a run of the thread is active */
  set isActive(isActive) {
    if (this.#isActive === isActive) return;
    const hadFocus = document.activeElement === this.#stop || document.activeElement === this.#send;
    this.#isActive = isActive;
    this.#send.hidden = isActive;
    this.#stop.hidden = !isActive;
    if (hadFocus) this.#input.focus();
  }

  focus() {
    this.#input.focus();
  }

  async #submit() {
    const text = this.#input.value.trim();
    if (text === "" || this.#isSending) return;
    if (this.#isActive) {
      this.#complain("This thread has an active run. Stop it, or wait until it ends.");
      return;
    }
    this.#isSending = true;
    this.#send.disabled = true;
    this.#error.hidden = true;
    try {
      await this.#actions.send(text);
      this.#input.value = "";
      this.#fit();
    } catch (error) {
      this.#complain(error instanceof Error ? error.message : String(error));
    } finally {
      this.#isSending = false;
      this.#send.disabled = false;
    }
  }

  /** @param {string} message */
  #complain(message) {
    this.#error.textContent = message;
    this.#error.hidden = false;
  }

  /** As high as its text, where the browser does not do that by itself; the style sheet sets the bounds. */
  #fit() {
    if (CSS.supports("field-sizing", "content")) return;
    this.#input.style.height = "auto";
    this.#input.style.height = `${this.#input.scrollHeight}px`;
  }
}
