"""Calls whose hooks write down what they see."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from callstream.calls import Call, CallState, opened
from callstream.events import CallStarted
from callstream.hooks import CallHooks
from callstream.hooks.deltas import ArgsDelta, FieldDelta
from callstream.tools import AbortSignal, Hooks

ARGS = '{"title":"Tea","content":"one two"}'


PIECES = ['{"title":"T', 'ea","content":"one', " two", '"}']


def a_call(call_id: str = "c1", **fields: Any) -> Call:
    return msgspec.structs.replace(opened(CallStarted(call_id, "write")), **fields)


def whole(call_id: str = "c1", args: str = ARGS) -> Call:
    return a_call(call_id, state=CallState.ARGS_COMPLETE, args_json=args)


def write_call(calls: CallHooks) -> None:
    """The model writes all of a call's arguments, piece by piece."""
    for piece in PIECES:
        calls.push(piece)
    calls.complete(whole())


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
