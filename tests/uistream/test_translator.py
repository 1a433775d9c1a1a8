from __future__ import annotations

import json
from typing import Any

import pytest

from callstream import codec
from callstream.agui import View
from callstream.errors import UsageError
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallFailed,
    CallProgressed,
    CallReleased,
    CallReturned,
    CallRunningEarly,
    CallSigned,
    CallStarted,
    MessageEnded,
    MessageStarted,
    Question,
    ReasoningAppended,
    Record,
    RunEnded,
    RunEvent,
    RunResumed,
    RunStarted,
    StateChanged,
    TextAppended,
)
from callstream.uistream import ChunkTranslator, Merger, Sdk, encode_sse, fold
from callstream.view import RunView

FINISHED = RunEnded("finished")
STARTED = RunStarted("thread", None, {"tools": [{"name": "paint"}]})


def records(*events: RunEvent, run_id: str = "run", started: RunStarted = STARTED) -> list[Record]:
    return [Record(run_id, seq, 0.0, event) for seq, event in enumerate([started, *events], start=1)]


def run_of(*events: RunEvent, run_id: str = "run", started: RunStarted = STARTED) -> RunView:
    return RunView.of(records(*events, run_id=run_id, started=started))


def chunks(*events: RunEvent, view: View | None = None, sdk: Sdk = 6) -> list[dict[str, Any]]:
    """What is told of a run, after its start."""
    translator = ChunkTranslator("message", view, sdk=sdk)
    told = [chunk for record in records(*events) for chunk in translator.feed(record)]
    first, *rest = as_json(told)
    assert first == {"type": "start", "messageId": "message", "messageMetadata": {"runId": "run"}}
    return rest


def as_json(told: list[Any]) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in encode_sse(told).decode().splitlines() if line]


def kinds(*events: RunEvent, **given: Any) -> list[str]:
    return [chunk["type"] for chunk in chunks(*events, **given)]


def call(call_id: str = "c", name: str = "write") -> list[RunEvent]:
    return [MessageStarted("m"), CallStarted(call_id, name, message_id="m"), CallCompleted(call_id, '{"a":\n1}')]


def test_text_and_reasoning_close_each_other() -> None:
    told = chunks(
        MessageStarted("m"),
        ReasoningAppended("m", "Hm"),
        TextAppended("m", ""),
        TextAppended("m", "One"),
        TextAppended("m", "."),
        ReasoningAppended("m", "Hm?"),
        MessageEnded("m"),
        FINISHED,
    )
    assert told == [
        {"type": "start-step"},
        {"type": "reasoning-start", "id": "reasoning-1"},
        {"type": "reasoning-delta", "id": "reasoning-1", "delta": "Hm"},
        {"type": "reasoning-end", "id": "reasoning-1"},
        {"type": "text-start", "id": "text-2"},
        {"type": "text-delta", "id": "text-2", "delta": "One"},
        {"type": "text-delta", "id": "text-2", "delta": "."},
        {"type": "text-end", "id": "text-2"},
        {"type": "reasoning-start", "id": "reasoning-3"},
        {"type": "reasoning-delta", "id": "reasoning-3", "delta": "Hm?"},
        {"type": "reasoning-end", "id": "reasoning-3"},
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "stop"},
    ]
    assert kinds(TextAppended("m", "a"), TextAppended("n", "b"), TextAppended("m", "c"), MessageEnded("n"))[-1:] == [
        "text-end"
    ]
    assert kinds(ReasoningAppended("m", "Hm"), FINISHED, view=View(reasoning=False)) == ["finish"]


def test_each_response_is_a_step_unless_a_call_is_being_written() -> None:
    assert kinds(TextAppended("m", "a"), MessageStarted("n"), MessageStarted("n"))[-3:] == [
        "text-end",
        "finish-step",
        "start-step",
    ]
    open_call = [MessageStarted("m"), CallStarted("c", "write", message_id="m"), MessageStarted("n")]
    assert kinds(*open_call).count("start-step") == 1


def test_input_is_as_exact_as_it_was_written_and_on_one_line() -> None:
    told = chunks(
        MessageStarted("m"),
        CallStarted("c", "write", message_id="m"),
        CallSigned("c", "signature"),
        ArgsAppended("c", '{"n":\r\n'),
        ArgsAppended("c", ""),
        ArgsAppended("c", "12345678901234567890}"),
        CallCompleted("c"),
    )
    assert [chunk["inputTextDelta"] for chunk in told if chunk["type"] == "tool-input-delta"] == [
        '{"n":\r\n',
        "12345678901234567890}",
    ]
    assert told[-1] == {
        "type": "tool-input-available",
        "toolCallId": "c",
        "toolName": "write",
        "input": {"n": 12345678901234567890},
    }


@pytest.mark.parametrize("pieces", [[], [""], ['say "', "hi"]])
def test_the_input_of_a_free_text_tool_is_a_json_string(pieces: list[str]) -> None:
    started = CallStarted("c", "shell", encoding="text", message_id="m")
    told = chunks(MessageStarted("m"), started, *(ArgsAppended("c", piece) for piece in pieces), CallCompleted("c"))
    assert told[-1]["input"] == "".join(pieces)
    replayed = RunView.of(
        records(
            MessageStarted("m"),
            started,
            *(ArgsAppended("c", piece) for piece in pieces),
            CallCompleted("c"),
            CallReturned("c", 1),
            FINISHED,
        )
    )
    [_, part, _] = fold(ChunkTranslator("m").replay([replayed]))["parts"]
    assert json.loads(bytes(part["input"])) == "".join(pieces)


def test_results() -> None:
    one, two = "tool-output-available", "tool-output-error"
    assert chunks(*call(), CallReturned("c", {"a": 1}))[-1] == {"type": one, "toolCallId": "c", "output": {"a": 1}}
    assert chunks(*call(), CallReleased("c"))[-1]["output"]["status"] == "released"
    failed = chunks(*call(), CallFailed("c", "a secret"))[-1]
    assert failed == {"type": two, "toolCallId": "c", "errorText": "the tool failed"}
    assert chunks(*call(), CallFailed("c", "a secret"), view=View(errors=True))[-1]["errorText"] == "a secret"
    rejected = chunks(*call(), CallDiscarded("c", "rejected", "not today"))[-1]
    assert (rejected["type"], rejected["errorText"]) == (two, "the call was rejected; the tool did not run: not today")
    assert kinds(CallReturned("of another turn", 1), CallProgressed("of another turn", 1)) == []


def test_a_tool_that_ran_early_is_not_said_never_to_have_run() -> None:
    half: list[RunEvent] = [
        CallStarted("c", "write", message_id="m"),
        ArgsAppended("c", '{"a":'),
        CallRunningEarly("c"),
    ]
    ended = CallDiscarded("c", "aborted")
    for events in ([*half, ended], [*half, ArgsAppended("c", "1}"), CallCompleted("c", '{"a":1}'), ended]):
        told = chunks(MessageStarted("m"), *events)[-1]
        assert told["errorText"] == "the run was stopped; the result of the tool does not count"


def test_what_broke_off_is_never_available() -> None:
    begun = [MessageStarted("m"), CallStarted("c", "write", message_id="m"), ArgsAppended("c", '{"a":')]
    for end in (CallDiscarded("c", "truncated"), RunEnded("failed", "interrupted")):
        told = chunks(*begun, end)
        [error] = [chunk for chunk in told if chunk["type"] == "tool-input-error"]
        assert (error["input"], error["toolName"]) == ('{"a":', "write")
        assert "tool-input-available" not in {chunk["type"] for chunk in told}


def test_progress_is_preliminary_output_once_the_input_is_whole() -> None:
    early = chunks(MessageStarted("m"), CallStarted("c", "write", message_id="m"), CallProgressed("c", 1))[-1]
    assert early == {"type": "data-progress", "id": "c", "data": {"toolCallId": "c", "progress": 1}}
    late = chunks(*call(), CallProgressed("c", 2))[-1]
    assert late == {"type": "tool-output-available", "toolCallId": "c", "output": 2, "preliminary": True}


def test_a_tool_that_runs_early_is_a_data_part() -> None:
    begun: list[RunEvent] = [
        MessageStarted("m"),
        CallStarted("c", "write", message_id="m"),
        ArgsAppended("c", "{"),
        CallRunningEarly("c"),
    ]
    shown = {"type": "data-running-early", "id": "early-c", "data": {"toolCallId": "c"}}
    assert chunks(*begun)[-1] == shown
    assert chunks(CallRunningEarly("of another turn")) == []
    ended = [*begun, CallCompleted("c", "{}"), CallReturned("c", 5)]
    told = as_json(ChunkTranslator("message").replay([run_of(*ended)]))
    assert shown not in told


def test_calls_that_await_an_answer() -> None:
    asked = [*call(), CallAwaiting("c", Question(message="May it?"))]
    assert chunks(*asked, FINISHED)[-3:] == [
        {"type": "tool-approval-request", "approvalId": "c", "toolCallId": "c", "reason": "May it?"},
        {"type": "finish-step"},
        {"type": "finish", "finishReason": "tool-calls"},
    ]
    assert "tool-approval-request" not in kinds(*asked, sdk=5)
    assert "tool-approval-request" not in kinds(*call(name="paint"), CallAwaiting("c"))
    assert "tool-approval-request" not in kinds(*call(), CallAwaiting("c", Question("input_required")))
    assert kinds(*asked, CallDiscarded("c", "rejected"))[-1] == "tool-output-denied"
    assert kinds(CallAwaiting("of another turn")) == []


def question(about: str = "c", name: str = "confirm") -> list[RunEvent]:
    return [
        CallStarted("q", name),
        ArgsAppended("q", "{}"),
        CallCompleted("q"),
        CallAwaiting("q", Question("confirmation", about=about)),
    ]


def test_a_hosts_question_is_a_request_to_approve_of_what_it_asks_about() -> None:
    told = chunks(*call(), CallAwaiting("c", is_paused=True), *question(), FINISHED)
    assert [chunk["type"] for chunk in told[-3:]] == ["tool-approval-request", "finish-step", "finish"]
    assert told[-3] == {"type": "tool-approval-request", "approvalId": "q", "toolCallId": "c"}
    assert {chunk["toolCallId"] for chunk in told if "toolCallId" in chunk} == {"c"}


@pytest.mark.parametrize(
    ("answer", "end", "told"),
    [
        ({"confirmed": True}, CallReturned("c", 1), "tool-output-available"),
        ({"confirmed": True}, CallFailed("c", "no"), "tool-output-error"),
        ({"approved": False}, CallFailed("c", "no"), "tool-output-denied"),
        (False, CallDiscarded("c", "aborted"), "tool-output-denied"),
        (0, CallFailed("c", "no"), "tool-output-error"),
    ],
)
def test_the_answer_to_a_question_ends_the_call_in_the_next_run(answer: Any, end: RunEvent, told: str) -> None:
    first = run_of(*call(), CallAwaiting("c", is_paused=True), *question(), FINISHED)
    more = [CallProgressed("q", 1), CallReturned("q", answer), end, *[MessageStarted("n")], FINISHED]
    translator = ChunkTranslator("message")
    translator.skip([first])
    live = [chunk["type"] for record in records(*more) for chunk in translator.feed(record)]
    assert live == ["start", told, "start-step", "finish-step", "finish"]
    second = run_of(*more, run_id="second")
    replayed = ChunkTranslator("message").replay([first, second])
    assert replayed[0]["messageMetadata"] == {"runId": "second"}
    assert [chunk["type"] for chunk in replayed].count("start") == 1
    assert "tool-input-available" not in {chunk["type"] for chunk in replayed}
    assert told in {chunk["type"] for chunk in replayed}


def test_the_former_name_of_skip_still_works() -> None:
    first = run_of(*call(), CallAwaiting("c", is_paused=True), FINISHED)
    former, current = ChunkTranslator("message"), ChunkTranslator("message")
    with pytest.warns(DeprecationWarning, match=r"ChunkTranslator\.take is called skip now"):
        former.take([first])
    current.skip([first])
    for record in records(CallReturned("c", 1), FINISHED):
        assert former.feed(record) == current.feed(record)


def test_a_question_that_begins_a_run_leaves_no_empty_step() -> None:
    first = run_of(*call(), CallAwaiting("c", is_paused=True), FINISHED)
    translator = ChunkTranslator("message")
    translator.skip([first])
    told = [chunk["type"] for record in records(*question(), FINISHED) for chunk in translator.feed(record)]
    assert told == ["start", "tool-approval-request", "finish"]


def test_a_call_that_no_response_made_is_told_as_soon_as_it_is_no_question() -> None:
    for after in ([TextAppended("n", "x")], [ArgsAppended("q", "{"), ArgsAppended("q", "}")], [CallReturned("q", 1)]):
        assert "tool-input-start" in kinds(CallStarted("q", "confirm"), *after)
    assert "tool-input-start" in kinds(*question(about="unknown"))
    assert "tool-input-start" in kinds(*call(), *question(name="paint"))
    assert "tool-input-start" in kinds(*call(), *question(), sdk=5)
    assert kinds(*question(about="unknown"))[-1] == "tool-approval-request"


INNER: list[RunEvent] = [
    MessageStarted("i", within="c"),
    ReasoningAppended("i", "Well."),
    TextAppended("i", "Inner words."),
    CallStarted("d", "inner", message_id="i"),
    ArgsAppended("d", "{"),
    ArgsAppended("d", "}"),
    CallCompleted("d"),
    CallProgressed("d", 1),
    CallAwaiting("d"),
    CallReturned("d", 1),
    MessageEnded("i"),
    CallStarted("e", "inner", within="c"),  # of no message
    CallCompleted("e", "{}"),
    CallFailed("e", "no"),
]


def test_what_a_tools_model_says_and_calls_is_left_out() -> None:
    rest = [CallReturned("c", 1), MessageStarted("n"), TextAppended("n", "Ok."), FINISHED]
    told = chunks(*call(), *rest)
    assert chunks(*call(), *INNER, *rest) == told
    whole = records(*call(), *INNER, *rest)
    message = json.loads(codec.encode(fold(ChunkTranslator("message").replay([run_of(*call(), *rest)]))))
    for seen in range(1, len(whole)):
        translator = ChunkTranslator("message")
        resumed = translator.replay([RunView.of(whole[:seen])])
        resumed += [chunk for record in whole[seen:] for chunk in translator.feed(record)]
        assert json.loads(codec.encode(fold(resumed))) == message


@pytest.mark.parametrize("place", range(1, 4))
def test_a_question_stays_one_while_a_tools_model_speaks(place: int) -> None:
    asks = question()
    paused = [*call(), CallAwaiting("c", is_paused=True)]
    told = chunks(*paused, *asks[:place], *INNER, *asks[place:], FINISHED)
    assert told == chunks(*paused, *asks, FINISHED)


def test_state_is_a_data_part() -> None:
    add = {"op": "add", "path": "/b", "value": 2}
    told = chunks(
        StateChanged(patch=[add]),  # of a state that the turn has not shown
        StateChanged({"a": 1}),
        StateChanged(patch=[add]),
        StateChanged(patch=[{"op": "remove", "path": "/nowhere"}]),
    )
    assert told == [
        {"type": "data-state", "id": "state", "data": {"a": 1}},
        {"type": "data-state", "id": "state", "data": {"a": 1, "b": 2}},
    ]


def test_ends() -> None:
    assert chunks(RunEnded("cancelled", "stopped"))[-1] == {"type": "abort"}
    assert chunks(RunEnded("failed", "secret"))[-1] == {"type": "error", "errorText": "The run failed."}
    told = chunks(RunEnded("failed", "known"), view=View(errors=True))[-1]
    assert told["errorText"] == "The run failed: known"
    left = chunks(*call(), FINISHED)
    assert [chunk["type"] for chunk in left[-6:]] == [
        *("tool-output-error", "finish-step"),
        *("start-step", "message-metadata", "finish-step"),
        "finish",
    ]
    translator = ChunkTranslator("message")
    for record in records(FINISHED):
        translator.feed(record)
    with pytest.raises(UsageError, match="has ended"):
        translator.feed(records(FINISHED)[1])


def test_the_last_step_of_a_run_has_no_calls_unless_one_awaits_an_answer() -> None:
    """A chat that sends whenever the calls of the last step are answered would not stop to send."""

    def steps(*events: RunEvent) -> list[dict[str, Any]]:
        return [chunk for chunk in chunks(*events) if chunk["type"] in ("start-step", "message-metadata")]

    empty = [{"type": "start-step"}, {"type": "message-metadata", "messageMetadata": {"runId": "run"}}]
    started = {"type": "start-step"}
    assert steps(*call(), CallReturned("c", 1), FINISHED) == [started, *empty]
    assert steps(*call(), CallReturned("c", 1), RunEnded("cancelled")) == [started, *empty]
    assert steps(*call(), CallReturned("c", 1), TextAppended("n", "Done."), FINISHED) == [started, started]
    assert steps(*call(), CallAwaiting("c", Question()), FINISHED) == [started]
    assert steps(TextAppended("n", "Done."), FINISHED) == [started]


def test_nothing_to_replay() -> None:
    assert ChunkTranslator("message").replay([]) == []


# -- merging --


def delta(text: str, part_id: str = "a") -> dict[str, Any]:
    return {"type": "text-delta", "id": part_id, "delta": text}


def test_deltas_grow_with_the_text() -> None:
    merger = Merger()
    told = [chunk for _ in range(10_000) for chunk in merger.feed([delta("12345678")])] + merger.flush()
    assert "".join(chunk["delta"] for chunk in told) == "12345678" * 10_000
    assert len(told) < 150
    assert max(len(chunk["delta"]) for chunk in told) < 8000


def test_what_is_held_comes_before_anything_else() -> None:
    merger = Merger()
    end = {"type": "text-end", "id": "a"}
    assert merger.feed([delta("x" * 100), delta("y"), delta("z", "b")]) == [delta("x" * 100 + "y"), delta("z", "b")]
    assert merger.is_empty
    assert merger.feed([delta("1")]) == []
    assert not merger.is_empty
    assert merger.feed([delta("2"), end]) == [delta("12"), end]
    assert merger.flush() == []


def test_replay_does_not_say_of_an_answered_call_that_it_ran_early() -> None:
    early = [MessageStarted("m"), CallStarted("c", "write", message_id="m"), CallRunningEarly("c")]
    run = run_of(*early, CallCompleted("c", "{}"), CallReturned("c", "ok"), FINISHED)
    told = as_json(ChunkTranslator("message").replay([run]))
    assert "data-running-early" not in [chunk["type"] for chunk in told]
    assert {"type": "tool-output-available", "toolCallId": "c", "output": "ok"} in told


def test_a_part_that_its_step_has_closed_is_not_closed_again() -> None:
    said = [MessageStarted("a"), TextAppended("a", "One"), MessageStarted("b"), TextAppended("b", "Two")]
    told = kinds(*said, MessageEnded("a"), FINISHED)
    assert told.count("text-end") == 2


# -- another process goes on with the run --

HALF: list[RunEvent] = [
    MessageStarted("m"),
    TextAppended("m", "Half a t"),
    CallStarted("c", "write", message_id="m"),
    ArgsAppended("c", '{"a":"hal'),
    RunResumed(2, ("m",)),
    CallDiscarded("c", "interrupted"),
]
AGAIN: list[RunEvent] = [MessageStarted("n"), TextAppended("n", "All of it."), MessageEnded("n"), FINISHED]


def test_a_step_that_is_void_is_reset_where_the_client_knows_how() -> None:
    told = kinds(*HALF, *AGAIN, sdk=7)
    place = told.index("reset-step")
    assert told[:place] == [
        "start-step",
        "text-start",
        "text-delta",
        "text-end",
        "tool-input-start",
        "tool-input-delta",
    ]
    assert told[place + 1 :] == ["text-start", "text-delta", "text-end", "finish-step", "finish"]


LOST = {"type": "data-void", "data": {"runId": "run", "attempt": 2}, "transient": True}


def lost(*events: RunEvent, sdk: Sdk) -> list[dict[str, Any]]:
    """What a client is sent until it has to come back."""
    translator = ChunkTranslator("message", sdk=sdk)
    told: list[Any] = []
    for record in records(*events):
        assert not translator.is_lost
        told += translator.feed(record)
    assert translator.is_lost
    return as_json(told)


@pytest.mark.parametrize("sdk", [5, 6])
def test_other_clients_have_to_come_back(sdk: Sdk) -> None:
    told = lost(*HALF[:5], sdk=sdk)
    assert told[-1] == LOST
    assert [chunk["type"] for chunk in told[-3:-1]] == ["tool-input-start", "tool-input-delta"]


@pytest.mark.parametrize("sdk", [6, 7])
def test_a_step_in_which_nothing_was_said_is_used_again(sdk: Sdk) -> None:
    told = kinds(MessageStarted("m"), RunResumed(2, ("m",)), *AGAIN, sdk=sdk)
    assert told == kinds(*AGAIN, sdk=sdk)
    between = kinds(*AGAIN[:3], RunResumed(2), *AGAIN[:0], FINISHED, sdk=sdk)
    assert between == kinds(*AGAIN, sdk=sdk)


def test_what_others_said_in_a_step_is_not_reset() -> None:
    """Parallel agents: one has said all it had to say when the process died."""
    other: list[RunEvent] = [*HALF[:4], TextAppended("valid", "Mine."), MessageEnded("valid")]
    told = lost(*other, HALF[4], sdk=7)
    assert told[-1] == LOST
    assert "reset-step" not in [chunk["type"] for chunk in told]


def test_what_is_void_in_an_earlier_step_is_not_reset_with_the_last_one() -> None:
    two: list[RunEvent] = [
        *call("first"),
        MessageStarted("n"),
        TextAppended("n", "Half"),
        CallStarted("second", "write", message_id="n"),
        RunResumed(2, ("m", "n")),
    ]
    assert lost(*two, sdk=7)[-1] == LOST


def test_the_state_stays_when_its_step_is_reset() -> None:
    state = StateChanged({"a": 1})
    told = chunks(MessageStarted("m"), state, TextAppended("m", "Half"), RunResumed(2, ("m",)), *AGAIN, sdk=7)
    message = fold(told)
    assert [part for part in message["parts"] if part["type"] == "data-state"] == [
        {"type": "data-state", "id": "state", "data": {"a": 1}}
    ]
    before = chunks(state, *HALF[:2], RunResumed(2, ("m",)), sdk=7)
    assert before[-1]["type"] == "reset-step"


def test_who_comes_back_sees_nothing_that_is_void() -> None:
    """Also in the moment between the record that says so and those that discard its calls."""
    translator = ChunkTranslator("message", sdk=7)
    told = translator.replay([run_of(*HALF[:5])])
    for number, event in enumerate([HALF[5], *AGAIN], start=7):
        told += translator.feed(Record("run", number, 0.0, event))
    valid = as_json(ChunkTranslator("message", sdk=7).replay([run_of(*AGAIN)]))
    assert as_json(told) == valid


# -- tools of the browser --

PAINT: list[RunEvent] = [
    MessageStarted("m"),
    CallStarted("c", "paint", message_id="m"),
    ArgsAppended("c", '{"a":1}'),
    CallCompleted("c", '{"a":1}'),
]


def test_a_tool_of_the_browser_runs_when_its_response_can_no_longer_be_cut() -> None:
    whole = {"type": "tool-input-available", "toolCallId": "c", "toolName": "paint", "input": {"a": 1}}
    assert whole not in chunks(*PAINT, CallStarted("d", "write", message_id="m"))
    assert chunks(*PAINT, CallAwaiting("c"))[-1] == whole
    assert chunks(*PAINT, CallReturned("c", 5))[-2:] == [
        whole,
        {"type": "tool-output-available", "toolCallId": "c", "output": 5},
    ]
    assert kinds(*call())[-1] == "tool-input-available"  # one of the server


def test_no_tool_of_the_browser_runs_for_a_call_that_is_void() -> None:
    cut = chunks(*PAINT, CallStarted("d", "write", message_id="m"), RunResumed(2, ("m",)), *AGAIN, sdk=7)
    assert "tool-input-available" not in [chunk["type"] for chunk in cut]
    assert [part["type"] for part in fold(cut)["parts"]] == ["step-start", "text"]
    [failed] = [chunk for chunk in chunks(*PAINT, CallDiscarded("c", "rejected")) if "errorText" in chunk]
    assert (failed["type"], failed["input"]) == ("tool-input-error", '{"a":1}')


def test_progress_of_a_call_that_is_held_is_no_output() -> None:
    early: list[RunEvent] = [*PAINT[:3], CallRunningEarly("c"), PAINT[3], CallProgressed("c", 1)]
    assert chunks(*early)[-1]["type"] == "data-progress"
