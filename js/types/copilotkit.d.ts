/**
 * @param {new () => any} InMemoryAgentRunner that of `@copilotkit/runtime/v2`
 * @param {new (...args: any[]) => any} HttpAgent that of `@ag-ui/client`
 * @param {string} url of the server's agent, such as https://example.com/agui
 * @returns {any} a runner for `CopilotRuntime`
 */
export function callstreamRunner(InMemoryAgentRunner: new () => any, HttpAgent: new (...args: any[]) => any, url: string): any;
