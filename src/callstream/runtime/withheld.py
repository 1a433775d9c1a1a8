"""A response that nobody may see yet: its host shows what the application has made of it.

It is decoded, collapsed and checked like any other, so that no tool runs on arguments that are unfinished or do not fit.
But nothing of it is journaled, and no hook hears of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import get_args

from callstream.calls import Call, CallEvent, Ledger
from callstream.errors import CallRejected, RunOver, TransitionError
from callstream.events import RunEvent, RunOutcome
from callstream.runtime.barrier import rejection
from callstream.runtime.core import RunCore
from callstream.runtime.log import EventsThen, Then

_CALL_EVENTS = get_args(CallEvent)


class WithheldRun:
    """Stands in for a run where such a response is read: a ``ReadingRun`` with a ledger of its own."""

    def __init__(self, run: RunCore) -> None:
        self._run = run
        self._ledger = Ledger()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._run.loop

    @property
    def run_id(self) -> str:
        return self._run.run_id

    @property
    def outcome(self) -> RunOutcome | None:
        return self._run.outcome

    @property
    def calls(self) -> list[Call]:
        return list(self._ledger)

    def call(self, call_id: str) -> Call:
        return self._ledger[call_id]

    @property
    def schedule(self) -> Callable[[Callable[[], object]], None]:
        return self._run.schedule

    def name_call(self, wanted: str) -> str:
        return self._ledger.name_for(wanted)

    async def is_free(self, call_id: str) -> bool:
        return True

    async def free_call_id(self, wanted: str) -> str:
        return self._ledger.name_for(wanted)

    def submit(
        self,
        events: Sequence[RunEvent] | EventsThen,
        then: Then,
        *,
        response_id: str | None = None,
        author: str | None = None,
        context: Context | None = None,
    ) -> None:
        error: Exception | None = None
        try:
            for event in events() if callable(events) else events:
                if isinstance(event, _CALL_EVENTS):
                    self._ledger.apply(event)
        except TransitionError as raised:
            error = raised
        self.loop.call_soon(then, error)

    async def settled(self, call_id: str) -> Call:
        return self._ledger[call_id]

    def rejection(self, call_id: str) -> CallRejected | RunOver:
        return rejection(self._ledger[call_id], None)

    def on_stop(self, callback: Callable[[str], object]) -> Callable[[], None]:
        return self._run.on_stop(callback)
