// What the clients of this folder have in common: connections that are cut after any event, and cases line by line.
//
// A case: {"client": "…", "url": "http://…", "threadId": "…", "how": "whole" | "cut" | "join", "cut": n}
//
// "whole": a message is sent and its answer read. "cut": the connection is cut after n events, and the client comes back by its own
// means. "join": the thread is joined, which somebody else has begun. In the latter two, /release is asked as soon as the client reads
// the stream that it has come back to: until then the agent waits. The answer: the client's messages, and how often it was cut.
//
// With "again", the address of a second server, nothing is cut here: somebody kills a server. "whole": the client has sent its message to
// that one, and comes back to the other. "join": it watches through one that lives. "ready" is asked again and again while nothing comes, and
// "tools" are those that the client runs; the answer has the calls for which they ran.

import { createInterface } from "node:readline";

console.warn = console.error = console.info = console.log = () => {};
// A client that has lost its connection may let the same error rise twice; browsers log that and go on.
process.on("unhandledRejection", () => {});

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// The connection was lost, by us or by the server; browsers call it so.
async function lost(seen, controller) {
  seen.cuts += 1;
  seen.open -= 1;
  await pause(2); // an error discards what the client has not yet taken
  controller.error(new TypeError("network error: the connection was cut"));
}

// A fetch for one case, and what it has seen.
export function cutting(question, fetch = globalThis.fetch) {
  if (question.again) return surviving(question, fetch);
  const { url, threadId, how, cut } = question;
  const seen = { cuts: 0, events: 0, streams: 0, open: 0 };
  const release = () => fetch(`${url}/release/${threadId}`, { method: "POST" });
  const through = async (address, init) => {
    const response = await fetch(address, init);
    if (!response.body || !response.headers.get("content-type")?.startsWith("text/event-stream")) return response;
    seen.streams += 1;
    seen.open += 1;
    const isCut = how === "cut" && seen.streams === 1;
    let isNews = how === "join" || (how === "cut" && seen.streams === 2);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const encoder = new TextEncoder();
    let text = "";
    const body = new ReadableStream({
      async pull(controller) {
        for (;;) {
          const end = text.indexOf("\n\n");
          if (end < 0) {
            const { done, value } = await reader.read().catch(() => ({ done: true, value: null }));
            if (value === null) return await lost(seen, controller);
            if (done) return void ((seen.open -= 1), controller.close());
            text += value;
            continue;
          }
          controller.enqueue(encoder.encode(text.slice(0, end + 2)));
          const isEvent = /^data: (?!\[DONE\])/m.test(text.slice(0, end));
          text = text.slice(end + 2);
          if (isNews) await release();
          isNews = false;
          if (isEvent && seen.streams === 1) seen.events += 1;
          if (!isCut || !isEvent || seen.events < cut) return;
          await lost(seen, controller);
          reader.cancel().catch(() => {});
          return;
        }
      },
    }, { highWaterMark: 0 });
    return new Response(body, { status: response.status, headers: response.headers });
  };
  return { fetch: through, seen };
}

// A fetch that reaches the second server where the first does not answer, as through a balancer.
function surviving({ url, again, ready }, fetch) {
  const seen = { cuts: 0, events: 0, streams: 0, open: 0 };
  let timer;
  const quiet = () => {
    clearInterval(timer);
    timer = seen.cuts ? undefined : setInterval(() => fetch(ready).catch(() => {}), 400);
  };
  const through = async (address, init) => {
    const ask = (server) => fetch(String(address).replace(url, server), init);
    const response = await ask(url).catch((error) => (init?.signal?.aborted ? Promise.reject(error) : ask(again)));
    if (!response.body || !response.headers.get("content-type")?.startsWith("text/event-stream")) return response;
    seen.streams += 1;
    seen.open += 1;
    const reader = response.body.getReader();
    const body = new ReadableStream({
      async pull(controller) {
        try {
          const { done, value } = await reader.read();
          if (done) return void ((seen.open -= 1), clearInterval(timer), controller.close());
          quiet();
          controller.enqueue(value);
        } catch {
          clearInterval(timer);
          await lost(seen, controller);
        }
      },
      cancel: (reason) => ((seen.open -= 1), reader.cancel(reason)),
    }, { highWaterMark: 0 });
    return new Response(body, { status: response.status, headers: response.headers });
  };
  return { fetch: through, seen };
}

// Comes back until a stream was not cut.
export async function comeBack({ how }, seen, join) {
  for (let isBack = how === "join" || seen.cuts > 0; isBack; ) {
    const before = seen.cuts;
    await join();
    isBack = seen.cuts > before;
    if (isBack) await pause(20);
  }
}

// Answers every line with what `live` makes of it.
export async function answer(live) {
  for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
    let told;
    try {
      told = await live(JSON.parse(line));
    } catch (error) {
      told = { failed: String(error?.stack ?? error) };
    }
    process.stdout.write(JSON.stringify(told) + "\n");
  }
}

// The case with a class of agents of @ag-ui/client.
export async function agUi(HttpAgent, question) {
  const { fetch, seen } = cutting(question);
  const { url, threadId, how, tools } = question;
  const ran = [];
  class Joining extends HttpAgent {
    connect(input) {
      return new HttpAgent({ url: `${url}/threads/${threadId}/connect`, fetch }).run(input);
    }
  }
  const agent = new Joining({ url: `${url}/agui`, threadId, fetch });
  const isOwn = (name) => tools?.some((tool) => tool.name === name);
  agent.subscribe({
    onToolCallEndEvent: ({ event, toolCallName }) => void (isOwn(toolCallName) && ran.push(event.toolCallId)),
    onNewToolCall: ({ toolCall }) => void (isOwn(toolCall.function.name) && ran.push(toolCall.id)),
  });
  if (how !== "join") {
    agent.addMessage({ id: "user", role: "user", content: question.text ?? "Go" });
    await agent.runAgent({ tools }).catch(() => {});
  }
  await comeBack(question, seen, async () => {
    const before = seen.cuts;
    await agent.connectAgent({}).catch((error) => {
      if (seen.cuts === before) throw error;
    });
  });
  return { messages: agent.messages, state: agent.state, ran, ...seen };
}
