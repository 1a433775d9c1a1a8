// The npm package's clients against a real server: one client per line of standard input.
//
//   {"url": "http://…", "threadId": "…", "drops": [n, …], "leave": n, "send": "…", "lose": "request" | "response"}
//
// It is connectThread with the official client, or with `send` the package's own Thread, which says that. The connection of the
// k-th try is cut after drops[k] reads. `leave`: the thread is left after n events. `lose`: the first request does not arrive, or
// its response does not. The answer is how it ended, the messages, what onState was told, what ToolCalls shows, and the requests.

import { createInterface } from "node:readline";
import { HttpAgent } from "@ag-ui/client";
import { connectThread, joinable } from "../../../js/agui.js";
import { Thread, ToolCalls } from "../../../js/index.js";

console.warn = console.error = () => {};
// The client cancels a body that has failed and lets the same error rise once more; browsers log that and go on.
process.on("unhandledRejection", () => {});

async function live({ url, threadId, drops, leave, send, lose }) {
  const states = [];
  const requests = [];
  const cutting = async (address, init) => {
    requests.push(new URL(address).pathname);
    const isLost = lose !== undefined && requests.length === 1;
    if (isLost && lose === "request") throw new TypeError("network error");
    const response = await fetch(address, init);
    if (isLost) throw (await response.body.cancel(), new TypeError("network error"));
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
  const calls = new ToolCalls({ schedule: (publish) => publish() });
  const leaving = new AbortController();
  let events = 0;
  const subscriber = {
    ...calls.subscriber,
    onEvent(told) {
      calls.subscriber.onEvent(told);
      if (++events === leave) leaving.abort();
    },
  };
  const patience = { onState: (state) => states.push(state), firstPause: 20 };
  let ended;
  try {
    if (send === undefined) {
      ended = await connectThread(agent, { signal: leaving.signal, subscriber, ...patience });
    } else {
      const onEvent = (event) => subscriber.onEvent({ event });
      ended = await new Thread({ url: `${url}/agui`, threadId, fetch: cutting, onEvent, ...patience }).send(send);
    }
  } catch (error) {
    ended = `rejected: ${error?.status ?? error?.message}`;
  }
  return { ended, messages: agent.messages, states, requests, calls: calls.ids.map((id) => calls.call(id)) };
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  process.stdout.write(JSON.stringify(await live(JSON.parse(line))) + "\n");
}
