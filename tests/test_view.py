"""The one fold: a run's records as messages and calls as they stand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.calls import CallState
from callstream.errors import UsageError
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallProgressed,
    CallReleased,
    CallReturned,
    CallRunningEarly,
    CallSigned,
    CallStarted,
    InputKept,
    MessageEnded,
    MessageReceived,
    MessageStarted,
    OutputKept,
    Question,
    ReasoningAppended,
    Record,
    RequestKept,
    ResponseEnded,
    RunEnded,
    RunEvent,
    RunResumed,
    RunStarted,
    SessionKept,
    StateChanged,
    TextAppended,
)
from callstream.journal import Entry, open_journal
from callstream.view import (
    CallView,
    Closed,
    Ended,
    Grew,
    MessageBegan,
    Passage,
    Resumed,
    RunView,
    Settled,
    condensed,
    message_of,
)
from tests.agui.scenes import SCENES, Scene, kill, play
from tests.agui.test_properties import scenes


def records(*events: RunEvent, author: str | None = None) -> list[Record]:
    whole = [RunStarted("thread", "alice", {"question": "?"}), *events]
    return [Record("run", number, float(number), event, None, author) for number, event in enumerate(whole, 1)]


def view_of(*events: RunEvent, author: str | None = None) -> RunView:
    return RunView.of(records(*events, author=author))


def call_of(*events: RunEvent) -> CallView:
    view = view_of(*events)
    [call] = view.calls.values()
    return call


# -- messages --


def test_a_message_is_its_passages_and_calls_in_the_order_in_which_they_began() -> None:
    view = view_of(
        MessageReceived("user", "Write.", "u", ("image/png",)),
        MessageStarted("m"),
        ReasoningAppended("m", "Hm"),
        ReasoningAppended("m", "."),
        TextAppended("m", ""),
        TextAppended("m", "I will "),
        TextAppended("m", "write."),
        CallStarted("c", "write", message_id="m"),
        TextAppended("m", " Now."),
        MessageEnded("m"),
        MessageEnded("m"),
        MessageEnded("nobody"),
        ResponseEnded("stop"),
        author="writer",
    )
    message = view.messages["m"]
    assert (message.text, message.reasoning) == ("I will write. Now.", "Hm.")
    assert [call.call_id for call in message.calls] == ["c"]
    assert message.author == "writer"
    passages = [part for part in message.parts if isinstance(part, Passage)]
    assert [(part.kind, part.text, part.first_seq, part.seq, part.end_seq) for part in passages] == [
        ("reasoning", "Hm.", 4, 5, 7),
        ("text", "I will write.", 7, 8, 9),
        ("text", " Now.", 10, 10, 11),
    ]
    assert view.items[1:] == message.parts
    assert view.as_json()["items"][0] == {
        "type": "input",
        "role": "user",
        "text": "Write.",
        "message_id": "u",
        "attachments": ["image/png"],
        "author": "writer",
        "at": 2.0,
    }


def test_messages_of_several_agents_stand_in_the_order_in_which_they_began() -> None:
    view = view_of(TextAppended("a", "one"), TextAppended("b", "two"), TextAppended("a", " three"))
    assert {message_id: message.text for message_id, message in view.messages.items()} == {"a": "one three", "b": "two"}
    assert [passage.text for passage in view.items if isinstance(passage, Passage)] == ["one three", "two"]
    assert all(message.open_passage is not None for message in view.messages.values())


def test_a_call_without_a_message_belongs_to_its_response_or_to_one_of_its_own() -> None:
    assert message_of(CallStarted("c", "t", message_id="m"), "response") == "m"
    assert message_of(CallStarted("c", "t"), "response") == "response"
    assert message_of(CallStarted("c", "t"), None) == "message-c"
    assert view_of(CallStarted("c", "t")).messages.keys() == {"message-c"}


def test_a_long_text_is_whole() -> None:
    pieces = [str(number) for number in range(5000)]
    view = view_of(*(TextAppended("m", piece) for piece in pieces))
    assert view.messages["m"].text == view.messages["m"].text == "".join(pieces)
    view.feed(Record("run", 9999, 0.0, TextAppended("m", "!")))
    assert view.messages["m"].text == "".join(pieces) + "!"


# -- calls --

STARTED = CallStarted("c", "write", "wire-id", "signature", message_id="m")


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], CallState.STARTED),
        ([ArgsAppended("c", "{")], CallState.ARGS_STREAMING),
        ([CallCompleted("c")], CallState.ARGS_COMPLETE),
        ([CallCompleted("c"), CallExecuting("c")], CallState.EXECUTING),
        ([CallCompleted("c"), CallExecuting("c"), CallProgressed("c", 1)], CallState.EXECUTING),
        ([CallCompleted("c"), CallAwaiting("c")], CallState.AWAITING),
        ([CallCompleted("c"), CallAwaiting("c"), RunEnded("finished")], CallState.AWAITING),
        ([CallCompleted("c"), CallReturned("c", 1)], CallState.COMPLETED),
        ([CallCompleted("c"), CallFailed("c", "no")], CallState.FAILED),
        ([CallCompleted("c"), CallReleased("c")], CallState.RELEASED),
        ([CallDiscarded("c", "truncated")], CallState.DISCARDED),
        ([ArgsAppended("c", "{"), RunEnded("failed", "interrupted")], CallState.DISCARDED),
    ],
)
def test_a_call_is_in_the_state_of_its_last_record(events: list[RunEvent], state: CallState) -> None:
    call = call_of(STARTED, *events)
    assert call.state is state
    assert call.as_json()["state"] == state
    assert call.is_being_written == (state in (CallState.STARTED, CallState.ARGS_STREAMING))


@pytest.mark.parametrize(
    ("encoding", "events", "args_json", "args_text"),
    [
        ("json", [], "", ""),
        ("json", [ArgsAppended("c", "")], "", ""),
        ("json", [ArgsAppended("c", '{"a":'), ArgsAppended("c", "")], '{"a":', '{"a":'),
        ("json", [ArgsAppended("c", "[1"), ArgsAppended("c", "]"), CallCompleted("c")], "[1]", "[1]"),
        ("json", [CallCompleted("c", '{"a":1}')], '{"a":1}', '{"a":1}'),
        ("json", [CallCompleted("c")], "{}", "{}"),
        ("text", [], "", ""),
        ("text", [ArgsAppended("c", "")], '"', ""),
        ("text", [ArgsAppended("c", 'a"')], '"a\\"', 'a"'),
        ("text", [ArgsAppended("c", "\ud83d"), CallCompleted("c")], '"\\ud83d"', "\ud83d"),
        ("text", [ArgsAppended("c", "a\n"), CallCompleted("c")], '"a\\n"', "a\n"),
        ("text", [CallCompleted("c", '"a\\u00e9"')], '"a\\u00e9"', "aé"),
        ("text", [CallCompleted("c")], '""', ""),
    ],
)
def test_arguments_so_far(encoding: Any, events: list[RunEvent], args_json: str, args_text: str) -> None:
    call = call_of(CallStarted("c", "write", encoding=encoding), *events)
    assert (call.args_json, call.args_text) == (args_json, args_text)
    assert call.has_all_args == any(isinstance(event, CallCompleted) for event in events)
    assert call.has_pieces == (not isinstance(events[0], CallCompleted) and args_json != "" if events else False)


def test_a_call_has_all_that_was_said_of_it() -> None:
    question = Question("confirmation", "Really?")
    call = call_of(
        STARTED,
        ArgsAppended("c", "{}"),
        CallSigned("c", "a better one"),
        CallCompleted("c"),
        CallAwaiting("c", question, True),
        CallAwaiting("c"),
        CallExecuting("c"),
        CallProgressed("c", {"done": 1}),
        CallProgressed("c", {"done": 2}),
        CallReturned("c", {"written": True}),
    )
    assert (call.signature, call.question, call.is_paused) == ("a better one", question, False)
    assert (call.progress, call.progress_first_seq, call.progress_seq) == ({"done": 2}, 9, 10)
    assert (call.result, call.outcome_seq, call.first_seq, call.args_seq) == ({"written": True}, 11, 2, 5)
    assert call.as_json() == {
        "type": "call",
        "call_id": "c",
        "message_id": "m",
        "name": "write",
        "state": "completed",
        "provider_id": "wire-id",
        "signature": "a better one",
        "encoding": "json",
        "at": 2.0,
        "changed_at": 11.0,
        "args_json": "{}",
        "has_all_args": True,
        "progress": {"done": 2},
        "question": {"reason": "confirmation", "message": "Really?"},
        "result": {"written": True},
    }


EARLY = [
    CallStarted("c", "write", message_id="m"),
    ArgsAppended("c", '{"a":'),
    CallRunningEarly("c"),
    ArgsAppended("c", " 1}"),
    CallCompleted("c", '{"a": 1}'),
    CallReturned("c", 5),
]


@pytest.mark.parametrize("length", range(1, len(EARLY) + 1))
def test_a_call_whose_tool_runs_early_is_still_being_written(length: int) -> None:
    call = call_of(*EARLY[:length])
    assert call.ran_early is (length > 2)
    assert call.is_being_written is (length < 5)
    if 2 < length < 6:
        assert call.state is CallState.RUNNING_EARLY
    assert call.as_json().get("ran_early") is (True if length > 2 else None)
    view = view_of(*EARLY[:length])
    assert timeless(RunView.of(condensed(view)).as_json()) == timeless(view.as_json())


def test_a_tool_that_started_with_its_last_argument_ran_early_too() -> None:
    whole = [EARLY[0], EARLY[1], EARLY[3], EARLY[4], EARLY[2]]
    call = call_of(*whole)
    assert (call.state, call.is_being_written, call.ran_early) == (CallState.RUNNING_EARLY, False, True)
    again = RunView.of(condensed(view_of(*whole)))
    assert timeless(again.as_json()) == timeless(view_of(*whole).as_json())


def test_why_a_call_has_no_result() -> None:
    failed = call_of(STARTED, CallFailed("c", "no"))
    assert failed.result is None
    assert failed.as_json()["error"] == "no"
    discarded = call_of(STARTED, CallDiscarded("c", "rejected", "not that one")).as_json()
    assert (discarded["reason"], discarded["detail"]) == ("rejected", "not that one")


def test_a_call_that_its_run_left_open_is_discarded() -> None:
    call = call_of(STARTED, ArgsAppended("c", "{"), RunEnded("finished"))
    assert call.outcome == CallDiscarded("c", "interrupted")
    assert call.args_seq == 4


def test_an_answer_to_a_call_of_an_earlier_run_is_an_item_of_its_own() -> None:
    view = view_of(
        CallExecuting("old"),
        CallProgressed("old", 1),
        CallProgressed("old", 2),
        CallReturned("old", "blue", "its-message"),
        CallDiscarded("other", "rejected"),
        CallReleased("third"),
        CallSigned("unheard", "of"),
    )
    assert view.calls == {}
    assert [item.as_json() for item in view.items] == [
        {"type": "answer", "call_id": "old", "at": 3.0, "progress": 2, "state": "completed", "result": "blue"},
        {"type": "answer", "call_id": "other", "at": 6.0, "state": "discarded", "reason": "rejected"},
        {"type": "answer", "call_id": "third", "at": 7.0, "state": "released"},
    ]
    answer = view.answers["old"]
    assert (answer.progress_first_seq, answer.progress_seq, answer.outcome_seq) == (3, 4, 5)


def test_records_have_to_begin_with_the_first() -> None:
    view = RunView()
    with pytest.raises(UsageError, match="from its first on; call 'c' is unknown"):
        view.feed(Record("run", 5, 0.0, ArgsAppended("c", "x")))


# -- the run --


def test_a_run_says_whose_it_is_and_how_it_ended() -> None:
    view = view_of(RunEnded("failed", "it broke"))
    assert view.input == {"question": "?"}
    assert view.as_json() == {
        "run_id": "run",
        "thread_id": "thread",
        "principal": "alice",
        "started_at": 1.0,
        "ended_at": 2.0,
        "outcome": "failed",
        "reason": "it broke",
        "attempt": 1,
        "seq": 2,
        "items": [],
    }


def test_state_is_what_the_last_change_left() -> None:
    patch = [{"op": "add", "path": "/b", "value": 2}]
    wrong = [{"op": "remove", "path": "/nothing"}]
    assert view_of().state is msgspec.UNSET
    assert view_of(StateChanged(patch=patch)).state == {"b": 2}
    assert view_of(StateChanged({"a": 1}), StateChanged(patch=patch), StateChanged(patch=wrong)).state == {
        "a": 1,
        "b": 2,
    }
    assert view_of(StateChanged(None)).as_json()["state"] is None
    later = RunView(state={"a": 1})
    for record in records(StateChanged(patch=patch)):
        later.feed(record)
    assert later.as_json()["state"] == {"a": 1, "b": 2}


# -- a run that another process goes on with --

CUT: list[RunEvent] = [
    MessageStarted("done"),
    TextAppended("done", "Whole."),
    MessageEnded("done"),
    MessageStarted("half"),
    ReasoningAppended("half", "Hm."),
    TextAppended("half", "Hal"),
    CallStarted("whole-call", "write", message_id="half"),
    CallCompleted("whole-call", "{}"),
    CallRunningEarly("whole-call"),
    MessageStarted("inner", within="whole-call"),
    TextAppended("inner", "Inn"),
    CallStarted("half-call", "write", message_id="half"),
    ArgsAppended("half-call", '{"a'),
]
RESUMED: list[RunEvent] = [RunResumed(2, ("half", "unheard-of"))]
AFTER: list[RunEvent] = [
    CallDiscarded("whole-call", "interrupted"),
    CallDiscarded("half-call", "interrupted"),
    MessageEnded("half"),
    MessageStarted("late", within="half-call"),
    TextAppended("late", "?"),
    MessageStarted("again"),
    TextAppended("again", "All of it."),
    CallStarted("new-call", "write", message_id="again"),
    MessageEnded("again"),
]


def test_responses_that_were_cut_are_void_and_kept_aside() -> None:
    view = view_of(*CUT, *RESUMED, *AFTER)
    assert [message.text for message in view.messages.values()] == ["Whole.", "All of it."]
    assert list(view.calls) == ["new-call"]
    assert view.answers == {}
    assert [type(item) for item in view.items] == [Passage, Passage, CallView]
    assert (view.attempt, view.resumed_seq) == (2, len(CUT) + 2)
    assert list(view.void) == ["half", "inner"]
    half, inner = view.void.values()
    assert (half.attempt, half.text, half.reasoning, inner.text) == (1, "Hal", "Hm.", "Inn")
    assert [call.state for call in half.calls] == [CallState.DISCARDED] * 2
    assert half.open_passage is None
    assert view.messages["again"].attempt == 2
    shown = view.as_json()
    assert shown["attempt"] == 2
    assert [(each["message_id"], each["attempt"], len(each["items"])) for each in shown["void"]] == [
        ("half", 1, 4),
        ("inner", 1, 1),
    ]


def test_feed_says_what_is_void_and_what_was_cut_off() -> None:
    *_, resumed = changes_of(*CUT, *RESUMED)
    assert isinstance(resumed, Resumed)
    assert [message.message_id for message in resumed.void] == ["half", "inner"]
    named = [part.call_id if isinstance(part, CallView) else part.message_id for part in resumed.cut_off]
    assert named == ["inner", "half-call"]
    told = changes_of(*CUT, *RESUMED, *AFTER[:5])
    assert isinstance(told[-1], Resumed), "nothing more is said of it"


def test_a_process_may_go_on_with_a_run_of_which_nothing_is_void() -> None:
    assert changes_of(*CUT[:3], RunResumed(2))[-1] == Resumed((), ())
    view = view_of(*CUT[:3], RunResumed(2), RunResumed(3))
    assert (view.attempt, "void" in view.as_json()) == (3, False)


def test_what_is_void_stays_so_where_the_rest_is_told_to_others() -> None:
    """Between the record that says so and those that discard its calls, somebody may join."""
    view = fed(condensed(view_of(*CUT, *RESUMED)))
    assert (view.attempt, list(view.messages), view.void) == (2, ["done"], {})
    seq = len(CUT) + 3
    for number, event in enumerate(AFTER[:5]):
        assert view.feed(Record("run", seq + number, 0.0, event)) == []
    assert view.answers == {}


def test_what_is_kept_to_go_on_is_not_shown() -> None:
    assert changes_of(InputKept("app", "secret"), SessionKept("s"), RequestKept("q"), OutputKept("n", 0, "o")) == []


def test_void_messages_of_tools_are_not_shown_where_none_are() -> None:
    view = fed(records(*CUT, RunResumed(2, ("inner",))), RunView(nested=False))
    assert list(view.messages) == ["done", "half"]
    assert view.void == {}


@given(scenes, st.data())
def test_a_run_that_went_on_elsewhere_folds_to_what_is_valid(scene: Scene, data: st.DataObject) -> None:
    for run in scene.runs:
        killed = kill(run.records, data.draw(st.integers(1, len(run.records) - 1)))
        again = kill(killed.records, data.draw(st.integers(1, len(killed.records) - 1)), attempt=3)
        for each in (killed, again):
            view = RunView.of(each.records)
            valid = RunView.of(each.valid)
            assert timeless(without_void(view)) == timeless(without_void(valid))
            assert timeless(without_void(RunView.of(condensed(view)))) == timeless(without_void(view))


async def test_compaction_preserves_what_is_void() -> None:
    events = [*CUT, TextAppended("inner", "er"), *RESUMED, *AFTER[:2], *AFTER[5:], CallDiscarded("new-call", "aborted")]
    async with open_journal("memory:") as journal:
        await journal.append("r", [RunStarted("thread"), *events, RunEnded("finished")])
        before = RunView.of([record async for record in journal.read("r")])
        assert await journal.compact("r") > 0
        after = RunView.of([record async for record in journal.read("r")])
    assert essence(after) == essence(before)
    for message_id, void in before.void.items():
        again = after.void[message_id]
        assert (again.text, again.reasoning, again.attempt) == (void.text, void.reasoning, void.attempt)
        assert [call.as_json() for call in again.calls] == [call.as_json() for call in void.calls]


def without_void(view: RunView) -> Any:
    return {name: value for name, value in view.as_json().items() if name not in ("void", "attempt")}


# -- what holds for all runs --


def plain(view: RunView) -> Any:
    return json.loads(json.dumps(view.as_json()))


def fed(found: Iterable[Record], view: RunView | None = None) -> RunView:
    view = view or RunView()
    for record in found:
        view.feed(record)
    return view


@given(scenes, st.data())
def test_view_of_any_prefix_and_the_rest_is_the_view_of_the_whole(scene: Scene, data: st.DataObject) -> None:
    for run in scene.runs:
        seen = data.draw(st.integers(0, len(run.records)))
        view = fed(run.records[:seen])
        before, at_that_time = view.as_json(), plain(view)
        fed(run.records[seen:], view)
        assert plain(view) == plain(RunView.of(run.records))
        assert json.loads(json.dumps(before)) == at_that_time  # what was copied does not change


@given(scenes)
def test_compaction_preserves_fold_of_a_run(scene: Scene) -> None:
    for run in scene.runs:
        assert essence(RunView.of(run.compacted)) == essence(RunView.of(run.records))


def essence(view: RunView) -> Any:
    """All but the passages: compaction joins those of a message."""
    messages = [
        (message.message_id, message.text, message.reasoning, [call.as_json() for call in message.calls])
        for message in view.messages.values()
    ]
    others = [item.as_json() for item in view.items if not isinstance(item, Passage | CallView)]
    state = None if view.state is msgspec.UNSET else view.state
    return messages, others, state, view.outcome, view.reason


async def test_view_says_of_calls_what_the_journal_says() -> None:
    events: list[RunEvent | Entry] = [
        RunStarted("thread"),
        *(CallStarted(name, "write", f"wire-{name}", message_id="m") for name in "abcdef"),
        ArgsAppended("a", '{"x":'),
        ArgsAppended("b", "[1,"),
        ArgsAppended("a", "1}"),
        *(CallCompleted(name, '{"x":1}' if name == "a" else "{}") for name in "acde"),
        CallDiscarded("b", "malformed", "cut"),
        CallExecuting("a"),
        CallReturned("a", {"done": True}),
        CallExecuting("c"),
        CallFailed("c", "no"),
        CallAwaiting("d"),
        CallReleased("e"),
        CallDiscarded("f", "truncated"),
        RunEnded("finished"),
    ]
    async with open_journal("memory:") as journal:
        await journal.append("r", events)
        for is_compacted in (False, True):
            if is_compacted:
                await journal.compact("r")
            view = RunView.of([record async for record in journal.read("r")])
            for row in await journal.calls(run_id="r"):
                call, whole = view.calls[row.call_id], await journal.call(row.call_id)
                assert whole is not None
                fields = (call.name, call.state, call.provider_id, call.message_id, call.result, call.args_json)
                assert fields == (row.name, row.state, row.provider_id, row.message_id, row.result, whole.args_json)
                shown = call.as_json()
                assert (shown.get("error"), shown.get("reason"), shown.get("detail")) == (
                    row.error,
                    row.reason,
                    row.detail,
                )


# -- condensed --


def timeless(value: Any) -> Any:
    """A view without what depends on when a record was written, and by whom."""
    if isinstance(value, dict):
        left_out = ("at", "changed_at", "started_at", "ended_at", "seq", "author")
        return {name: timeless(each) for name, each in value.items() if name not in left_out}
    return [timeless(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", SCENES)
def test_condensed_records_fold_to_the_same_view(name: str) -> None:
    for run in play(*SCENES[name]).runs:
        view = RunView()
        for record in run.records:
            view.feed(record)
            again = condensed(view)
            assert timeless(RunView.of(again).as_json()) == timeless(view.as_json()), record
        pieces = [each for each in again if isinstance(each.event, ArgsAppended)]
        assert len(pieces) == len({each.event.call_id for each in pieces})  # type: ignore[union-attr]


def test_nothing_condenses_to_nothing() -> None:
    assert condensed(RunView()) == []


# -- what a record changes --


def changes_of(*events: RunEvent, is_outline: bool = False) -> list[Any]:
    """The changes of the events after the run's start."""
    view = RunView(is_outline=is_outline)
    return [change for record in records(*events) for change in view.feed(record)][1:]


def test_feed_says_what_a_passage_did() -> None:
    told = changes_of(
        MessageStarted("m"),
        ReasoningAppended("m", "Hm"),
        TextAppended("m", "Yes"),
        TextAppended("m", ""),
        MessageEnded("m"),
    )
    began, opened_thought, thought, closed_thought, opened, grew, closed = told
    assert began == MessageBegan(began.message)
    assert (opened_thought.part.kind, thought.text, closed_thought.part) == ("reasoning", "Hm", thought.part)
    assert (opened.part.kind, grew.text, closed.part) == ("text", "Yes", grew.part)


def test_arguments_grow_as_json_whatever_the_tool_takes() -> None:
    told = changes_of(
        CallStarted("j", "write"),
        ArgsAppended("j", '{"a"'),
        ArgsAppended("j", ": 1}"),
        CallCompleted("j"),
        CallStarted("t", "patch", encoding="text"),
        ArgsAppended("t", ""),
        ArgsAppended("t", 'say "hi"\n'),
        CallCompleted("t"),
        CallStarted("whole", "patch", encoding="text"),
        CallCompleted("whole", '"all of it"'),
    )
    grown: dict[str, str] = {}
    written: dict[str, str] = {}
    for change in told:
        if isinstance(change, Grew):
            assert isinstance(change.part, CallView)
            grown[change.part.call_id] = grown.get(change.part.call_id, "") + change.json
            written[change.part.call_id] = written.get(change.part.call_id, "") + change.text
    assert {call_id: json.loads(text) for call_id, text in grown.items()} == {
        "j": {"a": 1},
        "t": 'say "hi"\n',
        "whole": "all of it",
    }
    assert written == {"j": '{"a": 1}', "t": 'say "hi"\n', "whole": "all of it"}
    assert [change.part.call_id for change in told if isinstance(change, Closed)] == ["j", "t", "whole"]


def test_a_call_that_ends_while_it_is_written_is_cut_off() -> None:
    cut, whole = [
        change.cut_off
        for change in changes_of(
            CallStarted("half", "write"),
            ArgsAppended("half", "{"),
            CallDiscarded("half", "truncated"),
            CallStarted("whole", "write"),
            CallCompleted("whole", "{}"),
            CallDiscarded("whole", "rejected"),
        )
        if isinstance(change, Settled)
    ]
    assert (cut, whole) == (True, False)


def test_the_end_of_a_run_closes_and_settles_all_that_is_open() -> None:
    told = changes_of(TextAppended("m", "Hel"), CallStarted("c", "write", message_id="n"), RunEnded("cancelled"))
    assert [type(change) for change in told[-3:]] == [Closed, Settled, Ended]
    assert told[-2].outcome == CallDiscarded("c", "interrupted")


@given(scenes)
def test_an_outline_tells_the_same_changes_and_keeps_nothing_of_what_they_say(scene: Scene) -> None:
    for run in scene.runs:
        whole, outline = RunView(), RunView(is_outline=True)
        for record in run.records:
            told, again = whole.feed(record), outline.feed(record)
            assert [type(change) for change in told] == [type(change) for change in again]
            assert [change.json + change.text for change in told if isinstance(change, Grew)] == [
                change.json + change.text for change in again if isinstance(change, Grew)
            ]
        assert list(outline.calls) == list(whole.calls)
        assert [call.state for call in outline.calls.values()] == [call.state for call in whole.calls.values()]
        assert not any(
            part.text for message in outline.messages.values() for part in message.parts if isinstance(part, Passage)
        )
        assert not any(call.outcome or call.progress for call in outline.calls.values())
        assert {call.args_json for call in outline.calls.values()} <= {"", "{}", '"', '""'}
        assert outline.input is None


def test_reasoning_that_is_not_shown_ends_no_text() -> None:
    view = RunView(reasoning=False)
    for record in records(TextAppended("m", "One "), ReasoningAppended("m", "Hm"), TextAppended("m", "two.")):
        view.feed(record)
    [passage] = view.messages["m"].parts
    assert isinstance(passage, Passage)
    assert passage.text == "One two."
