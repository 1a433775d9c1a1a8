"""Answers in a client's input, and whether another one was accepted instead."""

from __future__ import annotations

from typing import Any

import pytest
from ag_ui.core import RunAgentInput

from callstream.agui.messages import SentAnswer, answers_in, lost_answers, without_answers_to
from callstream.calls import CANCELLED, Call, CallState


def tool(call_id: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"id": f"m-{call_id}", "role": "tool", "toolCallId": call_id, "content": content, **more}


def sent(*messages: dict[str, Any], **more: Any) -> RunAgentInput:
    return RunAgentInput.model_validate({"threadId": "t", "runId": "r", "messages": messages, **more})


def test_answers_are_those_since_the_model_spoke_and_those_to_interrupts() -> None:
    given = sent(
        tool("old", "x"),
        {"id": "a", "role": "assistant", "content": "And?"},
        tool("text", "yes"),
        tool("parts", [{"type": "text", "text": "y"}, {"type": "text", "text": "es"}]),
        tool("broken", "", error="no colour"),
        {"id": "u", "role": "user", "content": "Hi"},
        resume=[
            {"interruptId": "asked", "status": "resolved", "payload": {"approved": True}},
            {"interruptId": "closed", "status": "cancelled"},
        ],
    )
    assert answers_in(given) == [
        SentAnswer("text", "yes"),
        SentAnswer("parts", "yes"),
        SentAnswer("broken", "", "no colour"),
        SentAnswer("asked", {"approved": True}),
        SentAnswer("closed", error=CANCELLED),
    ]
    kept = without_answers_to({"text", "old"}, given.messages)
    assert [message.id for message in kept] == ["a", "m-parts", "m-broken", "u"]


DEEP = '{"a":' * 100 + "1" + "}" * 100
DONE, FAILED = CallState.COMPLETED, CallState.FAILED


@pytest.mark.parametrize(
    ("answer", "call", "has_lost"),
    [
        (SentAnswer("q", "yes"), Call("q", "ask", CallState.AWAITING), False),
        (SentAnswer("q", "yes"), Call("q", "ask", DONE, result="yes"), False),
        (SentAnswer("q", '{"a": 1}'), Call("q", "ask", DONE, result={"a": 1}), False),
        (SentAnswer("q", '"yes"'), Call("q", "ask", DONE, result='"yes"'), False),
        (SentAnswer("q", "no"), Call("q", "ask", DONE, result="yes"), True),
        (SentAnswer("q", DEEP), Call("q", "ask", DONE, result="yes"), True),
        (SentAnswer("q", "yes"), Call("q", "ask", FAILED, error=CANCELLED), True),
        (SentAnswer("q", error=CANCELLED), Call("q", "ask", FAILED, error=CANCELLED), False),
        (SentAnswer("q", error=CANCELLED), Call("q", "ask", DONE, result="yes"), True),
        (SentAnswer("q", "yes"), Call("q", "ask", CallState.DISCARDED, reason="aborted"), True),
    ],
)
def test_an_answer_has_lost_if_the_call_has_another_outcome(answer: SentAnswer, call: Call, has_lost: bool) -> None:
    assert answer.has_lost(call) == has_lost


def test_calls_that_are_unknown_lose_no_answer() -> None:
    given = sent(tool("a", "no"), tool("b", "no"), tool("c", "no"))
    assert lost_answers(given, {"a": Call("a", "ask", DONE, result="yes"), "b": None}) == {"a"}
