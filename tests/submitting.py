"""Journals that are slow, or refuse: what takes the place of ``Journal.append`` takes that of ``submit`` too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from callstream import Journal
from callstream.events import RunEvent
from callstream.journal import Entry

_in_append: ContextVar[bool] = ContextVar("in_append", default=False)
"""Set where the function runs: the journal's own ``append`` submits, which is to be the real thing there."""


def replace_append(patch: pytest.MonkeyPatch, journal: Journal, append: Callable[..., Awaitable[int]]) -> None:
    """Has everything appended by this function. It may call the journal's own ``append``, if it got hold of that before."""
    tasks: set[asyncio.Task[None]] = set()
    real_submit = journal.submit

    async def appended(*args: Any, **kwargs: Any) -> int:
        token = _in_append.set(True)
        try:
            return await append(*args, **kwargs)
        finally:
            _in_append.reset(token)

    def submit(
        run_id: str,
        events: Sequence[RunEvent],
        then: Callable[[int | Exception], None],
        *,
        after: int | None = None,
        response_id: str | None = None,
        author: str | None = None,
    ) -> None:
        if _in_append.get():
            real_submit(run_id, events, then, after=after, response_id=response_id, author=author)
            return
        entries = [Entry(event, response_id, author) for event in events]

        async def append_and_call() -> None:
            try:
                outcome: int | Exception = await appended(run_id, entries, after=after)
            except Exception as error:  # noqa: BLE001
                outcome = error
            then(outcome)

        task = asyncio.get_running_loop().create_task(append_and_call())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    patch.setattr(journal, "append", appended)
    patch.setattr(journal, "submit", submit)
