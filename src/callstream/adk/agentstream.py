"""What ``ADKAgent.run`` yields: a run that is begun, and followed in the journal to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeAlias

from callstream.adk.presentation import Presentation, ShownEvent
from callstream.agui import AguiEvent, Translator
from callstream.agui.events import RunError
from callstream.agui.messages import Metadata
from callstream.errors import AnswerRefused, CallstreamError, JournalError, TooMany
from callstream.events import Record, RunEnded
from callstream.journal import Journal
from callstream.runtime import Driver

logger = logging.getLogger("callstream")

_LAST_RECORD_SECONDS = 1.0
"""How long a record may take that was written before the journal failed."""

EventBatches: TypeAlias = AsyncGenerator[tuple[list[ShownEvent], int | None], None]
"""The events of each record, with its number; None for those that are of no record."""


class AgentStream:
    """The events of one run. ``snapshot`` gives the last event before the run's end, if there is to be one."""

    def __init__(
        self,
        journal: Journal,
        driver: Driver,
        translator: Translator,
        presentation: Presentation,
        snapshot: Callable[[], Awaitable[AguiEvent]] | None,
    ) -> None:
        self._journal = journal
        self._driver = driver
        self._translator = translator
        self._presentation = presentation
        self._snapshot = snapshot

    async def batches(self, thread_id: str, begin: Callable[[], Awaitable[str]]) -> EventBatches:
        """Whoever iterates this owns the run: closing it stops the run."""
        try:
            run_id = await begin()
        except TooMany as full:
            yield _refusal("too_many_runs", f"There are {full.most} runs already; try again later.")
            return
        except AnswerRefused as refused:
            yield _refusal("answer_refused", str(refused))
            return
        except CallstreamError:
            logger.exception("a run of thread %s could not be started", thread_id)
            yield _refusal("failed", "The run could not be started.")
            return
        async with self._driver.watch(run_id) as task:
            try:
                async with aclosing(self._journal.follow(run_id)) as records:  # type: ignore[type-var]
                    while (record := await _next(records, task)) is not None:
                        yield self._presentation.show(await self._translate(record)), record.seq
            except JournalError:
                # A stream that merely stops looks like success.
                yield self._presentation.show(self._translator.end()), None
                raise
            if task is not None:
                await asyncio.wait({task})

    async def _translate(self, record: Record) -> list[AguiEvent]:
        events = self._translator.feed(record)
        if isinstance(record.event, RunEnded) and self._snapshot is not None:
            events.insert(-1, await self._snapshot())
        return events


def _refusal(code: str, message: str) -> tuple[list[ShownEvent], None]:
    return [RunError(message=message, code=code, metadata=Metadata(0))], None


async def _next(records: AsyncIterator[Record], task: asyncio.Task[None] | None) -> Record | None:
    """The next record of a run. JournalError if the journal has not taken the run's end, so that none can come."""
    if task is None:
        return await anext(records, None)
    limit = asyncio.timeout(None)

    def give_up(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and isinstance(done.exception(), JournalError):
            limit.reschedule(asyncio.get_running_loop().time() + _LAST_RECORD_SECONDS)

    try:
        async with limit:
            task.add_done_callback(give_up)
            return await anext(records, None)
    except TimeoutError:
        raise JournalError("the journal did not take the end of the run") from None
    finally:
        task.remove_done_callback(give_up)
