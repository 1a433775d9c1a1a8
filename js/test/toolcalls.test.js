import assert from "node:assert/strict";
import { test } from "node:test";
import { ToolCalls } from "callstream";

const ARGS = JSON.stringify({ title: "Tides 🌊", content: "It rises,\nand it falls. ".repeat(20), rows: [{ n: 1 }, { n: 2 }] });

/** A store whose frames come when the test says so. */
function frames() {
  let due = [];
  const calls = new ToolCalls({ schedule: (publish) => due.push(publish) });
  return [calls, () => due.splice(0).forEach((publish) => publish())];
}

const start = (id = "c", name = "write") => ({ type: "TOOL_CALL_START", toolCallId: id, toolCallName: name });
const args = (delta, id = "c") => ({ type: "TOOL_CALL_ARGS", toolCallId: id, delta });
const end = (id = "c") => ({ type: "TOOL_CALL_END", toolCallId: id });
const result = (content, id = "c") => ({ type: "TOOL_CALL_RESULT", toolCallId: id, content });
const pieces = (text, size) => text.match(new RegExp(`[^]{1,${size}}`, "g"));

test("a call from its first event to its result", () => {
  const [calls, frame] = frames();
  const seen = [];
  calls.subscribe("c", () => seen.push([calls.call("c").state, calls.field("c", ["title"])]));
  calls.take(start());
  assert.equal(calls.call("c"), undefined); // nothing changes between two frames
  frame();
  calls.take(args('{"title": "Ti'));
  frame();
  calls.take(args('des"}'));
  frame();
  calls.take(end());
  frame();
  calls.take({ type: "ACTIVITY_SNAPSHOT", activityType: "tool_progress", content: { toolCallId: "c", progress: 3 } });
  calls.take(result("42"));
  frame();
  assert.deepEqual(seen, [
    ["writing", undefined],
    ["writing", "Ti"],
    ["writing", "Tides"],
    ["running", "Tides"],
    ["done", "Tides"],
  ]);
  const { id, name, state, args: whole, result: got, progress } = calls.call("c");
  assert.deepEqual([id, name, state, whole, got, progress], ["c", "write", "done", { title: "Tides" }, "42", 3]);
});

test("what did not change is the same object, and a state that did not change is not published as new", () => {
  const [calls, frame] = frames();
  calls.take(start());
  calls.take(args('{"done": {"a": 1}, "text": "'));
  frame();
  const [call, done] = [calls.call("c"), calls.field("c", ["done"])];
  calls.take(args("more"));
  frame();
  assert.equal(calls.call("c"), call);
  assert.equal(calls.field("c", ["done"]), done);
  assert.equal(calls.field("c", ["text"]), "more");
  assert.equal(calls.field("c", ["constructor"]), undefined);
  assert.equal(calls.field("c", ["text", "length"]), undefined);
  assert.equal(calls.field("nobody"), undefined);
});

test("deltas of one frame are published at once", () => {
  const [calls, frame] = frames();
  let times = 0;
  calls.subscribe("c", () => (times += 1));
  calls.take(start());
  for (const piece of pieces(ARGS, 3)) calls.take(args(piece));
  frame();
  frame();
  assert.equal(times, 1);
  assert.deepEqual(calls.field("c"), JSON.parse(ARGS));
});

test("joining again at any place shows nothing twice and takes nothing back", () => {
  for (let cut = 0; cut <= ARGS.length; cut += 7) {
    for (const size of [1000, 5]) {
      const [calls, frame] = frames();
      let shown = "";
      calls.subscribe("c", () => {
        const text = calls.field("c", ["content"]) ?? "";
        assert.ok(text.startsWith(shown));
        shown = text;
      });
      calls.take(start());
      for (const piece of pieces(ARGS.slice(0, cut), 9) ?? []) (calls.take(args(piece)), frame());
      calls.take({ type: "MESSAGES_SNAPSHOT", messages: [{ role: "user", content: "Go" }] });
      calls.take(start());
      frame();
      for (const piece of pieces(ARGS, size)) (calls.take(args(piece)), frame());
      calls.take(end());
      frame();
      assert.deepEqual(calls.call("c").args, JSON.parse(ARGS));
      assert.deepEqual(calls.ids, ["c"]);
    }
  }
});

test("calls of a response that another process asks for again are gone", () => {
  const [calls, frame] = frames();
  const whole = { ...start(), toolCallId: "whole" };
  let times = 0;
  calls.subscribe(null, () => (times += 1));
  for (const event of [whole, { ...args("{}"), toolCallId: "whole" }, { ...end(), toolCallId: "whole" }, start(), args('{"a":"hal')]) {
    calls.take(event);
  }
  frame();
  assert.deepEqual(calls.ids, ["whole", "c"]);
  calls.take({ type: "MESSAGES_SNAPSHOT", messages: [{ role: "user", content: "Go" }] });
  frame();
  assert.deepEqual(calls.ids, ["whole", "c"], "they may begin again");
  calls.take(end());
  calls.take({ ...start(), toolCallId: "again" });
  frame();
  assert.deepEqual([calls.ids, calls.call("c"), calls.field("c"), times], [["again"], undefined, undefined, 2]);
  calls.take(start());
  frame();
  assert.deepEqual(calls.ids, ["again", "c"]);
  calls.take({ type: "RUN_FINISHED" });
  frame();
  assert.deepEqual(calls.ids, ["again", "c"]);
});

test("calls that a chat has no more are gone", () => {
  const [calls, frame] = frames();
  const part = (toolCallId) => ({ type: "tool-write", toolCallId, state: "input-streaming", input: {} });
  calls.takeChat([{ parts: [part("half")] }]);
  frame();
  calls.takeChat([{ parts: [part("again")] }]);
  frame();
  assert.deepEqual([calls.ids, calls.call("half")], [["again"], undefined]);
});

test("a call that is written anew under its id replaces the first", () => {
  const [calls, frame] = frames();
  for (const text of ['{"a": "first and long"}', '{"a": "second"}', '{"a": "sec']) {
    calls.take(start());
    calls.take(args(text));
    frame();
    calls.take(end());
    frame();
  }
  assert.deepEqual([calls.field("c"), calls.call("c").args], [{ a: "sec" }, { a: "sec" }]);
});

test("a snapshot brings whole calls, results and progress", () => {
  const [calls, frame] = frames();
  const called = [{ id: "x", type: "function", function: { name: "write", arguments: ARGS } }];
  const messages = [
    { role: "assistant", toolCalls: called },
    { role: "activity", activityType: "tool_progress", content: { toolCallId: "x", progress: 1 } },
    { role: "activity", activityType: "other", content: {} },
    { role: "tool", toolCallId: "x", content: '{"error": "no paper"}' },
  ];
  calls.take({ type: "MESSAGES_SNAPSHOT", messages });
  frame();
  const { state, args: whole, progress } = calls.call("x");
  assert.deepEqual([state, whole, progress], ["failed", JSON.parse(ARGS), 1]);
  const before = calls.call("x");
  calls.take({ type: "MESSAGES_SNAPSHOT", messages });
  frame();
  assert.equal(calls.field("x"), before.args);
});

test("calls that await an answer", () => {
  const [calls, frame] = frames();
  const begun = [];
  calls.subscribe(null, () => begun.push(...calls.ids));
  for (const id of ["a", "b"]) for (const event of [start(id), args("{}", id), end(id)]) calls.take(event);
  calls.take({ type: "RUN_FINISHED", outcome: { type: "success", pendingToolCallIds: ["a"] } });
  calls.take({ type: "RUN_FINISHED", outcome: { type: "interrupt", interrupts: [{ toolCallId: "b", message: "May I?" }] } });
  frame();
  assert.deepEqual([calls.call("a").state, calls.call("b").state], ["awaiting", "awaiting"]);
  assert.equal(calls.call("b").question.message, "May I?");
  assert.deepEqual(begun, ["a", "b"]);
  calls.subscriber.onRunStartedEvent({ messages: [{ role: "tool", toolCallId: "a", content: "yes" }] });
  calls.subscriber.onEvent({ event: result("no", "b") });
  frame();
  assert.deepEqual([calls.call("a").result, calls.call("b").state], ["yes", "done"]);
});

test("messages of the AI SDK", () => {
  const [calls, frame] = frames();
  const show = (part) => (calls.takeChat([{ parts: [{ type: "text", text: "Hm" }, { type: "tool-write", toolCallId: "c", ...part }] }]), frame());
  const states = [];
  calls.subscribe("c", () => states.push(calls.call("c").state));
  show({ state: "input-streaming", input: { title: "Ti" } });
  assert.deepEqual([calls.field("c", ["title"]), calls.call("c").args], ["Ti", undefined]);
  show({ state: "approval-requested", input: { title: "Tides" }, approval: { id: "q" } });
  show({ state: "output-available", input: { title: "Tides" }, output: 1, preliminary: true });
  show({ state: "output-available", input: { title: "Tides" }, output: 2 });
  show({ state: "output-error", input: { title: "Tides" }, errorText: "no" });
  assert.deepEqual(states, ["writing", "awaiting", "running", "done", "failed"]);
  assert.deepEqual([calls.call("c").name, calls.call("c").progress, calls.call("c").result], ["write", 1, "no"]);
});

test("an ended subscription is not told", () => {
  const [calls, frame] = frames();
  const leave = calls.subscribe("c", () => assert.fail());
  leave();
  calls.take(start());
  frame();
});

test("a tool that waits for a confirmation awaits an answer, as the question about it does", () => {
  const [calls, frame] = frames();
  calls.take(start("d", "delete"));
  calls.take(args('{"path": "a"}', "d"));
  calls.take(end("d"));
  calls.take(start("q", "adk_request_confirmation"));
  calls.take(args('{"originalFunctionCall": {"id": "d", "name": "delete"}}', "q"));
  calls.take(end("q"));
  frame();
  assert.equal(calls.call("d").state, "running");
  calls.take({ type: "RUN_FINISHED", outcome: { type: "success", pendingToolCallIds: ["q"] } });
  frame();
  assert.deepEqual([calls.call("q").state, calls.call("d").state], ["awaiting", "awaiting"]);
  calls.take(result("deleted", "d"));
  calls.take({ type: "RUN_FINISHED", outcome: { type: "success", pendingToolCallIds: ["q"] } });
  frame();
  assert.equal(calls.call("d").state, "done");
});
