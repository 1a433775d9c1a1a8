"""Clients of AG-UI before 1.0: success and interrupts are the outcomes that they know, and nothing more in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.agui import Conversation, Translator, encode, for_older_client
from callstream.agui.events import Cancelled, Interrupt, Interrupted, RunError, RunFinished, Success
from callstream.agui.messages import Metadata
from callstream.events import CallCompleted, CallReturned, CallStarted, MessageStarted, TextAppended

from .translating import FINISHED, records

INTERRUPT = Interrupt(id="c", reason="tool_call", message="?", tool_call_id="c")
ASKED = {"type": "interrupt", "interrupts": [{"id": "c", "reason": "tool_call", "message": "?", "toolCallId": "c"}]}


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (Success(pending_tool_call_ids=("c",)), {"type": "success"}),
        (Success(), {"type": "success"}),
        (Interrupted(interrupts=(INTERRUPT,)), ASKED),
        (Cancelled(), None),
    ],
)
def test_older_client_gets_outcomes_that_it_knows(outcome: Any, told: Any) -> None:
    finished = RunFinished(thread_id="t", run_id="r", outcome=outcome, metadata=Metadata(1))
    (event,) = for_older_client([finished])
    assert json.loads(encode(event)).get("outcome") == told


def test_older_client_gets_all_else_as_it_is() -> None:
    failed = RunError(message="no", code="failed", metadata=Metadata(1))
    assert for_older_client([failed]) == [failed]


def test_an_older_client_is_told_nothing_of_agents_that_tools_run() -> None:
    inner = [MessageStarted("m2", within="c"), TextAppended("m2", "In.")]
    whole = [MessageStarted("m"), TextAppended("m", "Out."), CallStarted("c", "helper", message_id="m")]
    run = records(*whole, CallCompleted("c", "{}"), *inner, CallReturned("c", 1), FINISHED)
    conversation = Conversation.of(run)
    told = [*for_older_client(Translator().feed(run[0])), *for_older_client([conversation.snapshot()])]
    assert [message.id for message in told[-1].messages] == ["m", "result-c"]
    translator = Translator()
    events = for_older_client([event for record in run for event in translator.feed(record)])
    assert b"m2" not in b"".join(map(encode, events))
    assert b"SUBAGENT" not in b"".join(map(encode, events))
