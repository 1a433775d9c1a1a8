// The real CopilotKit runtime in front of a Callstream server: node runtime.mjs http://127.0.0.1:8000
// Prints the address under which CopilotKit's front end would find it.

import http from "node:http";
import { HttpAgent } from "@ag-ui/client";
import { CopilotRuntime, InMemoryAgentRunner } from "@copilotkit/runtime/v2";
import { createCopilotNodeListener } from "@copilotkit/runtime/v2/node";

const callstream = process.argv[2];

// Their runner keeps threads in the memory of this process. Callstream has them in its journal, so a reload asks there:
// it works in the middle of a run, in another process, and after a restart.
class CallstreamRunner extends InMemoryAgentRunner {
  connect({ threadId, headers }) {
    const url = `${callstream}/threads/${encodeURIComponent(threadId)}/connect`;
    const input = { threadId, runId: "connect", messages: [], tools: [], context: [], state: {}, forwardedProps: {} };
    return new HttpAgent({ url, headers }).run(input);
  }
}

const runtime = new CopilotRuntime({
  agents: { default: new HttpAgent({ url: `${callstream}/agui` }) },
  runner: new CallstreamRunner(),
});
const server = http.createServer(createCopilotNodeListener({ runtime, basePath: "/copilotkit" }));
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/copilotkit`));
