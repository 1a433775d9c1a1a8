/**
 * Begin after the view has sent `ui/notifications/initialized`: a view is told of nothing before that.
 *
 * @param {(params: ToolInput) => unknown} send the parameters of the notification
 * @param {{ schedule?: (send: () => void) => unknown }} [options] when to send: by default in the next frame
 */
export function toolInputPartial(send: (params: ToolInput) => unknown, { schedule }?: {
    schedule?: (send: () => void) => unknown;
}): {
    /** @param {string} delta argument text of the model */
    feed(delta: string): void;
    /**
     * Sends no more, and returns the arguments for `ui/notifications/tool-input`. A SyntaxError if they are not JSON: tell the
     * view then that the call was cancelled.
     *
     * @returns {any}
     */
    close(): any;
    /** Sends no more: the call was cancelled, and `ui/notifications/tool-cancelled` comes next. */
    stop(): void;
};
/**
 * For hosts of MCP Apps: tells a view of a tool's arguments while the model writes them, as
 * `ui/notifications/tool-input-partial` wants it.
 *
 *     const input = toolInputPartial((params) => bridge.sendToolInputPartial(params));
 *     for await (const delta of argumentDeltas) input.feed(delta);
 *     await bridge.sendToolInput({ arguments: input.close() });
 *
 * Every message is a copy of all arguments so far, so one is sent per frame at most. Nothing in them is taken back.
 */
export type ToolInput = {
    arguments: {
        [name: string]: any;
    };
};
