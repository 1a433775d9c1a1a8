"""The AI SDK judges every scene, in three major versions: accepted without an error, and folded to what was executed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream import codec
from callstream.events import CallCompleted
from callstream.testing import ToolCall
from callstream.uistream import ChatTurn, ChunkTranslator, Merger, Sdk, encode_sse, fold, turns
from callstream.view import RunView
from tests.agui.judge import NodeProgram
from tests.agui.scenes import CLIENT_TOOL, SCENES, Play, Respond, Scene, kill_last, play

SDKS: tuple[Sdk, ...] = (5, 6, 7)
KNOWN_ERRORS = {"The run failed.", "The run failed: provider_error", "overloaded"}


@pytest.fixture(scope="module", params=SCENES)
def scene(request: pytest.FixtureRequest) -> Scene:
    return play(*SCENES[request.param])


def views(scene: Scene) -> list[RunView]:
    return [RunView.of(run.records) for run in scene.runs]


def live(scene: Scene, turn: ChatTurn, number: int, sdk: Sdk) -> str:
    """What a client gets that asked for a run of the turn."""
    translator = ChunkTranslator(turn.message_id, scene.view, sdk=sdk)
    translator.skip(turn.runs[:number])
    merger = Merger()
    records = next(run.records for run in scene.runs if run.records[0].run_id == turn.runs[number].run_id)
    chunks = [chunk for record in records for chunk in merger.feed(translator.feed(record))]
    return encode_sse([*chunks, *merger.flush()]).decode()


def plain(message: Any) -> Any:
    """Without what says how the text came, and what only some versions keep."""
    if message is None:
        return None
    message = json.loads(codec.encode(message))
    for part in message["parts"]:
        for name in ("rawInput", "title", "approval", "providerExecuted", "preliminary"):
            part.pop(name, None)
        if part.get("state") == "output-error":
            part.pop("input", None)
    return message


def accepted(verdict: dict[str, Any], scene: Scene) -> Any:
    failed = [run for run in scene.runs if getattr(run.records[-1].event, "outcome", None) == "failed"]
    assert all(error.startswith("The run failed") for error in verdict["errors"]), verdict["errors"]
    assert bool(verdict["errors"]) <= bool(failed)
    return plain(verdict["message"])


@pytest.mark.parametrize("sdk", SDKS)
def test_the_ai_sdk_accepts_every_scene(judge: NodeProgram, scene: Scene, sdk: Sdk) -> None:
    for turn in turns(views(scene)):
        message = None
        for number in range(len(turn.runs)):
            message = judge.ask({"sdk": sdk, "body": live(scene, turn, number, sdk), "message": message})
            accepted(message, scene)
            message = message["message"]
        whole = fold(ChunkTranslator(turn.message_id, scene.view, sdk=sdk).replay(turn.runs))
        assert plain(message) == plain(whole) or not whole["parts"]
        for part in whole["parts"]:
            if part.get("toolCallId") in scene.executed:
                assert json.loads(codec.encode(part["input"])) == scene.executed[part["toolCallId"]]
            if part.get("state") == "output-error" and "rawInput" in part:
                assert part["toolCallId"] not in scene.executed


@pytest.mark.parametrize("sdk", [6, 7])
def test_resume_after_every_record(judge: NodeProgram, scene: Scene, sdk: Sdk) -> None:
    """Who comes back gets the turn from its beginning, and ends with the message of a client that never left."""
    *_, turn = turns(views(scene))
    records = scene.runs[-1].records
    earlier = turn.runs[:-1]
    whole = accepted(
        judge.ask(
            {
                "sdk": sdk,
                "body": encode_sse(ChunkTranslator(turn.message_id, scene.view, sdk=sdk).replay(turn.runs)).decode(),
            }
        ),
        scene,
    )
    for seen in range(1, len(records), 1 if len(records) < 15 else 4):
        translator = ChunkTranslator(turn.message_id, scene.view, sdk=sdk)
        chunks = translator.replay([*earlier, RunView.of(records[:seen])])
        half = judge.ask({"sdk": sdk, "body": encode_sse(chunks).decode()})
        chunks += [chunk for record in records[seen:] for chunk in translator.feed(record)]
        verdict = judge.ask({"sdk": sdk, "body": encode_sse(chunks).decode()})
        assert half["errors"] == []
        assert accepted(verdict, scene) == whole, seen


def test_answered_client_tools_are_not_run_again_by_a_replay(judge: NodeProgram) -> None:
    scene = play(*SCENES["client_tools_answered_in_part"])
    first, _ = turns(views(scene))
    calls = list(first.runs[0].calls.values())
    picks = [call.call_id for call in calls if call.name == CLIENT_TOOL]
    others = [call.call_id for call in calls if call.name != CLIENT_TOOL]
    # The browser's own tools run when the response is whole.
    assert judge.ask({"sdk": 7, "body": live(scene, first, 0, 7)})["available"] == [*others, *picks]
    body = encode_sse(ChunkTranslator(first.message_id, scene.view, sdk=7).replay(first.runs)).decode()
    verdict = judge.ask({"sdk": 7, "body": body})
    assert verdict["available"] == picks[1:]
    states = {part["toolCallId"]: part["state"] for part in verdict["message"]["parts"] if "toolCallId" in part}
    assert [states[call_id] for call_id in picks] == ["output-available", "input-available"]


LONG = "It rises, and it falls.\n" * 4300


@pytest.fixture(scope="module")
def long_argument() -> str:
    """A response with 100 KB in pieces of 8 characters."""
    [run] = play([Play([Respond([ToolCall("write", {"content": LONG}, size=8)])])]).runs
    assert len(run.records) > 10_000
    translator, merger = ChunkTranslator("m"), Merger()
    chunks = [chunk for record in run.records for chunk in merger.feed(translator.feed(record))]
    return encode_sse(chunks).decode()


@pytest.mark.parametrize("sdk", SDKS)
def test_a_long_argument_is_read_in_little_time(judge: NodeProgram, sdk: Sdk, long_argument: str) -> None:
    """The SDK's reader would need 12 s for its pieces one by one."""
    verdict = judge.ask({"sdk": sdk, "body": long_argument})
    assert verdict["errors"] == []
    [part] = [part for part in verdict["message"]["parts"] if "toolCallId" in part]
    assert part["input"] == {"content": LONG}
    assert verdict["updates"] < 250


# -- a run that another process went on with --


@pytest.mark.parametrize("sdk", SDKS)
@pytest.mark.parametrize(
    "name", ["reasoning_then_text", "one_call", "parallel_calls", "client_tool", "progress", "state"]
)
def test_what_is_void_in_the_ai_sdk(judge: NodeProgram, name: str, sdk: Sdk) -> None:
    """Whatever record the run's process died after: for one that watched, and one that comes back."""
    scene = play(*SCENES[name])
    count = len(scene.runs[-1].records)
    for cut in range(1, count, 1 if count < 12 else 4):
        killed, valid = kill_last(scene, cut)
        records = killed.runs[-1].records
        whole_calls = {record.event.call_id for record in records if isinstance(record.event, CallCompleted)}
        [*_, turn] = turns(views(killed))
        [*_, valid_turn] = turns(views(valid))
        last = len(turn.runs) - 1
        earlier = encode_sse(ChunkTranslator(turn.message_id, scene.view, sdk=sdk).replay(turn.runs[:-1])).decode()
        before = judge.ask({"sdk": sdk, "body": earlier})["message"] if last else None

        def watched(scene: Scene, turn: ChatTurn, before: Any = before, last: int = last) -> Any:
            return judge.ask({"sdk": sdk, "body": live(scene, turn, last, sdk), "message": before})

        whole = accepted(watched(valid, valid_turn), valid)
        if sdk == 7:
            verdict = watched(killed, turn)
            assert without_ids(accepted(verdict, killed)) == without_ids(whole), cut
            void = {call_id for call_id in verdict["available"] if "-void-" in call_id}
            assert void <= (set[str]() if name == "client_tool" else whole_calls)

        for missed in (cut, cut + 1, len(records)):
            translator = ChunkTranslator(turn.message_id, scene.view, sdk=sdk)
            chunks = translator.replay([*turn.runs[:-1], RunView.of(records[:missed])])
            for record in records[missed:]:
                chunks += translator.feed(record)
                if translator.is_lost:
                    break
            # One that has seen what is void, and cannot take it back, comes back once more, and misses more.
            assert not translator.is_lost or (sdk < 7 and missed == cut)
            if not translator.is_lost:
                resumed = accepted(judge.ask({"sdk": sdk, "body": encode_sse(chunks).decode()}), killed)
                assert without_ids(resumed) == without_ids(whole), (cut, missed)


def without_ids(message: Any) -> Any:
    """Parts of reasoning are numbered, those that are void too."""
    parts = [{k: v for k, v in part.items() if k != "id" or part["type"] != "reasoning"} for part in message["parts"]]
    return {**message, "parts": parts}
