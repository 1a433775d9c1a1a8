import assert from "node:assert/strict";
import { test } from "node:test";
import { toolInputPartial } from "callstream/mcp-app";

/** A host's input, what it sent, and its next frame. */
function host() {
  const sent = [];
  let due = [];
  const input = toolInputPartial((params) => sent.push(params), { schedule: (send) => due.push(send) });
  return [input, sent, () => due.splice(0).forEach((send) => send())];
}

test("one message a frame, each with everything so far", () => {
  const [input, sent, frame] = host();
  for (const delta of ['{"loc', 'ation": "New', " York", '", "n": 1']) input.feed(delta);
  frame();
  frame();
  input.feed("2");
  frame();
  input.feed("}");
  frame();
  assert.deepEqual(sent, [{ arguments: { location: "New York" } }, { arguments: { location: "New York", n: 12 } }]);
  assert.deepEqual(input.close(), { location: "New York", n: 12 });
});

test("nothing is sent after the end", () => {
  const [input, sent, frame] = host();
  input.feed('{"a": 1}');
  assert.deepEqual(input.close(), { a: 1 });
  frame();
  const [stopped, none, next] = host();
  stopped.feed('{"a": ');
  stopped.stop();
  stopped.feed("1}");
  next();
  assert.deepEqual([sent, none], [[], []]);
});

test("arguments that are no object are not sent, and those that are no JSON are refused", () => {
  const [input, sent, frame] = host();
  input.feed("[1, 2]");
  frame();
  assert.deepEqual(sent, []);
  const [broken] = host();
  broken.feed('{"a": ');
  assert.throws(() => broken.close(), SyntaxError);
});
