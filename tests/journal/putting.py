"""An append in a queue, as something that can be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from callstream.journal.queue import AppendQueue
from callstream.journal.rows import Row


def put(queue: AppendQueue, run_id: str, rows: Sequence[Row], after: int | None) -> asyncio.Future[int]:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def resolve(outcome: int | Exception) -> None:
        if done.done():
            return
        if isinstance(outcome, int):
            done.set_result(outcome)
        else:
            done.set_exception(outcome)

    queue.submit(run_id, rows, after, resolve)
    return done
