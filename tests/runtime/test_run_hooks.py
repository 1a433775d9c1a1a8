"""Hooks within a run: numbers, barrier, abort, failures."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from callstream import ArgsDelta, CallState, Callstream, Reject, tool
from callstream.errors import CallRejected, RunOver
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallStarted,
    RunEnded,
)
from callstream.testing import ToolCall

from .reading import ARGS, WRITE, events, read


async def execute_write(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE])
        await run.execute("c1")


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_delta_has_the_number_of_its_record(cs: Callstream, streamed: bool) -> None:
    deltas: list[Any] = []
    cs.on_args_delta("write", lambda delta, signal: deltas.append(delta))
    cs.on_field("write", "content", lambda field, signal: deltas.append(field))
    async with cs.run("thread") as run:
        if streamed:
            await read(run, "openai_chat", [ToolCall("write", ARGS, call_id=call_id) for call_id in ("a", "b")])
        else:
            for call_id in ("a", "b"):
                await run.record([CallStarted(call_id, "write"), CallCompleted(call_id, json.dumps(ARGS))])
    texts: dict[tuple[str, int], str] = {}
    async for record in cs.journal.read(run.run_id):
        if isinstance(record.event, ArgsAppended):
            texts[record.event.call_id, record.seq] = record.event.text
        elif isinstance(record.event, CallCompleted) and not streamed:
            texts[record.event.call_id, record.seq] = record.event.args_json or ""
    assert {(delta.call_id, delta.seq) for delta in deltas} <= set(texts)
    for call_id in ("a", "b"):
        own = [delta for delta in deltas if delta.call_id == call_id and isinstance(delta, ArgsDelta)]
        last = max(seq for of, seq in texts if of == call_id)
        assert own[-1].seq == last
        joined = "".join(text for (of, seq), text in texts.items() if of == call_id and seq <= own[0].seq)
        assert joined == own[0].text


async def test_barrier_before_execute_waits_for_the_hooks_of_the_call_alone(cs: Callstream) -> None:
    gate = asyncio.Event()
    seen: list[str] = []

    async def slow(delta: Any, signal: Any) -> None:
        await gate.wait()
        seen.append(delta.text)

    cs.on_args_delta("slow", slow)
    async with cs.run("thread") as run:
        await read(run, "openai_chat", [ToolCall("slow", ARGS, call_id="s"), ToolCall("fast", ARGS, call_id="f")])
        await run.execute("f")
        executing = asyncio.ensure_future(run.execute("s"))
        await asyncio.sleep(0.01)
        assert not executing.done()
        assert CallExecuting("s") not in await events(cs, run)
        gate.set()
        call = await executing
        assert "".join(seen) == call.args_json
        await run.complete("s")
        await run.complete("f")


async def test_executing_after_barrier_is_recorded_after_the_last_hook(cs: Callstream) -> None:
    order: list[str] = []

    async def ready(call: Any, signal: Any) -> None:
        order.append(f"ready, executing={CallExecuting('c1') in await events(cs, run)}")

    cs.on_args_complete("write", ready)
    async with cs.run("thread") as run:
        await read(run, "gemini", [WRITE])
        await run.execute("c1")
        order.append(f"executing={CallExecuting('c1') in await events(cs, run)}")
        await run.complete("c1")
    assert order == ["ready, executing=False", "executing=True"]


@pytest.mark.parametrize("leave", ["finish", "fail", "cancel"])
async def test_barrier_on_every_exit(cs: Callstream, leave: str) -> None:
    running = asyncio.Event()
    ended: list[str] = []

    async def slow(delta: Any, signal: Any) -> None:
        running.set()
        try:
            await asyncio.sleep(0.05)
        finally:
            ended.append("hook")

    cs.on_args_delta("write", slow)

    async def program() -> None:
        async with cs.run("thread") as run:
            await read(run, "anthropic", [WRITE])
            await running.wait()
            if leave == "fail":
                raise KeyError("broken")
            if leave == "cancel":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(1)

    before = asyncio.all_tasks()
    try:
        await asyncio.create_task(program())
    except (KeyError, asyncio.CancelledError):
        pass
    assert ended
    assert asyncio.all_tasks() == before


async def test_abort_during_barrier_never_executes(cs: Callstream) -> None:
    held = asyncio.Event()
    aborted: list[str] = []

    async def slow(delta: Any, signal: Any) -> None:
        held.set()
        await signal.wait()

    cs.on_args_delta("write", slow)
    cs.on_args_abort("write", lambda call, reason: aborted.append(reason))
    run = await cs.start("thread")
    await read(run, "anthropic", [WRITE])
    executing = asyncio.ensure_future(run.execute("c1"))
    await held.wait()
    await run.stop("user")
    with pytest.raises(RunOver):
        await executing
    found = await events(cs, run)
    assert CallExecuting("c1") not in found
    assert [event.reason for event in found if isinstance(event, CallDiscarded)] == ["aborted"]
    assert found[-1] == RunEnded("cancelled", "user")
    assert aborted == ["aborted"]


@pytest.mark.parametrize("turns", range(6))
async def test_abort_at_the_very_moment_of_execution(cs: Callstream, turns: int) -> None:
    """Whichever comes first: a tool that is let run has not been aborted, and one that was aborted is not let run."""
    aborted: list[str] = []
    cs.on_args_abort("write", lambda call, reason: aborted.append(reason))
    run = await cs.start("thread")
    await read(run, "anthropic", [WRITE])
    executing = asyncio.ensure_future(run.execute("c1"))
    for _ in range(turns):
        await asyncio.sleep(0)
    was_let_run = executing.done()
    await run.stop("user")
    (outcome,) = await asyncio.gather(executing, return_exceptions=True)
    assert was_let_run or isinstance(outcome, RunOver)
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert (kept.state is CallState.DISCARDED) == (aborted == ["aborted"])
    assert kept.is_final


async def test_append_before_deliver(cs: Callstream) -> None:
    """What a hook is handed is in the journal at that moment."""
    missing: list[str] = []
    seen = ""

    async def check(delta: Any, signal: Any) -> None:
        nonlocal seen
        seen += delta.text
        kept = "".join(event.text for event in await events(cs, run) if isinstance(event, ArgsAppended))
        if not kept.startswith(seen):
            missing.append(delta.text)

    cs.on_args_delta("write", check)
    async with cs.run("thread") as run:
        await read(run, "openai_responses", [WRITE])
    assert seen
    assert missing == []


async def test_reject_tells_model_why_and_never_runs(cs: Callstream) -> None:
    async def refuse(call: Any, signal: Any) -> None:
        raise Reject("not on a Sunday")

    cs.on_args_complete("write", refuse)
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE])
        with pytest.raises(CallRejected, match="not on a Sunday"):
            await run.execute("c1")
        (call,) = run.calls
        assert (call.state, call.reason, call.detail) == (CallState.DISCARDED, "rejected", "not on a Sunday")


async def test_a_hook_that_fails_in_the_middle_drops_the_rest_of_its_call_only(cs: Callstream) -> None:
    async def broken(delta: Any, signal: Any) -> None:
        raise RuntimeError("disk full")

    cs.on_args_delta("write", broken)
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE, ToolCall("other", ARGS, call_id="c2")])
        with pytest.raises(CallRejected, match="write did not run: the call was interrupted") as raised:
            await run.execute("c1")
        assert "disk full" in str(raised.value.__cause__)
        assert "disk full" in (raised.value.detail or "")
        assert (await run.execute("c2")).args == ARGS
        await run.complete("c2")


async def test_fail_run_raises_the_hook_error_in_the_run(journal_url: str) -> None:
    @tool(on_hook_error="fail_run")
    async def write(title: str, content: str) -> None: ...

    @write.on_args_delta
    async def broken(delta: Any, signal: Any) -> None:
        raise RuntimeError("disk full")

    async with Callstream(journal_url, tools=[write]) as cs:
        with pytest.raises(RuntimeError, match="disk full"):
            await execute_write(cs)
        (run,) = await cs.journal.runs()
        assert (run.outcome, run.reason) == ("failed", "RuntimeError: disk full")


@pytest.mark.parametrize("context", [True, False])
async def test_fail_run_raises_the_error_of_a_hook_that_failed_last(journal_url: str, context: bool) -> None:
    @tool(on_hook_error="fail_run")
    async def write(title: str, content: str) -> None: ...

    written = asyncio.Event()

    @write.on_args_complete
    async def broken(call: Any, signal: Any) -> None:
        await written.wait()
        raise RuntimeError("disk full")

    async def leave(cs: Callstream) -> None:
        if context:
            async with cs.run("thread") as run:
                await read(run, "anthropic", [WRITE])
                written.set()
        else:
            run = await cs.start("thread")
            await read(run, "anthropic", [WRITE])
            written.set()
            await run.finish()

    async with Callstream(journal_url, tools=[write]) as cs:
        with pytest.raises(RuntimeError, match="disk full"):
            await leave(cs)
        (run,) = await cs.journal.runs()
        assert (run.outcome, run.reason) == ("failed", "RuntimeError: disk full")
