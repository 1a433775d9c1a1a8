"""Abort: the queue is dropped, running hooks hear of it, abort hooks run once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from callstream.calls import Call, CallState
from callstream.hooks import CallHooks, HookSettings, Outcome
from callstream.hooks.deltas import ArgsDelta
from callstream.tools import AbortSignal, Hooks
from tests.clock import jumping

from .watching import ARGS, PIECES, Gate, Watch, a_call, given_up, turns, whole, write_call


@jumping
async def test_abort_drops_queue() -> None:
    watch, gate = Watch("content"), Gate()
    watch.hooks.on_args_delta(gate)
    calls = CallHooks(a_call(), watch.hooks)
    write_call(calls)
    await gate.begun.wait()
    calls.abort(given_up(), "truncated")
    assert calls.signal.reason == "truncated"
    assert len(calls._queue) == 0
    calls.push("more")
    calls.complete(whole())
    assert await calls.settled() == Outcome("aborted", "truncated")
    assert watch.seen == [("delta", 1, PIECES[0]), ("abort", CallState.DISCARDED, "truncated")]
    assert gate.passed == 0


@jumping
async def test_abort_drops_queue_before_anything_ran() -> None:
    watch = Watch()
    calls = CallHooks(a_call(), watch.hooks)
    calls.push(PIECES[0])
    calls.abort(given_up(), "aborted")
    await calls.settled()
    assert watch.kinds == ["abort"]


@jumping
async def test_abort_lets_a_hook_see_the_signal_first() -> None:
    hooks = Hooks()
    seen: list[Any] = []

    @hooks.on_args_delta
    async def polite(delta: ArgsDelta, signal: AbortSignal) -> None:
        seen.append(await signal.wait())

    @hooks.on_args_abort
    async def undo(call: Call, reason: str) -> None:
        seen.append(("undo", reason))

    calls = CallHooks(a_call(), hooks)
    calls.push(ARGS)
    await turns()
    calls.abort(given_up(), "stop")
    await calls.settled()
    assert seen == ["stop", ("undo", "stop")]


@jumping
async def test_abort_cancels_a_hook_that_does_not_look() -> None:
    hooks = Hooks()
    seen: list[Any] = []

    @hooks.on_args_delta
    async def deaf(delta: ArgsDelta, signal: AbortSignal) -> None:
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            seen.append(("cancelled", signal.reason))
            raise

    calls = CallHooks(a_call(), hooks)
    calls.push(ARGS)
    await turns()
    begun = asyncio.get_running_loop().time()
    calls.abort(given_up(), "stop")
    assert await calls.settled() == Outcome("aborted", "stop")
    assert seen == [("cancelled", "stop")]
    assert asyncio.get_running_loop().time() - begun == pytest.approx(HookSettings().abort_notice, abs=0.01)


async def test_abort_is_seen_by_a_sync_hook() -> None:
    hooks = Hooks()
    seen: list[Any] = []
    begun = threading.Event()

    @hooks.on_args_delta
    def polls(delta: ArgsDelta, signal: AbortSignal) -> None:
        begun.set()
        while not signal.aborted:
            pass
        seen.append(signal.reason)

    calls = CallHooks(a_call(), hooks)
    calls.push(ARGS)
    assert await asyncio.to_thread(begun.wait, 20)
    calls.abort(given_up(), "stop")
    assert await calls.settled() == Outcome("aborted", "stop")
    assert seen == ["stop"]


@jumping
async def test_abort_during_barrier_never_executes() -> None:
    watch, gate = Watch(), Gate()
    watch.hooks.on_args_complete(gate)
    calls = CallHooks(a_call(), watch.hooks)
    calls.push(ARGS)
    calls.complete(whole())
    barrier = asyncio.create_task(calls.settled())
    await gate.begun.wait()
    calls.abort(given_up(), "aborted")
    gate.open.set()
    assert (await barrier).kind == "aborted"
    assert not calls.claim()
    assert watch.kinds == ["delta", "complete", "abort"]


@jumping
async def test_abort_during_barrier_never_executes_after_it_opened() -> None:
    watch = Watch()
    calls = CallHooks(a_call(), watch.hooks)
    calls.complete(whole())
    assert (await calls.settled()).ready
    calls.abort(given_up(), "aborted")
    assert not calls.claim()
    assert (await calls.settled()).kind == "aborted"
    assert watch.kinds == ["delta", "complete", "abort"]


@jumping
async def test_abort_without_hooks() -> None:
    calls = CallHooks(a_call(), Hooks())
    calls.push(ARGS)
    calls.abort(given_up(), "aborted")
    assert await calls.settled() == Outcome("aborted", "aborted")
    assert not calls.claim()


@jumping
async def test_on_abort_once() -> None:
    watch = Watch()
    calls = CallHooks(a_call(), watch.hooks)
    calls.push(PIECES[0])
    calls.abort(given_up(), "first")
    calls.abort(given_up(), "second")
    await calls.settled()
    calls.abort(given_up(), "third")
    await calls.aclose()
    await turns()
    assert [entry for entry in watch.seen if entry[0] == "abort"] == [("abort", CallState.DISCARDED, "first")]


@jumping
async def test_on_abort_once_after_a_failure() -> None:
    watch = Watch()

    @watch.hooks.on_args_delta
    async def fails(delta: ArgsDelta, signal: AbortSignal) -> None:
        raise ValueError("no")

    calls = CallHooks(a_call(), watch.hooks)
    calls.push(PIECES[0])
    await turns()
    calls.abort(given_up(), "truncated")
    outcome = await calls.settled()
    assert (outcome.kind, outcome.reason) == ("failed", "interrupted")
    assert watch.kinds == ["delta", "abort"]


@jumping
async def test_on_abort_once_and_never_after_the_tool_was_let_run() -> None:
    watch = Watch()
    calls = CallHooks(a_call(), watch.hooks)
    calls.complete(whole())
    await calls.settled()
    assert calls.claim()
    calls.abort(given_up(), "aborted")
    await calls.aclose()
    assert watch.kinds == ["delta", "complete"]
    assert not calls.signal.aborted
    assert (await calls.settled()).ready


@jumping
async def test_on_abort_once_each_whatever_another_does(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks()
    ran: list[str] = []

    @hooks.on_args_abort
    async def raises(call: Call, reason: str) -> None:
        ran.append("raises")
        raise ValueError("in undo")

    @hooks.on_args_abort
    async def hangs(call: Call, reason: str) -> None:
        ran.append("hangs")
        await asyncio.Event().wait()

    stubborn_ends = asyncio.Event()

    @hooks.on_args_abort
    async def stubborn(call: Call, reason: str) -> None:
        ran.append("stubborn")
        while not stubborn_ends.is_set():
            try:
                await stubborn_ends.wait()
            except asyncio.CancelledError:
                pass

    @hooks.on_args_abort
    async def last(call: Call, reason: str) -> None:
        ran.append("last")

    calls = CallHooks(a_call(), hooks)
    calls.abort(given_up(), "aborted")
    assert await calls.settled() == Outcome("aborted", "aborted", abandoned=True)
    assert ran == ["raises", "hangs", "stubborn", "last"]
    assert "ValueError: in undo" in caplog.text
    stubborn_ends.set()
    await turns()
