"""The page's own modules that show nothing: the JSON reader, the event stream, the fold. Compared with Python's."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from callstream import Callstream
from callstream.errors import WireError
from callstream.events import CallStarted, MessageStarted, ReasoningAppended, Record, RunEvent, TextAppended
from callstream.jsontext.stream import JsonStream
from callstream.view import AnswerView, CallView, InputView, Item, Passage, RunView
from tests.page.inspector import Inspector
from tests.page.stage import DOCUMENT, Stage

pytestmark = pytest.mark.slow

_READ = """
({ JsonReader }, documents) => JSON.parse(documents).map((pieces) => {
  const reader = new JsonReader();
  const feeds = pieces.map((piece) => reader.feed(piece).map(({ kind, path, value }) => [kind, path, value]));
  const isComplete = reader.complete;
  const rest = reader.error === null ? reader.end().map(({ kind, path, value }) => [kind, path, value]) : [];
  return JSON.stringify({ feeds, isComplete, rest, position: reader.error?.position ?? null });
})
"""


def _value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 4 else 6)
    match kind:
        case 0:
            return chance.choice([None, True, False])
        case 1:
            return chance.choice([0, -1, 12345678901234567890123, 10**300, chance.randrange(10**6)])
        case 2:
            return chance.choice([0.5, -1e-9, 1e300, 3.141592653589793])
        case 3 | 4 | 5:
            return _text(chance)
        case 6:
            return [_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {_text(chance)[:6]: _value(chance, depth + 1) for _ in range(chance.randrange(4))}


def _text(chance: random.Random) -> str:
    letters = 'ab c"\\/\b\f\n\r\t\u0000é€🌊👩‍👩‍👧\u2028\ud800\udc00مב<&'
    return "".join(chance.choice(letters) for _ in range(chance.randrange(12)))


def _written(chance: random.Random, value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, indent=chance.choice([None, 1]))
    if chance.random() < 0.5:  # as it is, but for lone halves of pairs, which no UTF-8 can carry
        try:
            plain = json.dumps(value, ensure_ascii=False)
            plain.encode()
            text = plain
        except UnicodeEncodeError:
            pass
    return text.replace("/", "\\/") if chance.random() < 0.2 else text


def _spoilt(chance: random.Random, text: str) -> str:
    index = chance.randrange(len(text) + 1)
    match chance.randrange(3):
        case 0:
            return text[:index]
        case 1:
            return text[:index] + chance.choice('x"\\{}[],:0-.eu\n\u0001') + text[index:]
    return text[:index] + text[index + 1 :]


def _split(chance: random.Random, text: str) -> list[str]:
    if chance.random() < 0.3:
        return list(text)
    cuts = sorted(chance.randrange(len(text) + 1) for _ in range(chance.randrange(6)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def _by_python(pieces: list[str]) -> dict[str, Any]:
    """What JsonStream makes of it, in the words of the page's reader."""
    stream = JsonStream()
    feeds: list[list[list[Any]]] = []
    for piece in pieces:
        try:
            changes = stream.feed(piece) if stream.error is None else []
        except WireError:
            changes = []
        feeds.append([[change.kind, list(change.path), _shown(change.kind, change.value)] for change in changes])
    is_complete = stream.complete
    alone: list[Any] = []
    try:
        whole = stream.close()
        alone = [] if is_complete else [["set", [], whole]]
    except WireError:
        pass
    position = None if stream.error is None else stream.error.position
    if position is not None:
        position = len("".join(pieces)[:position].encode("utf-16-le", "surrogatepass")) // 2
    return {"feeds": feeds, "isComplete": is_complete, "rest": alone, "position": position}


def _shown(kind: str, value: Any) -> Any:
    match kind:
        case "open":
            return "{" if isinstance(value, dict) else "["
        case "close":
            return ""
    return value


def _with_numbers(changes: list[list[Any]]) -> list[list[Any]]:
    """The page keeps numbers as they were written; here they become Python's."""
    return [[kind, path, json.loads(value) if kind == "set" else value] for kind, path, value in changes]


@pytest.mark.parametrize("is_spoilt", [False, True])
def test_chunk_boundaries_mean_nothing_to_the_page(inspector: Inspector, is_spoilt: bool) -> None:
    """Change by change, feed by feed, the page's reader does what JsonStream does; with mistakes in the text too."""
    chance = random.Random(f"page {is_spoilt}")
    documents = []
    for _ in range(600):
        text = _written(chance, _value(chance))
        documents.append(_split(chance, _spoilt(chance, text) if is_spoilt else text))
    read = inspector.import_and("jsonreader.js", _READ, json.dumps(documents))
    wrong = 0
    for pieces, answer in zip(documents, read, strict=True):
        found = json.loads(answer)
        found["feeds"] = [_with_numbers(feed) for feed in found["feeds"]]
        found["rest"] = _with_numbers(found["rest"])
        assert repr(found) == repr(_by_python(pieces)), pieces  # repr tells 1 from 1.0 and True
        wrong += found["position"] is not None
    assert (wrong > 200) is is_spoilt


def test_reader_depth_is_bounded(inspector: Inspector) -> None:
    read = json.loads(inspector.import_and("jsonreader.js", _READ, json.dumps([["[" * 300]]))[0])
    assert read["position"] == 256


_DECODE = """
({ EventStreamDecoder }, cases) => cases.map((pieces) => {
  const decoder = new EventStreamDecoder();
  return pieces.flatMap((piece) => decoder.feed(piece));
})
"""


def test_event_stream_in_any_split(inspector: Inspector) -> None:
    stream = (
        ': hello\n\nid: 7\ndata: {"a":1}\n\nevent: compacted\ndata: one\ndata:two\n\n'
        "data\r\n\r\nid\rdata: x\r\revent: end\ndata: {}\n\ndata: not finished"
    )
    wanted = [
        {"type": "message", "data": '{"a":1}', "lastId": "7"},
        {"type": "compacted", "data": "one\ntwo", "lastId": "7"},
        {"type": "message", "data": "", "lastId": "7"},
        {"type": "message", "data": "x", "lastId": ""},
        {"type": "end", "data": "{}", "lastId": ""},
    ]
    chance = random.Random("events")
    cases = [[stream], list(stream), *(_split(chance, stream) for _ in range(100))]
    for found in inspector.import_and("eventstream.js", _DECODE, cases):
        assert found == wanted


_FOLD = """
({ Thread }, [rows, batches]) => {
  const thread = new Thread("thread");
  thread.add(rows);
  for (const records of batches) {
    for (const record of records) thread.take(record);
    thread.settle();
  }
  const told = (item) => item.callId === undefined
    ? [item.kind, item.takeText?.() ?? ""]
    : [item.kind, item.callId, item.name, item.state, item.argsText, JSON.stringify(item.result ?? null)];
  return [...thread.runs.values()].map((run) => [run.runId, run.outcome, run.lastSeq, run.items.map(told)]);
}
"""


def in_the_view(item: Item, calls: list[Any]) -> list[str]:
    """What the page shows of an item. It shows a call with the answer of a later run, so its state is the journal's."""
    match item:
        case InputView(received=received):
            return ["input", received.text]
        case Passage(kind=kind, text=text):
            return [kind, text]
        case CallView(call_id=call_id, name=name):
            return ["call", call_id, name, str(next(call.state for call in calls if call.call_id == call_id))]
        case _:
            raise AssertionError(item)


def test_fold_is_what_the_journal_says(inspector: Inspector, stage: Stage) -> None:
    """Of a real run: before compaction, after it, in one batch, record by record, and with records that come twice."""
    inspector.send("everything about tides")
    inspector.expect_state("publish", "awaiting an answer")
    inspector.page.get_by_role("button", name="Approve").click()
    inspector.expect_state("publish", "completed")
    inspector.expect_outcome("finished")
    thread_id = inspector.page.url.rsplit("/", 1)[1]

    async def kept(cs: Callstream) -> tuple[list[Any], list[Any], list[Record]]:
        rows = await cs.journal.runs(thread_id=thread_id)
        records = [record for row in reversed(rows) async for record in cs.journal.read(row.run_id)]
        calls = [await cs.journal.call(call.call_id) for call in await cs.journal.calls(thread_id=thread_id)]
        return rows, calls, records

    async def compacted(cs: Callstream) -> None:
        for row in await cs.journal.runs(thread_id=thread_id):
            await cs.journal.compact(row.run_id)

    def folded(batches: list[list[Record]]) -> Any:
        encoded = json.loads(_json([rows, batches]))
        return inspector.import_and("thread.js", _FOLD, encoded)

    rows, calls, records = stage.call(kept)
    first = folded([records])
    assert [(run_id, outcome) for run_id, outcome, _, _ in first] == [
        (row.run_id, "finished") for row in reversed(rows)
    ]
    shown = [item for _, _, _, items in first for item in items]
    assert [item[1:5] for item in shown if item[0] == "call"] == [
        [call.call_id, call.name, str(call.state), call.args_json] for call in calls
    ]
    published = next(call for call in calls if call.name == "publish")
    assert (
        json.loads(next(item[5] for item in shown if item[1:3] == [published.call_id, "publish"])) == published.result
    )
    for row, (run_id, _, last_seq, items) in zip(reversed(rows), first, strict=True):
        view = RunView.of([record for record in records if record.run_id == row.run_id])
        assert (view.run_id, view.seq) == (run_id, last_seq)
        kinds = ("input", "text", "reasoning")
        assert [item[:4] if item[0] == "call" else item for item in items if item[0] in (*kinds, "call")] == [
            in_the_view(item, calls) for item in view.items if not isinstance(item, AnswerView)
        ]
    for kind, event in (("text", TextAppended), ("reasoning", ReasoningAppended)):
        said = "".join(record.event.text for record in records if isinstance(record.event, event))
        assert "".join(item[1] for item in shown if item[0] == kind) == said != ""
    assert DOCUMENT in json.loads(calls[0].args_json)["content"]

    assert folded([[record] for record in records]) == first
    assert folded([records[:50], records]) == first
    stage.call(compacted)
    _, _, fewer = stage.call(kept)
    assert len(fewer) < len(records) // 2
    assert folded([fewer]) == first
    assert folded([[record] for record in fewer]) == first


def test_spans_of_time_are_rounded_before_they_are_divided(inspector: Inspector) -> None:
    spans = [0.0001, 0.9996, 1, 9.999, 59.9, 59.96, 60, 119.7, 3599.9, 86400]
    assert inspector.import_and("format.js", "(format, spans) => spans.map(format.span)", spans) == [
        "0 ms",
        "1.00 s",
        "1.00 s",
        "10.0 s",
        "59.9 s",
        "1 min 0 s",
        "1 min 0 s",
        "2 min 0 s",
        "1 h 0 min",
        "24 h 0 min",
    ]


def _json(value: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(value)


_RAN = """
async ({ Call }, events) => {
  const [first, ...rest] = events;
  const call = new Call(first[1], { at: first[0], run_id: "r", seq: 1 });
  const ran = [];
  for (const [at, event] of rest) {
    call.take(event, { at, run_id: "r", seq: 1 });
    ran.push(call.ranFor);
  }
  return ran;
}
"""


def test_time_in_which_a_call_waited_is_not_time_in_which_it_ran(inspector: Inspector) -> None:
    kinds = [(1, "call_completed"), (2, "call_executing"), (5, "call_awaiting"), (100, "call_executing")]
    events = [(0, "call_started"), *kinds, (104, "call_returned")]
    given = [[at, {"type": kind, "call_id": "c", "name": "ask", "args_json": "{}"}] for at, kind in events]
    assert inspector.import_and("call.js", _RAN, given) == [None, None, None, None, 7]
    answered = [*given[:4], [128, {"type": "call_returned", "call_id": "c"}]]
    assert inspector.import_and("call.js", _RAN, answered)[-1] == 3


_STATES = """
({ Call }, events) => {
  const [[at, started], ...rest] = events;
  const call = new Call(started, { at, run_id: "r", seq: 1 });
  return rest.map(([at, event]) => {
    call.take(event, { at, run_id: "r", seq: 1 });
    return [call.state, call.isWriting, call.ranEarly, call.ranFor];
  });
}
"""


def test_a_call_whose_tool_runs_early_is_still_being_written(inspector: Inspector) -> None:
    begun = [(1, "args_appended"), (2, "call_running_early"), (3, "args_appended"), (4, "call_completed")]
    events = [(0, "call_started"), *begun, (6, "call_returned")]
    given = [[at, {"type": kind, "call_id": "c", "name": "write", "text": " "}] for at, kind in events]
    assert inspector.import_and("call.js", _STATES, given) == [
        ["args_streaming", True, False, None],
        ["running_early", True, True, None],
        ["running_early", True, True, None],
        ["running_early", False, True, None],
        ["completed", False, True, 4],
    ]


_NEST = """
async ({ Thread }, given) => {
  const { RunView } = await import("/page/runview.js");
  const thread = new Thread("t");
  const [run] = thread.add([{ run_id: "r", started_at: 1, ended_at: null, outcome: null, reason: null }]);
  for (const record of given) thread.take(record);
  const { element } = new RunView(run, 1, {});
  const rows = [...element.querySelectorAll(".item")];
  return rows.map((row) => [row.classList.contains("is-nested"), row.style.getPropertyValue("--depth")]);
}
"""


def test_what_the_agent_of_a_tool_does_is_indented_under_its_call(inspector: Inspector) -> None:
    told: list[tuple[str, RunEvent]] = [
        ("outer", CallStarted("c1", "helper", message_id="m1")),
        ("inner", MessageStarted("m2", within="c1")),
        ("inner", TextAppended("m2", "Inner words.")),
        ("inner", CallStarted("c2", "deeper", message_id="m2")),
        ("deep", CallStarted("c3", "look", within="c2")),
        ("last", TextAppended("m3", "Done.")),
    ]
    records = [Record("r", number, 1.0, event, whose) for number, (whose, event) in enumerate(told, 1)]
    rows = inspector.import_and("thread.js", _NEST, json.loads(_json(records)))
    assert rows == [[False, "0"], [True, "1"], [True, "1"], [True, "2"], [False, "0"]]


_ANSWER = """
async ({ AnswerForm }, given) => {
  const { question, fill, click } = JSON.parse(given);
  const sent = [];
  const form = new AnswerForm({ question }, "ask", async (content) => void sent.push(content));
  const field = form.element.querySelector("textarea");
  const shown = [form.element.textContent, form.element.querySelector("a")?.href ?? null, field?.value ?? null];
  if (fill !== null) field.value = fill;
  [...form.element.querySelectorAll("button")].find((each) => each.textContent === click).click();
  await Promise.resolve();
  return [shown, sent];
}
"""


@pytest.mark.parametrize(
    ("question", "fill", "click", "sent"),
    [
        (None, None, "Approve", '{"approved":true}'),
        ({"reason": "input_required", "message": "Which?"}, "blue", "Send", "blue"),
        ({"reason": "input_required", "response_schema": {"type": "string"}}, "3", "Send", "3"),
        ({"reason": "input_required", "response_schema": {"type": "boolean"}}, None, "No", "false"),
        (
            {
                "reason": "input_required",
                "response_schema": {"type": "object", "properties": {"n": {"type": "integer"}}},
            },
            None,
            "Send JSON",
            '{\n  "n": 0\n}',
        ),
        (
            {"reason": "confirmation", "message": "Fine?", "metadata": {"payload": {"days": 0}}},
            '{"days": 2}',
            "Reject",
            '{"confirmed": false, "payload": {"days": 2}}',
        ),
        (
            {"reason": "credential_required", "metadata": {"uri": "https://login.example/a?b=c"}},
            "https://app.example/back?code=1",
            "Send",
            "https://app.example/back?code=1",
        ),
        ({"reason": "credential_required", "metadata": {"uri": "javascript:alert(1)"}}, "key", "Send", "key"),
    ],
)
def test_questions_reach_the_client_in_the_inspector(
    question: Any, fill: str | None, click: str, sent: str, inspector: Inspector
) -> None:
    given = json.dumps({"question": question, "fill": fill, "click": click})
    (text, link, _), answers = inspector.import_and("answerform.js", _ANSWER, given)
    assert answers == [sent]
    asked = question or {}
    assert asked.get("message", "ask waits for your answer") in text
    uri = asked.get("metadata", {}).get("uri")
    assert link == (uri if uri is not None and uri.startswith("https:") else None)
