/**
 * For hosts of MCP Apps: tells a view of a tool's arguments while the model writes them, as
 * `ui/notifications/tool-input-partial` wants it.
 *
 *     const input = toolInputPartial((params) => bridge.sendToolInputPartial(params));
 *     for await (const delta of argumentDeltas) input.feed(delta);
 *     await bridge.sendToolInput({ arguments: input.close() });
 *
 * Every message is a copy of all arguments so far, so one is sent per frame at most. Nothing in them is taken back.
 *
 * @typedef {{ arguments: { [name: string]: any } }} ToolInput
 */

import { JsonStream } from "./jsonstream.js";

/**
 * Begin after the view has sent `ui/notifications/initialized`: a view is told of nothing before that.
 *
 * @param {(params: ToolInput) => unknown} send the parameters of the notification
 * @param {{ schedule?: (send: () => void) => unknown }} [options] when to send: by default in the next frame
 */
export function toolInputPartial(send, { schedule = globalThis.requestAnimationFrame ?? setTimeout } = {}) {
  const stream = new JsonStream({ uniqueNames: true });
  let isScheduled = false;
  let isOver = false;
  /** @type {any} */
  let sent;

  function tell() {
    isScheduled = false;
    const { value } = stream;
    const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
    if (isOver || !isObject || value === sent) return;
    sent = value;
    send({ arguments: value });
  }

  return {
    /** @param {string} delta argument text of the model */
    feed(delta) {
      if (isOver || stream.feed(delta).length === 0 || isScheduled) return;
      isScheduled = true;
      schedule(tell);
    },

    /**
     * Sends no more, and returns the arguments for `ui/notifications/tool-input`. A SyntaxError if they are not JSON: tell the
     * view then that the call was cancelled.
     *
     * @returns {any}
     */
    close() {
      isOver = true;
      return stream.close();
    },

    /** Sends no more: the call was cancelled, and `ui/notifications/tool-cancelled` comes next. */
    stop() {
      isOver = true;
    },
  };
}
