// The real CopilotKit runtime in front of a Callstream server: node runtime.mjs http://127.0.0.1:8000
// Prints the address under which CopilotKit's front end would find it.

import http from "node:http";
import { HttpAgent } from "@ag-ui/client";
import { CopilotRuntime, InMemoryAgentRunner } from "@copilotkit/runtime/v2";
import { createCopilotNodeListener } from "@copilotkit/runtime/v2/node";

import { callstreamRunner } from "../../../js/copilotkit.js";

const callstream = process.argv[2];

const runtime = new CopilotRuntime({
  agents: { default: new HttpAgent({ url: `${callstream}/agui` }) },
  runner: callstreamRunner(InMemoryAgentRunner, HttpAgent, `${callstream}/agui`),
});
const server = http.createServer(createCopilotNodeListener({ runtime, basePath: "/copilotkit" }));
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/copilotkit`));
