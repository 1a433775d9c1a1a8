"""Hooks that raise, and argument text that is malformed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callstream.calls import Call, CallState
from callstream.errors import JournalError, Reject, WireError
from callstream.hooks import CallHooks, HookSettings, Outcome
from callstream.hooks.deltas import ArgsDelta, FieldDelta
from callstream.jsontext.stream import JsonStream
from callstream.tools import AbortSignal, Hooks
from tests.clock import jumping

from .watching import ARGS, PIECES, Watch, a_call, given_up, turns, whole, write_call


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
    write_call(calls)
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
