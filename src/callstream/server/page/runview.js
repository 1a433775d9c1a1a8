/**
 * One run in the timeline: its status, and its items as they arrive.
 *
 * @typedef {import("./thread.js").Item} Item
 * @typedef {{ element: HTMLElement, update: () => void }} ItemView
 */

import { Call } from "./call.js";
import { CallCard } from "./callcard.js";
import { button, element, freshId, setText } from "./dom.js";
import { clock, counted, span } from "./format.js";
import { NoteView } from "./noteview.js";
import { RecordList } from "./recordlist.js";
import { SayingView } from "./sayingview.js";
import { Saying } from "./thread.js";

/** @type {{ [state in import("./feed.js").FeedState]: string }} */
const FEED_NAMES = { connecting: "connecting …", live: "live", lost: "connection lost, trying again …", over: "" };

export class RunView {
  /** @type {Map<Item, ItemView>} */
  #views = new Map();
  /** @type {RecordList | null} */
  #records = null;
  #badge = element("span", { class: "badge" });
  #badgeText = document.createTextNode("");
  #facts = element("span", { class: "run-facts" });
  #feed = element("span", { class: "run-feed" });
  #reason = element("p", { class: "run-reason", dir: "auto", hidden: true });
  #list = element("ol", { class: "items" });
  #raw = element("details", { class: "run-records" }, element("summary", {}, "Records"));
  #stop;
  #run;
  #context;

  /**
   * @param {import("./thread.js").Run} run
   * @param {number} number of the run in its thread
   * @param {import("./timeline.js").Context} context
   */
  constructor(run, number, context) {
    this.#run = run;
    this.#context = context;
    const title = freshId("run");
    this.#stop = button("Stop", () => context.stop(run), { class: "button danger small", hidden: true });
    this.#stop.setAttribute("aria-label", `Stop run ${number}`);
    this.#badge.append(element("span", { class: "hidden" }, "Outcome: "), this.#badgeText);
    const head = element(
      "header",
      { class: "run-head" },
      element("h2", { id: title, tabindex: "-1", title: run.runId }, `Run ${number}`),
      this.#badge,
      this.#facts,
      this.#feed,
      element("span", { class: "spacer" }),
      this.#stop,
    );
    this.element = element(
      "section",
      { class: "run", "aria-labelledby": title, "data-run": run.runId },
      head,
      this.#list,
      this.#reason,
      this.#raw,
    );
    this.#raw.addEventListener("toggle", () => this.#updateRecords());
    this.update();
  }

  /** Shows the run's status and new items. Items that changed are updated one by one. */
  update() {
    const run = this.#run;
    const state = run.outcome ?? "active";
    this.element.dataset.outcome = state;
    setText(this.#badgeText, state);
    const seconds = run.endedAt === null ? null : run.endedAt - run.startedAt;
    const attempt = run.attempt === 1 ? "" : `attempt ${run.attempt}`;
    const facts = [clock(run.startedAt), seconds === null ? "" : span(seconds), counted(run.records.length, "record"), attempt];
    setText(this.#facts, facts.filter((fact) => fact !== "").join(" · "));
    const isActive = run.outcome === null;
    setText(this.#feed, isActive ? FEED_NAMES[run.feedState] : "");
    this.#feed.dataset.state = run.feedState;
    this.#stop.hidden = !isActive;
    this.#reason.hidden = isActive || run.reason === null;
    setText(this.#reason, reasonOf(run) ?? "");
    for (const item of run.items.slice(this.#views.size)) this.#add(item);
    this.#updateRecords();
  }

  /** @param {Item} item */
  updateItem(item) {
    const view = this.#views.get(item);
    view?.update();
    if (item.isVoid && view !== undefined) markVoid(view.element);
  }

  /** @param {Item} item */
  has(item) {
    return this.#views.has(item);
  }

  focus() {
    this.element.querySelector("h2")?.focus({ preventScroll: true });
  }

  /** @param {Item} item */
  #add(item) {
    const view = this.#viewOf(item);
    this.#views.set(item, view);
    const offset = Math.max(0, item.at - this.#run.startedAt);
    const time = element("time", { class: "offset", title: clock(item.at) }, `+${span(offset)}`);
    const row = element("li", { class: `item item-${item.kind}` }, time, view.element);
    row.classList.toggle("is-nested", item.depth > 0);
    row.style.setProperty("--depth", `${item.depth}`);
    this.#list.append(row);
    if (item.isVoid) markVoid(view.element);
  }

  /**
   * @param {Item} item
   * @returns {ItemView}
   */
  #viewOf(item) {
    if (item instanceof Call) return new CallCard(item, this.#context, this.#run);
    return item instanceof Saying ? new SayingView(item) : new NoteView(item);
  }

  #updateRecords() {
    if (!this.#raw.open) return;
    if (this.#records === null) {
      this.#records = new RecordList(() => this.#run.records, this.#run.startedAt);
      this.#raw.append(this.#records.element);
    }
    this.#records.update();
  }
}

/** @param {HTMLElement} shown of an item, in its row */
function markVoid(shown) {
  if (shown.classList.contains("is-void")) return;
  shown.classList.add("is-void");
  shown.prepend(element("span", { class: "chip void-mark" }, "void"));
}

/**
 * Why a run ended. A tool's error is on its card already.
 *
 * @param {import("./thread.js").Run} run
 */
function reasonOf({ reason, items }) {
  const isSaid = (/** @type {string | null} */ error) => error && (reason === error || reason?.endsWith(`: ${error}`));
  const culprit = items.find((item) => item instanceof Call && isSaid(item.error));
  return culprit instanceof Call ? `${culprit.name} failed, and the run with it.` : reason;
}
