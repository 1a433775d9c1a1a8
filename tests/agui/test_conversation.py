from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.agui import Conversation, Onlooker, Translator, View, encode
from callstream.agui.events import ToolCallResult
from callstream.errors import UsageError
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallFailed,
    CallProgressed,
    CallReturned,
    CallRunningEarly,
    CallSigned,
    CallStarted,
    MessageEnded,
    MessageReceived,
    MessageStarted,
    ReasoningAppended,
    Record,
    ResponseEnded,
    RunEnded,
    RunEvent,
    RunResumed,
    RunStarted,
    StateChanged,
    TextAppended,
)
from callstream.testing import Finish, Text, Thought
from tests.agui.model import StrictClient, as_json, fold
from tests.agui.scenes import Play, Respond, Together, play
from tests.agui.translating import FINISHED, records


def messages(*events: RunEvent, run_input: Any = None) -> list[dict[str, Any]]:
    """The messages after a run with these events, as JSON that the official models accept."""
    first, *rest = records(*events)
    started = Record(first.run_id, 1, 0.0, RunStarted("thread", None, run_input))
    snapshot = as_json(Conversation.of([started, *rest]).snapshot())["messages"]
    return [{name: value for name, value in message.items() if name != "metadata"} for message in snapshot]


# -- input --


def test_messages_that_a_client_sent_are_shown_with_their_ids() -> None:
    assert messages(
        MessageReceived("system", "Be brief.", "s"),
        MessageReceived("developer", "Be kind.", "d"),
        MessageReceived("user", "Hello", "u"),
        MessageReceived("user", "Hello", "u"),
        MessageReceived("tool", "blue", "t"),
    ) == [
        {"role": "system", "id": "s", "content": "Be brief."},
        {"role": "developer", "id": "d", "content": "Be kind."},
        {"role": "user", "id": "u", "content": "Hello"},
    ]


def test_user_messages_of_a_request_are_shown_where_nobody_named_the_input() -> None:
    assert messages(MessageReceived("system", "Be brief."), MessageReceived("user", "Hello")) == [
        {"role": "user", "id": "input-run-3", "content": "Hello"}
    ]


@pytest.mark.parametrize(
    "before",
    [
        [MessageReceived("user", "Hello", "u")],
        [CallReturned("earlier", "yes")],
        [CallFailed("earlier", "no")],
        [MessageStarted("m")],
    ],
)
def test_messages_that_a_framework_wrote_into_a_request_are_not_shown(before: list[RunEvent]) -> None:
    shown = messages(*before, MessageReceived("user", "[writer] said: done"))
    assert "[writer] said: done" not in json.dumps(shown)


def test_parts_of_a_message_come_from_the_input_of_the_run() -> None:
    parts = [{"type": "text", "text": "Look"}, {"type": "image", "source": {"type": "url", "value": "http://x/y.png"}}]
    run_input = {"messages": [{"id": "u", "role": "user", "content": parts}, {"id": "v", "content": "Look"}, "?", {}]}
    received = MessageReceived("user", "Look", "u", ("image",))
    assert messages(received, run_input=run_input) == [{"role": "user", "id": "u", "content": parts}]
    assert messages(MessageReceived("user", "Look", "v"), run_input=run_input)[0]["content"] == "Look"
    for other in (None, "input", {"messages": None}, []):
        assert messages(received, run_input=other)[0]["content"] == "Look"


def test_kinds_of_unknown_parts_are_named() -> None:
    conversation = Conversation.of(records(MessageReceived("user", "Look", "u", ("image/png", "file"))))
    assert as_json(conversation.snapshot())["messages"][0]["metadata"] == {"attachments": ["image/png", "file"]}


def test_input_that_comes_after_the_prelude_is_told_by_a_snapshot() -> None:
    first, second, third = records(MessageReceived("user", "Hello", "u"), MessageReceived("user", "Hello", "u"))
    conversation = Conversation.of([first])
    client = fold(conversation.prelude())
    assert client.messages == []
    fold(conversation.feed(second), client)
    assert client.messages == [{"role": "user", "id": "u", "content": "Hello"}]
    assert conversation.feed(third) == []


# -- messages --


def test_the_order_is_that_of_the_official_client() -> None:
    """A result stands behind the message of its call, whatever came in between."""
    shown = messages(
        MessageReceived("user", "Hello", "u"),
        ReasoningAppended("m", "Hm."),
        TextAppended("m", "Let me see."),
        CallStarted("a", "write", message_id="m"),
        ArgsAppended("a", "{}"),
        CallCompleted("a"),
        CallStarted("b", "write", message_id="m"),
        CallSigned("b", "signature"),
        CallCompleted("b", "{}"),
        MessageEnded("m"),
        CallProgressed("a", 1),
        CallProgressed("b", 1),
        CallReturned("b", "second"),
        TextAppended("n", "Next."),
        CallProgressed("a", 2),
        CallReturned("a", "first"),
    )
    assert [message["id"] for message in shown] == [
        "u",
        "reasoning-m",
        "m",
        "result-b",
        "result-a",
        "progress-a",
        "progress-b",
        "n",
    ]
    assert shown[2]["toolCalls"][1]["encryptedValue"] == "signature"
    assert shown[5]["content"]["progress"] == 2


def test_a_result_of_a_call_that_is_gone_stands_at_the_end() -> None:
    shown = messages(TextAppended("m", "x"), CallReturned("forgotten", "yes"), CallSigned("forgotten", "s"))
    assert [message["id"] for message in shown] == ["m", "result-forgotten"]


def test_an_answer_that_a_client_sent_keeps_its_id() -> None:
    asked = records(CallStarted("c", "ask", message_id="m"), CallCompleted("c"), CallAwaiting("c"), FINISHED)
    told = records(CallReturned("c", "blue", "its-message"), run_id="next")
    conversation = Conversation.of([*asked, told[0]])
    client = fold(conversation.prelude())
    fold(conversation.feed(told[1]), client)
    assert client.messages[-1] == {
        "role": "tool",
        "id": "its-message",
        "toolCallId": "c",
        "content": "blue",
    }
    assert client.messages == as_json(conversation.snapshot())["messages"]


def test_an_answer_within_the_run_is_told_once() -> None:
    shown = messages(
        CallStarted("c", "ask", message_id="m"), CallCompleted("c"), CallAwaiting("c"), CallReturned("c", 1, "x")
    )
    assert [message["id"] for message in shown] == ["m", "x"]


def test_a_message_whose_id_comes_again_in_a_later_run_is_continued() -> None:
    """As the official client does it, for hosts that count their messages anew in every run."""
    first = [ReasoningAppended("m", "Hm"), TextAppended("m", "one"), CallStarted("a", "write", message_id="m")]
    first += [CallCompleted("a", "{}"), CallProgressed("a", 1), CallAwaiting("a"), MessageEnded("m"), FINISHED]
    second = [CallProgressed("a", 2), CallReturned("a", "done"), ReasoningAppended("m", "!"), TextAppended("m", " two")]
    second += [CallStarted("b", "write", message_id="m"), CallCompleted("b", "{}"), CallReturned("b", "well"), FINISHED]
    third = [CallStarted("c", "write", message_id="m"), FINISHED]
    runs = [records(*first), records(*second, run_id="second"), records(*third, run_id="third")]
    client = StrictClient()
    for run in runs:
        translator = Translator()
        for record in run:
            fold(translator.feed(record), client)
    conversation = Conversation.of([record for run in runs for record in run])
    assert as_json(conversation.snapshot())["messages"] == client.messages
    assert [message.id for message in conversation.messages][:2] == ["reasoning-m", "m"]


@pytest.mark.parametrize(
    "rest",
    [
        [],
        [MessageEnded("m")],
        [MessageEnded("m"), FINISHED],
        [CallStarted("c", "write", message_id="m")],
        [TextAppended("m", " two")],
        [TextAppended("m", " two"), ReasoningAppended("m", "?"), MessageEnded("m")],
    ],
)
def test_reasoning_that_is_not_shown_ends_no_text(rest: list[RunEvent]) -> None:
    view = View(reasoning=False)
    whole = records(TextAppended("m", "one"), ReasoningAppended("m", "Hm"), *rest)
    translator, client = Translator(view), StrictClient()
    for record in whole:
        fold(translator.feed(record), client)
    conversation = Conversation.of(whole, view)
    assert as_json(conversation.snapshot())["messages"] == client.messages
    joined = fold(conversation.prelude())
    assert (joined.messages, joined.open.keys()) == (client.messages, client.open.keys())


def test_progress_of_an_earlier_call_is_shown_without_its_name() -> None:
    [message] = messages(CallProgressed("earlier", 1))
    assert message["content"] == {"toolCallId": "earlier", "progress": 1}


# -- joining --


def test_an_answer_after_joining_is_told_once() -> None:
    first, *rest = records(CallStarted("c", "ask"), CallCompleted("c"), CallAwaiting("c"), CallReturned("c", 1, "x"))
    conversation = Conversation.of([first])
    told = [event for record in rest for event in conversation.feed(record)]
    assert [as_json(event)["messageId"] for event in told if isinstance(event, ToolCallResult)] == ["x"]


def test_join_mid_arguments_leaves_out_what_is_open_and_sends_it_again_whole() -> None:
    conversation = Conversation.of(
        records(
            MessageReceived("user", "Hello", "u"),
            ReasoningAppended("o", "Hm"),
            TextAppended("n", "Mean"),
            TextAppended("n", "while"),
            CallStarted("c", "write", message_id="m"),
            ArgsAppended("c", '{"content":'),
            ArgsAppended("c", '"one '),
            StateChanged({"a": 1}),
        )
    )
    prelude = [as_json(event) for event in conversation.prelude()]
    assert [event["type"] for event in prelude] == [
        "RUN_STARTED",
        "MESSAGES_SNAPSHOT",
        "STATE_SNAPSHOT",
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
    ]
    # Without any reasoning in the snapshot, the official client would keep the half that it has.
    assert prelude[1]["messages"][1:] == [{"role": "reasoning", "id": "reasoning-o", "content": ""}]
    assert [event["delta"] for event in prelude if "delta" in event] == ["Hm", "Meanwhile", '{"content":"one ']
    assert prelude[1]["metadata"]["seq"] == conversation.seq == 9
    # What is opened again ends with the number of its own last record: clients fold it into the call.
    assert prelude[-1]["metadata"] == {"seq": 8}


def test_a_call_of_the_client_that_is_whole_has_the_number_of_its_last_piece_until_it_ends() -> None:
    view = View(client_tools=frozenset({"pick"}))
    told = records(CallStarted("c", "pick", message_id="m"), ArgsAppended("c", "{}"), CallCompleted("c", "{}"))
    translator = Translator(view)
    seen = fold([event for record in told for event in translator.feed(record)])
    joined = fold(Conversation.of(told, view).prelude())
    assert joined.messages == seen.messages
    assert joined.messages[-1]["toolCalls"][0]["metadata"] == {"seq": 3}


def test_a_text_that_ended_before_its_call_ends_there_for_who_joins() -> None:
    """An agent that yields AG-UI events may end the message first and then make its call."""
    run = records(
        *(TextAppended("m", "I "), TextAppended("m", "write."), MessageEnded("m")),
        *(CallStarted("c", "write", "c", message_id="m"), ArgsAppended("c", "{}"), CallCompleted("c", "{}"), FINISHED),
    )
    translator = Translator()
    whole = fold([event for record in run for event in translator.feed(record)])
    for seen in range(1, len(run) + 1):
        conversation = Conversation.of(run[:seen])
        joined = [*conversation.prelude(), *(event for record in run[seen:] for event in conversation.feed(record))]
        assert fold(joined).messages == whole.messages, seen


def test_everything_from_the_first_open_message_on_is_sent_again_in_its_order() -> None:
    """A call that is closed stays behind one that began before it and is open, and so do results and progress."""
    conversation = Conversation.of(
        records(
            ReasoningAppended("m", "Hm"),
            TextAppended("m", "Both."),
            CallStarted("a", "write", message_id="m"),
            ArgsAppended("a", "{"),
            CallStarted("b", "write", message_id="m", signature="sig"),
            CallCompleted("b", "{}"),
            CallProgressed("b", 1),
            CallReturned("b", "b"),
            ReasoningAppended("n", "Later"),
            MessageEnded("n"),
        )
    )
    prelude = [as_json(event) for event in conversation.prelude()]
    assert [message["id"] for message in prelude[1]["messages"]] == ["reasoning-m"]
    client = fold(conversation.prelude())
    ids = ["reasoning-m", "m", "result-b", "progress-b", "reasoning-n"]
    assert [message["id"] for message in client.messages] == ids
    assert [call["id"] for call in client.messages[1]["toolCalls"]] == ["a", "b"]
    kinds = [event["type"] for event in prelude if event.get("toolCallId") == "a"]
    assert kinds == ["TOOL_CALL_START", "TOOL_CALL_ARGS"]


def test_who_joins_is_told_that_a_tool_runs_early() -> None:
    begun = [CallStarted("a", "write", message_id="m"), ArgsAppended("a", "{"), CallRunningEarly("a")]
    prelude = [as_json(event) for event in Conversation.of(records(*begun)).prelude()]
    assert [event["type"] for event in prelude[2:]] == ["TOOL_CALL_START", "TOOL_CALL_ARGS", "CUSTOM"]


def test_joining_an_ended_run_ends_with_its_end() -> None:
    conversation = Conversation.of(records(*[TextAppended("m", "x")], RunEnded("failed", "secret")))
    assert [as_json(event)["type"] for event in conversation.prelude()] == [
        "RUN_STARTED",
        "MESSAGES_SNAPSHOT",
        "RUN_ERROR",
    ]


def test_calls_that_await_an_answer_are_pending_for_a_client_that_joined_before_the_end() -> None:
    asked = [CallStarted(name, "ask") for name in "ab"] + [CallCompleted(name) for name in "ab"]
    paused = [CallAwaiting("a", is_paused=True), CallAwaiting("b")]
    *before, last = records(*asked, *paused, FINISHED)
    conversation = Conversation.of(before)
    client = fold(conversation.prelude())
    fold(conversation.feed(last), client)
    assert client.ended is not None
    assert client.ended["outcome"] == {"type": "success", "pendingToolCallIds": ["b"]}
    assert as_json(Conversation.of([*before, last]).prelude()[-1]) == client.ended


def test_late_results_are_told_again_in_their_order() -> None:
    conversation = Conversation.of(
        records(
            CallStarted("a", "write", message_id="m"),
            CallCompleted("a", "{}"),
            CallStarted("b", "write", message_id="m"),
            CallCompleted("b", "{}"),
            CallProgressed("a", 1),
            CallReturned("b", "b"),
            CallReturned("a", "a"),
        )
    )
    _, snapshot, *rest = [as_json(event) for event in conversation.prelude()]
    assert [message["id"] for message in snapshot["messages"]] == ["m", "progress-a"]
    assert [event["messageId"] for event in rest] == ["result-b", "result-a"]
    assert [message.id for message in conversation.messages] == ["m", "result-b", "result-a", "progress-a"]


def test_late_results_of_an_agent_of_an_earlier_run_come_with_the_snapshot() -> None:
    """Without its start: nothing is at work, and the run may continue that very agent."""
    call = [CallStarted("c", "helper", message_id="m"), CallCompleted("c", "{}")]
    inner = [
        MessageStarted("n", within="c"),
        CallStarted("a", "look", message_id="n"),
        CallCompleted("a", "{}"),
        MessageStarted("o", within="c"),
        TextAppended("o", "Looking."),
        MessageEnded("o"),
        CallReturned("a", "found"),
        CallReturned("c", "done"),
    ]
    earlier = records(*call, *inner, FINISHED)
    conversation = Conversation.of([*earlier, *records(run_id="next")])
    _, _, *late = conversation.prelude()
    assert [as_json(event)["type"] for event in late] == ["TOOL_CALL_RESULT"] * 2
    assert [as_json(event).get("subagentRunId") for event in late] == ["agent-c", None]
    client = fold(conversation.prelude())
    translator = Translator()
    seen = fold([event for record in earlier for event in translator.feed(record)])
    assert client.messages == seen.messages
    assert client.agents == {}


def test_the_next_run_goes_on_in_the_same_stream() -> None:
    conversation = Conversation.of(records(TextAppended("m", "x"), FINISHED))
    client = fold(conversation.prelude())
    for record in records(TextAppended("n", "y"), FINISHED, run_id="next"):
        fold(conversation.feed(record), client)
    assert [message["content"] for message in client.messages] == ["x", "y"]
    assert client.ended is not None
    assert client.ended["runId"] == "next"


def test_state_goes_on_from_run_to_run() -> None:
    patch = [{"op": "add", "path": "/b", "value": 2}]
    conversation = Conversation.of(
        [*records(StateChanged({"a": 1}), FINISHED), *records(StateChanged(patch=patch), run_id="next")]
    )
    assert conversation.state == {"a": 1, "b": 2}
    assert json.loads(encode(conversation.prelude()[2]))["snapshot"] == {"a": 1, "b": 2}


def test_state_stays_where_a_patch_does_not_apply_and_is_null_where_it_was_set_to_that() -> None:
    conversation = Conversation.of(records(StateChanged(patch=[{"op": "remove", "path": "/b"}])))
    assert conversation.state is None
    assert len(conversation.prelude()) == 2
    conversation.feed(Record("run", 3, 0.0, StateChanged(None)))
    assert conversation.state is None
    assert json.loads(encode(conversation.prelude()[2]))["snapshot"] is None


def test_the_former_name_of_apply_still_works() -> None:
    conversation = Conversation()
    with pytest.warns(DeprecationWarning, match=r"Conversation\.take is called apply now"):
        conversation.take(records(FINISHED))
    assert as_json(conversation.prelude()[-1]) == as_json(Conversation.of(records(FINISHED)).prelude()[-1])


def test_there_must_be_a_run_to_join() -> None:
    with pytest.raises(UsageError, match="at least one run"):
        Conversation().prelude()


def test_records_of_two_runs_may_not_be_mixed() -> None:
    conversation = Conversation.of(records())
    with pytest.raises(UsageError, match="expected a record of run 'run' or a run's first"):
        conversation.feed(Record("other", 2, 0.0, TextAppended("m", "x")))


def test_records_of_a_compacted_run_are_put_in_order() -> None:
    first, *_ = records()
    text = Record("run", 9, 0.0, TextAppended("m", "before and after"), first_seq=2)
    other = Record("run", 5, 0.0, TextAppended("n", "between"))
    assert [message.id for message in Conversation.of([first, other, text]).messages] == ["m", "n"]


def test_what_was_begun_before_reasoning_stays_before_it_for_a_client_that_joins() -> None:
    """Two models write at once: one says a word, then the other thinks. Both are in the middle of it."""
    scene = play([Play([Together(Respond([Text("Well."), Finish()]), Respond([Thought("Hm."), Finish()]))])])
    [run] = scene.runs
    for seen in range(1, len(run.records) + 1):
        conversation = Conversation.of(run.records[:seen], scene.view)
        client = fold(conversation.prelude())
        fold([event for record in run.records[seen:] for event in conversation.feed(record)], client)
        assert [message["role"] for message in client.messages] == ["user", "assistant", "reasoning"]


# -- another process goes on with the run --


def test_a_snapshot_keeps_messages_that_only_the_client_has() -> None:
    """What an application put into its client by itself, and not what is void, though the client has some of that."""
    run = records(
        MessageReceived("user", "Hello", "u"),
        MessageStarted("half"),
        TextAppended("half", "Hal"),
        RunResumed(2, ("half",)),
    )
    own = [
        {"id": "welcome", "role": "assistant", "content": "Welcome!"},
        {"id": "u", "role": "user", "content": "Hello"},
        {"id": "note", "role": "system", "content": "A note."},
        {"id": "half", "role": "assistant", "content": "Ha"},
    ]
    later = [*records(FINISHED)]
    for conversation in (
        Conversation.of(run),
        Conversation.of([*run, *[Record("next", record.seq, 0.0, record.event) for record in later]]),
    ):
        told = as_json(conversation.snapshot(own))["messages"]
        assert [message["id"] for message in told] == ["welcome", "u", "note"]
        assert conversation.snapshot([own[1]]) == conversation.snapshot()


def test_reasoning_that_is_void_is_emptied_where_there_is_no_other() -> None:
    half = [MessageStarted("m"), ReasoningAppended("m", "Hm"), RunResumed(2, ("m",))]
    conversation = Conversation.of(records(*half))
    [emptied] = as_json(conversation.snapshot())["messages"]
    assert (emptied["id"], emptied["content"]) == ("reasoning-m", "")
    _, snapshot = conversation.prelude()
    assert as_json(snapshot)["messages"] == [], "who joins has never had it"
    assert messages(*half, ResponseEnded("stop")) == [], "later it is not named again"
    assert [each["id"] for each in messages(ReasoningAppended("l", "Well."), MessageEnded("l"), *half)] == [
        "reasoning-l"
    ]


def test_reasoning_that_a_client_kept_goes_when_other_is_whole() -> None:
    half = [MessageStarted("m"), ReasoningAppended("m", "Hm")]
    rest = [RunResumed(2, ("m",)), MessageStarted("n"), ReasoningAppended("n", "So."), MessageEnded("n"), FINISHED]
    run = records(*half, *rest)
    for seen in range(3, len(run)):
        client = StrictClient()
        client.messages = [{"id": "reasoning-m", "role": "reasoning", "content": "Hm"}]
        conversation = Conversation.of(run[:seen])
        fold(conversation.prelude(), client)
        for record in run[seen:]:
            fold(conversation.feed(record), client)
        assert [(message["id"], message["content"]) for message in client.messages] == [("reasoning-n", "So.")], seen


def test_an_onlooker_says_beforehand_for_which_records_it_may_want_a_snapshot() -> None:
    run = records(
        MessageReceived("user", "Hello", "u"),
        MessageStarted("m"),
        TextAppended("m", "Hal"),
        RunResumed(2, ("m",)),
        MessageStarted("n"),
        TextAppended("n", "Hello."),
        FINISHED,
    )
    onlooker = Onlooker()
    for record in run:
        may_want = onlooker.may_want_snapshot(record)
        onlooker.feed(record)
        assert may_want == (onlooker.snapshot_at is not None) == isinstance(record.event, MessageReceived | RunResumed)
