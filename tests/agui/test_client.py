"""The official AG-UI client judges every scene: accepted without a warning, and folded to what was executed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from callstream.agui import Conversation, Translator, encode_sse, merge
from callstream.events import CallCompleted, Record
from tests.agui.judge import Judge
from tests.agui.scenes import SCENES, Scene, kill_last, play


@pytest.fixture(scope="module", params=SCENES)
def scene(request: pytest.FixtureRequest) -> Scene:
    return play(*SCENES[request.param])


def accepted(verdict: dict[str, Any]) -> dict[str, Any]:
    expected = [warning for warning in verdict["warnings"] if "Failed to apply state patch" in warning]
    assert verdict["error"] is None, verdict["error"]
    assert verdict["warnings"] == expected
    assert verdict["ended"] is not None
    return verdict


def calls_in(messages: list[dict[str, Any]]) -> dict[str, str]:
    return {call["id"]: call["function"]["arguments"] for message in messages for call in message.get("toolCalls", ())}


def test_official_client_accepts_every_scene(judge: Judge, scene: Scene) -> None:
    verdicts = judge(*scene.steps())
    for number, verdict in enumerate(verdicts):
        accepted(verdict)
        conversation = Conversation.of(scene.earlier(number + 1), scene.view)
        assert verdict["messages"] == as_plain(conversation)
        assert verdict["state"] == (conversation.state or {})
    arguments = calls_in(verdicts[-1]["messages"])
    for call_id, executed in scene.executed.items():
        assert json.loads(arguments[call_id]) == executed
        assert [verdict["args"][call_id] for verdict in verdicts if call_id in verdict["args"]] == [executed]


def as_plain(conversation: Conversation) -> list[dict[str, Any]]:
    plain: list[dict[str, Any]] = json.loads(encode_sse([conversation.snapshot()], 1).split(b"data: ")[1])["messages"]
    return plain


def joined_body(scene: Scene, number: int, seen: int) -> str:
    """What a client gets that joins the run after ``seen`` of its records."""
    records = scene.runs[number].records
    conversation = Conversation.of([*scene.earlier(number), *records[:seen]], scene.view)
    body = encode_sse(conversation.prelude(), conversation.seq)
    return (body + b"".join(encode_sse(conversation.feed(record), record.seq) for record in records[seen:])).decode()


def test_join_mid_arguments_by_the_official_client_after_every_record(judge: Judge, scene: Scene) -> None:
    whole = judge(*scene.steps())
    for number, run in enumerate(scene.runs):
        for seen in range(1, len(run.records) + 1):
            [verdict] = judge({"how": "connect", "body": joined_body(scene, number, seen)})
            accepted(verdict)
            assert verdict["messages"] == whole[number]["messages"], (number, seen)
            assert verdict["state"] == whole[number]["state"]
            assert verdict["ended"]["outcome"] == whole[number]["ended"]["outcome"]
            for named in ("pendingToolCallIds", "interrupts"):
                assert verdict["ended"].get(named) == whole[number]["ended"].get(named), (number, seen)


def test_join_mid_arguments_with_the_messages_that_the_client_kept(judge: Judge, scene: Scene) -> None:
    """The connection breaks at one record and the same client comes back some records later."""
    whole = judge(*scene.steps())
    last = len(scene.runs) - 1
    records = scene.runs[last].records
    for seen in range(1, len(records) + 1, 3 if len(records) > 20 else 1):
        *before, step = scene.steps()
        translator = Translator(scene.view)
        broken = b"".join(encode_sse(translator.feed(record), record.seq) for record in records[:seen]).decode()
        back = min(seen + 5, len(records))
        rejoin = {"how": "connect", "body": joined_body(scene, last, back), "resume": step["resume"]}
        *_, verdict = judge(*before, {**step, "body": broken}, rejoin)
        accepted(verdict)
        assert verdict["messages"] == whole[last]["messages"], seen
        assert verdict["state"] == whole[last]["state"]


def test_slow_reader_merged_sees_the_same(judge: Judge, scene: Scene) -> None:
    whole = judge(*scene.steps())
    steps = []
    for run, step in zip(scene.runs, scene.steps(), strict=True):
        translator = Translator(scene.view)
        events = [event for record in run.records for event in translator.feed(record)]
        steps.append({**step, "body": encode_sse(merge(events), run.records[-1].seq).decode()})
    for merged, verdict in zip(judge(*steps), whole, strict=True):
        accepted(merged)
        assert merged["messages"] == verdict["messages"]
        assert merged["state"] == verdict["state"]


# -- a run that another process went on with --

CUT_SCENES = ("reasoning_then_text", "one_call", "parallel_calls", "parallel_agents", "client_tool", "progress")


def shown(messages: list[dict[str, Any]]) -> Any:
    """Messages without metadata, and without reasoning that was emptied because a client keeps the last that it has."""
    kept = [each for each in messages if each["role"] != "reasoning" or each["content"]]
    return json.loads(json.dumps(kept), object_hook=lambda each: {k: v for k, v in each.items() if k != "metadata"})


@pytest.mark.parametrize("name", CUT_SCENES)
def test_what_is_void_is_gone_from_the_official_client(judge: Judge, name: str) -> None:
    """Whether it sees the run from its beginning or joins it, whatever record its process died after."""
    scene = play(*SCENES[name])
    count = len(scene.runs[-1].records)
    for cut in range(1, count, 1 if count < 15 else 2):
        killed, valid = kill_last(scene, cut)
        *_, whole = judge(*valid.steps())
        *_, live = judge(*killed.steps())
        last, end = len(killed.runs) - 1, len(killed.runs[-1].records)
        joined = [judge({"how": "connect", "body": joined_body(killed, last, seen)})[0] for seen in (cut, cut + 1, end)]
        for verdict in (live, *joined):
            # It notes in the console that what ends is not there, which is what keeps its handlers quiet.
            verdict["warnings"] = [each for each in verdict["warnings"] if not re.search("_END: No .*-void-2", each)]
            accepted(verdict)
            assert shown(verdict["messages"]) == shown(whole["messages"]), cut
            assert verdict["state"] == whole["state"]
            assert verdict["ended"]["outcome"] == whole["ended"]["outcome"]
            # A call that had been written whole is the only one whose handler can have been called.
            began = {call_id for call_id in verdict["args"] if "-void-" in call_id}
            assert began <= whole_calls(killed.runs[-1].records)
            assert not any("-void-" in call_id for call_id in verdict["results"])
        assert not any(
            "-void-" in call_id for verdict in joined[1:] for call_id in (*verdict["args"], *verdict["made"])
        )


def whole_calls(records: list[Record]) -> set[str]:
    return {record.event.call_id for record in records if isinstance(record.event, CallCompleted)}


# -- the judge itself --


def sse(*events: dict[str, Any]) -> str:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events)


STARTED = {"type": "RUN_STARTED", "threadId": "thread", "runId": "run"}
FINISHED = {"type": "RUN_FINISHED", "threadId": "thread", "runId": "run"}
START = {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "write", "parentMessageId": "m"}
ARGS = {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "{}"}


@pytest.mark.parametrize(
    "events",
    [
        [ARGS],
        [STARTED, ARGS],
        [STARTED, START, START],
        [STARTED, START, FINISHED],
        [STARTED, FINISHED, START],
        [STARTED, {"type": "TOOL_CALL_START", "toolCallId": 7}],
    ],
)
def test_official_client_refuses_what_the_rules_forbid(judge: Judge, events: list[dict[str, Any]]) -> None:
    [verdict] = judge({"how": "run", "body": sse(*events)})
    assert verdict["error"] is not None


def test_official_client_is_taken_at_its_warnings(judge: Judge) -> None:
    """It drops what it does not know, and goes on; here that does not count as accepted."""
    [verdict] = judge({"how": "run", "body": sse(STARTED, {**START, "colour": "red"}, {"type": "NEWS"}, FINISHED)})
    assert len(verdict["warnings"]) >= 2


def test_official_client_takes_a_stream_that_merely_stops_for_success(judge: Judge) -> None:
    """Which is why a translator has an ``end``."""
    [verdict] = judge({"how": "run", "body": sse(STARTED, START, ARGS)})
    assert verdict["error"] is None
    assert verdict["ended"] is None
