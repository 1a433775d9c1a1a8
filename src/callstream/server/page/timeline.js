/**
 * A thread's runs, one below the other. It stays scrolled to the end while items arrive, unless the reader scrolls away.
 *
 * @typedef {import("./thread.js").Run} Run
 * @typedef {import("./thread.js").Thread} Thread
 *
 * @typedef {object} Context what can be done from inside the timeline
 * @property {(run: Run) => void} stop
 * @property {(call: import("./call.js").Call, content: string) => Promise<void>} answer
 * @property {() => void} showEarlier
 */

import { button, element } from "./dom.js";
import { EndOfScroll } from "./endofscroll.js";
import { counted } from "./format.js";
import { RunView } from "./runview.js";
import { Run as RunModel } from "./thread.js";

/** How near to the end counts as at the end. */
const NEAR = 60;

export class Timeline {
  /** @type {Thread | null} */
  #thread = null;
  #generation = -1;
  /** @type {Map<string, RunView>} */
  #views = new Map();
  #isPinned = true;
  #heading = element("h1", { class: "hidden" }, "Thread");
  #content = element("div", { class: "timeline" });
  #earlier;
  #scroller;
  #end;
  #latest;
  #context;

  /**
   * @param {HTMLElement} scroller
   * @param {HTMLButtonElement} latest the button that leads back to the end
   * @param {Context} context
   */
  constructor(scroller, latest, context) {
    this.#scroller = scroller;
    this.#end = new EndOfScroll(scroller, NEAR);
    this.#latest = latest;
    this.#context = context;
    this.#earlier = button("", () => context.showEarlier(), { class: "button earlier", hidden: true });
    scroller.addEventListener("scroll", () => this.#scrolled());
    latest.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.#keep()).observe(this.#content);
    this.#content.addEventListener("click", (event) => this.#clicked(event));
  }

  /**
   * Shows another thread, or only a placeholder.
   *
   * @param {Thread | null} thread
   * @param {Node} [placeholder]
   */
  open(thread, placeholder) {
    this.#thread = thread;
    this.#generation = -1;
    this.#isPinned = true;
    this.#end.hold();
    this.#content.replaceChildren();
    const shown = placeholder === undefined ? [this.#heading, this.#earlier, this.#content] : [placeholder];
    this.#scroller.replaceChildren(...shown);
    this.#latest.hidden = true;
    this.paint(0);
  }

  /** @param {number} notShown how many earlier runs there are */
  paint(notShown) {
    const thread = this.#thread;
    if (thread === null) return;
    this.#earlier.hidden = notShown === 0;
    this.#earlier.textContent = `Show ${counted(notShown, "earlier run")}`;
    if (thread.generation !== this.#generation) {
      this.#generation = thread.generation;
      this.#views.clear();
      this.#content.replaceChildren();
    }
    const changed = thread.changed;
    thread.changed = new Set();
    let number = notShown;
    for (const run of thread.runs.values()) {
      number += 1;
      const view = this.#views.get(run.runId);
      if (view === undefined) {
        const made = new RunView(run, number, this.#context);
        this.#views.set(run.runId, made);
        this.#content.append(made.element);
      } else if (changed.has(run)) {
        view.update();
      }
    }
    for (const item of changed) {
      if (item instanceof RunModel) continue;
      for (const view of this.#views.values()) view.updateItem(item);
    }
    this.#showLatest();
  }

  /** @param {string} runId */
  toRun(runId) {
    const view = this.#views.get(runId);
    if (view === undefined) return;
    this.#unpin();
    view.element.scrollIntoView({ block: "start" });
  }

  toEnd() {
    this.#isPinned = true;
    this.#end.hold();
    this.#keep();
    this.#showLatest();
  }

  /** Shows the button to the latest item while new ones arrive and the reader has scrolled away. */
  #showLatest() {
    this.#latest.hidden = this.#isPinned || this.#thread === null || this.#thread.activeRun === null;
  }

  /**
   * Goes to the next or the previous call.
   *
   * @param {1 | -1} step
   */
  stepCall(step) {
    const cards = [...this.#content.querySelectorAll("article.card")];
    if (cards.length === 0) return;
    const current = cards.findIndex((card) => card.contains(document.activeElement));
    const start = step === 1 ? -1 : cards.length;
    const index = Math.min(cards.length - 1, Math.max(0, (current < 0 ? start : current) + step));
    this.#toCard(cards[index]);
  }

  /** @param {Element} card */
  #toCard(card) {
    if (!(card instanceof HTMLElement)) return;
    this.#unpin();
    card.focus({ preventScroll: true });
    card.scrollIntoView({ block: "nearest" });
  }

  /** @param {Event} event */
  #clicked(event) {
    const target = event.target instanceof Element ? event.target.closest("[data-to-call]") : null;
    const callId = target?.getAttribute("data-to-call");
    if (callId === null || callId === undefined) return;
    const card = this.#content.querySelector(`article[data-call="${CSS.escape(callId)}"]`);
    if (card !== null) this.#toCard(card);
  }

  #scrolled() {
    this.#isPinned = this.#end.isHeld();
    this.#showLatest();
  }

  #unpin() {
    this.#isPinned = false;
    this.#end.release();
  }

  #keep() {
    if (this.#isPinned) this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }
}
