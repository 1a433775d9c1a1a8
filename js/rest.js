/**
 * Waits about so long, between half and all of it: clients that lost one server must not come back all at once.
 *
 * @param {number} milliseconds
 * @param {AbortSignal} [signal] ends it early
 * @returns {Promise<void>}
 */
export function rest(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds * (0.5 + Math.random() / 2));
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

/**
 * The status with which a request was refused for good; undefined if trying again may help.
 *
 * @param {any} error with a status, unless the connection was lost
 * @returns {number | undefined}
 */
export function refusal(error) {
  const status = error?.status ?? error?.statusCode;
  return status < 500 && status !== 408 && status !== 429 ? status : undefined;
}
