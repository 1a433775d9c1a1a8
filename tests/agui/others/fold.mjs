// Event streams through clients that fold them in other ways: one case per line of standard input, one answer per line.
//
//   {"client": "tanstack" | "ag-ui", "bodies": [<SSE text>, …]} → {"text", "reasoning", "calls", "results"} after the last body,
//   and "handled", the calls for which it has called a handler
//
// "tanstack" is TanStack AI's StreamProcessor, "ag-ui" is @ag-ui/client 0.0.59, which CopilotKit and assistant-ui bring.

import { createInterface } from "node:readline";
import { HttpAgent } from "@ag-ui/client";
import { StreamProcessor } from "@tanstack/ai/client";

console.warn = console.error = () => {};

const events = (body) => body.split("\n").filter((line) => line.startsWith("data: ")).map((line) => JSON.parse(line.slice(6)));

function tanstack(bodies) {
  const handled = [];
  const processor = new StreamProcessor({ events: { onToolCall: ({ toolCallId }) => void handled.push(toolCallId) } });
  for (const body of bodies) for (const event of events(body)) processor.processChunk(event);
  const parts = processor.getMessages().flatMap((message) => (message.role === "assistant" ? message.parts : []));
  const of = (type) => parts.filter((part) => part.type === type);
  return {
    text: of("text").map((part) => part.content).join(""),
    reasoning: of("thinking").map((part) => part.content).join(""),
    calls: Object.fromEntries(of("tool-call").map((part) => [part.id, part.arguments])),
    results: Object.fromEntries(of("tool-result").map((part) => [part.toolCallId, part.content])),
    handled,
  };
}

async function agui(bodies) {
  let body = "";
  const fetch = async () => new Response(body, { status: 200, headers: { "content-type": "text/event-stream" } });
  const agent = new HttpAgent({ url: "http://agent.invalid/", threadId: "thread", fetch });
  const handled = [];
  const watch = {
    onToolCallEndEvent: ({ event }) => void handled.push(event.toolCallId),
    onNewToolCall: ({ toolCall }) => void handled.push(toolCall.id),
  };
  for (body of bodies) await agent.runAgent({}, watch);
  const of = (role) => agent.messages.filter((message) => message.role === role);
  return {
    text: of("assistant").map((message) => message.content ?? "").join(""),
    reasoning: of("reasoning").map((message) => message.content).join(""),
    calls: Object.fromEntries(
      of("assistant").flatMap((message) => (message.toolCalls ?? []).map((call) => [call.id, call.function.arguments])),
    ),
    results: Object.fromEntries(of("tool").map((message) => [message.toolCallId, message.content])),
    handled,
  };
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  const { client, bodies } = JSON.parse(line);
  let answer;
  try {
    answer = client === "tanstack" ? tanstack(bodies) : await agui(bodies);
  } catch (error) {
    answer = { error: String(error?.message ?? error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
