/**
 * CopilotKit's runtime with a Callstream server behind it. Its own runner keeps threads in the memory of its process; this one
 * asks the journal, so a reload works in the middle of a run, in another process and after a restart.
 *
 *     const url = "https://example.com/agui";
 *     const runtime = new CopilotRuntime({
 *       agents: { default: new HttpAgent({ url }) },
 *       runner: callstreamRunner(InMemoryAgentRunner, HttpAgent, url),
 *     });
 *
 * CopilotKit's React components can also talk to the server itself, without that runtime.
 */

import { joinable } from "./agui.js";

/**
 * @param {new () => any} InMemoryAgentRunner that of `@copilotkit/runtime/v2`
 * @param {new (...args: any[]) => any} HttpAgent that of `@ag-ui/client`
 * @param {string} url of the server's agent, such as https://example.com/agui
 * @returns {any} a runner for `CopilotRuntime`
 */
export function callstreamRunner(InMemoryAgentRunner, HttpAgent, url) {
  return new (class extends InMemoryAgentRunner {
    /** @param {{ threadId: string, headers?: Record<string, string> }} request */
    connect({ threadId, headers }) {
      const input = { threadId, runId: "connect", messages: [], tools: [], context: [], state: {}, forwardedProps: {} };
      return new (joinable(HttpAgent))({ url, headers }).connect(input);
    }
  })();
}
