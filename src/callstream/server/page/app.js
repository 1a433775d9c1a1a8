/**
 * The inspector: what is open, which requests go to the server, and which views show the answers.
 *
 * @typedef {import("./api.js").RunRow} RunRow
 * @typedef {import("./thread.js").Run} Run
 */

import { Api, Away, MOST_RUNS, newId, Refused } from "./api.js";
import { Call } from "./call.js";
import { spoken } from "./callcard.js";
import { Composer } from "./composer.js";
import { byId, element, setText } from "./dom.js";
import { Drawer } from "./drawer.js";
import { Feed } from "./feed.js";
import { Frame } from "./frame.js";
import { Notices } from "./notices.js";
import { hashOf, placeIn } from "./route.js";
import { listen } from "./shortcuts.js";
import { toggleTheme } from "./theme.js";
import { Thread } from "./thread.js";
import { showAgent, Threads } from "./threads.js";
import { Timeline } from "./timeline.js";

/** How often to look for what other clients and processes have begun. */
const POLL = 3_000;
/** How many runs of a thread are shown when it is opened, and how many more with each click. */
const RUNS = 5;
const THREADS = 50;

class App {
  #api = new Api();
  #notices = new Notices(byId("notices", HTMLElement));
  #drawer = new Drawer(byId("threads", HTMLElement), byId("drawer-button", HTMLButtonElement), byId("scrim", HTMLElement));
  #announcer = byId("announcer", HTMLElement);
  #frame = new Frame(() => this.#paint());
  /** @type {Thread | null} the thread that is open */
  #thread = null;
  /** @type {RunRow[]} its runs, the newest first */
  #rows = [];
  #runsShown = RUNS;
  #threadsShown = THREADS;
  /** @type {Map<string, Feed>} by run */
  #feeds = new Map();
  /** @type {Map<string, string>} the state in which each call was last announced */
  #announced = new Map();
  #threads = new Threads(byId("threads", HTMLElement), {
    create: () => this.#create(),
    more: () => {
      this.#threadsShown += THREADS;
      void this.#poll();
    },
  });
  #timeline = new Timeline(byId("main", HTMLElement), byId("latest", HTMLButtonElement), {
    stop: (run) => void this.#stop(run),
    answer: (call, content) => this.#begin({ id: newId(), role: "tool", toolCallId: call.callId, content }),
    showEarlier: () => {
      this.#runsShown += RUNS * 2;
      this.#addRuns();
    },
  });
  #composer = new Composer(byId("composer", HTMLFormElement), {
    send: (text) => this.#begin({ id: newId(), role: "user", content: text }),
    stop: () => this.#stopActive(),
  });

  start() {
    this.#api.addEventListener("away", () => this.#showAway());
    this.#api.addEventListener("back", () => this.#notices.hide("away"));
    this.#api.addEventListener("unknown", () => this.#askToken());
    window.addEventListener("hashchange", () => this.#open());
    window.addEventListener("online", () => this.#hurry());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.#hurry();
    });
    byId("theme-button", HTMLButtonElement).addEventListener("click", toggleTheme);
    byId("help-button", HTMLButtonElement).addEventListener("click", () => this.#help());
    byId("skip", HTMLAnchorElement).addEventListener("click", (event) => {
      event.preventDefault(); // the hash says which thread is open
      byId("main", HTMLElement).focus();
    });
    byId("token-form", HTMLFormElement).addEventListener("submit", () => this.#takeToken());
    this.#listen();
    this.#open();
    void this.#showAgent();
    void this.#keepPolling();
  }

  #listen() {
    listen(
      [
        { keys: ["/"], does: "write a message", action: () => this.#composer.focus() },
        { keys: ["n"], does: "new thread", action: () => this.#create() },
        { keys: ["g"], does: "go to the list of threads (then ↑ ↓ and Enter)", action: () => this.#toThreads() },
        { keys: ["j", "ArrowDown"], does: "next call", action: () => this.#timeline.stepCall(1) },
        { keys: ["k", "ArrowUp"], does: "previous call", action: () => this.#timeline.stepCall(-1) },
        { keys: ["End", "l"], does: "go to the latest", action: () => this.#timeline.toEnd() },
        { keys: ["s"], does: "stop the run", action: () => this.#stopActive() },
        { keys: ["t"], does: "light or dark", action: toggleTheme },
        { keys: ["?"], does: "this list", action: () => this.#help() },
      ],
      byId("keys", HTMLElement),
      byId("keys-on", HTMLInputElement),
    );
  }

  // -- what is open --

  /** Opens what the address names. */
  #open() {
    const place = placeIn(location.hash);
    this.#drawer.close();
    if (place.threadId !== null && place.threadId === this.#thread?.threadId) {
      this.#threads.setOpen(place, this.#rows);
      if (place.runId !== null) this.#toRun(place.runId);
      return;
    }
    for (const feed of this.#feeds.values()) feed.close();
    this.#feeds.clear();
    this.#announced.clear();
    this.#rows = [];
    this.#runsShown = RUNS;
    this.#thread = place.threadId === null ? null : new Thread(place.threadId);
    document.title = place.threadId === null ? "Callstream" : `${place.threadId} · Callstream`;
    this.#composer.isActive = false;
    this.#threads.setOpen(place, []);
    this.#timeline.open(this.#thread, this.#thread === null ? welcome() : undefined);
    if (this.#thread !== null) void this.#loadRuns();
    else if (matchMedia("(pointer: fine)").matches) this.#composer.focus(); // a phone would open its keyboard
  }

  #create() {
    this.#drawer.close();
    if (location.hash === hashOf(null, null) || location.hash === "") this.#composer.focus();
    else location.hash = hashOf(null, null);
  }

  #toThreads() {
    this.#drawer.open();
    this.#threads.focus();
  }

  /** @param {string} runId */
  #toRun(runId) {
    const index = this.#rows.findIndex((row) => row.run_id === runId);
    if (index >= this.#runsShown) {
      this.#runsShown = index + 1;
      this.#addRuns();
      this.#paint();
    }
    this.#timeline.toRun(runId);
  }

  /** Fetches the list of the open thread's runs, and follows those that are new here. */
  async #loadRuns() {
    const thread = this.#thread;
    if (thread === null) return;
    try {
      const rows = await this.#api.runs(thread.threadId);
      if (thread !== this.#thread) return;
      const isFirst = this.#rows.length === 0;
      this.#rows = merged(this.#rows, rows);
      this.#addRuns();
      const place = placeIn(location.hash);
      this.#threads.setOpen(place, this.#rows);
      if (isFirst && place.runId !== null) {
        this.#paint();
        this.#toRun(place.runId);
      }
    } catch (error) {
      this.#showError(error);
    }
  }

  #addRuns() {
    const thread = this.#thread;
    if (thread === null) return;
    // A run that begins while the thread is open does not push out any that are shown.
    const count = Math.max(this.#runsShown, thread.runs.size);
    const added = thread.add(this.#rows.slice(0, count));
    this.#frame.want();
    void this.#followAll(thread, added);
  }

  /**
   * Ended runs are read one after another, since a browser has few connections per server; active ones at once.
   *
   * @param {Thread} thread
   * @param {Run[]} runs
   */
  async #followAll(thread, runs) {
    for (const run of runs.filter((each) => each.outcome === null)) void this.#follow(thread, run);
    for (const run of runs.filter((each) => each.outcome !== null)) await this.#follow(thread, run);
  }

  /**
   * @param {Thread} thread
   * @param {Run} run
   */
  async #follow(thread, run) {
    if (thread !== this.#thread || this.#feeds.has(run.runId)) return;
    const feed = new Feed(this.#api, run.runId, {
      records: (records) => {
        for (const record of records) thread.take(record);
        this.#frame.want();
      },
      compacted: (first) => {
        thread.dropFrom(run.runId, first);
        this.#frame.want();
      },
      state: (state) => {
        thread.setFeedState(run, state);
        this.#frame.want();
      },
    });
    this.#feeds.set(run.runId, feed);
    const wasActive = run.outcome === null;
    await feed.run();
    if (wasActive && thread === this.#thread) await this.#poll();
  }

  // -- what is shown --

  #paint() {
    const thread = this.#thread;
    if (thread === null) return;
    thread.settle();
    this.#announce(thread);
    this.#timeline.paint(this.#rows.length - thread.runs.size);
    this.#composer.isActive = thread.activeRun !== null;
  }

  /**
   * Announces the state changes of the active run's calls: not every piece, and nothing of the past.
   *
   * @param {Thread} thread
   */
  #announce(thread) {
    const active = thread.activeRun?.runId ?? null;
    for (const call of thread.changed) {
      if (!(call instanceof Call) || this.#announced.get(call.callId) === call.state) continue;
      const isNews = this.#announced.has(call.callId) || call.runId === active;
      this.#announced.set(call.callId, call.state);
      if (isNews) setText(this.#announcer, spoken(call));
    }
  }

  async #showAgent() {
    try {
      showAgent(byId("agent", HTMLElement), await this.#api.agent());
    } catch (error) {
      this.#showError(error);
    }
  }

  #showAway() {
    this.#notices.show("away", "The server does not answer. The page may be out of date; it updates when the server is back.", {
      label: "Try now",
      action: () => this.#hurry(),
    });
  }

  /** @param {unknown} error */
  #showError(error) {
    if (error instanceof Away || (error instanceof Refused && error.status === 401)) return; // shown elsewhere
    if (!(error instanceof Refused)) throw error;
    this.#notices.show("error", error.message);
  }

  #help() {
    byId("help", HTMLDialogElement).showModal();
  }

  // -- requests to the server --

  async #keepPolling() {
    for (;;) {
      if (!document.hidden) await this.#poll();
      await new Promise((resolve) => setTimeout(resolve, POLL));
    }
  }

  async #poll() {
    try {
      const limit = this.#threadsShown;
      const rows = await this.#api.threads(limit);
      this.#threads.setThreads(rows, rows.length >= limit);
      const row = rows.find((each) => each.thread_id === this.#thread?.threadId);
      const active = this.#rows.filter((each) => each.outcome === null).length > 0;
      if (this.#thread !== null && (row === undefined || Math.min(row.runs, MOST_RUNS) !== this.#rows.length || row.active !== active)) {
        await this.#loadRuns();
      }
    } catch (error) {
      this.#showError(error);
    }
  }

  #hurry() {
    for (const feed of this.#feeds.values()) feed.hurry();
    void this.#poll();
  }

  /**
   * Begins a run with a message, in the open thread or in a new one.
   *
   * @param {import("./api.js").Message} message
   */
  async #begin(message) {
    const threadId = this.#thread?.threadId ?? newId();
    const runId = await this.#api.run(threadId, [message]);
    if (this.#thread === null) location.hash = hashOf(threadId, null);
    else if (this.#thread.threadId === threadId) {
      // Only until the run's own record says when it began. If the server's clock is ahead of ours, its runs come first.
      const at = Math.max(Date.now() / 1000, this.#rows[0]?.started_at ?? 0);
      const row = { run_id: runId, thread_id: threadId, principal: null, outcome: null, reason: null, last_seq: 0 };
      this.#rows = merged([{ ...row, started_at: at, ended_at: null }], this.#rows);
      this.#addRuns();
      this.#timeline.toEnd();
    }
    void this.#poll();
  }

  #stopActive() {
    const run = this.#thread?.activeRun;
    if (run !== null && run !== undefined) void this.#stop(run);
  }

  /** @param {Run} run */
  async #stop(run) {
    try {
      await this.#api.stop(run.runId);
    } catch (error) {
      this.#showError(error);
    }
  }

  // -- who we are --

  #askToken() {
    const dialog = byId("token", HTMLDialogElement);
    if (!dialog.open) dialog.showModal();
  }

  #takeToken() {
    const input = byId("token-input", HTMLInputElement);
    this.#api.token = input.value;
    input.value = "";
    void this.#showAgent();
    void this.#loadRuns();
    this.#hurry();
  }
}

/**
 * The rows of both lists, the newest first; for a run that is in both, the newer row.
 *
 * @param {RunRow[]} before
 * @param {RunRow[]} newer
 */
function merged(before, newer) {
  const known = new Set(newer.map((row) => row.run_id));
  return [...before.filter((row) => !known.has(row.run_id)), ...newer];
}

function welcome() {
  return element(
    "div",
    { class: "welcome" },
    element("h1", {}, "Tool calls, while they are written"),
    element(
      "p",
      {},
      "Send a message, and see what the agent does: each call as it is written, argument by argument, and its outcome.",
    ),
    element("p", { class: "dim" }, "Or open a thread. Everything is in the journal: reload, leave and come back at any time."),
  );
}

new App().start();
