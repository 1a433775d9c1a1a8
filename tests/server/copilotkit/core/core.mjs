// CopilotKit's browser core against a real server: one browser per line of standard input, one answer per line.
//
//   {"url": "http://…", "threadId": "…", "agentId": "…", "headers": {…}, "answers": {"tool": …}, "asks": {"tool": …}, "steps": [STEP, …]}
//
// `answers`: tools of the page with what they return. `asks`: those that a person answers (useHumanInTheLoop), with the answer.
// STEP: {"send": "text"} | {"connect": true} | {"resume": payload}: answers all interrupts of the last run. With `stop`: n,
// core.stopAgent is called after n events. With `reload`, a new page is loaded first.
// The answer: the messages, the state, what the tools of the page were called with, every error, the interrupts, the requests.

import { createInterface } from "node:readline";
import { CopilotKitCore } from "@copilotkit/core";
import { z } from "zod";

globalThis.window = globalThis; // without one, it takes itself to be rendered on a server, and asks nobody
console.warn = console.error = console.info = console.log = () => {};
process.on("unhandledRejection", () => {});

let requests = [];
let asked = [];
const fetched = globalThis.fetch;
globalThis.fetch = (address, init) => {
  const asking = fetched(address, init).then((response) => {
    requests.push(`${init?.method ?? "GET"} ${new URL(address).pathname} ${response.status}`);
    return response;
  });
  asked.push(asking);
  return asking;
};

async function live({ url, threadId, agentId = "default", headers, answers, asks, steps }) {
  requests = [];
  asked = [];
  const told = { ran: [], errors: [], events: [], interrupts: [] };
  const made = (name, type, output) => ({
    name,
    type,
    description: `The page's ${name}.`,
    parameters: z.object({}).passthrough(),
    handler: async (args) => (told.ran.push([name, args]), output),
  });
  const tools = [
    ...Object.entries(answers ?? {}).map(([name, output]) => made(name, undefined, output)),
    ...Object.entries(asks ?? {}).map(([name, output]) => made(name, "human-in-the-loop", output)),
  ];
  let core, agent, stopAfter;
  const load = async () => {
    core = new CopilotKitCore({ runtimeUrl: `${url}/copilotkit`, headers, tools });
    core.subscribe({ onError: ({ code, error }) => void told.errors.push(`${code}: ${error.message}`) });
    while (core.runtimeConnectionStatus === "connecting") await new Promise((resolve) => setTimeout(resolve, 5));
    agent = core.getAgent(agentId);
    if (!agent) return;
    agent.threadId = threadId;
    agent.subscribe({
      onEvent: ({ event }) => {
        told.events.push(event.type);
        if (told.events.length === stopAfter) core.stopAgent({ agent });
        if (event.type === "RUN_FINISHED") told.interrupts = event.outcome?.interrupts ?? [];
      },
    });
  };
  await load();
  for (const step of steps) {
    if (step.reload) await load();
    if (!agent) break;
    stopAfter = step.stop && told.events.length + step.stop;
    if (step.send) {
      agent.addMessage({ id: `user-${agent.messages.length}`, role: "user", content: step.send });
      await core.runAgent({ agent });
    }
    if (step.connect) await core.connectAgent({ agent });
    if ("resume" in step) {
      const resume = told.interrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload: step.resume }));
      await core.runAgent({ agent, resume });
    }
    // What a person answers after a reload is sent in the background.
    for (let idle = 0; idle < 5; idle = agent.isRunning ? 0 : idle + 1) await new Promise((resolve) => setTimeout(resolve, 10));
  }
  await Promise.allSettled(asked); // it does not wait for the answer to a stop itself
  const agents = Object.keys(core.agents);
  return { ...told, status: core.runtimeConnectionStatus, agents, messages: agent?.messages, state: agent?.state, requests };
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  let answer;
  try {
    answer = await live(JSON.parse(line));
  } catch (error) {
    answer = { failed: String(error?.stack ?? error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
