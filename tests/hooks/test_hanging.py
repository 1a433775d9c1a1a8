"""Hooks that hang: they are cut off, on the loop and in threads."""

from __future__ import annotations

import asyncio
import logging
import math
import subprocess
import sys
import threading
from typing import Any

import pytest

from callstream.calls import Call
from callstream.errors import Reject
from callstream.hooks import CallHooks, HookCutOff, HookSettings, Outcome
from callstream.hooks.deltas import ArgsDelta
from callstream.tools import AbortSignal, Hooks
from tests.clock import jumping

from .watching import ARGS, PIECES, Watch, a_call, given_up, turns, whole, write_call


@jumping
async def test_hung_hook_is_cut_off() -> None:
    watch = Watch()

    @watch.hooks.on_args_delta
    async def hangs(delta: ArgsDelta, signal: AbortSignal) -> None:
        await asyncio.Event().wait()

    calls = CallHooks(a_call(), watch.hooks)
    begun = asyncio.get_running_loop().time()
    calls.push(PIECES[0])
    calls.push(PIECES[1])
    outcome = await calls.settled()
    assert asyncio.get_running_loop().time() - begun == pytest.approx(30, abs=0.1)
    assert (outcome.kind, outcome.reason, outcome.abandoned) == ("failed", "interrupted", False)
    assert isinstance(outcome.error, HookCutOff)
    assert watch.kinds == ["delta", "abort"]


@jumping
async def test_hung_hook_is_cut_off_and_counts_as_raised_whatever_it_makes_of_it() -> None:
    for way in ("returns", "raises", "rejects"):
        hooks = Hooks()

        @hooks.on_args_delta
        async def hangs(delta: ArgsDelta, signal: AbortSignal, way: str = way) -> None:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                if way == "raises":
                    raise ValueError("in the way out") from None
                if way == "rejects":
                    raise Reject("in the way out") from None

        calls = CallHooks(a_call(), hooks, HookSettings(timeout=2))
        calls.push(ARGS)
        outcome = await calls.settled()
        assert outcome.kind == "failed"
        assert isinstance(outcome.error, HookCutOff)


@jumping
async def test_hung_hook_is_cut_off_and_isolated_by_policy() -> None:
    watch = Watch()

    @watch.hooks.on_args_delta
    async def hangs(delta: ArgsDelta, signal: AbortSignal) -> None:
        await asyncio.Event().wait()

    calls = CallHooks(a_call(), watch.hooks, HookSettings(timeout=1, on_error="isolate", merge_after=math.inf))
    write_call(calls)
    assert (await calls.settled()).ready
    assert watch.kinds == ["delta"] * 4 + ["complete"]


@jumping
async def test_hung_hook_is_cut_off_by_its_own_time_not_that_of_others() -> None:
    """Each hook has all of its time for each delta, though one timer serves them all."""
    hooks = Hooks()
    ran: list[int] = []

    @hooks.on_args_delta
    async def slow(delta: ArgsDelta, signal: AbortSignal) -> None:
        await asyncio.sleep(0.9)
        ran.append(delta.seq)

    calls = CallHooks(a_call(), hooks, HookSettings(timeout=1, merge_after=math.inf))
    for piece in PIECES:
        calls.push(piece)
    await asyncio.sleep(10)
    calls.complete(whole())
    assert (await calls.settled()).ready
    assert ran == [1, 2, 3, 4]


@pytest.mark.parametrize("policy", ["fail_call", "isolate", "fail_run"])
@jumping
async def test_hung_hook_is_cut_off_and_abandoned(policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    watch = Watch()
    let_go = asyncio.Event()
    ended: list[Any] = []

    @watch.hooks.on_args_delta
    async def stubborn(delta: ArgsDelta, signal: AbortSignal) -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                pass
        ended.append(delta.args)

    @watch.hooks.on_args_delta
    async def behind(delta: ArgsDelta, signal: AbortSignal) -> None:
        ended.append("behind")

    calls = CallHooks(a_call(), watch.hooks, HookSettings(on_error=policy))
    begun = asyncio.get_running_loop().time()
    write_call(calls)
    outcome = await calls.settled()
    assert asyncio.get_running_loop().time() - begun == pytest.approx(35, abs=0.1)
    assert (outcome.kind, outcome.abandoned, outcome.fails_run) == ("failed", True, policy == "fail_run")
    assert watch.kinds == ["delta", "abort"]
    assert not calls.claim()
    assert "ignores its cancellation and is abandoned" in caplog.text
    assert len(asyncio.all_tasks()) == 2  # the abandoned hook and this test
    let_go.set()
    await turns()
    assert ended == [{"title": "T"}]  # it ended for itself, and nothing followed it
    assert watch.kinds == ["delta", "abort"]
    assert "has ended" in caplog.text


@jumping
async def test_hung_hook_is_cut_off_and_does_nothing_when_it_comes_back_in_the_midst_of_the_abort_hooks() -> None:
    hooks = Hooks()
    order: list[str] = []

    @hooks.on_args_delta
    async def stubborn(delta: ArgsDelta, signal: AbortSignal) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + 40
        while loop.time() < until:
            try:
                await asyncio.sleep(until - loop.time())
            except asyncio.CancelledError:
                pass
        order.append("stubborn ended")

    @hooks.on_args_abort
    async def slow(call: Call, reason: str) -> None:
        order.append("slow begun")
        await asyncio.sleep(20)
        order.append("slow ended")

    @hooks.on_args_abort
    async def last(call: Call, reason: str) -> None:
        order.append("last")

    calls = CallHooks(a_call(), hooks)
    calls.push(ARGS)
    assert (await calls.settled()).abandoned
    assert order == ["slow begun", "stubborn ended", "slow ended", "last"]


@jumping
async def test_hung_hook_is_cut_off_without_a_trace_in_the_hooks_after_it() -> None:
    """Its cancellation is taken back: the next hook of the same worker is not taken for cancelled."""
    hooks = Hooks()
    counts: list[int] = []

    @hooks.on_args_delta
    async def hangs(delta: ArgsDelta, signal: AbortSignal) -> None:
        await asyncio.Event().wait()

    @hooks.on_args_delta
    async def looks(delta: ArgsDelta, signal: AbortSignal) -> None:
        task = asyncio.current_task()
        assert task is not None
        counts.append(task.cancelling())

    calls = CallHooks(a_call(), hooks, HookSettings(on_error="isolate"))
    calls.complete(whole())
    assert (await calls.settled()).ready
    assert counts == [0]


@jumping
async def test_hung_hook_is_cut_off_while_its_worker_is_cancelled_too() -> None:
    hooks = Hooks()
    undone: list[str] = []

    @hooks.on_args_delta
    async def hangs(delta: ArgsDelta, signal: AbortSignal) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            asyncio.current_task().cancel()  # type: ignore[union-attr]  # as a loop that is shut down does

    @hooks.on_args_abort
    async def undo(call: Call, reason: str) -> None:
        undone.append(reason)

    calls = CallHooks(a_call(), hooks)
    calls.push(ARGS)
    assert await calls.settled() == Outcome("aborted", "interrupted", "the task of the hooks was cancelled")
    assert undone == []


@pytest.mark.subprocess
def test_hung_hook_in_a_thread_does_not_keep_the_process_from_ending() -> None:
    program = """if True:
        import asyncio, time
        from callstream.calls import opened
        from callstream.events import CallStarted
        from callstream.hooks import CallHooks, HookSettings
        from callstream.tools import Hooks

        async def main():
            hooks = Hooks()
            hooks.on_args_delta(lambda delta, signal: time.sleep(1000))
            calls = CallHooks(opened(CallStarted("c1", "write")), hooks, HookSettings(timeout=0.01, grace=0.01))
            calls.push("{}")
            print((await calls.settled()).abandoned)

        asyncio.run(main())
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr


@jumping
async def test_hung_hook_is_cut_off_when_it_ignores_an_abort() -> None:
    watch = Watch()
    let_go = asyncio.Event()

    @watch.hooks.on_args_delta
    async def stubborn(delta: ArgsDelta, signal: AbortSignal) -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                pass

    calls = CallHooks(a_call(), watch.hooks)
    calls.push(ARGS)
    await turns()
    begun = asyncio.get_running_loop().time()
    calls.abort(given_up(), "stop")
    assert await calls.settled() == Outcome("aborted", "stop", abandoned=True)
    assert asyncio.get_running_loop().time() - begun == pytest.approx(5.25, abs=0.1)
    assert watch.kinds == ["delta", "abort"]
    let_go.set()
    await turns()


async def test_hung_hook_is_cut_off_in_a_thread() -> None:
    hooks = Hooks()
    go = threading.Event()
    gone = threading.Event()
    undone: list[str] = []

    @hooks.on_args_delta
    def hangs(delta: ArgsDelta, signal: AbortSignal) -> None:
        go.wait(20)
        gone.set()

    @hooks.on_args_abort
    def undo(call: Call, reason: str) -> None:
        undone.append(reason)

    calls = CallHooks(a_call(), hooks, HookSettings(timeout=0.3, grace=0.1))
    calls.push(ARGS)
    outcome = await calls.settled()
    assert (outcome.kind, outcome.abandoned) == ("failed", True)
    assert not gone.is_set()
    assert undone == ["interrupted"]
    go.set()
    assert await asyncio.to_thread(gone.wait, 20)
    left = asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
    await asyncio.gather(*left)
    assert len(asyncio.all_tasks()) == 1


async def test_hung_hook_is_cut_off_in_a_thread_that_ends_in_time() -> None:
    """A sync hook past its limit cannot be cancelled, but the next one waits for its end."""
    hooks = Hooks()
    order: list[str] = []
    undoing = threading.Event()

    @hooks.on_args_delta
    def slow(delta: ArgsDelta, signal: AbortSignal) -> None:
        undoing.wait(1)  # past its limit, within the grace
        order.append("slow")

    @hooks.on_args_abort
    def undo(call: Call, reason: str) -> None:
        undoing.set()
        order.append("undo")

    calls = CallHooks(a_call(), hooks, HookSettings(timeout=0.02, grace=20))
    calls.push(ARGS)
    outcome = await calls.settled()
    assert (outcome.kind, outcome.abandoned) == ("failed", False)
    assert isinstance(outcome.error, HookCutOff)
    assert order == ["slow", "undo"]


async def test_hung_hook_in_a_thread_does_not_hold_a_loop_that_closes() -> None:
    go = threading.Event()

    async def leaves() -> None:
        hooks = Hooks()
        hooks.on_args_delta(lambda delta, signal: go.wait(20) and None)
        CallHooks(a_call(), hooks).push(ARGS)
        await asyncio.sleep(0.01)

    try:
        await asyncio.wait_for(asyncio.to_thread(asyncio.run, leaves()), 10)
    finally:
        go.set()
