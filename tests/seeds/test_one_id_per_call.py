"""A custom model that sends no ids: a call has one from its first partial event to its answer."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools import LongRunningFunctionTool
from google.genai import types

from callstream import Callstream
from callstream.calls import CallState
from tests.adk.hosting import FakeLlm, Host, agent_of, answer, responses_in, text_of


def response(*calls: types.FunctionCall, partial: bool) -> LlmResponse:
    parts = [types.Part(function_call=call) for call in calls]
    finish = None if partial else types.FinishReason.STOP
    return LlmResponse(content=types.Content(role="model", parts=parts), partial=partial, finish_reason=finish)


def both(*calls: tuple[str, dict[str, Any], str | None]) -> list[LlmResponse]:
    """A partial response and the final one, each with the same calls."""
    return [
        response(*(types.FunctionCall(name=name, args=args, id=given) for name, args, given in calls), partial=partial)
        for partial in (True, False)
    ]


DONE = [LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Done.")]))]


def ids(events: Any) -> list[list[str | None]]:
    return [[call.id for call in event.get_function_calls()] for event in events if event.get_function_calls()]


async def test_a_person_answers_with_the_id_of_the_partial_event(cs: Callstream) -> None:
    def approve(what: str) -> None:
        """Asks a person."""

    model = FakeLlm(answers=[both(("approve", {"what": "x"}, None)), DONE])
    host = Host(cs, agent_of(model, LongRunningFunctionTool(approve)), resumable=True)
    first, last = ids(await host.run())
    assert first == last
    assert str(first[0]).startswith("adk-")
    events = await host.run([answer("approve", first[0], {"approved": True})])
    assert text_of(events) == "Done."
    assert "'approved': True" in str(model.requests[1].contents)
    assert [call.state for call in await host.calls()] == [CallState.COMPLETED]


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def test_two_calls_keep_their_ids_by_position(cs: Callstream) -> None:
    model = FakeLlm(answers=[both(("add", {"a": 1, "b": 2}, None), ("add", {"a": 3, "b": 4}, None)), DONE])
    events = await Host(cs, agent_of(model, add)).run()
    first, last = ids(events)
    assert first == last
    assert len(set(first)) == 2
    assert responses_in(events) == [(first[0], {"result": 3}), (first[1], {"result": 7})]


async def test_two_calls_in_two_partial_responses(cs: Callstream) -> None:
    calls = [types.FunctionCall(name="add", args={"a": a, "b": 2}) for a in (1, 3)]
    partials = [response(call.model_copy(), partial=True) for call in calls]
    model = FakeLlm(answers=[[*partials, response(*calls, partial=False)], DONE])
    events = await Host(cs, agent_of(model, add)).run()
    *shown, last = ids(events)
    assert [call_id for (call_id,) in shown] == last
    assert [result for _, result in responses_in(events)] == [{"result": 3}, {"result": 5}]


@pytest.mark.parametrize("given", ["call_1", "toolu_2"])
async def test_an_id_that_the_model_gave_is_never_replaced(given: str, cs: Callstream) -> None:
    model = FakeLlm(answers=[both(("add", {"a": 1, "b": 2}, given), ("add", {"a": 3, "b": 4}, None)), DONE])
    first, last = ids(await Host(cs, agent_of(model, add)).run())
    assert first == last
    assert first[0] == given
    assert str(first[1]).startswith("adk-")
