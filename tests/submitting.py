"""Journals that are slow, or refuse: what takes the place of ``Journal.append`` takes that of ``submit`` too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from callstream import Journal
from callstream.events import RunEvent
from callstream.journal import Entry


def replace_append(patch: pytest.MonkeyPatch, journal: Journal, append: Callable[..., Awaitable[int]]) -> None:
    """Has everything appended by this function. It may call the journal's own ``append``, if it got hold of that before."""
    tasks: set[asyncio.Task[None]] = set()

    def submit(
        run_id: str,
        events: Sequence[RunEvent],
        then: Callable[[int | Exception], None],
        *,
        after: int | None = None,
        response_id: str | None = None,
        author: str | None = None,
    ) -> None:
        entries = [Entry(event, response_id, author) for event in events]

        async def append_and_call() -> None:
            try:
                outcome: int | Exception = await append(run_id, entries, after=after)
            except Exception as error:  # noqa: BLE001
                outcome = error
            then(outcome)

        task = asyncio.get_running_loop().create_task(append_and_call())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    patch.setattr(journal, "append", append)
    patch.setattr(journal, "submit", submit)
