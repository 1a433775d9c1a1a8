/** Numbers, spans and times as text. Pure. */

const whole = new Intl.NumberFormat("en");
const time = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

/** @param {number} value */
export function count(value) {
  return whole.format(value);
}

/**
 * `1 record`, `2 records`.
 *
 * @param {number} value
 * @param {string} noun
 */
export function counted(value, noun) {
  return `${whole.format(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/**
 * A span of time, with as many digits as are meaningful.
 *
 * @param {number} seconds
 */
export function span(seconds) {
  const milliseconds = Math.round(seconds * 1000);
  if (milliseconds < 1000) return `${milliseconds} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(seconds < 9.995 ? 2 : 1)} s`;
  const rounded = Math.round(seconds);
  if (rounded < 3600) return `${Math.floor(rounded / 60)} min ${rounded % 60} s`;
  return `${Math.floor(rounded / 3600)} h ${Math.floor((rounded % 3600) / 60)} min`;
}

/**
 * How long ago that was, roughly.
 *
 * @param {number} at seconds since the epoch
 * @param {number} now
 */
export function ago(at, now) {
  const seconds = Math.max(0, now - at);
  if (seconds < 10) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return new Date(at * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short", year: "numeric" });
}

/**
 * The time of day, with seconds.
 *
 * @param {number} at seconds since the epoch
 */
export function clock(at) {
  return time.format(at * 1000);
}
