// Both ends of an MCP App, of the official packages: what a host sends with toolInputPartial arrives in the view as it should.

import assert from "node:assert/strict";
import { test } from "node:test";
import { InMemoryTransport } from "@modelcontextprotocol/client";
import { App } from "@modelcontextprotocol/ext-apps";
import { AppBridge } from "@modelcontextprotocol/ext-apps/app-bridge";
import { toolInputPartial } from "../../../js/mcpapp.js";

const ARGS = { title: "Tides 🌊", rows: [1, 2.5, null], content: 'It "rises",\nand it falls. '.repeat(50) };

async function connected() {
  const bridge = new AppBridge(null, { name: "host", version: "1" }, {});
  const view = new App({ name: "view", version: "1" }, {}, { autoResize: false });
  const told = [];
  view.ontoolinputpartial = ({ arguments: so_far }) => told.push(["partial", so_far]);
  view.ontoolinput = ({ arguments: whole }) => told.push(["whole", whole]);
  view.ontoolcancelled = ({ reason }) => told.push(["cancelled", reason]);
  const [here, there] = InMemoryTransport.createLinkedPair();
  const ready = new Promise((resolve) => (bridge.oninitialized = resolve));
  await bridge.connect(here);
  await view.connect(there);
  await ready;
  return [bridge, told];
}

const settled = () => new Promise((resolve) => setTimeout(resolve, 5));

test("a view sees the arguments grow, then whole", async () => {
  const [bridge, told] = await connected();
  const input = toolInputPartial((params) => bridge.sendToolInputPartial(params));
  for (const delta of JSON.stringify(ARGS).match(/[^]{1,40}/g)) {
    input.feed(delta);
    await settled();
  }
  await bridge.sendToolInput({ arguments: input.close() });
  await settled();
  assert.deepEqual(told.pop(), ["whole", ARGS]);
  assert.ok(told.length > 20);
  let before = "";
  for (const [kind, { title, content = "" }] of told) {
    assert.equal(kind, "partial");
    assert.ok(ARGS.title.startsWith(title) && content.startsWith(before));
    before = content;
  }
});

test("a call that is cancelled while it is written", async () => {
  const [bridge, told] = await connected();
  const input = toolInputPartial((params) => bridge.sendToolInputPartial(params));
  input.feed('{"title": "Ti');
  await settled();
  input.feed("des");
  input.stop();
  await bridge.sendToolCancelled({ reason: "stopped" });
  await settled();
  assert.deepEqual(told, [["partial", { title: "Ti" }], ["cancelled", "stopped"]]);
});
