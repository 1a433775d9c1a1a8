/**
 * A call as a card: its name and state, its arguments while they are written, how fast they came, its progress and its
 * outcome.
 *
 * @typedef {import("./call.js").Call} Call
 * @typedef {"tree" | "text" | "records"} View
 */

import { AnswerForm } from "./answerform.js";
import { element, freshId, setText } from "./dom.js";
import { count, counted, span } from "./format.js";
import { GrowingText } from "./growingtext.js";
import { JsonTree } from "./jsontree.js";
import { ProgressBar } from "./progressbar.js";
import { RecordList } from "./recordlist.js";

/** @type {{ [state: string]: string }} */
export const STATE_NAMES = {
  started: "started",
  args_streaming: "writing arguments",
  args_complete: "arguments complete",
  running_early: "running early",
  executing: "executing",
  awaiting: "awaiting an answer",
  completed: "completed",
  failed: "failed",
  released: "released",
  discarded: "discarded",
};

/** @type {{ [reason: string]: string }} */
const REASONS = {
  truncated: "The response ended before the call did.",
  malformed: "The call ended, but its arguments are not JSON, or it has no name.",
  invalid: "Its arguments do not fit what the tool declares.",
  rejected: "A hook refused it.",
  aborted: "The run was stopped.",
  interrupted: "Something broke.",
};

/** @type {{ [name: string]: string }} google-adk's own calls that ask people; their arguments are only its bookkeeping */
const QUESTIONS = {
  adk_request_confirmation: "Confirmation",
  adk_request_credential: "Credential",
  adk_request_input: "Question",
};

/** The errors of calls to which a person said no, as in callstream.calls. */
const DECLINED = new Set([
  "The user cancelled this.",
  "The user denied this.",
  "interrupted: the process stopped while this tool ran. It may or may not have taken effect, and a person has decided that it is not run again.",
  "This tool call is rejected.",
]);

const FACTS = /** @type {const} */ (["first argument", "deltas", "deltas/s", "characters", "ran", "id"]);

/** @type {{ [view in View]: string }} */
const VIEWS = { tree: "Tree", text: "Text", records: "Records" };

export class CallCard {
  /** @type {View} */
  #view = "tree";
  /** @type {GrowingText | null} the argument text, once the user has asked for it */
  #text = null;
  #textShown = 0;
  /** @type {RecordList | null} */
  #records = null;
  /** @type {AnswerForm | null} */
  #answer = null;
  #hasOutcome = false;
  #name = element("h3", { class: "card-name" });
  #badge = element("span", { class: "badge" });
  #badgeText = document.createTextNode("");
  #facts = element("dl", { class: "facts" });
  /** @type {Map<string, HTMLElement>} */
  #factValues = new Map();
  #tree;
  #mistake = element("p", { class: "mistake", hidden: true });
  #progress = new ProgressBar();
  #panel = element("div", { class: "card-panel" });
  #outcome = element("div", { class: "outcome" });
  #call;
  #context;

  /**
   * @param {Call} call
   * @param {import("./timeline.js").Context} context
   * @param {import("./thread.js").Run} run
   */
  constructor(call, context, run) {
    this.#call = call;
    this.#context = context;
    this.runStartedAt = run.startedAt;
    this.#tree = new JsonTree("arguments", { isLive: run.outcome === null });
    for (const name of FACTS) this.#addFact(name);
    const title = freshId("call");
    this.#name.id = title;
    this.#panel.hidden = this.#facts.hidden = call.name in QUESTIONS;
    this.#badge.append(element("span", { class: "hidden" }, "State: "), this.#badgeText);
    this.#panel.append(this.#tree.element, this.#mistake);
    this.element = element(
      "article",
      { class: "card", "aria-labelledby": title, tabindex: "-1", "data-call": call.callId },
      element(
        "header",
        { class: "card-head" },
        this.#name,
        this.#badge,
        call.author === null ? null : element("span", { class: "chip" }, call.author),
        element("span", { class: "spacer" }),
        this.#switch(),
      ),
      this.#facts,
      this.#panel,
      this.#progress.element,
      this.#outcome,
    );
    this.update();
  }

  /** Shows the changes since the last time. */
  update() {
    const call = this.#call;
    this.element.dataset.state = call.state;
    setText(this.#badgeText, stateOf(call));
    this.#tree.take(call.takeChanges());
    if (!call.isWriting) this.#tree.stop();
    setText(this.#name, titleOf(call));
    this.#mistake.hidden = call.mistake === null || call.isWriting;
    if (call.mistake !== null) {
      const { message, position } = call.mistake;
      setText(this.#mistake, `Not JSON from character ${count(position)} on: ${message}. The received text is under Text.`);
    }
    if (this.#view !== "tree") this.#fillPanel();
    this.#updateFacts();
    if (call.progress !== undefined) this.#progress.show(call.progress, call.isFinal);
    this.#updateAnswer();
    this.#updateOutcome();
  }

  #updateFacts() {
    const call = this.#call;
    const speed = call.piecesPerSecond;
    this.#fact("first argument", call.timeToFirst === null ? null : span(call.timeToFirst));
    this.#fact("deltas", call.pieces === 0 || call.isFolded ? null : count(call.pieces));
    this.#fact("deltas/s", speed === null ? null : count(Number(speed.toPrecision(3))));
    this.#fact("characters", call.argsText.length === 0 ? null : count(call.argsText.length));
    this.#fact("ran", call.ranFor === null ? null : span(call.ranFor));
    this.#fact("id", call.callId);
  }

  /** @param {typeof FACTS[number]} name */
  #addFact(name) {
    const value = element("dd");
    this.#factValues.set(name, value);
    const fact = element("div", { class: "fact", "data-fact": name, hidden: true }, element("dt", {}, name), value);
    this.#facts.append(fact);
  }

  /**
   * @param {typeof FACTS[number]} name
   * @param {string | null} value
   */
  #fact(name, value) {
    const shown = this.#factValues.get(name);
    if (shown === undefined || shown.parentElement === null) return;
    shown.parentElement.hidden = value === null;
    setText(shown, value ?? "");
  }

  /** The choice of how the card shows the arguments. */
  #switch() {
    const group = freshId("view");
    const choices = Object.entries(VIEWS).map(([view, name]) => {
      const input = element("input", { type: "radio", name: group, value: view, class: "hidden" });
      input.checked = view === this.#view && !(this.#call.name in QUESTIONS);
      input.addEventListener("change", () => this.#show(/** @type {View} */ (view)));
      return element("label", {}, input, element("span", {}, name));
    });
    const label = `How to show ${titleOf(this.#call)}`;
    return element("div", { class: "switch", role: "radiogroup", "aria-label": label }, ...choices);
  }

  /** @param {View} view */
  #show(view) {
    this.#view = view;
    this.#panel.hidden = this.#facts.hidden = false;
    this.#fillPanel();
  }

  #fillPanel() {
    const call = this.#call;
    switch (this.#view) {
      case "tree":
        this.#panel.replaceChildren(this.#tree.element, this.#mistake);
        return;
      case "text":
        this.#text ??= new GrowingText(`argument text of ${call.name}`, { isFollowing: call.isWriting });
        this.#text.append(call.argsText.slice(this.#textShown));
        this.#textShown = call.argsText.length;
        if (!this.#panel.contains(this.#text.element)) this.#panel.replaceChildren(this.#text.element);
        return;
      case "records":
        this.#records ??= new RecordList(() => call.records, this.runStartedAt);
        this.#records.update();
        if (!this.#panel.contains(this.#records.element)) this.#panel.replaceChildren(this.#records.element);
    }
  }

  #updateAnswer() {
    const isAwaiting = this.#call.state === "awaiting" && this.#call.isAsking;
    if (isAwaiting && this.#answer === null) {
      this.#answer = new AnswerForm(this.#call, titleOf(this.#call), (content) => this.#context.answer(this.#call, content));
      this.element.append(this.#answer.element);
    } else if (!isAwaiting && this.#answer !== null) {
      const hadFocus = this.#answer.element.contains(document.activeElement);
      this.#answer.element.remove();
      this.#answer = null;
      if (hadFocus) this.element.focus({ preventScroll: true });
    }
  }

  #updateOutcome() {
    const call = this.#call;
    if (this.#hasOutcome || !call.isFinal) return;
    this.#hasOutcome = true;
    switch (call.state) {
      case "completed": {
        const tree = new JsonTree("result");
        tree.show(call.result);
        this.#outcome.append(element("h4", {}, "Result"), tree.element);
        return;
      }
      case "failed": {
        const text = new GrowingText("error");
        text.append(call.error || "It gave no reason.");
        this.#outcome.append(element("h4", {}, isDeclined(call) ? "Declined" : "Error"), text.element);
        return;
      }
      case "discarded": {
        const reason = call.reason ?? "";
        const fate = call.ranEarly ? "The tool had begun; its result does not count." : "The tool never ran.";
        const explained = element("p", {}, element("strong", {}, reason), ` ${REASONS[reason] ?? ""} ${fate}`);
        const detail = call.detail === null ? null : element("p", { class: "detail", dir: "auto" }, call.detail);
        this.#outcome.append(element("h4", {}, "Discarded"), explained, detail ?? "");
        return;
      }
      case "released":
        this.#outcome.append(
          element("h4", {}, "Released"),
          element("p", {}, "Handed to its host, which never reported the outcome."),
        );
    }
  }
}

/** @param {Call} call */
function isDeclined(call) {
  return call.error !== null && DECLINED.has(call.error);
}

/** @param {Call} call */
function stateOf(call) {
  return isDeclined(call) ? "declined" : STATE_NAMES[call.state];
}

/**
 * The name of a call: its tool, or the question.
 *
 * @param {Call} call
 */
export function titleOf(call) {
  if (!(call.name in QUESTIONS)) return call.name || "(no name)";
  const about = askedAbout(call.argsText);
  return about === undefined ? QUESTIONS[call.name] : `${QUESTIONS[call.name]} of ${about}`;
}

/** @param {string} argsText of a question, of which there may be only a beginning */
function askedAbout(argsText) {
  try {
    const name = JSON.parse(argsText).originalFunctionCall?.name;
    return typeof name === "string" ? name : undefined;
  } catch {
    return undefined;
  }
}

/**
 * The text for screen readers when a call changes its state.
 *
 * @param {Call} call
 */
export function spoken(call) {
  const size = call.state === "args_complete" ? `, ${counted(call.argsText.length, "character")}` : "";
  return `${titleOf(call)}: ${stateOf(call)}${size}`;
}
