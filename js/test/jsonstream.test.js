import assert from "node:assert/strict";
import { test } from "node:test";
import { JsonStream } from "callstream";

const DOCUMENTS = [
  "{}",
  "[]",
  '""',
  "true",
  " null ",
  '{"title": "A \\"quoted\\" title", "n": [1, 2.5, -3e-2, null, true, {"k": "🎈"}], "": {"": ""}}',
  '["\\ud83c\\udf88 \\u00e9 \\n \\/", "\\ud83c", "x\\ud83cy", "👩‍👩‍👧"]',
  '{"a": 1, "a": {"b": "twice"}, "a": "thrice"}',
  '{"__proto__": {"x": 1}, "constructor": "y"}',
  '[[[[]], {}], {"rows": [{"id": 1}, {"id": 2}]}]',
];

/** @param {string} text @param {number} size */
const pieces = (text, size) => Array.from({ length: Math.ceil(text.length / size) }, (_, n) => text.slice(n * size, (n + 1) * size));

/** Whether a value is what another was when less of it was written. */
function grew(before, after) {
  if (before === undefined) return true;
  if (typeof before === "string") return typeof after === "string" && after.startsWith(before);
  if (before === null || typeof before !== "object") return Object.is(before, after);
  if (typeof after !== "object" || after === null || Array.isArray(before) !== Array.isArray(after)) return false;
  return Object.keys(before).every((key) => key in after && grew(before[key], after[key]));
}

for (const text of DOCUMENTS) {
  test(`every split of ${text.slice(0, 40)}`, () => {
    for (let size = 1; size <= text.length; size += 1) {
      const stream = new JsonStream();
      const seen = [];
      for (const piece of pieces(text, size)) {
        stream.feed(piece);
        seen.push([stream.value, JSON.stringify(stream.value)]);
        assert.equal(stream.error, null);
      }
      assert.deepEqual(stream.close(), JSON.parse(text));
      assert.equal(stream.complete, true);
      // What was returned has not changed since, and nothing was taken back.
      for (const [value, written] of seen) assert.equal(JSON.stringify(value), written);
      if (!text.includes('"a": 1, "a"')) seen.reduce((before, [value]) => (assert.ok(grew(before, value)), value), undefined);
    }
  });
}

test("no half of a surrogate pair is shown, escaped or not", () => {
  for (const text of ['["🎈🎈"]', '["\\ud83c\\udf88"]']) {
    const stream = new JsonStream();
    for (const unit of pieces(text, 1)) {
      for (const change of stream.feed(unit)) {
        if (change.kind === "append") assert.doesNotMatch(change.value, /[\ud800-\udbff](?![\udc00-\udfff])/);
      }
      assert.ok((stream.value?.[0] ?? "").isWellFormed?.() ?? true);
    }
  }
});

test("changes carry what was added", () => {
  const stream = new JsonStream();
  const changes = [...stream.feed('{"a":"x'), ...stream.feed('y","n":1'), ...stream.feed("2}")];
  assert.deepEqual(changes, [
    { kind: "open", path: [], value: {} },
    { kind: "append", path: ["a"], value: "x" },
    { kind: "append", path: ["a"], value: "y" },
    { kind: "close", path: ["a"], value: undefined },
    { kind: "set", path: ["n"], value: 12 },
    { kind: "close", path: [], value: undefined },
  ]);
});

test("finished parts are shared between values", () => {
  const stream = new JsonStream();
  stream.feed('{"done":{"a":1},"rows":[');
  const before = stream.value;
  stream.feed('"x"');
  assert.notEqual(stream.value, before);
  assert.equal(stream.value.done, before.done);
  assert.equal(stream.value, stream.value);
});

for (const text of ['{"a":1 2}', '["x\ny"]', "{", '{"a"', "tru", "01", "[1,]", '"\\x"', "1 2", ""]) {
  test(`refuses ${JSON.stringify(text)} and keeps what was right`, () => {
    const stream = new JsonStream();
    stream.feed(text);
    const kept = JSON.stringify(stream.value);
    assert.throws(() => stream.close(), SyntaxError);
    assert.deepEqual(stream.feed("anything"), []);
    assert.equal(JSON.stringify(stream.value), kept);
  });
}

test("a long argument costs what its length costs", () => {
  const text = JSON.stringify({ content: "It rises, and it falls.\n".repeat(17_000), rows: Array(2000).fill({ id: 1, name: "row" }) });
  const stream = new JsonStream();
  let changes = 0;
  for (const piece of pieces(text, 8)) {
    changes += stream.feed(piece).length;
    void stream.value;
  }
  assert.deepEqual(stream.close(), JSON.parse(text));
  assert.ok(changes < text.length);
});

test("a name that comes twice begins anew, or is a mistake where names are unique", () => {
  const text = '{"a":"1","o":{"a":2},"a":"3"}';
  const last = new JsonStream();
  last.feed(text);
  assert.deepEqual(last.close(), JSON.parse(text));
  const first = new JsonStream({ uniqueNames: true });
  for (const piece of pieces(text, 1)) first.feed(piece);
  assert.deepEqual(first.value, { a: "1", o: { a: 2 } });
  assert.throws(() => first.close(), /the name "a" comes twice in an object/);
});
