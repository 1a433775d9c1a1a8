/** Records as they are, the oldest first, two hundred at a time. */

import { button, element } from "./dom.js";
import { count, span } from "./format.js";
import { textOf } from "./record.js";

const PAGE = 200;
const SHORT = 600;

export class RecordList {
  #shown = 0;
  #limit = PAGE;
  #list = element("ol", { class: "records" });
  #more = button("", () => this.#showMore(), { class: "link-button", hidden: true });
  #records;
  #startedAt;

  /**
   * @param {() => readonly import("./record.js").Record[]} records
   * @param {number} startedAt of the run, from which their times count
   */
  constructor(records, startedAt) {
    this.#records = records;
    this.#startedAt = startedAt;
    this.element = element("div", { class: "record-frame" }, this.#list, this.#more);
  }

  /** Shows records that have arrived. */
  update() {
    const records = this.#records();
    const end = Math.min(records.length, this.#limit);
    for (; this.#shown < end; this.#shown += 1) this.#list.append(this.#row(records[this.#shown]));
    this.#more.hidden = this.#shown >= records.length;
    if (!this.#more.hidden) this.#more.textContent = `Show more (${count(this.#shown)} of ${count(records.length)} shown)`;
  }

  #showMore() {
    this.#limit += PAGE;
    this.update();
  }

  /** @param {import("./record.js").Record} record */
  #row(record) {
    const text = textOf(record);
    const code = element("code", { dir: "ltr" }, text.length <= SHORT ? text : `${text.slice(0, SHORT)} …`);
    const seq = record.first_seq === undefined ? `${record.seq}` : `${record.first_seq}–${record.seq}`;
    const row = element(
      "li",
      {},
      element("span", { class: "record-seq" }, seq),
      element("span", { class: "record-at" }, `+${span(Math.max(0, record.at - this.#startedAt))}`),
      element("span", { class: "record-type" }, record.event.type),
      code,
    );
    if (text.length > SHORT) {
      const whole = button(`Show all ${count(text.length)} characters`, () => {
        code.textContent = text;
        whole.remove();
      });
      whole.className = "link-button";
      row.append(whole);
    }
    return row;
  }
}
