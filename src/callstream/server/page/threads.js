/**
 * The threads, the newest first, and the runs of the open one. The up and down keys move between them.
 *
 * @typedef {import("./api.js").ThreadRow} ThreadRow
 * @typedef {import("./api.js").RunRow} RunRow
 * @typedef {{ threadId: string | null, runId: string | null }} Place
 */

import { button, element, setText } from "./dom.js";
import { ago, clock, counted } from "./format.js";
import { hashOf } from "./route.js";

export class Threads {
  /** @type {ThreadRow[]} */
  #threads = [];
  /** @type {RunRow[]} of the open thread, the newest first */
  #runs = [];
  /** @type {Place} */
  #place = { threadId: null, runId: null };
  /** what is drawn, to detect changes */
  #drawn = "";
  #list = element("ul", { class: "thread-list" });
  #search = element("input", { type: "search", placeholder: "Search threads", "aria-label": "Search threads" });
  #more;

  /**
   * @param {HTMLElement} nav
   * @param {{ create: () => void, more: () => void }} actions
   */
  constructor(nav, { create, more }) {
    this.#more = button("Show more threads", more, { class: "link-button", hidden: true });
    const head = element(
      "div",
      { class: "threads-head" },
      element("h2", {}, "Threads"),
      button("New thread", create, { class: "button small", id: "new-thread" }),
    );
    nav.append(head, element("div", { class: "threads-search" }, this.#search), this.#list, this.#more);
    this.#search.addEventListener("input", () => this.#draw());
    this.#list.addEventListener("keydown", (event) => this.#pressed(event));
  }

  /**
   * @param {ThreadRow[]} threads
   * @param {boolean} hasMore
   */
  setThreads(threads, hasMore) {
    this.#threads = threads;
    this.#more.hidden = !hasMore;
    this.#draw();
  }

  /**
   * @param {Place} place
   * @param {RunRow[]} runs
   */
  setOpen(place, runs) {
    this.#place = place;
    this.#runs = runs;
    this.#draw();
  }

  focus() {
    const link = this.#list.querySelector('a[aria-current="page"]') ?? this.#list.querySelector("a");
    if (link instanceof HTMLElement) link.focus();
  }

  /** The threads whose title or id contains all words of the search. */
  #wanted() {
    const words = this.#search.value.toLowerCase().split(/\s+/);
    return this.#threads.filter(({ title, thread_id }) => {
      const text = `${title ?? ""}\n${thread_id}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }

  /** Redraws the list if it has changed, and keeps the focus where it was. */
  #draw() {
    const now = Date.now() / 1000;
    const drawn = JSON.stringify([
      this.#wanted().map((row) => [row.thread_id, row.title, row.runs, row.active, row.outcome, row.awaiting, ago(row.updated_at, now)]),
      this.#runs.map((row) => [row.run_id, row.outcome]),
      this.#place,
      this.#threads.length === 0,
    ]);
    if (drawn === this.#drawn) return;
    this.#drawn = drawn;
    const focused = document.activeElement;
    const address = focused instanceof HTMLAnchorElement && this.#list.contains(focused) ? focused.hash : null;
    const rows = this.#wanted().map((row) => this.#row(row, now));
    const nothing = this.#threads.length === 0 ? "No threads yet." : "No thread that is loaded has these words.";
    if (rows.length === 0) rows.push(element("li", { class: "dim empty" }, nothing));
    this.#list.replaceChildren(...rows);
    if (address === null) return;
    const same = [...this.#list.querySelectorAll("a")].find((link) => link.hash === address);
    same?.focus({ preventScroll: true });
  }

  /**
   * @param {ThreadRow} row
   * @param {number} now
   */
  #row(row, now) {
    const isOpen = row.thread_id === this.#place.threadId;
    const title = element("bdi", { class: "thread-title" }, row.title?.slice(0, 200) || row.thread_id);
    const meta = element("span", { class: "thread-meta" }, `${counted(row.runs, "run")} · ${ago(row.updated_at, now)}`);
    const waits = row.awaiting > 0 ? element("span", { class: "waiting-mark" }, "waits for an answer") : null;
    const failed = row.outcome === "failed" ? element("span", { class: "failed-mark" }, "failed") : null;
    const active = row.active ? element("span", { class: "active-mark" }, "active") : null;
    const link = element(
      "a",
      { href: hashOf(row.thread_id, null), class: "thread-link", "aria-current": isOpen ? "page" : null },
      title,
      meta,
      failed,
      active,
      waits,
    );
    return element("li", {}, link, isOpen && this.#runs.length > 0 ? this.#runList() : null);
  }

  #runList() {
    const list = element("ul", { class: "run-list", "aria-label": "Runs" });
    this.#runs.forEach((run, index) => {
      const outcome = run.outcome ?? "active";
      const link = element(
        "a",
        {
          href: hashOf(run.thread_id, run.run_id),
          class: "run-link",
          "data-outcome": outcome,
          "aria-current": run.run_id === this.#place.runId ? "true" : null,
        },
        element("span", {}, `Run ${this.#runs.length - index}`),
        element("span", { class: "run-meta" }, `${outcome} · ${clock(run.started_at)}`),
      );
      list.append(element("li", {}, link));
    });
    return list;
  }

  /** @param {KeyboardEvent} event */
  #pressed(event) {
    const links = [...this.#list.querySelectorAll("a")];
    const index = links.findIndex((link) => link === document.activeElement);
    const last = links.length - 1;
    const targets = { ArrowDown: Math.min(last, index + 1), ArrowUp: Math.max(0, index - 1), Home: 0, End: last };
    if (index < 0 || !(event.key in targets)) return;
    event.preventDefault();
    links[targets[/** @type {keyof typeof targets} */ (event.key)]].focus();
  }
}

/**
 * The agent at the top: its name and its label.
 *
 * @param {HTMLElement} place
 * @param {import("./api.js").Agent} agent
 */
export function showAgent(place, agent) {
  setText(place, agent.name);
  place.title = `Callstream ${agent.version}`;
  if (agent.label !== null) place.append(element("span", { class: "chip" }, agent.label));
}
