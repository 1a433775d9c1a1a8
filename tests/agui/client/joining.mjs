// The npm package's connectThread with the official client against a real server: one client per line of standard input.
//
//   {"url": "http://…", "threadId": "…", "drops": [n, …], "leave": n}
//
// The connection of the k-th try is cut after drops[k] reads. `leave`: the thread is left after n events. The answer is how
// it ended, the messages, what onState was told, and how many requests were made.

import { createInterface } from "node:readline";
import { HttpAgent } from "@ag-ui/client";
import { connectThread, joinable } from "../../../js/agui.js";

console.warn = console.error = () => {};
// The client cancels a body that has failed and lets the same error rise once more; browsers log that and go on.
process.on("unhandledRejection", () => {});

async function live({ url, threadId, drops, leave }) {
  const states = [];
  const requests = [];
  const cutting = async (address, init) => {
    requests.push(new URL(address).pathname);
    const response = await fetch(address, init);
    const left = drops?.[requests.length - 1];
    if (left === undefined || !response.ok) return response;
    const reader = response.body.getReader();
    let reads = 0;
    const body = new ReadableStream({
      async pull(controller) {
        const { done, value } = await reader.read();
        if (done) return controller.close();
        if (reads++ < left) return controller.enqueue(value);
        await reader.cancel();
        controller.error(new TypeError("network error"));
      },
    });
    return new Response(body, { status: response.status, headers: response.headers });
  };
  const agent = new (joinable(HttpAgent))({ url: `${url}/agui`, threadId, fetch: cutting });
  const leaving = new AbortController();
  let events = 0;
  const subscriber = { onEvent: () => void (++events === leave && leaving.abort()) };
  const options = { signal: leaving.signal, subscriber, onState: (state) => states.push(state), firstPause: 20 };
  let ended;
  try {
    ended = await connectThread(agent, options);
  } catch (error) {
    ended = `rejected: ${error?.status}`;
  }
  return { ended, messages: agent.messages, states, requests };
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  process.stdout.write(JSON.stringify(await live(JSON.parse(line))) + "\n");
}
