/**
 * Waits about so long, between half and all of it: clients that lost one server must not come back all at once.
 *
 * @param {number} milliseconds
 * @param {AbortSignal} [signal] ends it early
 * @returns {Promise<void>}
 */
export function rest(milliseconds: number, signal?: AbortSignal): Promise<void>;
/**
 * The status with which a request was refused for good; undefined if trying again may help.
 *
 * @param {any} error with a status, unless the connection was lost
 * @returns {number | undefined}
 */
export function refusal(error: any): number | undefined;
