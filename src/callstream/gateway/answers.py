"""Answers that outlive their readers.

An answer is read from its upstream by a task of its own and kept as it came. Any number of clients may read it, each from
its own place on. When the last of them has left before the end, it is read on for a while; after that it is broken off.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence

from callstream.errors import CallstreamError


class AnswerBroken(CallstreamError):
    """The upstream broke an answer off, or it was not read any more."""


class Answer:
    """The bytes of one answer, as they come. ``key`` is that of the request, None if it can be compared with no other."""

    def __init__(
        self, response_id: str, key: str | None, principal: str | None, *, is_streamed: bool, linger: float
    ) -> None:
        self.response_id = response_id
        self.key = key
        self.principal = principal
        self.is_streamed = is_streamed
        self.status = 0
        self.headers: Sequence[tuple[str, str]] = ()
        self.size = 0
        self.readers = 0
        self.was_delivered = False
        self.ended_at: float | None = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self._linger = linger
        self._chunks: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._head: asyncio.Future[None] = self._loop.create_future()
        self._news = asyncio.Event()
        self._leaving: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    @property
    def can_be_claimed(self) -> bool:
        """Whether a client that asks the same may have it: the one that asked first has left without its end."""
        return (
            not self.was_delivered
            and not self.readers
            and self.error is None
            and (not self.status or self.status == 200)
        )

    # -- the upstream's side --

    def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self.status, self.headers = status, headers
        if not self._head.done():
            self._head.set_result(None)

    def append(self, data: bytes) -> None:
        self._chunks.append(data)
        self.size += len(data)
        self._wake()

    def end(self, error: BaseException | None = None) -> None:
        if self.is_over:
            return
        self.error = error
        self.ended_at = self._loop.time()
        if not self._head.done():
            self._head.set_exception(error if isinstance(error, CallstreamError) else _broken(error))
            self._head.exception()  # the client may have left
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # -- the client's side --

    async def head(self) -> None:
        """Waits until the answer has begun. Raises what came in its place."""
        await asyncio.shield(self._head)

    def enter(self) -> None:
        """A client reads from now on, or waits for the answer to begin."""
        self.readers += 1
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def leave(self) -> None:
        self.readers -= 1
        if not self.readers and not self.is_over and self._leaving is None:
            self._leaving = self._loop.call_later(self._linger, self.stop)

    def stop(self) -> None:
        """Breaks the answer off at its upstream."""
        if self.task is not None and not self.is_over:
            self.task.cancel()

    @property
    def media_type(self) -> str:
        return next(
            (value for name, value in self.headers if name.lower() == "content-type"), "application/octet-stream"
        )

    @property
    def content(self) -> bytes:
        """All that has come."""
        return b"".join(self._chunks)

    async def read(self, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """What came and what comes, from a byte on. AnswerBroken if it has no end."""
        number = 0
        while True:
            while number < len(self._chunks):
                data = self._chunks[number]
                number += 1
                if offset >= len(data):
                    offset -= len(data)
                    continue
                yield data[offset:] if offset else data
                offset = 0
            if self.is_over:
                break
            await self._news.wait()
        if self.error is not None:
            raise _broken(self.error)


def _broken(error: BaseException | None) -> AnswerBroken:
    broken = AnswerBroken(f"the answer broke off: {type(error).__name__}")
    broken.__cause__ = error
    return broken


class Answers:
    """The answers of one process: those under way, and those that a client may come back for."""

    def __init__(self, *, window: float, max_kept_bytes: int) -> None:
        self._window = window
        self._max_kept_bytes = max_kept_bytes
        self._answers: OrderedDict[str, Answer] = OrderedDict()

    def __len__(self) -> int:
        return sum(not answer.is_over for answer in self._answers.values())

    def add(self, answer: Answer) -> None:
        self._forget()
        self._answers[answer.response_id] = answer

    def find(self, response_id: str, principal: str | None) -> Answer | None:
        """An answer by its id, for the credential that asked for it."""
        self._forget()
        answer = self._answers.get(response_id)
        return answer if answer is not None and answer.principal == principal else None

    def claim(self, key: str | None) -> Answer | None:
        """The answer to an equal request whose client has left without the end of it. The oldest, where there are several.

        One with a reader is another's: people ask the same several times at once, and want several answers.
        """
        self._forget()
        if key is None:
            return None
        return next((each for each in self._answers.values() if each.key == key and each.can_be_claimed), None)

    async def aclose(self) -> None:
        tasks = [each.task for each in self._answers.values() if each.task is not None and not each.is_over]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self) -> None:
        now = asyncio.get_running_loop().time()
        for answer in [*self._answers.values()]:
            ended = answer.ended_at
            if ended is not None and not answer.readers and ended + self._window < now:
                del self._answers[answer.response_id]
        kept = sum(answer.size for answer in self._answers.values())
        for answer in [*self._answers.values()]:
            if kept <= self._max_kept_bytes:
                return
            if answer.is_over and not answer.readers:
                del self._answers[answer.response_id]
                kept -= answer.size
