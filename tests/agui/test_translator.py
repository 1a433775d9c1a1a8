"""From records to AG-UI events: text, reasoning and calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.agui import Conversation, Translator, View
from callstream.agui.events import MessagesSnapshot, ToolCallResult
from callstream.agui.messages import Metadata
from callstream.calls import DECLINED
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
    DiscardReason,
    MessageEnded,
    MessageStarted,
    ReasoningAppended,
    Record,
    ResponseEnded,
    RunEnded,
    RunEvent,
    RunResumed,
    TextAppended,
)
from tests.agui.model import as_json

from .translating import FINISHED, events_of, kinds, records, sent

# -- text and reasoning --


def test_a_run_begins_with_its_ids_and_the_version() -> None:
    [event] = Translator().feed(records()[0])
    assert as_json(event) == {
        "type": "RUN_STARTED",
        "threadId": "thread",
        "runId": "run",
        "protocolVersion": "1.0",
        "metadata": {"seq": 1},
    }


def test_text_opens_with_its_first_character() -> None:
    assert sent(
        MessageStarted("m"), TextAppended("m", ""), TextAppended("m", "Hi"), TextAppended("m", "!"), MessageEnded("m")
    ) == [
        {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "Hi"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "!"},
        {"type": "TEXT_MESSAGE_END", "messageId": "m"},
    ]


def test_a_message_without_text_gives_no_text_events_but_its_id() -> None:
    assert sent(
        MessageStarted("m"), CallStarted("c", "write", message_id="m"), MessageEnded("m"), ResponseEnded("stop")
    ) == [{"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "write", "parentMessageId": "m"}]


def test_reasoning_closes_before_text_and_opens_again_after_it() -> None:
    assert sent(
        ReasoningAppended("m", "Hm"),
        ReasoningAppended("m", ""),
        ReasoningAppended("m", "."),
        TextAppended("m", "So"),
        ReasoningAppended("m", "Oh."),
        MessageEnded("m"),
    ) == [
        {"type": "REASONING_START", "messageId": "reasoning-m"},
        {"type": "REASONING_MESSAGE_START", "messageId": "reasoning-m", "role": "reasoning"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "reasoning-m", "delta": "Hm"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "reasoning-m", "delta": "."},
        {"type": "REASONING_MESSAGE_END", "messageId": "reasoning-m"},
        {"type": "REASONING_END", "messageId": "reasoning-m"},
        {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "So"},
        {"type": "TEXT_MESSAGE_END", "messageId": "m"},
        {"type": "REASONING_START", "messageId": "reasoning-m"},
        {"type": "REASONING_MESSAGE_START", "messageId": "reasoning-m", "role": "reasoning"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "reasoning-m", "delta": "Oh."},
        {"type": "REASONING_MESSAGE_END", "messageId": "reasoning-m"},
        {"type": "REASONING_END", "messageId": "reasoning-m"},
    ]


def test_reasoning_is_shown_only_where_the_view_has_it() -> None:
    assert kinds(ReasoningAppended("m", "Hm."), view=View(reasoning=False)) == []


def test_a_call_closes_the_text_of_its_own_message_only() -> None:
    told = sent(TextAppended("a", "x"), TextAppended("b", "y"), CallStarted("c", "write", message_id="a"))
    assert [event["type"] for event in told[4:]] == ["TEXT_MESSAGE_END", "TOOL_CALL_START"]
    assert told[4]["messageId"] == "a"


# -- calls --


def test_a_call_is_start_args_end_and_result() -> None:
    assert sent(
        CallStarted("c", "write", message_id="m"),
        ArgsAppended("c", '{"a":'),
        ArgsAppended("c", ""),
        ArgsAppended("c", "1}"),
        CallCompleted("c"),
        CallExecuting("c"),
        CallReturned("c", {"ok": True, "of": [1, None]}),
    ) == [
        {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "write", "parentMessageId": "m"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": '{"a":'},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "1}"},
        {"type": "TOOL_CALL_END", "toolCallId": "c"},
        {
            "type": "TOOL_CALL_RESULT",
            "messageId": "result-c",
            "toolCallId": "c",
            "content": '{"ok":true,"of":[1,null]}',
        },
    ]


def test_metadata_seq_is_the_number_of_the_record() -> None:
    events = events_of(TextAppended("m", "x"), CallStarted("c", "write", message_id="m"))
    seqs = [event.metadata.seq for event in events if event.metadata is not None]
    assert seqs == [2, 2, 3, 3]


def parent_of(event: CallStarted, response_id: str | None) -> str:
    translator = Translator()
    translator.feed(records()[0])
    [start] = translator.feed(Record("run", 2, 0.0, event, response_id))
    parent: str = as_json(start)["parentMessageId"]
    return parent


def test_a_call_without_a_message_gets_that_of_its_response_or_one_of_its_own() -> None:
    assert parent_of(CallStarted("c", "write", message_id="m"), "r") == "m"
    assert parent_of(CallStarted("c", "write"), "r") == "r"
    assert parent_of(CallStarted("c", "write"), None) == "message-c"


def arguments(*events: RunEvent) -> str:
    return "".join(event.get("delta", "") for event in sent(*events))


def test_a_call_that_came_whole_has_its_arguments_in_one_delta() -> None:
    started = CallStarted("c", "write", message_id="m")
    assert arguments(started, CallCompleted("c", '{"a":1}')) == '{"a":1}'
    assert arguments(started, ArgsAppended("c", '{"a":1}'), CallCompleted("c", '{"a":1}')) == '{"a":1}'
    assert arguments(started, CallCompleted("c")) == "{}"


def test_custom_tool_text_is_sent_as_a_json_string() -> None:
    started = CallStarted("c", "shell", encoding="text", message_id="m")
    pieces = [ArgsAppended("c", 'say "'), ArgsAppended("c", "\n\té"), ArgsAppended("c", "🎈\\")]
    assert json.loads(arguments(started, *pieces, CallCompleted("c"))) == 'say "\n\té🎈\\'
    assert arguments(started, CallCompleted("c")) == '""'
    assert arguments(started, CallCompleted("c", '"whole"')) == '"whole"'
    assert arguments(started, *pieces[:1], CallDiscarded("c", "truncated")) == '"say \\"'


def test_a_signature_follows_its_start() -> None:
    value = {"type": "REASONING_ENCRYPTED_VALUE", "subtype": "tool-call", "entityId": "c", "encryptedValue": "s"}
    started = sent(CallStarted("c", "write", signature="s", message_id="m"))
    assert started[1:] == [value]
    later = sent(CallStarted("c", "write", message_id="m"), ArgsAppended("c", "{"), CallSigned("c", "s"))
    assert later[2:] == [value]


def test_progress_replaces_an_activity() -> None:
    assert sent(CallProgressed("c", [1]), CallStarted("d", "write", message_id="m"), CallProgressed("d", {"done": 1}))[
        ::2
    ] == [
        {
            "type": "ACTIVITY_SNAPSHOT",
            "messageId": f"progress-{call_id}",
            "activityType": "tool_progress",
            "content": content,
            "replace": True,
        }
        for call_id, content in (
            ("c", {"toolCallId": "c", "progress": [1]}),
            ("d", {"toolCallId": "d", "toolCallName": "write", "progress": {"done": 1}}),
        )
    ]


def result(*events: RunEvent, view: View | None = None) -> str:
    """The one result that the events give to a call."""
    started = CallStarted("c", "write", message_id="m")
    [content] = [event["content"] for event in sent(started, *events, view=view) if "content" in event]
    return str(content)


@pytest.mark.parametrize(
    ("value", "text"),
    [("as it is: é\n", "as it is: é\n"), (None, "null"), (1.5, "1.5"), (["é"], '["é"]'), ("", ""), (False, "false")],
)
def test_results_are_text_or_json(value: Any, text: str) -> None:
    assert result(CallCompleted("c"), CallReturned("c", value)) == text


def test_the_text_of_an_error_is_shown_only_where_the_view_has_it() -> None:
    failed = CallCompleted("c"), CallFailed("c", "ValueError: secret")
    assert json.loads(result(*failed)) == {"error": "the tool failed"}
    assert json.loads(result(*failed, view=View(errors=True))) == {"error": "ValueError: secret"}


@pytest.mark.parametrize("said", sorted(DECLINED))
def test_a_call_that_a_person_declined_is_not_said_to_have_failed(said: str) -> None:
    assert json.loads(result(CallCompleted("c"), CallFailed("c", said))) == {"error": said}


@pytest.mark.parametrize("reason", ["truncated", "malformed", "rejected", "aborted", "interrupted"])
def test_a_discarded_call_gets_its_end_and_an_error_result_that_says_why(reason: DiscardReason) -> None:
    started = CallStarted("c", "write", message_id="m")
    half = ArgsAppended("c", '{"a"')
    assert kinds(started, half, CallDiscarded("c", reason))[2:] == ["TOOL_CALL_END", "TOOL_CALL_RESULT"]
    assert kinds(started, CallCompleted("c", "{}"), CallDiscarded("c", reason))[3:] == ["TOOL_CALL_RESULT"]
    said = json.loads(result(CallDiscarded("c", reason, "the detail")))
    assert said["reason"] == reason
    assert "did not run" in said["error"]
    assert said.get("detail") == ("the detail" if reason == "rejected" else None)
    assert json.loads(result(CallDiscarded("c", reason, "x"), view=View(errors=True)))["detail"] == "x"
    assert "detail" not in json.loads(result(CallDiscarded("c", reason), view=View(errors=True)))


@pytest.mark.parametrize("reason", ["truncated", "malformed", "invalid", "rejected", "aborted", "interrupted"])
def test_a_tool_that_ran_early_is_not_said_never_to_have_run(reason: DiscardReason) -> None:
    early = ArgsAppended("c", '{"a"'), CallRunningEarly("c"), CallDiscarded("c", reason)
    said = json.loads(result(*early))
    assert said["error"].endswith("; the result of the tool does not count")
    assert said["reason"] == reason
    whole = Conversation.of(records(CallStarted("c", "write", message_id="m"), *early)).snapshot()
    [joined] = [message for message in as_json(whole)["messages"] if message["role"] == "tool"]
    assert json.loads(joined["content"]) == said


def test_a_released_call_does_not_look_pending() -> None:
    told = sent(CallStarted("c", "write", message_id="m"), CallCompleted("c"), CallReleased("c"), FINISHED)
    assert json.loads(told[-2]["content"])["status"] == "released"
    assert told[-1]["outcome"] == {"type": "success"}


def test_an_answer_is_not_sent_back_to_the_client_that_brought_it() -> None:
    assert sent(CallReturned("c", "blue", "its-message"), CallFailed("d", "no", "its-other-message")) == []
    [told] = sent(CallReturned("c", "blue"))
    assert told == {"type": "TOOL_CALL_RESULT", "messageId": "result-c", "toolCallId": "c", "content": "blue"}


def test_an_answer_within_the_run_is_told_under_the_id_it_came_with() -> None:
    events = events_of(
        CallStarted("c", "ask", message_id="m"), CallCompleted("c"), CallAwaiting("c"), CallReturned("c", 1, "x")
    )
    assert isinstance(events[-1], ToolCallResult)
    assert events[-1].message_id == "x"


def test_a_tool_that_runs_early_is_a_custom_event_between_its_arguments() -> None:
    told = sent(
        CallStarted("c", "write", message_id="m"),
        ArgsAppended("c", "{"),
        CallRunningEarly("c"),
        CallProgressed("c", 1),
        ArgsAppended("c", "}"),
        CallCompleted("c", "{}"),
        CallReturned("c", 5),
    )
    kinds = ["START", "ARGS", "CUSTOM", "ACTIVITY_SNAPSHOT", "ARGS", "END", "RESULT"]
    assert [event["type"].removeprefix("TOOL_CALL_") for event in told] == kinds
    early = {"type": "CUSTOM", "name": "running_early", "value": {"toolCallId": "c", "toolCallName": "write"}}
    assert told[2] == early


# -- agents that tools run --


def test_the_agent_of_a_call_of_an_earlier_run_is_named_by_who_speaks() -> None:
    started, *_, finished, result, _ = sent(
        MessageStarted("m", within="c"), TextAppended("m", "In."), MessageEnded("m"), CallReturned("c", 1), FINISHED
    )
    assert started == {
        "type": "SUBAGENT_STARTED",
        "subagentRunId": "agent-c",
        "name": "agent",
        "parentToolCallId": "c",
    }
    assert finished == {"type": "SUBAGENT_FINISHED", "subagentRunId": "agent-c"}
    assert result["type"] == "TOOL_CALL_RESULT"


# -- another process goes on with the run --

HALF: list[RunEvent] = [
    MessageStarted("m"),
    TextAppended("m", "Half a t"),
    CallStarted("c", "write", message_id="m"),
    ArgsAppended("c", '{"a":"hal'),
    RunResumed(2, ("m",)),
    CallDiscarded("c", "interrupted"),
]


def test_what_is_void_ends_after_a_snapshot_and_without_a_result() -> None:
    translator = Translator()
    told = {}
    for record in records(*HALF):
        told[record.seq] = ([as_json(event)["type"] for event in translator.feed(record)], translator.snapshot_at)
    assert told[6] == (["TOOL_CALL_END"], 0)
    assert told[7] == ([], None)
    assert [at for _, at in told.values()].count(0) == 1


def test_a_process_that_goes_on_between_responses_takes_nothing_back() -> None:
    whole = [MessageStarted("m"), TextAppended("m", "Whole."), MessageEnded("m")]
    for void in ([], [MessageStarted("n"), RunResumed(2, ("n",))]):
        translator = Translator()
        for record in records(*whole, *void, RunResumed(3)):
            events = translator.feed(record)
            assert translator.snapshot_at is None
        assert events == []


def test_the_agent_of_a_tool_that_is_void_is_at_work_no_more() -> None:
    nested = [
        CallCompleted("c", "{}"),
        CallRunningEarly("c"),
        MessageStarted("inner", within="c"),
        TextAppended("inner", "In"),
    ]
    told = kinds(*HALF[:3], *nested, *HALF[4:], FINISHED)
    assert told[-4:] == ["TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "SUBAGENT_FINISHED", "RUN_FINISHED"]


def places(*events: RunEvent) -> dict[int, int | None]:
    """Where snapshots belong, by record."""
    translator, found = Translator(), {}
    for record in records(*events):
        assert len(translator.feed(record)) >= (translator.snapshot_at or 0)
        found[record.seq] = translator.snapshot_at
    return {seq: place for seq, place in found.items() if place is not None}


@pytest.mark.parametrize("outcome", ["finished", "failed"])
def test_a_run_ends_with_a_snapshot_if_that_is_wanted(outcome: Any) -> None:
    translator = Translator(View(emit_messages_snapshot=True))
    for record in records(MessageStarted("m"), TextAppended("m", "Half"), RunEnded(outcome)):
        may_want = translator.may_want_snapshot(record)
        events = translator.feed(record)
        assert may_want == (translator.snapshot_at is not None) == isinstance(record.event, RunEnded)
    assert translator.snapshot_at == len(events) - 1 == 1  # what is open ends before it


def test_a_snapshot_without_messages_takes_back_what_is_void_and_is_nothing_to_end_with() -> None:
    translator, told = Translator(View(emit_messages_snapshot=True)), []
    for record in records(MessageStarted("m"), TextAppended("m", "Half"), RunResumed(2, ("m",)), FINISHED):
        events = translator.feed(record)
        if translator.snapshot_at is not None:
            translator.place(MessagesSnapshot(messages=(), metadata=Metadata(1)), events)
        told += [as_json(event)["type"] for event in events]
    assert told[-3:] == ["MESSAGES_SNAPSHOT", "TEXT_MESSAGE_END", "RUN_FINISHED"]


def test_reasoning_that_is_void_goes_with_the_snapshot_that_has_other() -> None:
    half: list[RunEvent] = [MessageStarted("m"), ReasoningAppended("m", "Hm"), RunResumed(2, ("m",))]
    again: list[RunEvent] = [MessageStarted("n"), ReasoningAppended("n", "So."), TextAppended("n", "Yes.")]
    assert places(*half, *again, MessageEnded("n"), FINISHED) == {4: 0, 8: 1}
    assert places(*half, *again, FINISHED) == {4: 0, 8: 1}, "before the end of the run"
    assert places(*half, TextAppended("n", "Yes."), MessageEnded("n"), FINISHED) == {4: 0}
    before: list[RunEvent] = [ReasoningAppended("l", "Well."), MessageEnded("l")]
    assert places(*before, *half, *again, MessageEnded("n"), FINISHED) == {6: 0}


@pytest.mark.parametrize("outcome", [CallReturned("q", "yes"), CallFailed("q", "cancelled")])
def test_only_an_answer_that_the_run_did_not_take_may_need_a_snapshot(outcome: RunEvent) -> None:
    def doubted(*events: RunEvent) -> Any:
        translator = Translator()
        translator.answers = ["q"]
        for record in records(*events, FINISHED):
            may_want = translator.may_want_snapshot(record)
            translator.feed(record)
            assert may_want or translator.snapshot_at is None
        assert (translator.snapshot_at is None) == (not translator.doubted)
        return translator.doubted

    assert doubted(outcome) == []
    assert doubted(CallProgressed("q", "half"), CallExecuting("q")) == doubted() == ["q"]


# -- tools that the client runs --

PICK: list[RunEvent] = [
    MessageStarted("m"),
    CallStarted("c", "pick", message_id="m"),
    ArgsAppended("c", "{}"),
    CallCompleted("c", "{}"),
]
OWN = View(client_tools=frozenset({"pick"}))


def test_a_clients_call_ends_when_its_response_can_no_longer_be_cut() -> None:
    begun = ["TOOL_CALL_START", "TOOL_CALL_ARGS"]
    assert kinds(*PICK) == [*begun, "TOOL_CALL_END"]
    assert kinds(*PICK, MessageEnded("m"), view=OWN) == begun
    assert kinds(*PICK, CallAwaiting("c"), FINISHED, view=OWN) == [*begun, "TOOL_CALL_END", "RUN_FINISHED"]
    assert kinds(*PICK, CallReturned("c", 1), view=OWN) == [*begun, "TOOL_CALL_END", "TOOL_CALL_RESULT"]
    assert kinds(*PICK, FINISHED, view=OWN) == [*begun, "TOOL_CALL_END", "TOOL_CALL_RESULT", "RUN_FINISHED"]
    ended = events_of(*PICK, CallAwaiting("c"), view=OWN)[-1]
    assert ended.metadata is not None
    assert ended.metadata.seq == 5  # of the record with which it was whole


def test_a_clients_call_that_is_void_ends_after_the_snapshot() -> None:
    translator = Translator(OWN)
    half: list[RunEvent] = [*PICK, CallStarted("d", "write", message_id="m"), RunResumed(2, ("m",))]
    told = [[as_json(event) for event in translator.feed(record)] for record in records(*half)]
    assert translator.snapshot_at == 0
    assert [(event["type"], event["toolCallId"]) for event in told[-1]] == [
        ("TOOL_CALL_END", "d"),
        ("TOOL_CALL_END", "c"),
    ]


def test_a_clients_call_is_closed_where_the_stream_has_to_end() -> None:
    translator = Translator(OWN)
    for record in records(*PICK):
        translator.feed(record)
    assert translator.open_calls == ["c"]
    assert [as_json(event)["type"] for event in translator.end()] == ["TOOL_CALL_END", "RUN_ERROR"]


def test_who_joins_gets_a_clients_call_as_one_that_is_being_written() -> None:
    whole = records(*PICK, CallAwaiting("c"), FINISHED)
    conversation = Conversation.of(whole[:5], OWN)
    told = [as_json(event)["type"] for event in conversation.prelude()]
    assert told == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "TOOL_CALL_START", "TOOL_CALL_ARGS"]
    rest = [as_json(event)["type"] for record in whole[5:] for event in conversation.feed(record)]
    assert rest == ["TOOL_CALL_END", "RUN_FINISHED"]
