/**
 * Server-sent events out of a response's body, as the HTML standard reads them. Each character is looked at once, however
 * long a line is and however it was cut.
 *
 * @typedef {{ type: string, data: string, lastId: string }} ServerEvent
 */

/** Text in, events out. */
export class EventStreamDecoder {
  /** @type {string[]} the pieces of the line that is not over yet */
  #line = [];
  /** @type {string[]} */
  #data = [];
  #type = "";
  #lastId = "";
  #endedInReturn = false;

  /**
   * @param {string} text
   * @returns {ServerEvent[]}
   */
  feed(text) {
    /** @type {ServerEvent[]} */
    const events = [];
    let start = 0;
    if (text !== "" && this.#endedInReturn && text[0] === "\n") start = 1;
    if (text !== "") this.#endedInReturn = text.endsWith("\r");
    const end = /\r\n|\n|\r/g;
    end.lastIndex = start;
    for (let found = end.exec(text); found !== null; found = end.exec(text)) {
      this.#line.push(text.slice(start, found.index));
      const event = this.#take(this.#line.join(""));
      if (event !== null) events.push(event);
      this.#line = [];
      start = end.lastIndex;
    }
    if (start < text.length) this.#line.push(text.slice(start));
    return events;
  }

  /** @param {string} line */
  #take(line) {
    if (line === "") return this.#dispatch();
    if (line.startsWith(":")) return null;
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#type = value;
    else if (field === "id" && !value.includes("\0")) this.#lastId = value;
    return null;
  }

  /** @returns {ServerEvent | null} */
  #dispatch() {
    const event = { type: this.#type || "message", data: this.#data.join("\n"), lastId: this.#lastId };
    const isEmpty = this.#data.length === 0;
    this.#type = "";
    this.#data = [];
    return isEmpty ? null : event;
  }
}

/**
 * The events of a response until its body ends.
 *
 * @param {Response} response
 * @param {() => void} [alive] called whenever anything came, comments included
 * @returns {AsyncGenerator<ServerEvent[], void, void>} those that came together
 */
export async function* eventsOf(response, alive = () => {}) {
  if (response.body === null) return;
  const decoder = new EventStreamDecoder();
  const text = new TextDecoder();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      alive();
      const events = decoder.feed(text.decode(value, { stream: true }));
      if (events.length > 0) yield events;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
