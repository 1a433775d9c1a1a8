"""How many streams there are, and how many there may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from callstream.server.problems import Problem
from callstream.server.settings import ServerSettings

_RETRY_SECONDS = 5


class Seats:
    """A seat is taken before a stream's run is begun, so that requests that come together cannot all find the last one.

    ``on_change`` is told of every one more and one less.
    """

    def __init__(self, settings: ServerSettings, on_change: Callable[[int], None]) -> None:
        self._most = settings.max_streams
        self._most_of_one = settings.max_streams_per_principal
        self._on_change = on_change
        self._taken: Counter[str | None] = Counter()

    @contextmanager
    def one(self, principal: str | None) -> Iterator[None]:
        most = self._most_of_one if principal is not None else None
        if most is not None and self._taken[principal] >= most:
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too_many_streams",
                f"You already have {most} open streams; try again when one has ended.",
                retry_after=_RETRY_SECONDS,
            )
        if self._most is not None and self._taken.total() >= self._most:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too_many_streams",
                f"The server already has {self._most} open streams; try again later.",
                retry_after=_RETRY_SECONDS,
            )
        self._taken[principal] += 1
        self._on_change(1)
        try:
            yield
        finally:
            self._taken[principal] -= 1
            if not self._taken[principal]:
                del self._taken[principal]
            self._on_change(-1)
