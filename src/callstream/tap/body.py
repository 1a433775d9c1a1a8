"""The body of a response on its way through the tap.

The provider's bytes are taken in as they come, at the provider's pace. They are cut, decoded and collapsed. Their events
are recorded first; only then are bytes released to the SDK. There is one path, in plain calls:

    _Inbox ─▶ _step ─▶ (journal) ─▶ _recorded ─▶ _let_out ─▶ _Outbox
                ▲                                   │
                └───────────────────────────────────┘

One record is under way at a time. Bytes that come meanwhile are read together by the next step: the faster deltas come, the
more of them share a write. If nothing is being written, the next step is scheduled with ``Run.schedule``: at once if no
other run is writing, otherwise with the next batch. After outputs were let out the next step waits for one turn of the
loop, so that the SDK sees frames one by one: frameworks share objects between the events that they make of two frames.

Bytes that may leave wait in order for the SDK, and a whole call waits for its hooks. So a slow hook of a call holds back the
bytes after that call, never another call's hooks, and reading only when those bytes are too many. A host that itself waits
for each call's hooks before it runs the tool gets calls at once: there a tool does not wait for another call's hooks either.
Reading stops only while more than ``max_held`` bytes are here: those not decoded yet plus those that wait for the SDK.
While a call is held, the wire's own sign of life is sent every few seconds, so that no idle limit fires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Sequence,
)
from enum import Enum, IntEnum, auto
from functools import partial
from itertools import takewhile
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from callstream.calls import Call, CallState
from callstream.errors import RunOver, WireError
from callstream.events import Kept, WireEvent
from callstream.runtime import Response
from callstream.runtime.continuing import KeptBody
from callstream.runtime.log import wait_until_done
from callstream.waits import Flag
from callstream.wire.collapsing import Collapser, Read
from callstream.wire.slots import Output

logger = logging.getLogger("callstream")

_TURNS_BEFORE_END = 6
"""Turns of the event loop between the last bytes that the SDK gets and the end. google-adk turns the end into an event that
shares an object with the partial ones before it, and its application, which reads events from queues, must see those first.
"""

OnEnd: TypeAlias = Callable[[BaseException | None], Awaitable[None]]
"""Called when a response has been read, with the error that broke it off, if any. May be called twice."""
Drop: TypeAlias = Callable[[bytes, Collection[str]], bytes]
"""Removes the calls with these wire ids from whole frames."""


@runtime_checkable
class Delivering(Protocol):
    """A stream that can push, so that no task has to be woken for new bytes."""

    def deliver_to(self, push: Callable[[bytes], bool]) -> None:
        """Passes bytes that come while the stream is being awaited to ``push``; those that it refuses are yielded."""


@runtime_checkable
class Announcing(Protocol):
    """A source that keeps new bytes until they are taken, so that many deltas can be processed together."""

    def announce_to(self, announce: Callable[[], object]) -> None:
        """Has ``announce`` called when there are bytes to take, instead of waking the task that iterates."""

    def pop(self) -> bytes:
        """The bytes that have come, if any."""
        ...


class Limits(msgspec.Struct, frozen=True):
    """``max_held``: bytes that may wait here, on both sides, before reading stops. ``keep_alive_every``: seconds.

    ``max_whole``: bytes of an answer that is not streamed, after its Content-Encoding was decoded.
    """

    max_held: int = 8 * 1024 * 1024
    max_whole: int = 64 * 1024 * 1024
    keep_alive_every: float = 5.0


class _Inbox:
    """The bytes that the source has brought and no step has read yet.

    A source that announces keeps its bytes until they are taken, and no task is woken for them. Any other source is
    iterated, and so are the bytes that an announcing source already has.
    """

    def __init__(self, source: AsyncIterable[bytes], notify: Callable[[], object]) -> None:
        self._source = source
        self._announced = source if isinstance(source, Announcing) else None
        self._notify = notify
        self._parts: list[bytes] = []
        self._is_closed = False
        self.has_more = False
        """Whether the source has announced bytes that were not taken yet."""
        self.held = 0
        """The number of bytes here."""
        self.room = Flag()
        """Set when bytes have left, on either side of the body."""
        self.error: Exception | None = None
        """The error that broke the source: raised when everything that came before has been read."""

    def __bool__(self) -> bool:
        return bool(self._parts)

    async def read(self, is_full: Callable[[], bool]) -> None:
        """Reads the source to its end."""
        if self._announced is not None:
            self._announced.announce_to(self._hear)
        try:
            async for data in self._source:
                self._put(data)
                del data  # else it would stay here until more comes this way
                self._notify()
                while is_full():
                    self.room.clear()
                    await self.room.wait()
        except Exception as error:  # noqa: BLE001  # raised where the SDK reads
            self.error = error

    def _hear(self) -> None:
        if not self._is_closed:
            self.has_more = True
            self._notify()

    def _put(self, data: bytes) -> None:
        if data and not self._is_closed:
            self._parts.append(data)
            self.held += len(data)

    def keep_announced(self) -> None:
        """Moves here what the source has announced, so that the provider need not wait."""
        self._put(self._pop_announced())

    def pop(self, *, takes: bool) -> bytes:
        """All bytes here, and with ``takes`` also those that the source has announced."""
        data = b""
        if self._parts:
            data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts.clear()
            self.held = 0
            self.room.set()
        return data + self._pop_announced() if takes else data

    def _pop_announced(self) -> bytes:
        if not self.has_more or self._announced is None:
            return b""
        self.has_more = False
        return self._announced.pop()

    def close(self) -> None:
        """Drops what is here, and anything that still comes."""
        self.pop(takes=False)
        self._is_closed = True
        self.has_more = False


class _Outbox:
    """The outputs that are recorded and wait, in order, for the SDK."""

    def __init__(self) -> None:
        self._outputs: list[Output] = []
        self._news = Flag()
        self._is_awaited = False  # the SDK waits for news
        self.push: Callable[[bytes], bool] | None = None
        """See ``Delivering``."""
        self.held = 0
        """The number of bytes that the SDK has not got yet, including those popped last."""

    def __bool__(self) -> bool:
        return bool(self._outputs)

    def put(self, outputs: Sequence[Output]) -> None:
        if outputs and not self._is_pushed(outputs):
            self._outputs += outputs
            self.held += sum(len(output.data) for output in outputs)
            self._news.set()

    def _is_pushed(self, outputs: Sequence[Output]) -> bool:
        """Whether a waiting reader has got them without being woken."""
        if self.push is None or not self._is_awaited or self._outputs or self._news.is_set():
            return False
        for output in outputs:
            if output.call_ids:
                return False  # they wait for hooks
        return self.push(outputs[0].data if len(outputs) == 1 else b"".join([output.data for output in outputs]))

    def pop(self) -> Output:
        """The next output. Its bytes count until they are freed."""
        return self._outputs.pop(0)

    def pop_free(self) -> list[Output]:
        """The outputs at the front that wait for no hook."""
        free = list(takewhile(lambda output: not output.call_ids, self._outputs))
        del self._outputs[: len(free)]
        return free

    def clear(self) -> None:
        self.free(self._outputs)
        self._outputs.clear()

    def free(self, outputs: Iterable[Output]) -> None:
        """No longer counts these outputs: their bytes have left, or never will."""
        self.held -= sum(len(output.data) for output in outputs)

    def notify(self) -> None:
        """Wakes the SDK: nothing more may come."""
        self._news.set()

    async def wait(self, seconds: float, is_over: Callable[[], bool]) -> bool:
        """Waits for an output, or until it is over, for a while. False if neither came."""
        self._news.clear()
        if self._outputs or is_over():
            return True
        timer = asyncio.get_running_loop().call_later(seconds, self._news.set)
        self._is_awaited = True
        try:
            await self._news.wait()
        finally:
            self._is_awaited = False
            timer.cancel()
        return bool(self._outputs) or is_over()


class _Stage(IntEnum):
    """How far a body has come. It never goes back."""

    NEW = auto()  # its task has not begun
    READING = auto()
    ENDING = auto()  # the source has ended; the rest is being read
    LAST = auto()  # the end of the response is being recorded
    OVER = auto()  # nothing more is recorded, except the end of open calls


class _Turn(Enum):
    """What becomes of new bytes."""

    NONE = auto()  # they schedule a step
    DUE = auto()  # a step is scheduled already
    RECORDING = auto()  # the next step follows when the record is written


def unjudged(why: str) -> WireError:
    """The error instead of an answer that a program may only get when guards have judged it."""
    return WireError(f"no guard can read it: {why}")


class TappedBody:
    """Reads one streamed response. Made on the loop of the request, where reading begins at once, in a task of its own:
    that reads the source, waits until everything is recorded, and cleans up, however the response ends.
    """

    def __init__(
        self,
        source: AsyncIterable[bytes],
        close_source: Callable[[], Awaitable[None]],
        response: Response,
        collapser: Collapser[Any],
        *,
        forwards_rejected: bool = False,
        waits_for_hooks: bool = True,
        limits: Limits | None = None,
        on_end: OnEnd | None = None,
        kept: KeptBody | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._close_source = close_source
        self._response = response
        self._schedule_in_run = response.run.schedule
        self.collapser = collapser
        self._forwards_rejected = forwards_rejected
        self._waits_for_hooks = waits_for_hooks
        self.drop: Drop | None = None
        """Removes calls that hooks reject from what is forwarded, instead of raising."""
        self.was_cut = False
        """Whether it was not read to its end, because the rest was of no use."""
        self.limits = limits or Limits()
        self._on_end = on_end
        self._kept = kept
        self._inbox = _Inbox(source, self._bytes_came)
        self._outbox = _Outbox()
        self._stage = _Stage.NEW
        self._turn = _Turn.NONE
        self._complete = Flag()  # everything is recorded, including the end
        self._error: Exception | None = None
        self._is_judging = False  # hooks decide whether the SDK gets the next output
        self._undo_stop = response.run.on_stop(self._stopped)
        self._undo_failure = response.run.on_failure(self._fail)  # the provider may not send anything more
        self._reading = asyncio.create_task(self._read(), name=f"callstream reader of {response.response_id}")
        self._reading.add_done_callback(lambda reading: self._outbox.notify())

    def deliver_to(self, push: Callable[[bytes], bool]) -> None:
        """See ``Delivering``: for a reader for which waking a task for each delta costs too much."""
        self._outbox.push = push

    async def chunks(self, reader: object = None) -> AsyncGenerator[bytes, None]:
        """What the SDK reads through ``reader``, which is referenced until everything has been read."""
        try:
            while True:
                while not self._outbox:
                    if self._reading.done():
                        if self._error is not None:
                            raise self._error
                        for _ in range(_TURNS_BEFORE_END):
                            await asyncio.sleep(0)
                        return
                    if not await self._woken() and self.collapser.is_holding:
                        yield self.collapser.keep_alive
                output = self._outbox.pop()
                rejected: list[str] = []
                self._is_judging = True
                for local_id in output.call_ids if self._waits_for_hooks else ():
                    call_id = self._response.call_ids[local_id]
                    async for sign_of_life in self._settled(call_id):
                        yield sign_of_life
                    call = self._response.run.call(call_id)
                    if not self._is_rejected(call):
                        continue
                    if self.drop is not None and call.reason != "aborted":
                        rejected.append(call.wire_id)
                        continue
                    self._free(output)
                    async for sign_of_life in self._read_on():
                        yield sign_of_life
                    raise self._response.run.rejection(call_id)
                self._is_judging = False
                if rejected and self.drop is not None:
                    self._free(output)
                    yield self.drop(output.data, rejected)
                else:
                    yield self._pop_with_followers(output)
        finally:
            if await self._close():
                await self._tell_end()  # again: hooks may have rejected a call after the last byte was read

    @property
    def is_delivered(self) -> bool:
        """Whether the SDK has got everything meant for it."""
        return self._complete.is_set() and not self._outbox and not self._is_judging

    async def aclose(self) -> None:
        """The SDK wants no more: reading ends, upstream is closed, calls that are not complete are discarded.

        All of this happens in the reading task, whichever task waits for it.
        """
        await self._close()

    def cut(self) -> None:
        """The rest of the response is of no use: closes the source; the bytes read so far are the whole response."""
        if self._stage is _Stage.READING and not self.was_cut:
            self.was_cut = True
            self._inbox.close()
            self._reading.cancel()

    def abandon(self) -> None:
        """The response can no longer be read or closed. May be called in any thread."""
        try:
            self.loop.call_soon_threadsafe(self._break_off)
        except RuntimeError:
            pass  # the loop is closed, and its tasks with it

    async def _close(self) -> bool:
        """Returns false if reading has not ended yet: the store hangs, and the SDK's task is being cancelled."""
        self._break_off()
        return await wait_until_done(self._reading)

    # -- reading --

    async def _read(self) -> None:
        is_complete = False
        try:
            if self._stage is _Stage.NEW:
                await self._read_source()
                self._stage = _Stage.ENDING
                self._go_on()
                await self._complete.wait()
                is_complete = True
        except asyncio.CancelledError:
            if self._stage is not _Stage.OVER:
                raise
            self._reading.uncancel()  # only the SDK is in a hurry: the cleanup below may take its time
        finally:
            self._stage = _Stage.OVER
            self._undo_stop()
            self._undo_failure()
            try:
                await self._close_source()
            finally:
                if not is_complete:
                    await self._interrupt()
                await self._tell_end()

    async def _read_source(self) -> None:
        self._stage = _Stage.READING
        try:
            await self._inbox.read(lambda: self._is_full)
        except asyncio.CancelledError:
            if not self.was_cut:
                raise
            self._reading.uncancel()
            if self._stage is _Stage.OVER:
                raise

    @property
    def _is_full(self) -> bool:
        return self._inbox.held + self._outbox.held > self.limits.max_held

    def _bytes_came(self) -> None:
        """A slow journal does not slow down the provider: bytes that come while a record is under way are kept here."""
        if self._turn is _Turn.NONE:
            self._turn = _Turn.DUE
            self._schedule_in_run(self._step)
        elif self._turn is _Turn.RECORDING and not self._is_full:
            self._inbox.keep_announced()

    def _go_on(self) -> None:
        """Continues with the bytes here, after the SDK has seen the last outputs."""
        if self._turn is _Turn.NONE:
            self._turn = _Turn.DUE
            self.loop.call_soon(self._step)

    def _step(self) -> None:
        """Reads the bytes here, and has their events recorded. Must not run while a record is under way."""
        self._turn = _Turn.NONE
        if self._stage is _Stage.OVER:
            return
        try:
            if data := self._inbox.pop(takes=not self._is_full):
                if self._kept is not None:
                    self._kept.read(data)
                read = self.collapser.feed(data)
            elif self._stage is _Stage.ENDING:
                read = self._last_read()
            else:
                return
        except Exception as error:  # noqa: BLE001  # raised where the SDK reads
            self._fail(error)
            return
        events: Sequence[WireEvent | Kept] = read.events
        if self._kept is not None:
            events = self._kept.beside(read.events, [output.data for output in read.outputs], self._response.decoder)
        if events or read.error is not None or self._stage is _Stage.LAST:
            self._turn = _Turn.RECORDING
            self._response.submit(events, partial(self._recorded, read))
        else:
            self._let_out(read)

    def _last_read(self) -> Read:
        if self._inbox.error is not None:
            raise self._inbox.error
        self._stage = _Stage.LAST
        end = self.collapser.end()
        if end.error is not None and end.error.provider_message is None and self._response.run.must_judge:
            raise unjudged(str(end.error))
        if end.error is not None:  # open calls were left out, so there is nothing to judge
            logger.warning("response %s ended in an error: %s", self._response.response_id, end.error)
            end.error = None
        return end

    def _recorded(self, read: Read, error: Exception | None) -> None:
        self._turn = _Turn.NONE
        if self._stage is _Stage.OVER:
            return
        if error is None and read.error is not None:
            error = self._judge(read.error)
        if error is None:
            self._let_out(read)
        else:
            self._fail(error)  # raised where the SDK reads

    def _let_out(self, read: Read) -> None:
        """Lets out the recorded outputs, and continues."""
        self._outbox.put(read.outputs)
        if self._stage is _Stage.LAST:
            self._complete.set()
        elif self._outbox or self._stage is _Stage.ENDING:
            self._go_on()
        elif self._inbox or (self._inbox.has_more and not self._is_full):
            self._bytes_came()

    def _judge(self, error: WireError) -> WireError | None:
        """The wire cannot be read any further. The rest is for the SDK to judge, unless it would be half a call."""
        if error.provider_message is None and self._response.was_interrupted:
            return error
        if error.provider_message is None and self._response.run.must_judge:
            return unjudged(str(error))
        logger.warning("cannot continue to read response %s: %s", self._response.response_id, error)
        return None

    async def _tell_end(self) -> None:
        if self._on_end is not None:
            await self._on_end(self._error or self._response.decoder.error)

    async def _interrupt(self) -> None:
        reason = type(self._error).__name__ if self._error is not None else "the reader went away"
        try:
            await self._response.interrupt("aborted" if self._error is None else "interrupted", reason)
        except RunOver:
            pass  # the run's end has discarded them

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error  # at once: the end of the run, which this may cause, says less
        self._break_off()

    def _stopped(self, reason: str) -> None:
        self._fail(RunOver(f"the run was ended: {reason}"))

    def _break_off(self) -> None:
        """Cancels the reading task, once: its cleanup must not be cancelled too.

        A task that has not begun is not cancelled: it would never begin, and so never clean up.
        """
        self._undo_stop()
        self._undo_failure()
        stage, self._stage = self._stage, _Stage.OVER
        if stage not in (_Stage.NEW, _Stage.OVER):
            self._reading.cancel()

    # -- forwarding --

    def _pop_with_followers(self, output: Output) -> bytes:
        """The output and those after it that wait for no hook: each piece that a sync client takes has a cost."""
        outputs = [output, *self._outbox.pop_free()]
        self._free(*outputs)
        return b"".join([each.data for each in outputs])

    def _free(self, *outputs: Output) -> None:
        self._outbox.free(outputs)
        self._make_room()

    def _make_room(self) -> None:
        self._inbox.room.set()
        if self._inbox.has_more:
            self._go_on()

    async def _woken(self) -> bool:
        """Waits for news, for a while. False if none came."""
        return await self._outbox.wait(self.limits.keep_alive_every, self._reading.done)

    async def _settled(self, call_id: str) -> AsyncIterator[bytes]:
        """Waits for the hooks of a whole call, and keeps the stream alive meanwhile."""
        waiting = asyncio.ensure_future(self._response.run.settled(call_id))
        try:
            while not (await asyncio.wait({waiting}, timeout=self.limits.keep_alive_every))[0]:
                yield self.collapser.keep_alive
        finally:
            waiting.cancel()
        await waiting

    def _is_rejected(self, call: Call) -> bool:
        """Whether a call must not reach the SDK, since nothing there would refuse to run it."""
        if call.state is not CallState.DISCARDED:
            return False
        return call.reason == "aborted" or not self._forwards_rejected  # a run that was stopped forwards nothing more

    async def _read_on(self) -> AsyncIterator[bytes]:
        """Reads to the end for the sake of other calls, and keeps the stream alive. The SDK gets nothing else."""
        while not self._reading.done():
            self._outbox.clear()
            self._make_room()
            if not await self._woken():
                yield self.collapser.keep_alive
