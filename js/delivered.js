/**
 * What a chat of the AI SDK has of a run, chunk by chunk, so that a stream that sends the run again can be cut to the rest.
 *
 * The pieces of a text may be others the second time, so texts are compared by length. The end of a step and the start of the
 * next are passed on with what follows them: only then is it known whether the chat has them. An end that came twice would
 * close the text that is being written.
 *
 * A turn that is sent again does not make calls available that have an output; a run that is sent again does. For the chat
 * that would be another call.
 *
 * @typedef {object} Part a text, a reasoning or a call
 * @property {number} length how much of its text was delivered
 * @property {number} at how much of it the present stream has sent
 * @property {number} updates how many preliminary outputs the present stream has sent
 * @property {Set<string>} marks what else was delivered of it
 * @property {boolean} hasOutput whether an output was delivered: of its input there is nothing more to say
 */

const ENDS = ["finish", "abort", "error"];

export class Delivered {
  /** of the run, as the stream's first chunk has it; empty before */
  runId = "";
  /** whether the run's end was delivered */
  isOver = false;
  /** whether the chat shows something that only a new message takes back */
  isLost = false;
  /** @type {Map<string, Part>} */
  #parts = new Map();
  /** @type {any[]} ends and starts of steps after which nothing has come yet */
  #steps = [];

  /** From now on the chunks are those of a stream that begins with the run. */
  startOver() {
    this.#steps = [];
    for (const part of this.#parts.values()) part.at = part.updates = 0;
  }

  /**
   * @param {any} chunk
   * @returns {any[]} what is new in it, after the steps that it ends and begins
   */
  take(chunk) {
    if (chunk.type === "start") {
      if (this.runId) return [];
      this.runId = chunk.messageMetadata?.runId;
      return [chunk];
    }
    if (chunk.type === "data-void") {
      this.isLost = true;
      return [];
    }
    if (chunk.type === "reset-step") {
      const resets = this.#part("");
      if ((resets.updates += 1) <= resets.length) return [];
      resets.length = resets.updates;
      return [...this.#steps.splice(0), chunk];
    }
    if (chunk.type.endsWith("-step")) {
      this.#steps.push(chunk);
      return [];
    }
    const id = chunk.toolCallId ?? (/^(?:text|reasoning)-/.test(chunk.type) ? chunk.id : undefined);
    this.isOver ||= ENDS.includes(chunk.type);
    if (id === undefined && !this.isOver) return [chunk];
    const rest = id === undefined ? chunk : this.#rest(this.#part(id), chunk);
    const steps = this.#steps.splice(0);
    return rest === null ? [] : [...steps, rest];
  }

  /** @param {string} id */
  #part(id) {
    let part = this.#parts.get(id);
    if (part !== undefined) return part;
    part = { length: 0, at: 0, updates: 0, marks: new Set(), hasOutput: false };
    this.#parts.set(id, part);
    return part;
  }

  /**
   * @param {Part} part
   * @param {any} chunk
   */
  #rest(part, chunk) {
    if (part.hasOutput && chunk.type.startsWith("tool-input-")) return null;
    part.hasOutput ||= chunk.type.startsWith("tool-output-");
    const field = chunk.type === "tool-input-delta" ? "inputTextDelta" : "delta";
    if (chunk.type.endsWith("-delta")) {
      const begin = part.length - part.at;
      part.at += chunk[field].length;
      if (part.at <= part.length) return null;
      part.length = part.at;
      return begin === 0 ? chunk : { ...chunk, [field]: chunk[field].slice(begin) };
    }
    const mark = chunk.preliminary ? `${chunk.type} ${(part.updates += 1)}` : chunk.type;
    if (part.marks.has(mark)) return null;
    part.marks.add(mark);
    return chunk;
  }
}
