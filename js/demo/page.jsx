// A page of your own: components of React that show tool calls while the model writes them. The thread is in the address, so a
// reload shows it again, in the middle of an argument too.

import { memo, useEffect, useMemo, useState } from "react";
import { createRoot } from "react-dom/client";
import { Thread, ToolCalls } from "callstream";
import { ToolCallsProvider, useField, useGrowingText, useToolCall, useToolCallIds } from "callstream/react";

const STATES = {
  writing: "is being written",
  running: "is running",
  awaiting: "waits for your answer",
  done: "is done",
  failed: "failed",
};

/** The document. Its text grows without rendering this component again. */
const Document = memo(function Document({ id }) {
  const call = useToolCall(id);
  const title = useField(id, "title");
  const text = useGrowingText(id, "content");
  return (
    <article className="call document" aria-busy={call?.state === "writing"} data-state={call?.state}>
      <p className="status">The document {STATES[call?.state]}.</p>
      <h2>{title}</h2>
      <div className="text" role="group" aria-label="Text of the document" tabIndex={0} ref={text} />
    </article>
  );
});

const OtherCall = memo(function OtherCall({ id, answer }) {
  const call = useToolCall(id);
  const args = useField(id);
  return (
    <section className="call" data-state={call.state}>
      <p>
        <strong>{call.name}</strong> <span className="status">{STATES[call.state]}</span>
      </p>
      {args && <p className="status">{Object.values(args).map(String).join(" · ").slice(0, 200)}</p>}
      {call.state === "awaiting" && (
        <div className="row">
          <button className="primary" onClick={() => answer(id, { approved: true })}>
            Approve
          </button>
          <button onClick={() => answer(id, { approved: false })}>Reject</button>
        </div>
      )}
    </section>
  );
});

function Call({ id, answer }) {
  const call = useToolCall(id);
  return call?.name === "write_document" ? <Document id={id} /> : <OtherCall id={id} answer={answer} />;
}

function Calls({ answer }) {
  return useToolCallIds().map((id) => <Call key={id} id={id} answer={answer} />);
}

function Page({ threadId }) {
  const [state, setState] = useState("idle");
  const [problem, setProblem] = useState("");
  const calls = useMemo(() => new ToolCalls(), []);
  const { thread, attempt, answer } = useMemo(() => {
    const thread = new Thread({
      url: new URL("../../agui", location.href),
      threadId,
      onState: setState,
      onEvent(event) {
        calls.take(event);
        if (event.type === "RUN_ERROR") setProblem(event.message);
      },
    });
    const attempt = (work) => (setProblem(""), work().catch((error) => setProblem(error.message)));
    return { thread, attempt, answer: (id, decision) => attempt(() => thread.answer(id, decision)) };
  }, [threadId]);

  useEffect(() => {
    attempt(() => thread.join());
    return () => thread.leave();
  }, [thread]);

  const send = (event) => {
    event.preventDefault();
    const text = new FormData(event.target).get("message").trim();
    if (text !== "") attempt(() => thread.send(text));
  };

  return (
    <ToolCallsProvider calls={calls}>
      <h1>A document while it is written</h1>
      <form onSubmit={send}>
        <input name="message" aria-label="Message" defaultValue="Write about tides." autoComplete="off" />
        {state === "idle" ? (
          <button className="primary">Send</button>
        ) : (
          <button type="button" onClick={() => attempt(() => thread.stop())}>
            Stop
          </button>
        )}
      </form>
      <p className="status" role="status">
        {{ idle: "ready", connecting: "connecting", live: "live", lost: "connection lost, trying again" }[state]}
      </p>
      {problem && (
        <p className="error" role="alert">
          {problem}
        </p>
      )}
      <Calls answer={answer} />
    </ToolCallsProvider>
  );
}

if (location.hash === "") {
  const random = crypto.getRandomValues(new Uint32Array(2));
  history.replaceState(null, "", `#react-${random[0].toString(36)}${random[1].toString(36)}`);
}
createRoot(document.getElementById("root")).render(<Page threadId={location.hash.slice(1)} />);
