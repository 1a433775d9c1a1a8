/**
 * The form of a call that awaits an answer: the question, and fields for the kind of answer that is expected.
 *
 * Without a question, and for a plain confirmation: yes or no with a comment, or any JSON. A confirmation that carries a
 * payload has it sent back with the decision. A question with a response schema takes text, a choice or JSON, as the
 * schema says. A request for a credential has a link to follow, and a field for its outcome.
 *
 * @typedef {import("./record.js").Question} Question
 */

import { button, element, freshId } from "./dom.js";
import { JsonTree } from "./jsontree.js";

/** @type {{ [type: string]: string }} what a JSON field begins with */
const EMPTY = { object: "{}", array: "[]", number: "0", integer: "0", boolean: "true" };

export class AnswerForm {
  #error = element("p", { class: "error", role: "alert", hidden: true });
  /** @type {HTMLButtonElement[]} */
  #buttons = [];
  #send;

  /**
   * @param {import("./call.js").Call} call
   * @param {string} name the call's name as it is shown
   * @param {(content: string) => Promise<void>} send takes the answer's text; what it throws is shown
   */
  constructor(call, name, send) {
    this.#send = send;
    const { question } = call;
    const title = freshId("answer");
    this.element = element(
      "form",
      { class: "answer", "aria-labelledby": title },
      element("h4", { id: title }, `${name} waits for your answer`),
      ...this.#asked(question),
      ...this.#fields(question),
      this.#error,
    );
    this.element.addEventListener("submit", (event) => event.preventDefault());
  }

  /**
   * The question.
   *
   * @param {Question | null} question
   */
  #asked(question) {
    const metadata = question?.metadata ?? {};
    const asked = [];
    if (question?.message) asked.push(element("p", { class: "question", dir: "auto" }, question.message));
    const uri = typeof metadata.uri === "string" && URL.canParse(metadata.uri) ? new URL(metadata.uri) : null;
    if (uri !== null && (uri.protocol === "https:" || uri.protocol === "http:")) {
      const link = element("a", { href: uri.href, target: "_blank", rel: "noopener noreferrer" }, `Open ${uri.host}`);
      asked.push(element("p", {}, link));
    }
    if (metadata.payload !== undefined && question?.reason !== "confirmation") {
      const tree = new JsonTree("payload");
      tree.show(metadata.payload);
      asked.push(tree.element);
    }
    return asked;
  }

  /** @param {Question | null} question */
  #fields(question) {
    switch (question?.reason) {
      case "confirmation":
        return question.metadata?.payload === undefined ? this.#decision() : this.#payload(question.metadata.payload);
      case "credential_required":
        return this.#text("The address that you were sent to, or the key");
      case "input_required": {
        const schema = question.response_schema;
        const type = typeof schema?.type === "string" ? schema.type : null;
        if (schema === undefined || schema === null || type === "string") return this.#text("Answer");
        if (type === "boolean") return this.#choice();
        return this.#json(type !== null && type in EMPTY ? filledIn(schema) : "", schema);
      }
      default:
        return this.#decision();
    }
  }

  /** Yes or no with a comment, or any JSON. */
  #decision() {
    const comment = field("Comment (optional)", { rows: 1, dir: "auto" });
    const json = field("Answer", { rows: 3, spellcheck: "false", class: "code" });
    json.input.value = '{"approved": true}';
    /** @param {boolean} approved */
    const decide = (approved) => {
      const said = comment.input.value.trim();
      void this.#answer(JSON.stringify(said === "" ? { approved } : { approved, comment: said }));
    };
    return [
      ...comment.parts,
      this.#row(["Approve", () => decide(true), "primary"], ["Reject", () => decide(false), "danger"]),
      element(
        "details",
        {},
        element("summary", {}, "Answer with JSON"),
        ...json.parts,
        this.#row(["Send JSON", () => void this.#answerJson(json.input, (value) => value)]),
      ),
    ];
  }

  /**
   * Yes or no, with the payload, which can be edited.
   *
   * @param {unknown} payload
   */
  #payload(payload) {
    const json = field("Payload", { rows: 4, spellcheck: "false", class: "code" });
    json.input.value = JSON.stringify(payload, null, 2);
    /** @param {boolean} confirmed */
    const decide = (confirmed) => {
      void this.#answerJson(json.input, (text) => `{"confirmed": ${confirmed}, "payload": ${text}}`);
    };
    return [
      ...json.parts,
      this.#row(["Approve", () => decide(true), "primary"], ["Reject", () => decide(false), "danger"]),
    ];
  }

  /** @param {string} label */
  #text(label) {
    const text = field(label, { rows: 2, dir: "auto" });
    return [...text.parts, this.#row(["Send", () => void this.#answer(text.input.value), "primary"])];
  }

  #choice() {
    return [
      this.#row(["Yes", () => void this.#answer("true"), "primary"], ["No", () => void this.#answer("false"), ""]),
    ];
  }

  /**
   * @param {string} begun
   * @param {{ [name: string]: unknown }} schema
   */
  #json(begun, schema) {
    const json = field("Answer", { rows: 4, spellcheck: "false", class: "code" });
    json.input.value = begun;
    const tree = new JsonTree("schema");
    tree.show(schema);
    return [
      ...json.parts,
      this.#row(["Send JSON", () => void this.#answerJson(json.input, (text) => text), "primary"]),
      element("details", {}, element("summary", {}, "What is expected"), tree.element),
    ];
  }

  /** @param {...[string, () => void, string?]} choices */
  #row(...choices) {
    const made = choices.map(([name, action, kind]) => button(name, action, { class: kind ? `button ${kind}` : "button" }));
    this.#buttons.push(...made);
    return element("div", { class: "buttons" }, ...made);
  }

  /**
   * @param {HTMLTextAreaElement} input
   * @param {(text: string) => string} made makes the answer from the JSON in the field
   */
  async #answerJson(input, made) {
    try {
      JSON.parse(input.value);
    } catch (error) {
      this.#complain(`This is not JSON: ${error instanceof Error ? error.message : error}`);
      input.focus();
      return;
    }
    await this.#answer(made(input.value));
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

/**
 * A text field with its label.
 *
 * @param {string} label
 * @param {Record<string, string | number>} properties
 */
function field(label, properties) {
  const id = freshId("field");
  const input = element("textarea", { id, ...properties });
  return { input, parts: [element("label", { for: id }, label), input] };
}

/**
 * JSON to start from: an object with the required properties.
 *
 * @param {{ [name: string]: any }} schema
 */
function filledIn(schema) {
  const properties = schema.type === "object" ? Object.entries(schema.properties ?? {}) : [];
  if (properties.length === 0) return EMPTY[schema.type];
  const fields = properties.map(([name, each]) => `  ${JSON.stringify(name)}: ${EMPTY[each?.type] ?? '""'}`);
  return `{\n${fields.join(",\n")}\n}`;
}
