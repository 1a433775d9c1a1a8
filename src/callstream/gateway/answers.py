"""Answers that outlive their readers.

An answer is read from its upstream by a task of its own and kept as it came. Any number of clients may read it, each from
its own place on. When the last of them has left before the end, it is read on for a while; after that it is broken off.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from callstream.errors import CallstreamError

Push: TypeAlias = Callable[[bytes], bool]
"""Takes a chunk for its reader at once, if that is possible."""


class AnswerBroken(CallstreamError):
    """The upstream broke an answer off, or it was not read any more."""


class UpstreamRefused(CallstreamError):
    """The upstream has refused a request. What it said went to the client and nowhere else: keys can be in it."""


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
        self.arrived = 0
        """How much of it a client has got, from its beginning on."""
        self.is_given = False
        """Whether a client has got it in another form, or elsewhere."""
        self.ended_at: float | None = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.kept_as: str | None = None
        """Under which name other processes find it, if they do."""
        self.times_kept = 0
        self.on_left: Callable[[Answer], object] | None = None
        """Is called when its last reader has left before the end, and it is read on or over."""
        self.give_up: Callable[[Answer], object] = Answer.stop
        """Is called when it was read on for long enough."""
        self._linger = linger
        self._chunks: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._head: asyncio.Future[None] = self._loop.create_future()
        self._over = asyncio.Event()
        self._places: set[_Place] = set()
        self._leaving: asyncio.TimerHandle | None = None

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    @property
    def was_delivered(self) -> bool:
        """Whether a client has got all of it. Some leave at the last event, before the end of the body."""
        return self.is_given or (self.is_over and self.error is None and self.arrived >= self.size)

    @property
    def has_failed(self) -> bool:
        """Whether it is nothing that a client would come back for."""
        return self.error is not None or self.status not in (0, 200)

    @property
    def can_be_claimed(self) -> bool:
        """Whether a client that asks the same may have it: the one that asked first has left without its end."""
        return not self.was_delivered and not self.readers and not self.has_failed

    # -- the upstream's side --

    def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        self.status, self.headers = status, headers
        if not self._head.done():
            self._head.set_result(None)

    def append(self, data: bytes) -> None:
        self._chunks.append(data)
        self.size += len(data)
        for place in self._places:
            place.tell(data)

    def end(self, error: BaseException | None = None) -> None:
        if self.is_over:
            return
        self.error = error
        self.ended_at = self._loop.time()
        if not self._head.done():
            self._head.set_exception(error if isinstance(error, CallstreamError) else _broken(error))
            self._head.exception()  # the client may have left
        self._over.set()
        for place in self._places:
            place.tell(None)

    # -- the client's side --

    async def head(self) -> None:
        """Waits until the answer has begun. Raises what came in its place."""
        await asyncio.shield(self._head)

    async def over(self) -> None:
        """Waits until no more of it comes."""
        await self._over.wait()

    def enter(self) -> None:
        """A client reads from now on, or waits for the answer to begin."""
        self.readers += 1
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def leave(self) -> None:
        self.readers -= 1
        if self.readers:
            return
        if not self.is_over and self._leaving is None:
            self._leaving = self._loop.call_later(self._linger, self.give_up, self)
        if self.on_left is not None and not self.was_delivered and (self.is_over or self._linger):
            self.on_left(self)

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

    async def read(self, offset: int = 0, push: Push | None = None) -> AsyncGenerator[bytes, None]:
        """What came and what comes, from a byte on. AnswerBroken if it has no end.

        What comes while the reader waits is given to ``push`` first, which spares waking a task; what it accepts (True) is
        not given again.
        """
        place = _Place(push)
        self._places.add(place)
        try:
            while True:
                while place.number < len(self._chunks):
                    data = self._chunks[place.number]
                    place.number += 1
                    if offset >= len(data):
                        offset -= len(data)
                        continue
                    yield data[offset:] if offset else data
                    offset = 0
                if self.is_over:
                    break
                await place.wait(can_push=not offset)
        finally:
            self._places.discard(place)
        if self.error is not None:
            raise _broken(self.error)


class _Place:
    """Where one reader is in an answer: the ``number`` of the chunk that it gets next."""

    def __init__(self, push: Push | None) -> None:
        self._push = push
        self._can_push = False
        self._waiting: asyncio.Future[None] | None = None
        self.number = 0

    async def wait(self, *, can_push: bool) -> None:
        """Until there is something that was not pushed, or the end."""
        self._can_push = can_push
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def tell(self, data: bytes | None) -> None:
        """One more chunk is there; None: no more will be."""
        waiting = self._waiting
        if waiting is None or waiting.done():
            return  # it is on its way, and will see
        if data is not None and self._can_push and self._push is not None and self._push(data):
            self.number += 1
        else:
            waiting.set_result(None)


def _broken(error: BaseException | None) -> AnswerBroken:
    broken = AnswerBroken(f"the answer broke off: {type(error).__name__}")
    broken.__cause__ = error
    return broken


class LiveAnswers:
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

    async def aclose(self, patience: float) -> None:
        """Lets those that are read, or read on, come to their end, for so many seconds."""
        waiting = [asyncio.ensure_future(each.over()) for each in self._answers.values() if not each.is_over]
        if waiting:
            await asyncio.wait(waiting, timeout=patience)
        for task in waiting:
            task.cancel()
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


# -- an answer as a Durable Stream: its bytes from an offset on, and whether more will come ----------------------------
# Read-only, as the protocol allows: catching up and long-polling. An answer that broke off has no end; a reader is told so
# by a 502 behind its last byte, since a stream that is merely closed would look whole.


_POLL_SECONDS: Final = 4.0
_PRIVATE: Final = {
    "cache-control": "private, no-store",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}


async def read_durable(request: Request, answer: Answer) -> Response:
    """The answer's bytes from the offset in the query on."""
    offset = _offset(request.query_params.get("offset", "-1"), answer)
    if offset is None or offset > answer.size:
        return Response("expected an offset that this stream has given", 400, _PRIVATE, "text/plain")
    if request.query_params.get("live") == "long-poll" and offset == answer.size and not answer.is_over:
        await _wait(answer)
        if offset == answer.size and not answer.is_over:
            return Response(None, 204, _headers(answer))
    data = answer.content[offset:]
    if not data and answer.error is not None:
        return Response(
            "the answer broke off", 502, {**_PRIVATE, "stream-next-offset": _token(answer.size)}, "text/plain"
        )
    return Response(b"" if request.method == "HEAD" else data, 200, _headers(answer), answer.media_type)


async def _wait(answer: Answer) -> None:
    try:
        async with asyncio.timeout(_POLL_SECONDS):
            async for _ in answer.read(answer.size):
                return
    except (TimeoutError, AnswerBroken):
        pass


def _offset(text: str, answer: Answer) -> int | None:
    if text == "-1":
        return 0
    if text == "now":
        return answer.size
    return int(text) if text.isdecimal() and text.isascii() else None


def _token(size: int) -> str:
    return f"{size:020d}"


def _headers(answer: Answer) -> dict[str, str]:
    headers = {**_PRIVATE, "stream-next-offset": _token(answer.size), "stream-up-to-date": "true"}
    if answer.is_over and answer.error is None:
        headers["stream-closed"] = "true"
    return headers
