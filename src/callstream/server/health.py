"""Whether the server can work: whether it answers, takes runs, and has a journal that takes writes.

What clients see is what the journal has. While it takes nothing, a run cannot show anything, not even its end, so a
stream would stay open without a word. It is asked by writing to it, as long as a client waits. The log has it from the
journal itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callstream.errors import JournalError, UsageError
from callstream.journal import Journal
from callstream.journal.archive.objects import ArchiveAway
from callstream.journal.store import StoreAway
from callstream.runtime import Driver
from callstream.server.requests import Problem, json_response, problem_response, shutting_down

_T = TypeVar("_T")

_EVERY_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 1.5
JOURNAL_AWAY: Final = Problem(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "journal_away",
    "The journal is unavailable; try again later.",
    retry_after=5,
)


class JournalHealth:
    """``patience``: how many seconds the journal may refuse writes before streams that wait for it are notified."""

    def __init__(self, journal: Journal, patience: float) -> None:
        self._journal = journal
        self._patience = patience
        self._users = 0
        self._watch: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Task[Any]] = set()
        self._told: set[asyncio.Task[Any]] = set()
        self._failing_since: float | None = None

    @property
    def is_away(self) -> bool:
        """Whether the journal has refused writes for longer than it may."""
        since = self._failing_since
        return since is not None and asyncio.get_running_loop().time() - since >= self._patience

    async def check(self) -> bool:
        """Whether the journal takes a write now."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._journal.check()
        except (JournalError, TimeoutError):
            if self._failing_since is None:
                self._failing_since = asyncio.get_running_loop().time()
            return False
        self._failing_since = None
        return True

    def begin_use(self) -> None:
        """Has the journal asked every second, until ``end_use`` has been called as often."""
        self._users += 1
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._ask(), name="callstream journal health")

    def end_use(self) -> None:
        self._users -= 1

    async def guard(self, work: Awaitable[_T], *, grace: float = 0.0) -> _T:
        """Waits for the work. JournalError as soon as the journal is unavailable; then the work is cancelled.

        ``grace``: how many seconds the work gets where the journal is unavailable already. One that takes no writes may be
        readable all the same. Streams wait here for every delta, so it has to cost less than ``asyncio.timeout``.
        """
        if self.is_away:
            return await self._hurry(work, grace)
        task = asyncio.current_task()
        assert task is not None
        is_first = task not in self._waiting  # the work may be guarded in parts, too
        self._waiting.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            if task in self._told and not self._take_back(task):
                raise _JournalAway("the journal takes no writes") from None
            raise
        finally:
            if is_first:
                self._waiting.discard(task)
            if task in self._told:
                self._take_back(task)

    def _take_back(self, task: asyncio.Task[Any]) -> int:
        """The task has been cancelled to tell it. Returns how often it has been cancelled besides."""
        self._told.discard(task)
        return task.uncancel()

    async def _hurry(self, work: Awaitable[_T], seconds: float) -> _T:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if limit.expired():
                raise _JournalAway("the journal takes no writes") from None
            raise

    async def _ask(self) -> None:
        while self._users or self._failing_since is not None:
            await asyncio.sleep(min(_EVERY_SECONDS, self._patience / 2))
            try:
                is_well = await self.check()
            except UsageError:
                return  # the journal is closed, which ends all streams
            if not is_well and self.is_away:
                for task in self._waiting - self._told:
                    self._told.add(task)
                    task.cancel()

    async def aclose(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})


class _JournalAway(JournalError):
    """The journal has refused writes for too long."""


def is_in_log(error: JournalError) -> bool:
    """Whether the journal itself has a line in the log. Of an archive that is away it has none: appends do not need it."""
    return isinstance(error, _JournalAway | StoreAway) and not isinstance(error, ArchiveAway)


class HealthRoutes:
    """``/healthz``: the process answers. ``/readyz``: it can take a run, and its journal takes writes."""

    def __init__(self, driver: Driver, journal: JournalHealth) -> None:
        self._driver = driver
        self._journal = journal

    def routes(self) -> list[Route]:
        return [Route("/healthz", self.alive), Route("/readyz", self.ready)]

    async def alive(self, request: Request) -> Response:
        return json_response({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        if self._driver.is_draining:
            return problem_response(shutting_down())
        if not await self._journal.check():
            return problem_response(JOURNAL_AWAY)
        return json_response({"status": "ready"})
