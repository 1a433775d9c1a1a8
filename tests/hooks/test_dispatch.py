"""Order, and calls that came whole or are used from several loops."""

from __future__ import annotations

import asyncio
import contextvars
import json
import math
import threading
from typing import Any

import pytest

from callstream.calls import Call
from callstream.errors import UsageError
from callstream.hooks import CallHooks, HookSettings
from callstream.hooks.deltas import ArgsDelta, FieldDelta
from callstream.tools import AbortSignal, Hooks, tool
from tests.clock import jumping

from .watching import ARGS, PIECES, Gate, Watch, a_call, given_up, turns, whole, write_call

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
    calls = CallHooks(a_call(), hooks, HookSettings(merge_after=math.inf))
    write_call(calls)
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
