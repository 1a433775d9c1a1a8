// How often components are rendered while a call's arguments are written. `renders()` returns what happened, frame by frame.

import { useState } from "react";
import { createRoot } from "react-dom/client";
import { flushSync } from "react-dom";
import { ToolCalls } from "callstream";
import { ToolCallsProvider, useField, useGrowingText, useToolCall, useToolCallIds } from "callstream/react";

const ARGS = JSON.stringify({ title: "Tides", rows: [{ n: 1 }, { n: 2 }], content: "It rises,\nand it falls. 🌊\n".repeat(2000) });

export async function renders() {
  const counts = { ids: 0, state: 0, title: 0, row: 0, content: 0, growing: 0 };
  const shown = [];
  let due = [];
  const calls = new ToolCalls({ schedule: (publish) => due.push(publish) });
  const frame = () => flushSync(() => due.splice(0).forEach((publish) => publish()));
  let show;

  const Ids = () => ((counts.ids += 1), (<p id="ids">{useToolCallIds().join()}</p>));
  const State = () => ((counts.state += 1), (<p id="state">{useToolCall("c")?.state}</p>));
  const Title = () => ((counts.title += 1), (<p id="title">{useField("c", "title")}</p>));
  const Row = () => ((counts.row += 1), (<p id="row">{JSON.stringify(useField("c", ["rows", 1]))}</p>));
  const Content = () => ((counts.content += 1), (<p id="content">{useField("c", ["content"])?.length}</p>));
  const Growing = () => ((counts.growing += 1), (<div id="growing" ref={useGrowingText("c", "content")} />));
  function Page() {
    const [isShown, setShown] = useState(true);
    show = setShown;
    return (
      <ToolCallsProvider calls={calls}>
        <Ids /> <State /> <Title /> <Row /> <Content /> {isShown && <Growing />}
      </ToolCallsProvider>
    );
  }

  const element = document.body.appendChild(document.createElement("div"));
  const root = createRoot(element);
  flushSync(() => root.render(<Page />));
  const before = { ...counts };
  calls.take({ type: "TOOL_CALL_START", toolCallId: "c", toolCallName: "write" });
  let frames = 0;
  for (let at = 0; at < ARGS.length; at += 500) {
    for (const delta of ARGS.slice(at, at + 500).match(/[^]{1,8}/g)) {
      calls.take({ type: "TOOL_CALL_ARGS", toolCallId: "c", delta });
    }
    frame();
    frames += 1;
    shown.push(element.querySelector("#growing").textContent.length);
  }
  calls.take({ type: "TOOL_CALL_END", toolCallId: "c" });
  frame();
  const after = { ...counts };
  const { content } = JSON.parse(ARGS);
  const isExact = element.querySelector("#growing").textContent === content;
  const blocks = element.querySelector("#growing").childElementCount;
  flushSync(() => show(false));
  flushSync(() => show(true));
  const isExactAgain = element.querySelector("#growing").textContent === content;
  const texts = ["ids", "state", "title", "row"].map((id) => element.querySelector(`#${id}`).textContent);
  root.unmount();
  element.remove();
  return { before, after, frames, shown, texts, isExact, isExactAgain, blocks };
}
