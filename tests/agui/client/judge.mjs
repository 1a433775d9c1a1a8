// Runs event streams through the official AG-UI client, one case a line of standard input, one verdict a line of output.
//
// A case is a client's life: {"steps": [{"how": "run" | "connect", "body": <SSE text>, "add": [<messages>],
// "resume": [<entries>]}], "messages": [...]}. The bytes pass the client's whole pipeline: framing, enforcement,
// verification, reducer. A verdict has, for every step, the messages and the state afterwards, what the client made of the
// run's end, the arguments it parsed at TOOL_CALL_END, the calls whose tools it would run, its error if it refused the stream, and every warning it gave.

import { createInterface } from "node:readline";
import { HttpAgent } from "@ag-ui/client";

let warnings = [];
console.warn = (...said) => warnings.push(said.map(String).join(" "));
console.error = (...said) => warnings.push(said.map(String).join(" "));

class Client extends HttpAgent {
  connect(input) {
    const url = `http://agent.invalid/threads/${input.threadId}/connect`;
    return new HttpAgent({ url, headers: this.headers, fetch: this.fetch }).run(input);
  }
}

const PIECE = 4096; // bytes a read, so that events are cut anywhere

function response(body) {
  const bytes = new TextEncoder().encode(body);
  const stream = new ReadableStream({
    start(controller) {
      for (let at = 0; at < bytes.length; at += PIECE) controller.enqueue(bytes.slice(at, at + PIECE));
      controller.close();
    },
  });
  return new Response(stream, { status: 200, headers: { "content-type": "text/event-stream" } });
}

// A front end puts its answer behind the message that made the call.
function add(agent, message) {
  const owner = agent.messages.findIndex((m) => m.toolCalls?.some((call) => call.id === message.toolCallId));
  if (message.role !== "tool" || owner < 0) return agent.addMessage(message);
  let place = owner + 1;
  while (agent.messages[place]?.role === "tool") place += 1;
  agent.setMessages(agent.messages.toSpliced(place, 0, message));
}

async function judged({ steps, messages }) {
  let body = "";
  let sent = null;
  const agent = new Client({
    url: "http://agent.invalid/",
    threadId: "thread",
    initialMessages: messages ?? [],
    fetch: async (_url, init) => {
      sent = JSON.parse(init.body);
      return response(body);
    },
  });
  const verdicts = [];
  for (const step of steps) {
    warnings = [];
    body = step.body;
    for (const message of step.add ?? []) add(agent, message);
    const verdict = { ended: null, args: {}, made: [], results: [], error: null };
    const watch = {
      onToolCallEndEvent: ({ event, toolCallArgs }) => void (verdict.args[event.toolCallId] = toolCallArgs),
      onNewToolCall: ({ toolCall }) => void verdict.made.push(toolCall.id),
      onToolCallResultEvent: ({ event }) => void verdict.results.push(event.toolCallId),
      onRunFinishedEvent: ({ outcome, pendingToolCallIds, interrupts }) =>
        void (verdict.ended = { outcome, pendingToolCallIds, interrupts }),
      onRunErrorEvent: ({ event }) => void (verdict.ended = { outcome: "error", code: event.code, message: event.message }),
    };
    try {
      const parameters = step.resume ? { resume: step.resume } : {};
      await (step.how === "connect" ? agent.connectAgent(parameters, watch) : agent.runAgent(parameters, watch));
    } catch (error) {
      verdict.error = String(error?.message ?? error);
    }
    verdicts.push({
      ...verdict,
      messages: structuredClone(agent.messages),
      state: structuredClone(agent.state),
      sent,
      warnings,
    });
  }
  return verdicts;
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  process.stdout.write(JSON.stringify(await judged(JSON.parse(line))) + "\n");
}
