"""How many streams there are, and how many there may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from callstream.server.problems import Problem


class Seats:
    """A seat is taken before a stream's run is begun, so that requests that come together cannot all find the last one.

    ``on_change`` is told of every one more and one less.
    """

    def __init__(self, most: int | None, on_change: Callable[[int], None]) -> None:
        self._most = most
        self._on_change = on_change
        self.taken = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        if self._most is not None and self.taken >= self._most:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too_many_streams",
                f"There are {self._most} streams already; ask again later.",
                retry_after=5,
            )
        self.taken += 1
        self._on_change(1)
        try:
            yield
        finally:
            self.taken -= 1
            self._on_change(-1)
