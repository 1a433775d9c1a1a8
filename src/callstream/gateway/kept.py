"""Answers that their clients left before the end, where every process on the same journal can find them.

Such an answer is a run of its own in the journal, in a thread that is named after its request and that no list shows. It has
the answer's bytes as soon as all of them are there, and is open until nobody may ask for it any more; so the journal itself
tells when the process died that was reading it. Who is asked the same claims it, once: a claim is a run, too, and the
journal lets nobody else start it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from callstream import Callstream
from callstream.errors import CallstreamError
from callstream.events import ResponseKept, RunEnded, RunStarted
from callstream.gateway.answers import Answer, AnswerBroken
from callstream.journal.rows import KEPT_THREAD, RunRow
from callstream.runtime.continuing import pack, unpack

logger = logging.getLogger("callstream.gateway")

_CLAIMED: Final = " claimed"
_STREAM: Final = "stream"
_KEEPING_SECONDS: Final = 10.0
"""How long a process that ends may take to write what clients may come back for."""


class KeptAnswers:
    """``window``: for how many seconds after its end an answer can be claimed."""

    def __init__(self, callstream: Callstream, window: float) -> None:
        self._journal = callstream.journal
        self._window = window
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._closing = asyncio.Event()

    @property
    def is_possible(self) -> bool:
        """Not where nothing outlives the process, nor where something is to be hidden in what is journaled."""
        return self._journal.is_persistent and not self._journal.redacts and self._window > 0

    def keep(self, answer: Answer) -> None:
        """Its last reader has left before the end."""
        if self.is_possible and answer.key is not None and answer.kept_as is None and not answer.has_failed:
            answer.times_kept += 1
            run_id = answer.kept_as = _run_id(answer.times_kept, answer.response_id, is_streamed=answer.is_streamed)
            task = self._keeping[run_id] = asyncio.create_task(self._keep(answer, run_id), name=f"callstream {run_id}")
            task.add_done_callback(lambda _: self._keeping.pop(run_id))

    async def _keep(self, answer: Answer, run_id: str) -> None:
        thread_id = _thread(answer.key)
        outcome = RunEnded("finished")
        try:
            await self._journal.append(run_id, [RunStarted(thread_id, answer.principal)])
            try:
                await answer.over()
                if answer.has_failed:
                    outcome = RunEnded("failed", "the answer broke off")
                elif not answer.was_delivered:
                    body = await asyncio.to_thread(pack, answer.content)
                    kept = ResponseKept(answer.key or "", answer.status, dict(answer.headers), body)
                    await self._journal.append(run_id, [kept])
                    await self._wait()
            finally:
                await self._journal.append(run_id, [outcome])
            if self._closing.is_set():
                return  # another process may be asked for it
            await self._journal.forget(thread=thread_id, principal=answer.principal, for_good=False)
        except CallstreamError as error:
            logger.warning("an answer could not be kept for a client that comes back: %s", error)

    async def _wait(self) -> None:
        """Until nobody may ask for the answer any more, or another process has to be asked."""
        try:
            async with asyncio.timeout(self._window):
                await self._closing.wait()
        except TimeoutError:
            pass

    async def is_claimed(self, answer: Answer) -> bool:
        """Whether another process has it."""
        return answer.kept_as is not None and bool(await self._journal.runs(run_id=f"{answer.kept_as}{_CLAIMED}"))

    async def claim(self, run_id: str, key: str, principal: str | None) -> bool:
        """Whether it is the caller's from now on, and nobody else's."""
        begun = RunStarted(_thread(key), principal)
        try:
            await self._journal.append(f"{run_id}{_CLAIMED}", [begun, RunEnded("finished")])
        except CallstreamError:
            return False
        return True

    async def find(self, key: str | None, principal: str | None) -> RunRow | None:
        """The oldest answer to such a request that can be claimed, and was not."""
        if key is None or not self.is_possible:
            return None
        rows = await self._journal.runs(thread_id=_thread(key))
        claimed = {row.run_id.removesuffix(_CLAIMED) for row in rows if row.run_id.endswith(_CLAIMED)}
        for row in reversed(rows):
            is_answer = not row.run_id.endswith(_CLAIMED) and row.run_id not in claimed
            is_late = row.ended_at is not None and row.ended_at + self._window < time.time()
            if is_answer and row.principal == principal and not is_late:
                return row
        return None

    async def find_named(self, response_id: str, principal: str | None) -> RunRow | None:
        """An answer by its id, for the credential that asked for it: the newest time that it was kept."""
        found: RunRow | None = None
        number = 1
        while self.is_possible:
            ids = [_run_id(number, response_id, is_streamed=is_streamed) for is_streamed in (True, False)]
            rows = [row for run_id in ids for row in await self._journal.runs(run_id=run_id)]
            if not rows or rows[0].principal != principal:
                break
            found, number = rows[0], number + 1
        return found

    async def read(self, answer: Answer, run_id: str) -> None:
        """Gives the answer what another process has read, or reads, of it."""
        try:
            async for record in self._journal.follow(run_id):
                if isinstance(record.event, ResponseKept):
                    body = await asyncio.to_thread(unpack, record.event.body)
                    answer.begin(record.event.status, [*record.event.headers.items()])
                    answer.append(body)
                    answer.end()
                    return
        except CallstreamError as error:
            logger.info("an answer that another process has kept could not be read: %s", error)
        finally:
            answer.end(AnswerBroken("the process that read the answer did not come to its end"))

    async def aclose(self) -> None:
        """What is over is kept, for the processes that are asked next."""
        self._closing.set()
        tasks = [*self._keeping.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=_KEEPING_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def answer_of(row: RunRow, key: str | None, linger: float) -> Answer:
    """An answer that another process has read, or reads, before anything of it is here."""
    _, number, response_id, form = row.run_id.split(" ")
    answer = Answer(response_id, key, row.principal, is_streamed=form == _STREAM, linger=linger)
    answer.times_kept = int(number)
    return answer


def _run_id(number: int, response_id: str, *, is_streamed: bool) -> str:
    return f"kept {number} {response_id} {_STREAM if is_streamed else 'whole'}"


def _thread(key: str | None) -> str:
    return f"{KEPT_THREAD}{key}"
