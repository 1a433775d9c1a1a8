/** Which thread and run is open, from the address's hash: `#/threads/<thread>/runs/<run>`. Pure except for `current`. */

/**
 * @param {string | null} threadId
 * @param {string | null} runId
 */
export function hashOf(threadId, runId) {
  if (threadId === null) return "#/";
  const thread = `#/threads/${encodeURIComponent(threadId)}`;
  return runId === null ? thread : `${thread}/runs/${encodeURIComponent(runId)}`;
}

/**
 * @param {string} hash
 * @returns {{ threadId: string | null, runId: string | null }}
 */
export function placeIn(hash) {
  const found = /^#\/threads\/([^/]+)(?:\/runs\/([^/]+))?$/.exec(hash);
  if (found === null) return { threadId: null, runId: null };
  try {
    return { threadId: decodeURIComponent(found[1]), runId: found[2] === undefined ? null : decodeURIComponent(found[2]) };
  } catch {
    return { threadId: null, runId: null };
  }
}
