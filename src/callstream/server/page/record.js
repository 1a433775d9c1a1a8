/**
 * The journal's records, as `GET /runs/{run_id}/events` sends them. Pure.
 *
 * @typedef {object} Record
 * @property {string} run_id
 * @property {number} seq 1, 2, 3, … in its run
 * @property {number} at seconds since the epoch
 * @property {CallEvent & MessageEvent & RunEvent} event a field that has its default is left out
 * @property {string} [response_id]
 * @property {string} [author]
 * @property {number} [first_seq] less than `seq` where compaction has folded several records into this one
 * @property {string} [source] the record's own text, where JavaScript's numbers could not hold it
 *
 * @typedef {object} CallEvent
 * @property {string} type
 * @property {string} call_id
 * @property {string} [message_id]
 * @property {string} [name]
 * @property {string} [provider_id]
 * @property {string} [within] the call whose tool asked the model
 * @property {"json" | "text"} [encoding]
 * @property {string} [text]
 * @property {string} [args_json] all of the arguments, where they came without pieces
 * @property {unknown} [data]
 * @property {unknown} [result]
 * @property {string} [error]
 * @property {string} [reason]
 * @property {string} [detail]
 * @property {Question} [question]
 * @property {boolean} [is_paused] another call asks about it, and that one is to be answered
 *
 * @typedef {object} Question what the person who answers a call is asked
 * @property {string} [reason]
 * @property {string} [message]
 * @property {{ [name: string]: any }} [response_schema]
 * @property {{ payload?: unknown, uri?: unknown }} [metadata]
 * @property {string} [about] the call that is paused until this is answered
 *
 * @typedef {object} MessageEvent
 * @property {string} type
 * @property {string} [message_id]
 * @property {string} [role]
 * @property {string} [text]
 * @property {string[]} [attachments]
 * @property {string} [finish_reason]
 * @property {{ [name: string]: unknown }} [usage]
 *
 * @typedef {object} RunEvent
 * @property {string} type
 * @property {string} [thread_id]
 * @property {string} [principal]
 * @property {unknown} [snapshot]
 * @property {unknown[]} [patch]
 * @property {number} [attempt] 2 where the first other process continues the run
 * @property {string[]} [void] the messages of responses that were cut, which no longer count
 * @property {"finished" | "failed" | "cancelled"} [outcome]
 * @property {string} [reason]
 */

const LONG_NUMBER = /[0-9]{16}/;

/**
 * A record from its text. Integers that a double cannot hold become BigInts; then the record keeps its text.
 *
 * @param {string} text
 * @returns {Record}
 */
export function recordFrom(text) {
  const record = JSON.parse(text);
  const { type } = record.event;
  // Only these carry values from tools; argument text, by far the largest part, is a string in any case.
  if ((type !== "call_returned" && type !== "call_progressed") || !LONG_NUMBER.test(text)) return record;
  return { ...JSON.parse(text, exact), source: text };
}

/**
 * @param {string} key
 * @param {unknown} value
 * @param {{ source?: string }} [context] not every browser passes it
 */
function exact(key, value, context) {
  const source = context?.source;
  if (typeof value !== "number" || source === undefined || Number.isSafeInteger(value)) return value;
  return /^-?[0-9]+$/.test(source) ? BigInt(source) : value;
}

/**
 * A record as text, as it was sent.
 *
 * @param {Record} record
 */
export function textOf(record) {
  return record.source ?? JSON.stringify(record);
}
