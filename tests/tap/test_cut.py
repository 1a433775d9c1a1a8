"""Answers that are ended when it is certain that none of their calls can run: the provider need not write the rest."""

from __future__ import annotations

from typing import Any

import pytest

from callstream import Callstream, Reject, Settings, tool
from callstream.calls import CallState
from callstream.events import ResponseEnded
from callstream.guards import GuardedCall, Verdict, cut
from callstream.testing import Delay, Finish, ScriptedProvider, Text, ToolCall
from tests.sdks import SDKS, Answer
from tests.tap.clients import sdk

WIRES = ("anthropic", "openai_chat", "openai_responses", "gemini")
ARGS = {"title": "Tides", "content": "The moon pulls, and the sea follows."}
GOOD = ToolCall("write", ARGS, call_id="good")
FOREVER = Delay(3600.0)
"""What never comes to an end unless it is cut off."""


def cut_off(call: ToolCall) -> list[Any]:
    """An answer with a part of the call, and then nothing more."""
    return [Text("Writing. "), call, FOREVER, Finish("length")]


UNFIT = ToolCall("write", {"title": 3, "content": "x" * 900}, call_id="bad", size=5, stop_after=20)
SECRET = ToolCall("write", {"title": "Secrets", "content": "x" * 900}, call_id="bad", size=5, stop_after=20)


def made(*, settings: Settings, guards: Any = (), rejects: Reject | None = None) -> Callstream:
    @tool(check="stream")
    async def write(title: str, content: str) -> str:
        """Writes a document."""
        return "written"

    @write.on_field("title")
    async def judge(field: Any, signal: Any) -> None:
        if rejects is not None and field.text.startswith("Sec"):
            raise rejects

    return Callstream(tools=[write], settings=settings, guards=guards)


async def asked(wire: str, cs: Callstream, script: list[Any]) -> tuple[Answer, list[Any]]:
    """What the SDK gets in a run, and what the provider was asked."""
    provider = ScriptedProvider(wire, script, stream_args_unasked=True)
    async with cs, provider, sdk(wire, provider, cs) as client:
        async with cs.run("t") as run:
            answer = await SDKS[wire].ask(client)
        ends = [each.event async for each in cs.journal.read(run.run_id) if isinstance(each.event, ResponseEnded)]
        assert [end.finish_reason is None for end in ends] == [True, False]
        (bad, good) = run.calls
        assert (bad.state, good.wire_id) == (CallState.DISCARDED, "good")
        return answer, [request.json for request in provider.requests]


@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_is_cut_at_the_first_certain_fault(wire: str) -> None:
    cs = made(settings=Settings(cut_refused=True))
    answer, requests = await asked(wire, cs, [cut_off(UNFIT), [Text("Better."), GOOD]])
    assert answer.calls == [("good", "write", ARGS)]
    assert answer.text == "Writing. Better."
    assert "should be a string" in str(requests[1])


@pytest.mark.parametrize("wire", WIRES)
async def test_a_guard_cuts_an_answer(wire: str) -> None:
    def guard(call: GuardedCall) -> Verdict | None:
        return cut("nobody writes about secrets") if str(call.args.get("title")).startswith("Sec") else None

    cs = made(settings=Settings(rejected="ask"), guards=[guard])
    answer, requests = await asked(wire, cs, [cut_off(SECRET), [GOOD]])
    assert (answer.calls, answer.text) == ([("good", "write", ARGS)], "Writing. ")
    assert "nobody writes about secrets" in str(requests[1])


async def test_a_hook_cuts_an_answer() -> None:
    cs = made(settings=Settings(rejected="ask"), rejects=Reject("no secrets", cut=True))
    answer, _ = await asked("anthropic", cs, [cut_off(SECRET), [GOOD]])
    assert answer.calls == [("good", "write", ARGS)]


@pytest.mark.parametrize("often", [0, 1])
async def test_an_answer_with_another_call_is_read_on(often: int) -> None:
    """So is one where the model is not asked again, and one that nobody wants to be cut."""
    first = ToolCall("write", ARGS, call_id="first")
    unfit = ToolCall("write", {"title": 3, "content": "x" * 90}, call_id="bad", size=5)
    cs = made(settings=Settings(cut_refused=True, ask_again=often))
    script: list[Any] = [[first, unfit]] if often else [[unfit, Text("So.")]]
    async with cs, ScriptedProvider("anthropic", script, deltas_per_second=300) as provider:
        async with sdk("anthropic", provider, cs) as client, cs.run("t") as run:
            answer = await SDKS["anthropic"].ask(client)
        ends = [each.event async for each in cs.journal.read(run.run_id) if isinstance(each.event, ResponseEnded)]
    assert [end.finish_reason is None for end in ends] == [False]
    assert [call[0] for call in answer.calls] == (["first"] if often else [])


async def test_a_program_may_leave_while_an_answer_is_cut() -> None:
    cs = made(settings=Settings(cut_refused=True))
    async with cs, ScriptedProvider("anthropic", cut_off(UNFIT), deltas_per_second=300) as provider:
        async with cs.httpx_client(ask_again=0) as client, cs.run("t") as run:
            url, body = SDKS["anthropic"].raw(provider.base_url)
            async with client.stream("POST", url, json=body) as response:
                async for _ in response.aiter_raw():
                    break
    assert [call.state for call in run.calls] in ([], [CallState.DISCARDED])
