// The npm package's transport on the SDK's own one: what it does with streams that break, end early or cannot be had again.

import assert from "node:assert/strict";
import { test } from "node:test";
import * as ai6 from "ai6";
import * as ai7 from "ai7";
import { callstreamTransport } from "../../../js/ai.js";

const RUN = [
  { type: "start", messageId: "m", messageMetadata: { runId: "r" } },
  { type: "start-step" },
  { type: "text-start", id: "text-1" },
  { type: "text-delta", id: "text-1", delta: "Hello" },
  { type: "text-delta", id: "text-1", delta: " there" },
  { type: "text-end", id: "text-1" },
  { type: "finish-step" },
  { type: "finish", finishReason: "stop" },
];
const lost = () => new TypeError("network error");

/** A body of chunks; an error among them breaks it. */
function body(chunks) {
  let at = 0;
  return new ReadableStream({
    pull(controller) {
      const chunk = chunks[at++];
      if (chunk instanceof Error) controller.error(chunk);
      else if (chunk === undefined) controller.close();
      else controller.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(chunk)}\n\n`));
    },
  });
}

/** A transport whose requests are answered one after the other: a status, an error of the network, or chunks. */
function transport(...answers) {
  return transportOf(ai7, ...answers);
}

function transportOf({ DefaultChatTransport }, ...answers) {
  const asked = [];
  const fetch = async (url, { method, headers }) => {
    asked.push([method, String(url), new Headers(headers).get("x-run-id"), new Headers(headers).get("x-own")]);
    const answer = answers.shift();
    if (answer instanceof Error) throw answer;
    if (typeof answer === "number") return new Response(answer === 204 ? null : "no", { status: answer });
    return new Response(body(answer));
  };
  return [callstreamTransport(DefaultChatTransport, { api: "http://chat.invalid/ui?sdk=7", fetch, firstPause: 0, tries: 3 }), asked];
}

const given = { chatId: "chat", messages: [], trigger: "submit-message", headers: { "X-Own": "1" } };

/** The text that was passed on, and a period for the end. */
async function text(stream) {
  let said = "";
  for await (const chunk of stream) said += chunk.delta ?? (chunk.type === "finish" ? "." : "");
  return said;
}

test("the run is asked for again, and only the rest is passed on", async () => {
  const half = [...RUN.slice(0, 4), lost()];
  const [healed, asked] = transport(half, 503, [...RUN.slice(0, 3), lost()], RUN);
  assert.equal(await text(await healed.sendMessages(given)), "Hello there.");
  const again = ["GET", "http://chat.invalid/ui/chat/stream?sdk=7", "r", "1"];
  assert.deepEqual(asked, [["POST", "http://chat.invalid/ui?sdk=7", null, "1"], ...Array(3).fill(again)]);
});

for (const [sdk, ai] of Object.entries({ ai6, ai7 })) {
  test(`a message of ${sdk} is the same wherever its second step is cut`, () => checkSteps(ai));
}

test("a call that had its output when the page was loaded is not made available by the run that is sent again", async () => {
  const call = { toolCallId: "c", toolName: "write" };
  const output = { type: "tool-output-available", toolCallId: "c", output: {} };
  const input = [{ type: "tool-input-start", ...call }, { type: "tool-input-delta", toolCallId: "c", inputTextDelta: "{}" }];
  const available = { type: "tool-input-available", ...call, input: {} };
  const [start, step, ...rest] = RUN;
  const turn = [start, step, ...input, output, lost()];
  const run = [start, step, ...input, available, output, { type: "finish-step" }, step, ...rest];
  const [healed] = transport(turn, run);
  const types = [];
  for await (const chunk of await healed.reconnectToStream(given)) types.push(chunk.type);
  assert.equal(types.filter((type) => type === "tool-input-start").length, 1);
  assert.equal(types.includes("tool-input-available"), false);
  assert.deepEqual(types.slice(-2), ["finish-step", "finish"]);
});

async function checkSteps(ai) {
  const first = { type: "text-start", id: "text-0" };
  const step = [{ type: "start-step" }, first, { type: "text-delta", id: "text-0", delta: "Hm." }, { type: "text-end", id: "text-0" }];
  const run = [RUN[0], ...step, { type: "finish-step" }, ...RUN.slice(1)];
  const messages = [];
  for (let cut = 1; cut <= run.length; cut += 1) {
    const [healed] = transportOf(ai, [...run.slice(0, cut), lost()], [...run.slice(0, cut - 1), lost()], run);
    let message;
    const errors = [];
    const stream = await healed.sendMessages(given);
    for await (message of ai.readUIMessageStream({ stream, onError: (error) => errors.push(error) }));
    assert.deepEqual(errors, []);
    messages.push(message);
  }
  assert.deepEqual(messages, Array(run.length).fill(messages.at(-1)));
  assert.deepEqual(messages[0].parts.map((part) => part.text ?? part.type), ["step-start", "Hm.", "step-start", "Hello there"]);
}

test("a body that ends well before its run has ended is taken for lost", async () => {
  const [healed] = transport(RUN.slice(0, 5), RUN);
  assert.equal(await text(await healed.reconnectToStream({ chatId: "chat" })), "Hello there.");
});

test("what is lost after the end does no harm", async () => {
  const [healed, asked] = transport([...RUN, lost()]);
  assert.equal(await text(await healed.sendMessages(given)), "Hello there.");
  assert.equal(asked.length, 1);
});

for (const [name, answers, message, requests] of [
  ["after so many tries", [[...RUN.slice(0, 4), lost()], lost(), 503, lost(), RUN], /network error/, 4],
  ["when there is no such run", [[...RUN.slice(0, 4), lost()], 204, RUN], /network error/, 2],
  ["when it is refused", [[...RUN.slice(0, 4), lost()], 401, RUN], /no/, 2],
  ["when the run is not known", [[lost()], RUN], /network error/, 1],
  ["when the SDK refuses a chunk", [[RUN[0], { type: "unheard-of" }], RUN], /unheard-of|validation/i, 1],
]) {
  test(`it gives up ${name}`, async () => {
    const [healed, asked] = transport(...answers);
    await assert.rejects(async () => text(await healed.sendMessages(given)), message);
    assert.equal(asked.length, requests);
  });
}

test("a chat that was stopped does not come back, and its run is stopped", async () => {
  const [healed, asked] = transport([...RUN.slice(0, 4), lost()], 404, RUN);
  const stopping = new AbortController();
  const stream = await healed.sendMessages({ ...given, abortSignal: stopping.signal });
  stopping.abort();
  await assert.rejects(text(stream));
  await healed.sendMessages(given);
  assert.deepEqual(
    asked.map(([method, url, , own]) => [method, url, own]),
    [
      ["POST", "http://chat.invalid/ui?sdk=7", "1"],
      ["POST", "http://chat.invalid/ui/chat/stop?sdk=7", "1"],
      ["POST", "http://chat.invalid/ui?sdk=7", "1"],
    ],
  );
});

test("a run that has ended is not stopped", async () => {
  const [healed, asked] = transport(RUN);
  const stopping = new AbortController();
  assert.equal(await text(await healed.sendMessages({ ...given, abortSignal: stopping.signal })), "Hello there.");
  stopping.abort();
  await new Promise((resolve) => setTimeout(resolve));
  assert.equal(asked.length, 1);
});

test("nothing to resume stays nothing", async () => {
  assert.equal(await transport(204)[0].reconnectToStream({ chatId: "chat" }), null);
});
