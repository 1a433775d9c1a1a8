// TanStack AI's ChatClient against a real server: one client per line of standard input, one answer per line.
//
//   {"url": "http://…", "threadId": "…", "send": "text", "drop": n, "load": true}
//
// `send`: a message; the connection is cut after n reads. `load`: a new page, which asks the server for the thread.

import { createInterface } from "node:readline";
import { ChatClient, fetchServerSentEvents } from "@tanstack/ai-client";

console.warn = console.error = () => {};
process.on("unhandledRejection", () => {});

async function live({ url, threadId, send, drop }) {
  const requests = [];
  const cutting = async (address, init) => {
    requests.push(`${init?.method ?? "GET"} ${new URL(address).search}`);
    const response = await fetch(address, init);
    if (!drop || !response.headers.get("content-type")?.startsWith("text/event-stream")) return response;
    let left = drop;
    drop = 0;
    const reader = response.body.getReader();
    const body = new ReadableStream({
      async pull(controller) {
        const { done, value } = await reader.read();
        if (done) return controller.close();
        if (left-- > 0) return controller.enqueue(value);
        await reader.cancel();
        controller.error(new TypeError("network error"));
      },
    });
    return new Response(body, { status: response.status, headers: response.headers });
  };
  const errors = [];
  const connection = fetchServerSentEvents(`${url}/agui`, { fetchClient: cutting });
  const client = new ChatClient({ connection, threadId, persistence: !send, onError: (error) => errors.push(String(error)) });
  if (send) await client.sendMessage(send);
  else client.attach();
  for (let idle = 0, tries = 0; idle < 20 && tries < 500; tries += 1) {
    await new Promise((resolve) => setTimeout(resolve, 10));
    const hasAll = requests.length > (send ? 0 : 1) && !client.getIsLoading();
    idle = hasAll ? idle + 1 : 0;
  }
  const parts = client.getMessages().map(({ role, parts }) => ({ role, parts }));
  client.stop?.();
  return { messages: parts, requests, errors };
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
