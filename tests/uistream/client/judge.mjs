// UI message streams through the AI SDK's own transport and reader: one case per line of standard input, one verdict per line.
//
//   {"sdk": 5 | 6 | 7, "body": <SSE text>, "message": <the assistant message that the client has>}
//
// The bytes pass the transport's framing and validation, then readUIMessageStream. The verdict is the last message, the tool
// calls that onToolCall would have run, every error, and the milliseconds of CPU that the reading took.

import { createInterface } from "node:readline";

const sdks = Object.fromEntries(await Promise.all([5, 6, 7].map(async (sdk) => [sdk, await import(`ai${sdk}`)])));
console.warn = console.error = () => {};

async function judge({ sdk, body, message }) {
  const { DefaultChatTransport, readUIMessageStream } = sdks[sdk];
  const fetch = async () => new Response(body, { status: 200, headers: { "content-type": "text/event-stream" } });
  const transport = new DefaultChatTransport({ api: "http://chat.invalid/ui", fetch });
  const verdict = { message: message ?? null, available: [], errors: [], updates: 0 };
  const began = process.cpuUsage();
  try {
    const chunks = await transport.sendMessages({ chatId: "chat", messages: [], trigger: "submit-message" });
    const watched = chunks.pipeThrough(
      new TransformStream({
        transform(chunk, controller) {
          if (chunk.type === "tool-input-available" && !chunk.providerExecuted) verdict.available.push(chunk.toolCallId);
          controller.enqueue(chunk);
        },
      }),
    );
    const messages = readUIMessageStream({
      stream: watched,
      message: message ?? undefined,
      onError: (error) => verdict.errors.push(String(error?.message ?? error)),
      terminateOnError: false,
    });
    for await (const each of messages) {
      verdict.message = each;
      verdict.updates += 1;
    }
  } catch (error) {
    verdict.errors.push(String(error?.message ?? error));
  }
  const spent = process.cpuUsage(began);
  return { ...verdict, milliseconds: (spent.user + spent.system) / 1000 };
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  process.stdout.write(JSON.stringify(await judge(JSON.parse(line))) + "\n");
}
