from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import math
import subprocess
import sys
import threading
from typing import Any

import msgspec
import pytest

import callstream.hooks.deltas
from callstream.calls import Call, CallState, opened
from callstream.errors import JournalError, Reject, UsageError, WireError
from callstream.events import CallStarted
from callstream.hooks import CallHooks, HookCutOff, HookSettings, Outcome
from callstream.hooks.deltas import ArgsDelta, DeltaQueue, FieldDelta
from callstream.jsontext.stream import JsonStream
from callstream.tools import AbortSignal, Hooks, tool
from tests.clock import jumping

ARGS = '{"title":"Tea","content":"one two"}'
PIECES = ['{"title":"T', 'ea","content":"one', " two", '"}']
ENDLESS = HookSettings(timeout=math.inf, abort_notice=math.inf)


def a_call(call_id: str = "c1", **fields: Any) -> Call:
    return msgspec.structs.replace(opened(CallStarted(call_id, "write")), **fields)


def whole(call_id: str = "c1", args: str = ARGS) -> Call:
    return a_call(call_id, state=CallState.ARGS_COMPLETE, args_json=args)


def given_up(call_id: str = "c1") -> Call:
    return a_call(call_id, state=CallState.DISCARDED, reason="aborted")


async def turns(count: int = 20) -> None:
    """Lets everything that can run now run."""
    for _ in range(count):
        await asyncio.sleep(0)


class Watch:
    """Hooks of every kind that write down what they were called with."""

    def __init__(self, *fields: str) -> None:
        self.hooks = Hooks()
        self.seen: list[Any] = []
        self.hooks.on_args_delta(self.delta)
        for field in fields:
            self.hooks.on_field(field)(self.field)
        self.hooks.on_args_complete(self.complete)
        self.hooks.on_args_abort(self.abort)

    async def delta(self, delta: ArgsDelta, signal: AbortSignal) -> None:
        self.seen.append(("delta", delta.seq, delta.text))

    async def field(self, field: FieldDelta, signal: AbortSignal) -> None:
        self.seen.append(("field", field.path[-1], field.text, field.complete))

    async def complete(self, call: Call, signal: AbortSignal) -> None:
        self.seen.append(("complete", call.args_json))

    async def abort(self, call: Call, reason: str) -> None:
        self.seen.append(("abort", call.state, reason))

    @property
    def kinds(self) -> list[str]:
        return [entry[0] for entry in self.seen]

    @property
    def text(self) -> str:
        return "".join(entry[2] for entry in self.seen if entry[0] == "delta")


class Gate:
    """A hook that says when it has begun, and ends when it is let."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.passed = 0

    async def __call__(self, subject: Any, signal: Any) -> None:
        self.begun.set()
        await self.open.wait()
        self.passed += 1


# -- order -------------------------------------------------------------------------------------------------------------


@jumping
async def test_hooks_in_order() -> None:
    watch = Watch("content", "title")
    calls = CallHooks(a_call(), watch.hooks)
    for piece in PIECES:
        calls.push(piece)
        await turns()
    calls.complete(whole())
    assert (await calls.settled()).ready
    assert watch.seen == [
        ("delta", 1, '{"title":"T'),
        ("field", "title", "T", False),
        ("delta", 2, 'ea","content":"one'),
        ("field", "title", "ea", True),
        ("field", "content", "one", False),
        ("delta", 3, " two"),
        ("field", "content", " two", False),
        ("delta", 4, '"}'),
        ("field", "content", "", True),
        ("complete", ARGS),
    ]


@jumping
async def test_hooks_in_order_by_registration_however_slow() -> None:
    hooks = Hooks()
    order: list[tuple[str, str]] = []

    def hook_named(name: str, seconds: float) -> Any:
        async def hook(delta: ArgsDelta, signal: AbortSignal) -> None:
            await asyncio.sleep(seconds)
            order.append((name, delta.text))

        return hook

    hooks.on_args_delta(hook_named("slow", 3))
    hooks.on_args_delta(hook_named("quick", 0))
    hooks.on_args_delta(hook_named("medium", 1))
    calls = CallHooks(a_call(), hooks)
    for piece in PIECES:
        calls.push(piece)
    calls.complete(whole())
    await calls.settled()
    assert order == [(name, piece) for piece in PIECES for name in ("slow", "quick", "medium")]


async def test_hooks_in_order_in_threads_and_on_the_loop() -> None:
    hooks = Hooks()
    order: list[tuple[str, str]] = []
    threads: set[int] = set()
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    @hooks.on_args_delta
    def in_thread(delta: ArgsDelta, signal: AbortSignal) -> None:
        threads.add(threading.get_ident())
        order.append((f"thread {variable.get()}", delta.text))

    @hooks.on_args_delta
    async def on_loop(delta: ArgsDelta, signal: AbortSignal) -> None:
        order.append(("loop", delta.text))

    @hooks.on_field("title")
    def field(field: FieldDelta, signal: AbortSignal) -> Any:
        async def later() -> None:  # A sync hook may give back something to await, as a wrapped one does.
            order.append(("later", field.text))

        return later()

    @hooks.on_args_abort
    def undo(call: Call, reason: str) -> None:
        order.append(("undo", reason))

    variable.set("kept")
    calls = CallHooks(a_call(), hooks)
    for piece in PIECES[:2]:
        calls.push(piece)
    calls.complete(whole())
    assert (await calls.settled()).ready
    calls.abort(given_up(), "aborted")
    await calls.settled()
    first, second = PIECES[:2]
    assert order == [
        ("thread kept", first),
        ("loop", first),
        ("later", "T"),
        ("thread kept", second),
        ("loop", second),
        ("later", "ea"),
        ("undo", "aborted"),
    ]
    assert threading.get_ident() not in threads
    assert len(threads) == 1


@jumping
async def test_calls_independent() -> None:
    gate = Gate()
    slow, quick = Hooks(), Watch()
    slow.on_args_delta(gate)
    first, second = CallHooks(a_call("a"), slow), CallHooks(a_call("b"), quick.hooks)
    for piece in PIECES:
        first.push(piece)
        second.push(piece)
    first.complete(whole("a"))
    second.complete(whole("b"))
    assert (await second.settled()).ready
    assert gate.passed == 0
    gate.open.set()
    assert (await first.settled()).ready


async def test_calls_independent_when_many_sync_hooks_block() -> None:
    """More than a shared pool of threads would have."""
    hooks = Hooks()
    go = threading.Event()
    begun = threading.Semaphore(0)

    @hooks.on_args_delta
    def block(delta: ArgsDelta, signal: AbortSignal) -> None:
        begun.release()
        assert go.wait(20)

    blocked = [CallHooks(a_call(f"c{number}"), hooks) for number in range(60)]
    for number, calls in enumerate(blocked):
        calls.push(ARGS)
        calls.complete(whole(f"c{number}"))
    for _ in blocked:
        assert await asyncio.to_thread(begun.acquire, True, 20)
    go.set()
    assert all([(await calls.settled()).ready for calls in blocked])


@jumping
async def test_same_signal_for_all() -> None:
    hooks = Hooks()
    signals: list[AbortSignal] = []

    async def keep(subject: Any, signal: AbortSignal) -> None:
        signals.append(signal)

    hooks.on_args_delta(keep)
    hooks.on_field("title")(keep)
    hooks.on_args_complete(keep)
    calls = CallHooks(a_call(), hooks)
    for piece in PIECES:
        calls.push(piece)
        await turns()
    calls.complete(whole())
    await calls.settled()
    assert len(signals) == 4 + 2 + 1
    assert all(signal is calls.signal for signal in signals)
    assert not calls.signal.aborted


# -- the barrier -------------------------------------------------------------------------------------------------------


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


# -- abort -------------------------------------------------------------------------------------------------------------


@jumping
async def test_abort_drops_queue() -> None:
    watch, gate = Watch("content"), Gate()
    watch.hooks.on_args_delta(gate)
    calls = CallHooks(a_call(), watch.hooks)
    for piece in PIECES:
        calls.push(piece)
    calls.complete(whole())
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


# -- hooks that fail ---------------------------------------------------------------------------------------------------


@jumping
async def test_raising_hook_by_policy_fail_call() -> None:
    watch = Watch()
    error = ValueError("broken")

    @watch.hooks.on_args_delta
    async def fails(delta: ArgsDelta, signal: AbortSignal) -> None:
        if delta.seq == 2:
            raise error

    after: list[int] = []

    @watch.hooks.on_args_delta
    async def behind(delta: ArgsDelta, signal: AbortSignal) -> None:
        after.append(delta.seq)

    calls = CallHooks(a_call(), watch.hooks)
    for piece in PIECES:
        calls.push(piece)
    calls.complete(whole())
    outcome = await calls.settled()
    assert (outcome.kind, outcome.reason, outcome.error, outcome.fails_run) == ("failed", "interrupted", error, False)
    assert outcome.detail is not None
    assert "'write'" in outcome.detail
    assert "fails' of tool 'write' failed in call 'c1': ValueError: broken" in outcome.detail
    assert calls.signal.reason == "interrupted"
    assert watch.kinds == ["delta", "delta", "abort"]
    assert watch.seen[-1] == ("abort", CallState.DISCARDED, "interrupted")
    assert after == [1]
    assert not calls.claim()


@jumping
async def test_raising_hook_by_policy_isolate(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    asked: list[int] = []

    @watch.hooks.on_args_delta
    async def fails(delta: ArgsDelta, signal: AbortSignal) -> None:
        asked.append(delta.seq)
        raise ValueError("broken")

    calls = CallHooks(a_call(), watch.hooks, HookSettings(on_error="isolate"))
    for piece in PIECES:
        calls.push(piece)
        await turns()
    calls.complete(whole())
    assert (await calls.settled()).ready
    assert asked == [1]
    assert watch.kinds == ["delta"] * 4 + ["complete"]
    assert caplog.text.count("left out of the rest of the call") == 1


@jumping
async def test_raising_hook_by_policy_fail_run() -> None:
    watch = Watch()

    @watch.hooks.on_args_complete
    async def fails(call: Call, signal: AbortSignal) -> None:
        raise ValueError("broken")

    calls = CallHooks(a_call(), watch.hooks, HookSettings(on_error="fail_run"))
    calls.complete(whole())
    outcome = await calls.settled()
    assert (outcome.kind, outcome.fails_run) == ("failed", True)
    assert isinstance(outcome.error, ValueError)
    assert watch.kinds == ["delta", "complete", "abort"]


@pytest.mark.parametrize("policy", ["fail_call", "isolate", "fail_run"])
@jumping
async def test_raising_hook_by_policy_reject_is_no_error(policy: Any) -> None:
    watch = Watch()

    @watch.hooks.on_field("title")
    async def refuses(field: FieldDelta, signal: AbortSignal) -> None:
        raise Reject("not this title")

    calls = CallHooks(a_call(), watch.hooks, HookSettings(on_error=policy))
    calls.complete(whole())
    outcome = await calls.settled()
    assert (outcome.kind, outcome.reason, outcome.detail) == ("rejected", "rejected", "not this title")
    assert not outcome.fails_run
    assert watch.kinds == ["delta", "abort"]
    assert not calls.claim()


async def test_raising_hook_by_policy_in_a_thread() -> None:
    for error in (ValueError("broken"), StopIteration("odd"), Reject("no")):
        hooks = Hooks()

        @hooks.on_args_delta
        def fails(delta: ArgsDelta, signal: AbortSignal, error: Exception = error) -> None:
            raise error

        calls = CallHooks(a_call(), hooks)
        calls.push(ARGS)
        outcome = await calls.settled()
        assert outcome.kind == ("rejected" if isinstance(error, Reject) else "failed")
        assert str(error) in str(outcome.error)


@jumping
async def test_raising_hook_by_policy_cancelled_from_within() -> None:
    """A hook that waits for something which somebody cancels has raised; it was not the dispatcher's doing."""
    hooks = Hooks()

    @hooks.on_args_delta
    async def waits(delta: ArgsDelta, signal: AbortSignal) -> None:
        other = asyncio.create_task(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(other.cancel)
        await other

    calls = CallHooks(a_call(), hooks)
    calls.push(ARGS)
    outcome = await calls.settled()
    assert outcome.kind == "failed"
    assert "waited for something that was cancelled" in str(outcome.error)


@jumping
async def test_raising_hook_after_the_abort_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks()

    @hooks.on_args_delta
    async def spoils(delta: ArgsDelta, signal: AbortSignal) -> None:
        await signal.wait()
        raise ValueError("spoiled")

    calls = CallHooks(a_call(), hooks)
    calls.push(ARGS)
    await turns()
    calls.abort(given_up(), "aborted")
    assert (await calls.settled()).kind == "aborted"
    assert "after the abort" in caplog.text
    assert "spoiled" in caplog.text


@jumping
async def test_failure_is_kept_before_the_abort_hooks_hear_of_it() -> None:
    watch = Watch()
    kept = a_call(state=CallState.DISCARDED, reason="rejected", detail="kept")

    @watch.hooks.on_args_complete
    async def refuses(call: Call, signal: AbortSignal) -> None:
        raise Reject("no")

    async def keep(outcome: Outcome) -> Call:
        watch.seen.append(("kept", outcome.kind, calls.signal.aborted))
        await asyncio.sleep(1)
        calls.abort(given_up(), "too late")
        return kept

    @watch.hooks.on_args_abort
    async def undo(call: Call, reason: str) -> None:
        watch.seen.append(("undo", call, reason))

    calls = CallHooks(a_call(), watch.hooks, on_failure=keep)
    calls.complete(whole())
    assert (await calls.settled()).kind == "rejected"
    assert watch.seen[2:] == [
        ("kept", "rejected", True),
        ("abort", CallState.DISCARDED, "rejected"),
        ("undo", kept, "rejected"),
    ]


@jumping
async def test_failure_that_cannot_be_kept_rises_after_the_abort_hooks() -> None:
    watch = Watch()

    @watch.hooks.on_args_delta
    async def fails(delta: ArgsDelta, signal: AbortSignal) -> None:
        raise ValueError("broken")

    async def keep(outcome: Outcome) -> Call:
        raise JournalError("disk full")

    calls = CallHooks(a_call(), watch.hooks, on_failure=keep)
    calls.push(ARGS)
    with pytest.raises(JournalError, match="disk full"):
        await calls.settled()
    assert watch.seen[-1] == ("abort", CallState.DISCARDED, "interrupted")


@pytest.mark.parametrize("kind", ["field", "delta"])
@pytest.mark.parametrize("policy", ["fail_call", "isolate"])
@jumping
async def test_malformed_text_fails_the_call_as_malformed(kind: str, policy: Any) -> None:
    watch = Watch()
    if kind == "field":
        watch.hooks.on_field("title")(watch.field)
    else:

        @watch.hooks.on_args_delta
        async def reads(delta: ArgsDelta, signal: AbortSignal) -> None:
            watch.seen.append(("args", delta.args))

    calls = CallHooks(a_call(), watch.hooks, HookSettings(on_error=policy))
    calls.push('{"title": ')
    calls.push("nonsense}")
    calls.complete(whole())
    outcome = await calls.settled()
    assert (outcome.kind, outcome.reason) == ("failed", "malformed")
    assert isinstance(outcome.error, WireError)
    assert watch.kinds == ["delta", *(["args"] if kind == "delta" else []), "delta", "abort"]


@jumping
async def test_malformed_text_is_shown_up_to_the_mistake() -> None:
    watch = Watch("title")
    watch.hooks.on_args_delta(watch.delta)
    calls = CallHooks(a_call(), watch.hooks)
    calls.push('{"title": "Tea" ]')
    calls.push("more")
    outcome = await calls.settled()
    assert (outcome.kind, outcome.reason) == ("failed", "malformed")
    assert watch.seen[2:] == [("field", "title", "Tea", True), ("abort", CallState.DISCARDED, "malformed")]


@jumping
async def test_malformed_text_of_another_document_is_the_hooks_own_fault() -> None:
    hooks = Hooks()

    @hooks.on_args_delta
    async def reads_another(delta: ArgsDelta, signal: AbortSignal) -> None:
        JsonStream().feed("]")

    calls = CallHooks(a_call(), hooks)
    calls.push(ARGS)
    assert (await calls.settled()).reason == "interrupted"


# -- hooks that hang ---------------------------------------------------------------------------------------------------


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

    calls = CallHooks(a_call(), watch.hooks, HookSettings(timeout=1, on_error="isolate"))
    for piece in PIECES:
        calls.push(piece)
    calls.complete(whole())
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

    calls = CallHooks(a_call(), hooks, HookSettings(timeout=1))
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
    for piece in PIECES:
        calls.push(piece)
    calls.complete(whole())
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
        undoing.wait(0.2)  # past its limit, within the grace
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


# -- the queue ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [HookSettings(), HookSettings(queue_deltas=3), HookSettings(queue_chars=40)])
@jumping
async def test_bounded_queue_merges(settings: HookSettings) -> None:
    watch, gate = Watch("content"), Gate()
    watch.hooks.on_args_delta(gate)
    calls = CallHooks(a_call(), watch.hooks, msgspec.structs.replace(settings, timeout=math.inf))
    content = "0123456789" * 500
    args = json.dumps({"content": content})
    calls.push(args[:4])
    await gate.begun.wait()
    for index in range(4, len(args), 2):
        calls.push(args[index : index + 2])
        assert len(calls._queue) <= settings.queue_deltas
    gate.open.set()
    calls.complete(whole(args=args))
    assert (await calls.settled()).ready
    assert watch.text == args
    numbers = [entry[1] for entry in watch.seen if entry[0] == "delta"]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 1 + (len(args) - 3) // 2
    assert 2 <= len(numbers) <= settings.queue_deltas + 1
    fields = [entry for entry in watch.seen if entry[0] == "field"]
    assert "".join(entry[2] for entry in fields) == content
    assert [entry[3] for entry in fields] == [False] * (len(fields) - 1) + [True]


def test_bounded_queue_merges_by_deltas_and_by_characters() -> None:
    by_deltas = DeltaQueue(3, 1000)
    for number, text in enumerate("abcdefgh", 1):
        by_deltas.put(text, number)
        assert len(by_deltas) <= 3
    assert [by_deltas.take() for _ in range(len(by_deltas))] == [("abcdefg", 7), ("h", 8)]
    by_characters = DeltaQueue(100, 4)
    for number, text in enumerate(["ab", "cd", "ef", "gh"], 1):
        by_characters.put(text, number)
    assert [by_characters.take() for _ in range(len(by_characters))] == [("abcdefgh", 4)]
    by_characters.put("a very long piece", 5)
    assert by_characters.take() == ("a very long piece", 5)
    by_characters.put("ab", 6)
    by_characters.put("cd", 7)
    assert by_characters.take() == ("ab", 6)
    by_characters.clear()
    assert len(by_characters) == 0


@jumping
async def test_bounded_queue_merges_only_what_waits() -> None:
    watch = Watch()
    calls = CallHooks(a_call(), watch.hooks, HookSettings(queue_deltas=1))
    for number in range(10):
        calls.push(f"[{number}" if number == 0 else f",{number}")
        await turns()
    calls.complete(whole())
    await calls.settled()
    assert [entry[1] for entry in watch.seen if entry[0] == "delta"] == list(range(1, 11))


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def parsers(monkeypatch: pytest.MonkeyPatch) -> list[JsonStream]:
    """Every parser that is made."""
    made: list[JsonStream] = []

    class Counted(JsonStream):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(callstream.hooks.deltas, "JsonStream", Counted)
    return made


@jumping
async def test_no_hook_no_parse(parsers: list[JsonStream]) -> None:
    calls = CallHooks(a_call(), Hooks())
    for piece in PIECES:
        calls.push(piece)
    calls.complete(whole())
    assert len(asyncio.all_tasks()) == 1
    assert await calls.settled() == Outcome("ready")
    assert calls.claim()
    assert parsers == []
    assert not hasattr(calls, "_queue")


@jumping
async def test_no_hook_no_parse_with_hooks_that_do_not_ask(parsers: list[JsonStream]) -> None:
    hooks = Hooks()
    kept: list[ArgsDelta] = []

    @hooks.on_args_delta
    async def raw(delta: ArgsDelta, signal: AbortSignal) -> None:
        kept.append(delta)

    hooks.on_args_complete(raw)  # type: ignore[type-var]
    calls = CallHooks(a_call(), hooks)
    for piece in PIECES:
        calls.push(piece)
    calls.complete(whole())
    await calls.settled()
    assert len(kept) == 5
    assert parsers == []


@jumping
async def test_args_and_changes_are_those_of_their_delta(parsers: list[JsonStream]) -> None:
    hooks = Hooks()
    kept: list[ArgsDelta] = []
    asked: list[Any] = []

    @hooks.on_args_delta
    async def some(delta: ArgsDelta, signal: AbortSignal) -> None:
        kept.append(delta)
        if delta.seq == 3:  # The first two are read now, together.
            asked.append((delta.args, [(change.path, change.kind, change.value) for change in delta.changes]))

    calls = CallHooks(a_call(), hooks)
    for piece in PIECES:
        calls.push(piece)
    calls.complete(whole())
    await calls.settled()
    now = {"title": "Tea", "content": "one two"}
    assert asked == [(now, [(("content",), "append", " two")])]
    assert len(parsers) == 1
    assert [delta.args for delta in kept] == [{"title": "T"}, {"title": "Tea", "content": "one"}, now, now]
    assert [change.kind for change in kept[1].changes] == ["append", "close", "append"]
    assert [change.path for change in kept[3].changes] == [("content",), ()]
    assert repr(kept[2]) == "ArgsDelta('c1', 'write', seq=3, text=' two')"


def test_args_of_a_delta_made_by_hand() -> None:
    delta = ArgsDelta("c1", "write", 1, '{"a": [1, 2')
    assert delta.args == {"a": [1]}
    assert len(delta.changes) == 3
    field = FieldDelta("c1", "write", 1, ("a",), "text", complete=True)
    assert (field.value, field.complete) == ("text", True)
    assert repr(field) == "FieldDelta('c1', 'write', seq=1, path=('a',), text='text', complete=True)"


async def fields_of(path: str, pieces: list[str]) -> list[tuple[str, Any, bool, bool]]:
    hooks = Hooks()
    kept: list[FieldDelta] = []
    seen: list[tuple[str, Any, bool, bool]] = []

    @hooks.on_field(path)
    async def field(field: FieldDelta, signal: AbortSignal) -> None:
        kept.append(field)
        seen.append((field.text, field.value, field.complete, field.first))

    calls = CallHooks(a_call(), hooks)
    for piece in pieces:
        calls.push(piece)
        await turns()
    calls.complete(whole())
    await calls.settled()
    assert [(field.text, field.value, field.complete, field.first) for field in kept] == seen
    return seen


@jumping
async def test_field_of_every_shape() -> None:
    assert await fields_of("a", ['{"a":"', "x", 'y"', "}"]) == [
        ("x", "x", False, True),
        ("y", "xy", True, False),
    ]
    assert await fields_of("a", ['{"a":"', '"}']) == [("", "", True, True)]
    assert await fields_of("a", ['{"a":""}']) == [("", "", True, True)]
    assert await fields_of("a", ['{"a":12', "3}"]) == [("", 123, True, True)]
    assert await fields_of("a", ['{"a":null}']) == [("", None, True, True)]
    assert await fields_of("a", ['{"b":{"a":1}}']) == []
    assert await fields_of("$.b[1].a", ['{"b":[{"a":0},{"a', '":"x', '"}]}']) == [
        ("x", "x", False, True),
        ("", "x", True, False),
    ]


@jumping
async def test_field_that_is_a_container_shows_what_is_in_it() -> None:
    assert await fields_of("items", ['{"items":[', '{"t":"x', 'y"}', "]", ',"z":1}']) == [
        ("", [], False, True),
        ("", [{"t": "x"}], False, False),
        ("", [{"t": "xy"}], False, False),
        ("", [{"t": "xy"}], True, False),
    ]
    assert await fields_of("$", ['{"a":', "1}"]) == [("", {}, False, True), ("", {"a": 1}, True, False)]


@jumping
async def test_field_written_twice_begins_anew() -> None:
    assert await fields_of("a", ['{"a":"x","a":"y', 'z"}']) == [
        ("x", "x", True, True),
        ("y", "y", False, True),
        ("z", "yz", True, False),
    ]


@jumping
async def test_field_inside_a_watched_field_comes_first() -> None:
    hooks = Hooks()
    order: list[Any] = []

    async def keep(field: FieldDelta, signal: AbortSignal) -> None:
        order.append((field.path, field.complete))

    hooks.on_field("$")(keep)
    hooks.on_field("$.a.b")(keep)
    hooks.on_field("a")(keep)
    calls = CallHooks(a_call(), hooks)
    for piece in ('{"a":{"b":"x', '"}', "}"):
        calls.push(piece)
        await turns()
    calls.complete(whole())
    await calls.settled()
    assert order == [
        (("a", "b"), False),
        (("a",), False),
        ((), False),
        (("a", "b"), True),
        (("a",), True),
        ((), False),
        ((), True),
    ]


# -- calls that came whole, free text, two loops -----------------------------------------------------------------------


@jumping
async def test_whole_call_one_delta() -> None:
    watch = Watch("content")
    calls = CallHooks(a_call(), watch.hooks)
    calls.complete(whole())
    assert (await calls.settled()).ready
    assert watch.seen == [("delta", 1, ARGS), ("field", "content", "one two", True), ("complete", ARGS)]


@jumping
async def test_whole_call_one_delta_of_free_text() -> None:
    hooks = Hooks()
    seen: list[Any] = []

    @hooks.on_args_delta
    async def delta(delta: ArgsDelta, signal: AbortSignal) -> None:
        seen.append((delta.text, delta.args))

    @hooks.on_field("$")
    async def field(field: FieldDelta, signal: AbortSignal) -> None:
        seen.append((field.text, field.value, field.complete))

    async def run(*pieces: str) -> list[Any]:
        seen.clear()
        calls = CallHooks(a_call(encoding="text"), hooks)
        for piece in pieces:
            calls.push(piece)
        calls.complete(a_call(encoding="text", args_json=json.dumps('say "hi"')))
        assert (await calls.settled()).ready
        return list(seen)

    assert await run() == [('say "hi"', 'say "hi"'), ('say "hi"', 'say "hi"', False), ("", 'say "hi"', True)]
    assert await run("say ", '"hi"') == [
        ("say ", "say "),
        ("say ", "say ", False),
        ('"hi"', 'say "hi"'),
        ('"hi"', 'say "hi"', False),
        ("", 'say "hi"', True),
    ]


@jumping
async def test_numbers_of_pieces_may_be_given() -> None:
    watch = Watch()
    calls = CallHooks(a_call(), watch.hooks)
    for number, piece in zip((4, 7, 8, 12), PIECES, strict=True):
        calls.push(piece, number)
    calls.complete(whole())
    await calls.settled()
    assert [entry[1] for entry in watch.seen if entry[0] == "delta"] == [4, 7, 8, 12]


@jumping
async def test_hooks_registered_later_are_not_of_this_call() -> None:
    watch = Watch()
    calls = CallHooks(a_call(), watch.hooks)
    watch.hooks.on_args_delta(watch.delta)
    calls.complete(whole())
    await calls.settled()
    assert watch.kinds == ["delta", "complete"]


@jumping
async def test_use_after_completion_is_refused() -> None:
    calls = CallHooks(a_call(), Watch().hooks)
    calls.complete(whole())
    with pytest.raises(UsageError, match="completed before"):
        calls.complete(whole())
    with pytest.raises(UsageError, match="cannot get more argument text"):
        calls.push("x")
    await calls.settled()


def test_settings_for_a_tool() -> None:
    @tool(hook_timeout=3, on_hook_error="fail_run")
    def strict() -> None: ...

    @tool
    def plain() -> None: ...

    settings = HookSettings(timeout=7, grace=2)
    assert settings.for_tool(strict) == HookSettings(timeout=3, grace=2, on_error="fail_run")
    assert settings.for_tool(plain) == settings


def test_two_event_loops() -> None:
    """One tool's hooks on two loops, one after the other and at once."""
    watch = Watch("content")
    lock = threading.Lock()
    texts: dict[str, list[str]] = {}
    together = threading.Barrier(2)

    @watch.hooks.on_args_delta
    async def collect(delta: ArgsDelta, signal: AbortSignal) -> None:
        await asyncio.sleep(0)
        with lock:
            texts.setdefault(delta.call_id, []).append(delta.text)

    async def stream(call_id: str) -> None:
        calls = CallHooks(a_call(call_id), watch.hooks)
        for piece in PIECES:
            calls.push(piece)
            await asyncio.sleep(0)
        calls.complete(whole(call_id))
        assert (await calls.settled()).ready
        assert calls.claim()

    def beside(call_id: str) -> None:
        together.wait(20)
        asyncio.run(stream(call_id))

    asyncio.run(stream("first"))
    asyncio.run(stream("second"))
    threads = [threading.Thread(target=beside, args=(call_id,)) for call_id in ("third", "fourth")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {call_id: "".join(pieces) for call_id, pieces in texts.items()} == dict.fromkeys(
        ("first", "second", "third", "fourth"), ARGS
    )
