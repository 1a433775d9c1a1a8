import assert from "node:assert/strict";
import { test } from "node:test";
import { Thread } from "callstream";

const RUN = (id) => [
  { type: "RUN_STARTED", threadId: "t", runId: id },
  { type: "RUN_FINISHED", threadId: "t", runId: id, outcome: { type: "success" } },
];
const stream = (events) => new Response(events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join(""));

/** A server: the runs of a thread, and what it was asked. */
function server() {
  const asked = [];
  const runs = [];
  const fetch = async (url, { body }) => {
    const sent = JSON.parse(body);
    const path = new URL(url).pathname;
    asked.push([path, sent.known]);
    if (path === "/agui") {
      runs.push(sent.runId);
      return stream(RUN(sent.runId));
    }
    const last = runs.at(-1);
    return last === undefined || last === sent.known ? new Response(null, { status: 204 }) : stream(RUN(last));
  };
  return { asked, runs, fetch };
}

/** A thread, and a way to wait until a run was seen. */
function threadOf(fetch) {
  const waiting = new Map();
  const seen = [];
  const onEvent = ({ type, runId }) => {
    if (type !== "RUN_FINISHED") return;
    seen.push(runId);
    waiting.get(runId)?.();
  };
  const thread = new Thread({ url: "http://server/agui", threadId: "t", fetch, onEvent, firstPause: 1 });
  const sees = (runId) => new Promise((resolve) => (seen.includes(runId) ? resolve() : waiting.set(runId, resolve)));
  return { thread, seen, sees };
}

test("joining a thread that is not there yet is no error", async () => {
  const { asked, fetch } = server();
  const { thread } = threadOf(fetch);
  assert.equal(await thread.join(), "missing");
  assert.deepEqual(asked, [["/threads/t/connect", null]]);
});

test("without follow, the last run is the last one that is shown", async () => {
  const { runs, fetch } = server();
  runs.push("r1");
  const { thread, seen } = threadOf(fetch);
  assert.equal(await thread.join(), "ended");
  assert.deepEqual(seen, ["r1"]);
});

test("a tab that follows its thread shows later runs, those of other tabs and its own, each once", async () => {
  const { asked, runs, fetch } = server();
  const { thread, seen, sees } = threadOf(fetch);
  const following = thread.join({ follow: true });
  runs.push("r1");
  await sees("r1");
  runs.push("r2");
  await sees("r2");
  assert.equal(await thread.send("Hello"), "ended");
  assert.equal(await following, "left"); // for the run of its own
  const own = runs.at(-1);
  runs.push("r4");
  await sees("r4");
  thread.leave();
  const { length } = asked;
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(asked.length, length);
  assert.deepEqual(seen, ["r1", "r2", own, "r4"]);
});
