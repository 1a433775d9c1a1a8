"""Calls that were rejected, whose hooks failed or that were not finished, in programs that run tools themselves."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from callstream import CallState, Callstream, Reject, Settings, tool
from callstream.errors import CallRejected, RunOver, UsageError
from callstream.testing import Cut, Finish, ScriptedProvider, Text, ToolCall
from tests.gated import PATIENCE, GatedProvider
from tests.sdks import SDKS
from tests.tap.clients import ASK, WIRES, ask, sdk

ARGS = {"title": "Notes", "content": "one\ntwo ☃ three" * 5}
OTHER = {"title": "x"}
SCRIPT = [Text("Let me see."), ToolCall("write", ARGS, call_id="c1"), ToolCall("other", OTHER, call_id="c2")]
UNFINISHED = [
    ([ToolCall("write", ARGS, call_id="c1", stop_after=2), Finish("length")], "truncated"),
    ([ToolCall("write", text='{"title": 1,}', call_id="c1")], "malformed"),
]


@tool
async def write(title: str, content: str) -> str:
    raise AssertionError("a rejected call was run")


@tool
async def other(title: str) -> str:
    return title


async def refuse(call: Any, signal: Any) -> None:
    raise Reject("not today")


async def break_down(call: Any, signal: Any) -> None:
    raise ValueError("the password is 1234")


@pytest.fixture
async def cs() -> AsyncIterator[Callstream]:
    async with Callstream(tools=[write, other]) as callstream:
        yield callstream


def serving(wire: str, script: Any) -> ScriptedProvider:
    return ScriptedProvider(wire, script, stream_args_unasked=True)


async def lose_the_connection(call: Any, signal: Any) -> None:
    raise anthropic.APIConnectionError(request=httpx2.Request("POST", "http://moderation"))


@pytest.mark.parametrize(("hook", "text"), [(refuse, "not today"), (lose_the_connection, "write did not run")])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_rejected_call_rises_from_a_whole_answer_after_one_request(
    cs: Callstream, wire: str, hook: Any, text: str
) -> None:
    cs.on_args_complete("write", hook)
    async with serving(wire, SCRIPT) as provider, sdk(wire, provider, cs, max_retries=2) as client:
        async with cs.run("thread") as run:
            with pytest.raises(CallRejected, match=text) as raised:
                await SDKS[wire].whole(client)
            assert (raised.value.call_id, raised.value.name) == ("c1", "write")
            assert await run.invoke("c2") == "x"
            assert [refusal.call_id for refusal in run.refusals()] == ["c1"]
        assert len(provider.requests) == 1


@pytest.mark.parametrize("wire", WIRES)
async def test_a_hook_that_fails_the_run_of_a_whole_answer_fails_it_after_one_request(wire: str) -> None:
    async with Callstream(settings=Settings(on_hook_error="fail_run")) as cs:
        cs.on_args_complete("write", break_down)
        async with serving(wire, SCRIPT) as provider, sdk(wire, provider, cs, max_retries=2) as client:
            with pytest.raises(ValueError, match="the password"):
                async with cs.run("thread") as run:
                    await SDKS[wire].whole(client)
            assert run.outcome == "failed"
            assert len(provider.requests) == 1


@pytest.mark.parametrize("wire", WIRES)
async def test_a_hook_that_fails_the_run_of_a_streamed_answer_is_told_once(wire: str) -> None:
    """The error rises where the SDK reads. No task of the tap has it as well, for asyncio to report when it is collected."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    script = [ToolCall("write", ARGS, call_id="c1", size=8)]

    async def fails() -> None:
        async with Callstream(settings=Settings(on_hook_error="fail_run")) as cs:
            cs.on_args_delta("write", break_down)
            async with ScriptedProvider(wire, script, stream_args_unasked=True, deltas_per_second=200) as provider:
                with pytest.raises(ValueError, match="the password"):
                    async with cs.run("thread") as run:
                        await ask(wire, provider, cs)
                assert run.outcome == "failed"

    await fails()
    gc.collect()
    assert told == []


@pytest.mark.parametrize("wire", WIRES)
async def test_a_hook_fails_the_run_although_the_provider_is_silent(wire: str) -> None:
    async with Callstream(settings=Settings(on_hook_error="fail_run")) as cs:
        cs.on_args_delta("write", break_down)
        undone: list[str] = []
        cs.on_args_abort("write", lambda call, reason: undone.append(reason))
        async with GatedProvider(wire, [ToolCall("write", ARGS, call_id="c1", size=8)], held=4) as provider:
            with pytest.raises(ValueError, match="the password"):
                async with asyncio.timeout(PATIENCE / 2), cs.run("thread") as run:
                    await ask(wire, provider, cs)
            assert not provider.was_opened
        assert (run.outcome, run.reason) == ("failed", "ValueError: the password is 1234")
        assert undone == ["interrupted"]


@pytest.mark.parametrize("when", ["complete", "delta"])
@pytest.mark.parametrize("wire", WIRES)
async def test_reject_keeps_siblings(cs: Callstream, wire: str, when: str) -> None:
    """With ``rejected="forward"`` the response survives whole, and the refusal is there for the model."""
    (cs.on_args_complete if when == "complete" else cs.on_args_delta)("write", refuse)
    async with serving(wire, SCRIPT) as provider, cs.run("thread", rejected="forward") as run:
        answer = await ask(wire, provider, cs)
        assert answer.text == "Let me see."
        assert answer.calls == [("c1", "write", ARGS), ("c2", "other", OTHER)]
        with pytest.raises(CallRejected) as raised:
            await run.invoke("c1")
        assert str(raised.value) == "not today"
        assert (raised.value.call_id, raised.value.reason) == ("c1", "rejected")
        assert await run.invoke("c2") == "x"
        [refusal] = run.refusals()
        assert (refusal.call_id, refusal.provider_id, refusal.reason) == ("c1", "c1", "rejected")
        assert str(refusal) == refusal.text == "not today"
        assert run.call("c1").args in ([ARGS] if when == "complete" else [ARGS, None])
    assert [(call.state, call.reason) for call in await cs.journal.calls()] == [
        (CallState.DISCARDED, "rejected"),
        (CallState.COMPLETED, None),
    ]
    assert run.outcome == "finished"
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert kept.args == run.call("c1").args


async def test_reject_keeps_siblings_in_an_answer_that_was_not_streamed(cs: Callstream) -> None:
    cs.on_args_complete("write", refuse)
    asked: Any = {"model": "gpt", "messages": [{"role": "user", "content": "go"}]}
    async with serving("openai_chat", SCRIPT) as provider, sdk("openai_chat", provider, cs) as client:
        async with cs.run("thread", rejected="forward") as run:
            answer = (await client.chat.completions.create(**asked)).choices[0].message
            assert answer.content == "Let me see."
            assert [call.id for call in answer.tool_calls] == ["c1", "c2"]
            assert [refusal.text for refusal in run.refusals()] == ["not today"]
            assert await run.invoke("c2") == "x"


@pytest.mark.parametrize("wire", WIRES)
async def test_a_hook_that_fails_is_logged_and_keeps_siblings(
    cs: Callstream, wire: str, caplog: pytest.LogCaptureFixture
) -> None:
    cs.on_args_complete("write", break_down)
    async with serving(wire, SCRIPT) as provider, cs.run("thread", rejected="forward") as run:
        answer = await ask(wire, provider, cs)
        assert [name for _, name, _ in answer.calls] == ["write", "other"]
        with pytest.raises(CallRejected) as raised:
            await run.invoke("c1")
        assert isinstance(raised.value.__cause__, ValueError)
        assert "1234" not in str(raised.value)
        assert "1234" in (raised.value.detail or "")
        assert [str(refusal) for refusal in run.refusals()] == [str(raised.value)]
        assert await run.invoke("c2") == "x"
    [logged] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert logged.exc_info is not None
    assert isinstance(logged.exc_info[1], ValueError)
    assert "break_down" in logged.getMessage()


@pytest.mark.parametrize("wire", WIRES)
async def test_a_hook_that_fails_is_logged_where_the_rejection_rises(
    cs: Callstream, wire: str, caplog: pytest.LogCaptureFixture
) -> None:
    cs.on_args_complete("write", break_down)
    async with serving(wire, SCRIPT) as provider, cs.run("thread"):
        with pytest.raises(CallRejected):
            await ask(wire, provider, cs)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [type(record.exc_info[1]) for record in errors if record.exc_info] == [ValueError]


@pytest.mark.parametrize("hook", [refuse, break_down])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_sibling_is_still_there_where_the_rejection_rises(cs: Callstream, wire: str, hook: Any) -> None:
    cs.on_args_complete("write", hook)
    async with serving(wire, SCRIPT) as provider, cs.run("thread") as run:
        with pytest.raises(CallRejected) as raised:
            await ask(wire, provider, cs)
        assert isinstance(raised.value.__cause__, Reject if hook is refuse else ValueError)
        assert await run.invoke("c2") == "x"
    assert provider.requests[-1].fate == "answered"


async def test_nothing_is_refused_by_what_only_broke_off(cs: Callstream) -> None:
    async with serving("openai_chat", [ToolCall("write", ARGS, call_id="c1", stop_after=2), Cut()]) as provider:
        async with cs.run("thread") as run:
            with pytest.raises(openai.APIConnectionError):
                await ask("openai_chat", provider, cs)
            assert [call.reason for call in run.calls] == ["interrupted"]
            assert run.refusals() == []


@pytest.mark.parametrize(("script", "reason"), UNFINISHED)
async def test_a_discarded_call_is_logged_where_nobody_asks_about_it(
    cs: Callstream, script: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving("anthropic", script) as provider, cs.run("thread"):
        await ask("anthropic", provider, cs, ask_again=0)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [all(word in line for word in ("'c1'", "'write'", reason)) for line in warnings] == [True]


@pytest.mark.parametrize(("script", "reason"), UNFINISHED)
async def test_a_discarded_call_is_logged_and_can_be_told(
    cs: Callstream, script: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving("anthropic", script) as provider, cs.run("thread", rejected="forward") as run:
        assert (await ask("anthropic", provider, cs)).calls == []
        [refusal] = run.refusals()
        assert (refusal.call_id, refusal.name, refusal.reason) == ("c1", "write", reason)
        assert "call it again" in refusal.text
        with pytest.raises(CallRejected) as raised:
            await run.invoke("c1")
        assert (str(raised.value), raised.value.reason) == (refusal.text, reason)
    [logged] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert all(word in logged.getMessage() for word in ("'c1'", "'write'", reason))


@pytest.mark.parametrize("rejected", ["raise", "forward"])
async def test_stopping_while_hooks_run_is_the_end_of_the_run(cs: Callstream, rejected: Any) -> None:
    """Whether the response is read, held for its hooks, or waited for before the tool: RunOver."""
    begun = asyncio.Event()

    async def wait(call: Any, signal: Any) -> None:
        begun.set()
        await signal.wait()

    cs.on_args_complete("write", wait)
    async with serving("openai_chat", SCRIPT) as provider, sdk("openai_chat", provider, cs) as client:
        run = await cs.start("thread", rejected=rejected)
        asking = asyncio.create_task(ASK["openai_chat"](client))
        await begun.wait()
        invoking = asyncio.create_task(run.invoke("c1"))
        await asyncio.sleep(0)
        await run.stop()
        for task in (asking, invoking):
            with pytest.raises(RunOver):
                await task
        with pytest.raises(RunOver):
            await run.invoke("c1")


async def test_rejected_is_one_of_four_words(cs: Callstream) -> None:
    with pytest.raises(UsageError, match="'raise', 'forward', 'ask' or 'say', got 'ignore'"):
        await cs.start("thread", rejected="ignore")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'raise', 'forward', 'ask' or 'say', got 'ignore'"):
        Settings(rejected="ignore")  # type: ignore[arg-type]
