"""Answers that outlive their readers.

An answer is read from its upstream by a task of its own and kept as it arrived. Any number of clients may read it, each from
its own position. If the last of them leaves before the end, reading continues for a while; then the answer is broken off.
``LiveAnswers`` holds those of this process. ``KeptAnswers`` stores answers whose clients left before the end, so that every
process on the same journal can find them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from callstream import Callstream
from callstream.errors import CallstreamError
from callstream.events import ResponseKept, RunEnded, RunStarted
from callstream.journal.rows import KEPT_THREAD, RunRow
from callstream.runtime.continuing import pack, unpack

logger = logging.getLogger("callstream.gateway")

Push: TypeAlias = Callable[[bytes], bool]
"""Sends a chunk straight to its reader, if that is possible now; returns whether it was."""


class AnswerBroken(CallstreamError):
    """The upstream broke an answer off, or the gateway stopped reading it."""


class WrongOffset(CallstreamError):
    """The client's fault: an answer cannot be read from that offset."""


class UpstreamRefused(CallstreamError):
    """The upstream has refused a request. Its reply went to the client and nowhere else: it may contain keys."""


class UpstreamFailed(CallstreamError):
    """The upstream could not be reached, or broke off. Where in the gateway the error surfaced does not matter."""


class Answer:
    """The bytes of one answer, as they arrive. ``key`` is that of the request, None if it cannot be compared with others."""

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
        """How many bytes a client has received, counted from the beginning."""
        self.is_given = False
        """Whether a client has received it in another form, or from another process."""
        self.ended_at: float | None = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.kept_as: str | None = None
        """The name under which other processes can find it; None if they cannot."""
        self.times_kept = 0
        self.on_left: Callable[[Answer], object] | None = None
        """Called when its last reader has left before the end, if it is over or is read further."""
        self.give_up: Callable[[Answer], object] = Answer.stop
        """Called when it was read for long enough without a reader."""
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
        """Whether a client has received all of it. Some leave at the last event, before the end of the body."""
        return self.is_given or (self.is_over and self.error is None and self.arrived >= self.size)

    @property
    def has_failed(self) -> bool:
        """Whether it failed, so that no client would come back for it."""
        return self.error is not None or self.status not in (0, 200)

    @property
    def can_be_claimed(self) -> bool:
        """Whether a client with the same request may have it: the first client has left without all of it."""
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
            place.notify(data)

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
            place.notify(None)

    # -- the client's side --

    async def head(self) -> None:
        """Waits until the answer has begun. Raises the error if there is one instead."""
        await asyncio.shield(self._head)

    async def over(self) -> None:
        """Waits until the answer has ended."""
        await self._over.wait()

    def enter(self) -> None:
        """From now on a client reads the answer, or waits for it to begin."""
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
        """Everything that has arrived."""
        return b"".join(self._chunks)

    def offset(self, text: str) -> int:
        """Parses the offset from which a client wants to read: that of a byte that has arrived, or of the next one."""
        digits = len(_token(0))
        offset = int(text) if text.isascii() and text.isdecimal() and len(text) <= digits else None
        if offset is None or offset > self.size:
            raise WrongOffset(
                f"expected an offset of at most {self.size} bytes, the length of this answer so far, got {text[:40]!r}"
            )
        return offset

    async def read(self, offset: int = 0, push: Push | None = None) -> AsyncGenerator[bytes, None]:
        """All chunks, past and future, from an offset on. Raises AnswerBroken if the answer broke off.

        A chunk that arrives while the reader waits is passed to ``push`` first, which saves waking a task; if ``push``
        accepts it (True), it is not yielded.
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
    """One reader's position in an answer: the ``number`` of the chunk that it gets next."""

    def __init__(self, push: Push | None) -> None:
        self._push = push
        self._can_push = False
        self._waiting: asyncio.Future[None] | None = None
        self.number = 0

    async def wait(self, *, can_push: bool) -> None:
        """Waits for a chunk that was not pushed, or for the end."""
        self._can_push = can_push
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def notify(self, data: bytes | None) -> None:
        """One more chunk has arrived; None: there will be no more."""
        waiting = self._waiting
        if waiting is None or waiting.done():
            return  # the reader is awake, and will find it
        if data is not None and self._can_push and self._push is not None and self._push(data):
            self.number += 1
        else:
            waiting.set_result(None)


def _broken(error: BaseException | None) -> AnswerBroken:
    broken = AnswerBroken(f"the answer broke off: {type(error).__name__}")
    broken.__cause__ = error
    return broken


async def _end(tasks: Sequence[asyncio.Task[None]], patience: float) -> None:
    """Gives the tasks ``patience`` seconds to finish, then cancels them."""
    if tasks:
        await asyncio.wait(tasks, timeout=patience)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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
        """The oldest answer to an equal request whose client has left without all of it.

        An answer that still has a reader is not shared: programs send the same request several times at once and want
        several answers.
        """
        self._forget()
        if key is None:
            return None
        return next((each for each in self._answers.values() if each.key == key and each.can_be_claimed), None)

    async def aclose(self, patience: float) -> None:
        """Gives the answers that are still being read from their upstreams ``patience`` seconds to finish."""
        await _end([each.task for each in self._answers.values() if each.task is not None], patience)

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


# -- answers that other processes can find -----------------------------------------------------------------------------
# Such an answer is a run of its own in the journal, in a thread that is named after its request and hidden from lists. The
# run has the answer's bytes as soon as all of them have arrived, and stays open until clients may no longer ask for it; so
# the journal itself notices if the process that reads the answer dies. A process that gets the same request claims the
# answer, which is possible only once: a claim is a run, too, and the journal does not let another process start it.


_CLAIMED: Final = " claimed"
_STREAM: Final = "stream"
_KEEPING_SECONDS: Final = 10.0
"""How long a process that shuts down may take to write answers that clients may come back for."""


class KeptAnswers:
    """``window``: for how many seconds after its end an answer can be claimed."""

    def __init__(self, callstream: Callstream, window: float) -> None:
        self._journal = callstream.journal
        self._window = window
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._closing = asyncio.Event()

    @property
    def is_possible(self) -> bool:
        """Not if the journal does not outlive the process, nor if it redacts what it stores."""
        return self._journal.is_persistent and not self._journal.redacts and self._window > 0

    def keep(self, answer: Answer) -> None:
        """Stores an answer whose last reader has left before the end."""
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
                    with suppress(TimeoutError):  # then clients may no longer ask for it; else another process answers
                        await asyncio.wait_for(self._closing.wait(), self._window)
            finally:
                await self._journal.append(run_id, [outcome])
            if self._closing.is_set():
                return  # clients may still ask another process for it
            await self._journal.forget(thread=thread_id, principal=answer.principal, for_good=False)
        except CallstreamError as error:
            logger.warning("an answer could not be kept for a client that comes back: %s", error)

    async def is_claimed(self, answer: Answer) -> bool:
        """Whether another process has it."""
        return answer.kept_as is not None and bool(await self._journal.runs(run_id=f"{answer.kept_as}{_CLAIMED}"))

    async def claim(self, run_id: str, key: str, principal: str | None) -> bool:
        """Claims an answer. Returns whether it now belongs to the caller alone."""
        begun = RunStarted(_thread(key), principal)
        try:
            await self._journal.append(f"{run_id}{_CLAIMED}", [begun, RunEnded("finished")])
        except CallstreamError:
            return False
        return True

    async def find(self, key: str | None, principal: str | None) -> RunRow | None:
        """The oldest answer to such a request that can still be claimed."""
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
        """An answer by its id, for the credential that asked for it; if it was kept several times, the newest."""
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
        """Fills the answer with what another process has read, or is still reading."""
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
            answer.end(AnswerBroken("the process that read the answer did not finish"))

    async def aclose(self) -> None:
        """Leaves finished answers in the journal for the processes that get the next requests."""
        self._closing.set()
        await _end([*self._keeping.values()], _KEEPING_SECONDS)


def answer_of(row: RunRow, key: str | None, linger: float) -> Answer:
    """An answer that another process has read, or is reading; still empty here."""
    _, number, response_id, form = row.run_id.split(" ")
    answer = Answer(response_id, key, row.principal, is_streamed=form == _STREAM, linger=linger)
    answer.times_kept = int(number)
    return answer


def _run_id(number: int, response_id: str, *, is_streamed: bool) -> str:
    return f"kept {number} {response_id} {_STREAM if is_streamed else 'whole'}"


def _thread(key: str | None) -> str:
    return f"{KEPT_THREAD}{key}"


# -- an answer as a Durable Stream: its bytes from an offset on, and whether more will come ----------------------------
# Read-only, as the protocol allows: catching up and long-polling. An answer that broke off has no end: after its last byte
# a reader gets a 502, since a stream that was merely closed would look complete.


_POLL_SECONDS: Final = 4.0
_PRIVATE: Final = {
    "cache-control": "private, no-store",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
}
_LATER: Final = {**_PRIVATE, "retry-after": "1"}
_ELSEWHERE: Final = "another process still reads this answer; try again"


async def read_durable(request: Request, answer: Answer) -> Response:
    """The answer's bytes from the offset in the query on."""
    if not answer.status:  # another process is reading it, or has read it
        await _wait(answer)
    if not answer.status:
        return _broke_off(answer) if answer.is_over else Response(_ELSEWHERE, 503, _LATER, "text/plain")
    named = request.query_params.get("offset", "-1")
    try:
        offset = 0 if named == "-1" else answer.size if named == "now" else answer.offset(named)
    except WrongOffset as error:
        return Response(str(error), 400, _PRIVATE, "text/plain")
    if request.query_params.get("live") == "long-poll" and offset == answer.size and not answer.is_over:
        await _wait(answer)
        if offset == answer.size and not answer.is_over:
            return Response(None, 204, _headers(answer))
    data = answer.content[offset:]
    if not data and answer.error is not None:
        return _broke_off(answer)
    return Response(b"" if request.method == "HEAD" else data, 200, _headers(answer), answer.media_type)


def _broke_off(answer: Answer) -> Response:
    headers = {**_PRIVATE, "stream-next-offset": _token(answer.size)}
    return Response("the answer broke off", 502, headers, "text/plain")


async def _wait(answer: Answer) -> None:
    with suppress(TimeoutError, AnswerBroken):
        async with asyncio.timeout(_POLL_SECONDS):
            async for _ in answer.read(answer.size):
                return


def _token(size: int) -> str:
    return f"{size:020d}"


def _headers(answer: Answer) -> dict[str, str]:
    headers = {**_PRIVATE, "stream-next-offset": _token(answer.size), "stream-up-to-date": "true"}
    if answer.is_over and answer.error is None:
        headers["stream-closed"] = "true"
    return headers
