import assert from "node:assert/strict";
import { test } from "node:test";
import { Delivered } from "../delivered.js";

const RUN = [
  { type: "start", messageId: "m", messageMetadata: { runId: "r" } },
  { type: "start-step" },
  { type: "reasoning-start", id: "reasoning-1" },
  { type: "reasoning-delta", id: "reasoning-1", delta: "Hm." },
  { type: "reasoning-end", id: "reasoning-1" },
  { type: "text-start", id: "text-2" },
  { type: "text-delta", id: "text-2", delta: "I " },
  { type: "text-delta", id: "text-2", delta: "write." },
  { type: "text-end", id: "text-2" },
  { type: "tool-input-start", toolCallId: "c", toolName: "write" },
  { type: "tool-input-delta", toolCallId: "c", inputTextDelta: '{"a": "' },
  { type: "data-state", id: "state", data: 1 },
  { type: "tool-input-delta", toolCallId: "c", inputTextDelta: 'b"}' },
  { type: "tool-input-available", toolCallId: "c", toolName: "write", input: { a: "b" } },
  { type: "tool-output-available", toolCallId: "c", output: 1, preliminary: true },
  { type: "tool-output-available", toolCallId: "c", output: 2, preliminary: true },
  { type: "tool-output-available", toolCallId: "c", output: "done" },
  { type: "finish-step" },
  { type: "start-step" },
  { type: "text-start", id: "text-3" },
  { type: "text-delta", id: "text-3", delta: "Done." },
  { type: "text-end", id: "text-3" },
  { type: "finish-step" },
  { type: "finish", finishReason: "stop" },
];

/** What a message is made of, however its texts were cut. */
function joined(chunks) {
  const told = [];
  for (const chunk of chunks) {
    const last = told.at(-1);
    const field = chunk.type === "tool-input-delta" ? "inputTextDelta" : "delta";
    if (chunk.type === "data-state") continue; // may be repeated
    if (field in chunk && last?.type === chunk.type) told[told.length - 1] = { ...last, [field]: last[field] + chunk[field] };
    else told.push(chunk);
  }
  return told;
}

const merged = joined(RUN);

test("a run is passed on whole, wherever it is cut and however its texts are cut the second time", () => {
  for (let cut = 0; cut <= RUN.length; cut += 1) {
    for (const again of [RUN, merged]) {
      const delivered = new Delivered();
      const chunks = RUN.slice(0, cut).flatMap((chunk) => delivered.take(chunk));
      assert.equal(delivered.isOver, cut === RUN.length);
      delivered.startOver();
      chunks.push(...again.slice(0, cut / 2).flatMap((chunk) => delivered.take(chunk)));
      delivered.startOver();
      chunks.push(...again.flatMap((chunk) => delivered.take(chunk)));
      const wanted = cut === RUN.length ? [...merged, ...merged.slice(-2)] : merged; // nobody asks again after the end
      assert.deepEqual(joined(chunks), wanted, `cut after ${cut}`);
      assert.equal(delivered.runId, "r");
    }
  }
});

test("the outputs of a running tool come in their order, and none twice", () => {
  const delivered = new Delivered();
  const update = (output) => ({ type: "tool-output-available", toolCallId: "c", output, preliminary: true });
  assert.deepEqual([1, 2].flatMap((each) => delivered.take(update(each))), [update(1), update(2)]);
  delivered.startOver();
  assert.deepEqual([1, 2, 3].flatMap((each) => delivered.take(update(each))), [update(3)]);
});

const CUT = [
  ...RUN.slice(0, 2),
  { type: "text-start", id: "text-1" },
  { type: "text-delta", id: "text-1", delta: "Half a t" },
  { type: "reset-step" },
  { type: "data-state", id: "state", data: 1 },
  ...RUN.slice(5, 9),
  ...RUN.slice(-2),
];

test("what was shown of a response that is void is taken back once", () => {
  for (let cut = 0; cut < CUT.length; cut += 1) {
    const delivered = new Delivered();
    const chunks = CUT.slice(0, cut).flatMap((chunk) => delivered.take(chunk));
    delivered.startOver();
    chunks.push(...CUT.flatMap((chunk) => delivered.take(chunk)));
    const types = chunks.map(({ type }) => type);
    assert.equal(types.filter((type) => type === "reset-step").length, 1, `cut after ${cut}`);
    assert.ok(types.lastIndexOf("data-state") > types.indexOf("reset-step"), `cut after ${cut}`);
    assert.deepEqual(joined(chunks), joined(CUT), `cut after ${cut}`);
  }
});

test("a chat that cannot take back what is void is lost", () => {
  const delivered = new Delivered();
  assert.deepEqual(CUT.slice(0, 4).flatMap((chunk) => delivered.take(chunk)), CUT.slice(0, 4));
  assert.equal(delivered.isLost, false);
  assert.deepEqual(delivered.take({ type: "data-void", data: { runId: "r", attempt: 2 }, transient: true }), []);
  assert.equal(delivered.isLost, true);
});
