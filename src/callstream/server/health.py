"""Whether the server can work: whether it answers, accepts runs, and has a journal that accepts writes.

Clients see only what is in the journal. While the journal accepts no writes, a run cannot show anything, not even its end,
so a stream would stay open and silent. As long as a client waits, the journal is therefore probed with writes. The journal
itself logs that it is unavailable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callstream.errors import JournalError, UsageError
from callstream.journal import Journal
from callstream.journal.archive.objects import ArchiveUnavailable
from callstream.journal.store import StoreUnavailable
from callstream.runtime import Driver
from callstream.server.requests import Problem, json_response, problem_response, shutting_down

_T = TypeVar("_T")
_Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

_EVERY_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 1.5
JOURNAL_UNAVAILABLE: Final = Problem(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "journal_away",
    "The journal is unavailable; try again later.",
    retry_after=5,
)


class JournalHealth:
    """``patience``: how many seconds the journal may refuse writes before streams that wait for it are broken off."""

    def __init__(self, journal: Journal, patience: float) -> None:
        self._journal = journal
        self._patience = patience
        self._users = 0
        self._watch: asyncio.Task[None] | None = None
        self._limits: set[asyncio.Timeout] = set()
        self._failing_since: float | None = None

    @property
    def is_unavailable(self) -> bool:
        """Whether the journal has refused writes for longer than ``patience``."""
        since = self._failing_since
        return since is not None and asyncio.get_running_loop().time() - since >= self._patience

    async def check(self) -> bool:
        """Whether the journal accepts a write now."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._journal.check()
        except (JournalError, TimeoutError):
            if self._failing_since is None:
                self._failing_since = asyncio.get_running_loop().time()
            return False
        self._failing_since = None
        return True

    def count_users(self, change: int) -> None:
        """Counts users of the journal; while there are any, it is probed every second."""
        self._users += change
        if self._users and (self._watch is None or self._watch.done()):
            self._watch = asyncio.create_task(self._ask(), name="callstream journal health")

    async def guard(self, work: Awaitable[_T], *, grace: float = 0.0) -> _T:
        """Waits for the work. As soon as the journal is unavailable, cancels the work and raises JournalError.

        ``grace``: how many seconds the work gets if the journal is unavailable already. A journal that accepts no writes may
        still be readable.
        """
        is_unavailable = self.is_unavailable
        limit = asyncio.timeout(grace if is_unavailable else None)
        try:
            async with limit:
                if not is_unavailable:
                    self._limits.add(limit)
                return await work
        except TimeoutError:
            if limit.expired():
                raise _JournalUnavailable("the journal takes no writes") from None
            raise
        finally:
            self._limits.discard(limit)

    def guarded(self, answer: _Endpoint, *, grace: float = 0.0) -> _Endpoint:
        """The same for the endpoint of a route. If its response is a stream, sending it later is not covered."""

        async def guarded(request: Request) -> Response:
            return await self.guard(answer(request), grace=grace)

        return guarded

    async def _ask(self) -> None:
        while self._users or self._failing_since is not None:
            await asyncio.sleep(min(_EVERY_SECONDS, self._patience / 2))
            try:
                is_well = await self.check()
            except UsageError:
                return  # the journal is closed, which ends all streams
            if not is_well and self.is_unavailable:
                now = asyncio.get_running_loop().time()
                while self._limits:
                    self._limits.pop().reschedule(now)

    async def aclose(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})


class _JournalUnavailable(JournalError):
    """The journal has refused writes for too long."""


def is_in_log(error: JournalError) -> bool:
    """Whether the journal has logged the error itself. It does not for an unavailable archive: appends do not need one."""
    return isinstance(error, _JournalUnavailable | StoreUnavailable) and not isinstance(error, ArchiveUnavailable)


class HealthRoutes:
    """``/healthz``: the process answers. ``/readyz``: it can take a run, and its journal accepts writes."""

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
            return problem_response(JOURNAL_UNAVAILABLE)
        return json_response({"status": "ready"})
