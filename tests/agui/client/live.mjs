// The official AG-UI client against a real server. One line of JSON in, one line out: the life of one client.
//
//   {"url": "http://…", "threadId": "…", "tools": [...], "state": {...}, "headers": {...}, "steps": [STEP, …]}
//
// STEP: {"how": "run" | "connect", "add": [messages], "resume": [...], "drop": n, "stop": n, "reload": true}. `drop`: the
// connection is dropped after n events. `stop`: after n events the run is stopped, as another request. `reload`: the
// client forgets all it has before the step. The answer is a verdict for each step: see judge.mjs.

import { createInterface } from "node:readline";
import { HttpAgent } from "@ag-ui/client";

// An aborted run of this client settles soon, or, with an event on its way, never: it has no connection any more.
const GONE = 2000;

let warnings = [];
console.warn = (...said) => warnings.push(said.map(String).join(" "));
console.error = (...said) => warnings.push(said.map(String).join(" "));

class CallstreamAgent extends HttpAgent {
  connect(input) {
    return new HttpAgent({ ...this, url: new URL(`/threads/${input.threadId}/connect`, this.url).href }).run(input);
  }
}

// A front end puts its answer behind the message that made the call.
function add(agent, message) {
  const owner = agent.messages.findIndex((m) => m.toolCalls?.some((call) => call.id === message.toolCallId));
  if (message.role !== "tool" || owner < 0) return agent.addMessage(message);
  let place = owner + 1;
  while (agent.messages[place]?.role === "tool") place += 1;
  agent.setMessages(agent.messages.toSpliced(place, 0, message));
}

function fill(value, known) {
  return JSON.parse(JSON.stringify(value), (_, each) => (typeof each === "string" && each in known ? known[each] : each));
}

async function lived({ url, threadId, tools, state, headers, steps }) {
  const made = () => new CallstreamAgent({ url: `${url}/agui`, threadId, initialState: state ?? {}, headers: headers ?? {} });
  let agent = made();
  let pending = [];
  const verdicts = [];
  for (const step of steps) {
    warnings = [];
    if (step.reload) agent = made();
    // "$0" in a step is the first call that was left to be answered.
    const known = Object.fromEntries(pending.map((id, number) => [`$${number}`, id]));
    for (const message of fill(step.add ?? [], known)) add(agent, message);
    const verdict = { ended: null, args: {}, results: [], error: null, events: [], runId: null, isDropped: false };
    let leave;
    const left = new Promise((resolve) => (leave = resolve));
    const watch = {
      onEvent: async ({ event }) => {
        verdict.events.push(event.type);
        if (event.type === "RUN_STARTED") verdict.runId = event.runId;
        if (step.stop === verdict.events.length) {
          await fetch(`${url}/runs/${encodeURIComponent(verdict.runId)}/stop`, { method: "POST", headers });
        }
        if (step.drop === verdict.events.length) {
          verdict.isDropped = true;
          agent.abortRun();
          setTimeout(leave, GONE);
        }
      },
      onToolCallEndEvent: ({ event, toolCallArgs }) => void (verdict.args[event.toolCallId] = toolCallArgs),
      onToolCallResultEvent: ({ event }) => void verdict.results.push(event.toolCallId),
      onRunFinishedEvent: ({ outcome, pendingToolCallIds, interrupts }) =>
        void (verdict.ended = { outcome, pendingToolCallIds, interrupts }),
      onRunErrorEvent: ({ event }) => void (verdict.ended = { outcome: "error", code: event.code, message: event.message }),
    };
    try {
      const parameters = { tools: tools ?? [], ...(step.resume ? { resume: fill(step.resume, known) } : {}) };
      const running = step.how === "connect" ? agent.connectAgent(parameters, watch) : agent.runAgent(parameters, watch);
      await Promise.race([running, left]);
    } catch (error) {
      verdict.error = String(error?.message ?? error);
    }
    const asked = verdict.ended?.pendingToolCallIds ?? verdict.ended?.interrupts?.map((each) => each.toolCallId) ?? [];
    if (asked.length) pending = asked;
    verdicts.push({ ...verdict, messages: structuredClone(agent.messages), state: structuredClone(agent.state), warnings });
  }
  return verdicts;
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  process.stdout.write(JSON.stringify(await lived(JSON.parse(line))) + "\n");
}
