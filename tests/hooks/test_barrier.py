"""The barrier: a tool runs after its hooks, whatever happens to them."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from callstream.hooks import CallHooks, HookSettings
from callstream.hooks.deltas import ArgsDelta
from callstream.tools import AbortSignal, Hooks
from tests.clock import jumping

from .watching import ARGS, Gate, Watch, a_call, given_up, turns, whole

ENDLESS = HookSettings(timeout=math.inf, abort_notice=math.inf)


@pytest.mark.parametrize("kind", ["on_args_delta", "on_args_complete", "on_field"])
@jumping
async def test_barrier_before_execute(kind: str) -> None:
    hooks, gate = Hooks(), Gate()
    register: Any = hooks.on_field("content") if kind == "on_field" else getattr(hooks, kind)
    register(gate)
    calls = CallHooks(a_call(), hooks, ENDLESS)
    calls.push(ARGS)
    calls.complete(whole())
    barrier = asyncio.create_task(calls.settled())
    await gate.begun.wait()
    await turns()
    assert not barrier.done()
    assert not calls.claim()
    gate.open.set()
    assert (await barrier).ready
    assert gate.passed == 1


@jumping
async def test_executing_after_barrier() -> None:
    watch = Watch()
    calls = CallHooks(a_call(), watch.hooks)
    assert not calls.claim()
    calls.push(ARGS)
    assert not calls.claim()
    calls.complete(whole())
    assert not calls.claim()
    await calls.settled()
    assert watch.kinds == ["delta", "complete"]
    assert calls.claim()
    assert not calls.claim()


@pytest.mark.parametrize("way", ["abort", "aclose", "malformed", "failure"])
@jumping
async def test_barrier_on_every_exit(way: str) -> None:
    """However the call ends, its running hook has ended when the barrier opens, and no task is left."""
    hooks, gate = Hooks(), Gate()
    ended: list[str] = []

    @hooks.on_args_delta
    async def guarded(delta: ArgsDelta, signal: AbortSignal) -> None:
        try:
            await gate(delta, signal)
            if way == "failure":
                raise ValueError("no")
        finally:
            await asyncio.sleep(0.5)
            ended.append(delta.text)

    hooks.on_field("content")(gate)
    calls = CallHooks(a_call(), hooks)
    calls.push("{]" if way == "malformed" else ARGS)
    await gate.begun.wait()
    match way:
        case "abort":
            calls.abort(given_up(), "truncated")
        case "aclose":
            await calls.aclose()
        case _:
            gate.open.set()
    outcome = await calls.settled()
    assert not outcome.ready
    assert len(ended) == 1
    assert not calls.claim()


@jumping
async def test_barrier_on_every_exit_outlives_the_one_who_waits() -> None:
    hooks, gate = Hooks(), Gate()
    hooks.on_args_delta(gate)
    calls = CallHooks(a_call(), hooks)
    calls.push(ARGS)
    calls.complete(whole())
    impatient = asyncio.create_task(calls.settled())
    await gate.begun.wait()
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    await turns()
    assert gate.passed == 0
    gate.open.set()
    assert (await calls.settled()).ready
    assert gate.passed == 1


@jumping
async def test_barrier_on_every_exit_cancelled_close_cancels_the_hook() -> None:
    hooks, gate = Hooks(), Gate()
    hooks.on_args_delta(gate)
    calls = CallHooks(a_call(), hooks, ENDLESS)
    calls.push(ARGS)
    await gate.begun.wait()
    closing = asyncio.create_task(calls.aclose())
    await turns()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    outcome = await calls.settled()
    assert (outcome.kind, gate.passed) == ("aborted", 0)


@jumping
async def test_barrier_on_every_exit_survives_a_cancelled_worker() -> None:
    """As when a loop is shut down around it: whoever waits is told, and nothing runs any more."""
    hooks, gate = Hooks(), Gate()
    hooks.on_args_delta(gate)
    hooks.on_args_abort(gate)
    calls = CallHooks(a_call(), hooks)
    calls.push(ARGS)
    await gate.begun.wait()
    (worker,) = (task for task in asyncio.all_tasks() if "call c1" in task.get_name())
    worker.cancel()
    outcome = await calls.settled()
    assert (outcome.kind, outcome.reason, calls.signal.aborted, gate.passed) == ("aborted", "interrupted", True, 0)
