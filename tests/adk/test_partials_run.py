"""The dialects of partial responses, through a runner: hooks, barrier and journal."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from callstream import ArgsDelta, Callstream, tool
from callstream.calls import CallState

from .hosting import FakeLlm, Host, agent_of, function_calls_in, responses_in, text_of
from .partials import STOP, at, final, function, response


async def test_two_whole_calls_of_one_tool_through_a_runner(cs: Callstream) -> None:
    ran: list[str] = []

    def write(title: str) -> str:
        ran.append(title)
        return title

    parts, whole = ([function(name="write", args={"title": title}) for title in ("one", "two")] for _ in range(2))
    model = FakeLlm(answers=[[*map(response, parts), final(*whole)], [final(types.Part(text="Done."))]])
    host = Host(cs, agent_of(model, write))
    events = await host.run()
    assert ran == ["one", "two"]
    assert [call.state for call in await host.calls()] == [CallState.COMPLETED] * 2
    assert [given for given, _ in responses_in(events)] == [
        part.function_call.id for part in parts if part.function_call
    ]


NAMELESS = [
    response(function(will_continue=True, partial_args=[at("$.a", "x", True)])),
    response(function(partial_args=[at("$.a", "y", False)])),
]
FINALS = {
    "without the call": final(types.Part(text="Well.")),
    "with nothing": LlmResponse(finish_reason=STOP, partial=False, content=types.Content(role="model", parts=[])),
    "with a call without a name": final(function(args={"a": "xy"})),
    "with an empty name": final(function(name="", args={"a": "xy"})),
}


@pytest.mark.parametrize("end", FINALS)
@pytest.mark.parametrize("on_truncated", ["tell_model", "fail"])
async def test_a_call_that_never_got_a_name_is_not_passed_over(
    on_truncated: Any, end: str, cs: Callstream, caplog: pytest.LogCaptureFixture
) -> None:
    """Two tools fit. Neither runs; the model is told, under a name that a provider accepts, or the invocation fails."""
    ran: list[str] = []

    def first(a: str) -> None:
        ran.append(a)

    def second(a: str) -> None:
        ran.append(a)

    answers = [[each.model_copy(deep=True) for each in (*NAMELESS, FINALS[end])], [final(types.Part(text="Done."))]]
    model = FakeLlm(answers=answers)
    host = Host(cs, agent_of(model, first, second), on_truncated=on_truncated)
    events = await host.run()
    assert ran == []
    assert "without a name" in caplog.text
    (call,) = await host.calls()
    assert (call.name, call.state, call.reason) == ("unnamed_call", CallState.DISCARDED, "malformed")
    (run,) = await cs.journal.runs()
    if on_truncated == "fail":
        assert run.outcome == "failed"
        assert events[-1].error_code == "MALFORMED_TOOL_CALL"
        return
    assert run.outcome == "finished"
    told = [part for content in model.requests[1].contents for part in content.parts or ()]
    assert [part.function_call.name for part in told if part.function_call] == ["unnamed_call"]
    assert "the tools are first, second" in str([part.function_response for part in told])


async def test_custom_model_has_hooks_barrier_and_journal(cs: Callstream) -> None:
    seen: list[str] = []

    @tool
    async def write(content: str) -> str:
        """Writes."""
        seen.append(f"ran {content}")
        return "ok"

    @write.on_args_delta
    async def delta(delta: ArgsDelta, signal: Any) -> None:
        seen.append(delta.text)

    chunk = {"name": "write", "will_continue": True}
    answers = [
        [
            response(types.Part(text="I write.")),
            response(function(**chunk, partial_args=[at("$.content", "The ", True)])),
            response(function(**chunk, partial_args=[at("$.content", "moon", False)])),
            final(types.Part(text="I write."), function(name="write", args={"content": "The moon"})),
        ],
        [final(types.Part(text="Done."))],
    ]
    model = FakeLlm(answers=answers)
    host = Host(cs, agent_of(model, write))
    events = await host.run()
    (call,) = await host.calls()
    assert (call.state, call.args) == (CallState.COMPLETED, {"content": "The moon"})
    assert "".join(seen[:-1]) == '{"content":"The moon"}'
    assert seen[-1] == "ran The moon"
    assert {f.id for event in events for f in event.get_function_calls()} == {call.call_id}
    assert responses_in(events) == [(call.call_id, {"result": "ok"})]
    assert text_of(events) == "I write.Done."
    assert len(function_calls_in(events)) == 1


async def test_accumulated_args_through_a_runner(cs: Callstream) -> None:
    """A custom model whose args grow: hooks and journal get the differences, the tool the whole."""
    ran: list[dict[str, Any]] = []
    pieces: list[str] = []
    cs.on_args_delta("write", lambda delta, signal: pieces.append(delta.text))

    def write(title: str, tags: list[str]) -> str:
        ran.append({"title": title, "tags": tags})
        return "ok"

    growing = [{"title": "Ti"}, {"title": "Tides"}, {"title": "Tides", "tags": ["sea", "mo"]}]
    whole = {"title": "Tides", "tags": ["sea", "moon"]}
    first = [
        *(response(function(name="write", args=args)) for args in growing),
        final(function(name="write", args=whole)),
    ]
    model = FakeLlm(
        answers=[first, [LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Done.")]))]]
    )
    host = Host(cs, agent_of(model, write))
    await host.run()
    (call,) = await host.calls()
    assert ran == [whole] == [call.args]
    assert "".join(pieces) == call.args_json == '{"title":"Tides","tags":["sea","moon"]}'
    assert pieces[0] == '{"title":"Ti'


async def test_accumulated_args_that_are_no_extension_through_a_runner(cs: Callstream) -> None:
    """What was shown is not taken back: the call is malformed, its tool does not run, and the model is told."""
    ran: list[str] = []

    def write(title: str) -> str:
        ran.append(title)
        return "ok"

    growing = [{"title": "Ti"}, {"title": "Other"}]
    first = [
        *(response(function(name="write", args=args)) for args in growing),
        final(function(name="write", args=growing[-1])),
    ]
    model = FakeLlm(answers=[first, [LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Ok.")]))]])
    host = Host(cs, agent_of(model, write))
    await host.run()
    (call,) = await host.calls()
    assert ran == []
    assert (call.state, call.reason) == (CallState.DISCARDED, "malformed")
    assert "cannot be read" in str(model.requests[1].contents[-1])
