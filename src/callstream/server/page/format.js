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
 * A span of time, with as many digits as say something.
 *
 * @param {number} seconds
 */
export function span(seconds) {
  if (seconds < 0.0005) return "0 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
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
