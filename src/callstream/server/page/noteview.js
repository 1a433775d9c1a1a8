/** Events other than text and calls, each in one line. */

import { titleOf } from "./callcard.js";
import { element } from "./dom.js";
import { count } from "./format.js";
import { JsonTree } from "./jsontree.js";

export class NoteView {
  /** @param {import("./thread.js").Note} note */
  constructor(note) {
    switch (note.kind) {
      case "response":
        this.element = element("p", { class: "note" }, responseText(note.event));
        break;
      case "answer":
        this.element = answerNote(note);
        break;
      case "resumed":
        this.element = element("p", { class: "note resumed" }, resumedText(note.event));
        break;
      case "state": {
        const tree = new JsonTree("state");
        const isPatch = note.event.patch !== undefined;
        tree.show(isPatch ? note.event.patch : note.event.snapshot);
        const summary = element("summary", {}, isPatch ? "state changed" : "state as a whole");
        this.element = element("details", { class: "note" }, summary, tree.element);
      }
    }
  }

  update() {}
}

/** @param {import("./record.js").RunEvent} event */
function resumedText({ attempt, void: messages }) {
  const cut = messages === undefined || messages.length === 0 ? "" : "; the response that was cut is void, the model is asked again";
  return `attempt ${attempt}: another process goes on with the run${cut}`;
}

/** @param {import("./record.js").MessageEvent} event */
function responseText(event) {
  const usage = Object.entries(event.usage ?? {})
    .filter(([name, value]) => typeof value === "number" && value > 0 && /token/i.test(name))
    .map(([name, value]) => `${name.replace(/_?tokens?(_?count)?/gi, "").replaceAll("_", " ").trim()} ${count(Number(value))}`);
  const finish = event.finish_reason ?? "no finish";
  return [`response ended: ${finish}`, ...(usage.length > 0 ? [`tokens: ${usage.join(", ")}`] : [])].join(" · ");
}

/** @param {import("./thread.js").Note} note */
function answerNote(note) {
  const { call } = note;
  if (call === null) return element("p", { class: "note" }, `an earlier call, ${note.event.call_id}, was answered`);
  const link = element("button", { type: "button", class: "link-button", "data-to-call": call.callId }, titleOf(call));
  return element("p", { class: "note" }, "answered ", link);
}
