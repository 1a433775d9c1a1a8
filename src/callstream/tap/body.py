"""The body of a response on its way through the tap.

The provider's bytes are kept as they come, at the provider's pace. They are cut, decoded and collapsed. Their events are
recorded first; only then are bytes released to the SDK. It is one way, in plain calls:

    _hear ─▶ _step ─▶ (journal) ─▶ _recorded ─▶ _let_out ─▶ _step …

One record is under way at a time. What comes meanwhile is read together by the next step: the faster deltas come, the more
of them share a write. Bytes that come while nothing is written wait for the run's turn (``Run.schedule``), which is now
unless other runs write too. After outputs were let out the next step waits for one turn of the loop, so that the SDK sees
frames singly: frameworks share objects between the events that they make of two frames.

What may leave waits in order for the SDK, and a whole call waits for its hooks; so a slow hook of a call holds back the
bytes after it, never the reading, and never another call's hooks. A host that waits for the hooks of each call by itself,
before it runs the tool, gets calls at once: there a tool does not wait for another call's hooks either. Reading stops only
while more than ``max_held`` bytes are here, those that were not decoded yet and those that wait for the SDK together.
While a call is held, the wire's own sign of life goes down every few seconds, so that no idle limit fires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from callstream.calls import Call, CallState
from callstream.errors import RunOver, WireError
from callstream.events import CallDiscarded, Kept, ResponseEnded, WireEvent
from callstream.runtime import Response
from callstream.runtime.continuing import KeptBody
from callstream.runtime.log import wait_until_done
from callstream.waits import Flag
from callstream.wire.collapsing import Collapser, Output, Read

logger = logging.getLogger("callstream")

_TURNS_BEFORE_END = 6
"""Of the event loop, between the last bytes that the SDK gets and the end. google-adk makes of the end an event that shares
an object with the partial ones before it, and its application, which gets events by queues, is to see those first."""

OnEnd: TypeAlias = Callable[[BaseException | None], Awaitable[None]]
"""Called when a response was read, with what broke it off, if anything did. May be called twice."""
Drop: TypeAlias = Callable[[bytes, Collection[str]], bytes]
"""Takes the calls of these wire ids out of whole frames."""


@runtime_checkable
class Delivering(Protocol):
    """A stream that can push, so that no task is woken for what comes."""

    def deliver_to(self, push: Callable[[bytes], bool]) -> None:
        """Has what comes while the stream is being awaited given to ``push``; what that refuses is yielded."""


@runtime_checkable
class Announcing(Protocol):
    """A source that keeps what comes until it is taken, so that many deltas can be worked on together."""

    def announce_to(self, announce: Callable[[], object]) -> None:
        """Has ``announce`` called when something has come to be taken, in place of waking the task that iterates."""

    def take(self) -> bytes:
        """What has come; nothing if there is nothing now."""
        ...


class Limits(msgspec.Struct, frozen=True):
    """``max_held``: bytes that may wait here, on both sides, before reading stops. ``keep_alive_every``: seconds.

    ``max_whole``: bytes of an answer that is not streamed, after its Content-Encoding was undone.
    """

    max_held: int = 8 * 1024 * 1024
    max_whole: int = 64 * 1024 * 1024
    keep_alive_every: float = 5.0


class TappedBody:
    """Reads one streamed response. Made on the loop of the request, where reading begins at once, in a task of its own:
    it reads the source, waits until all is recorded, and closes what has to be closed, however the response ends.
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
        self._source = source
        self._announced = source if isinstance(source, Announcing) else None
        self._has_heard = False  # it has something to be taken
        self._close_source = close_source
        self._response = response
        self._schedule_in_run = response.run.schedule
        self.collapser = collapser
        self._forwards_rejected = forwards_rejected
        self._waits_for_hooks = waits_for_hooks
        self.drop: Drop | None = None
        """Takes calls that hooks reject out of what is forwarded, in place of raising."""
        self.was_cut = False
        """Whether it was not read to its end, because the rest was of no use."""
        self.limits = limits or Limits()
        self._on_end = on_end
        self._kept = kept
        self._is_kept = False
        self._unread: list[bytes] = []  # as they came
        self._outputs: list[Output] = []  # what was recorded, and may leave
        self._held = 0  # bytes of both
        self._is_due = False  # a step is on its way
        self._is_recording = False
        self._source_error: Exception | None = None
        self._has_ended = False  # the source
        self._is_last = False  # the end of the response is being recorded
        self._room = Flag()  # bytes of either side have left; for the source
        self._complete = Flag()  # all is recorded, the end included
        self._news = Flag()  # for the SDK
        self._push: Callable[[bytes], bool] | None = None
        self._is_awaited = False  # the SDK waits for news
        self._error: Exception | None = None
        self._has_begun = False
        self._broken_off = False
        self._is_judging = False  # hooks decide about what the SDK gets next
        self._was_interrupted = False
        self._undo_stop = response.run.on_stop(self._stopped)
        self._reading = asyncio.create_task(self._read(), name=f"callstream reader of {response.response_id}")
        self._reading.add_done_callback(lambda reading: self._news.set())

    def deliver_to(self, push: Callable[[bytes], bool]) -> None:
        """See ``Delivering``: for a reader to whom a task that is woken for each delta is too much."""
        self._push = push

    async def chunks(self, reader: object = None) -> AsyncGenerator[bytes, None]:
        """What the SDK reads, by ``reader``, which stays in use until it has read all."""
        try:
            while True:
                while not self._outputs:
                    if self._reading.done():
                        self._raise_error()
                        for _ in range(_TURNS_BEFORE_END):
                            await asyncio.sleep(0)
                        return
                    if not await self._woken() and self.collapser.is_holding:
                        yield self.collapser.keep_alive
                output = self._outputs.pop(0)
                rejected: list[str] = []
                self._is_judging = True
                for call_id in output.call_ids if self._waits_for_hooks else ():
                    async for sign_of_life in self._settled(call_id):
                        yield sign_of_life
                    if self._is_rejected(call_id) and self._is_dropped(call_id):
                        rejected.append(self._call(call_id).wire_id)
                    elif self._is_rejected(call_id):
                        self._free(output)
                        async for sign_of_life in self._read_on():
                            yield sign_of_life
                        raise self._response.run.rejection(self._response.call_ids[call_id])
                self._is_judging = False
                if rejected and self.drop is not None:
                    self._free(output)
                    yield self.drop(output.data, rejected)
                else:
                    yield self._pop_with_followers(output)
        finally:
            if await self._close():
                await self._tell_end()  # again: hooks may have rejected a call after the last byte had been read

    @property
    def is_delivered(self) -> bool:
        """Whether the SDK has all that was for it."""
        return self._complete.is_set() and not self._outputs and not self._is_judging

    async def aclose(self) -> None:
        """The SDK wants no more: reading ends, upstream is closed, calls that are not complete are discarded.

        All of that is done in the task of the reading, whichever task waits for it.
        """
        await self._close()

    def cut(self) -> None:
        """The rest of the response is of no use: the source is closed, and what was read is all there is."""
        if self._has_begun and not (self._has_ended or self._broken_off or self.was_cut):
            self.was_cut = True
            self._pop_unread()
            self._reading.cancel()

    def abandon(self) -> None:
        """Nobody can read or close the response any more. May be called in any thread."""
        try:
            self.loop.call_soon_threadsafe(self._break_off)
        except RuntimeError:
            pass  # the loop is closed, and its tasks with it

    async def _close(self) -> bool:
        """False if reading has not ended yet, because its store hangs and the SDK's task is being cancelled."""
        self._break_off()
        return await wait_until_done(self._reading)

    # -- reading --

    async def _read(self) -> None:
        is_complete = False
        self._has_begun = True
        try:
            if not self._broken_off:
                await self._read_source()
                self._has_ended = True
                self._go_on()
                await self._complete.wait()
                is_complete = True
        except asyncio.CancelledError:
            if not self._broken_off:
                raise
            self._reading.uncancel()  # only the SDK is in a hurry: what follows may take its time
        finally:
            self._broken_off = True  # nothing is recorded any more but what is open
            self._undo_stop()
            try:
                await self._close_source()
            finally:
                if not is_complete:
                    await self._interrupt()
                await self._tell_end()

    async def _read_source(self) -> None:
        """What breaks the source is kept: what came before is recorded first."""
        if self._announced is not None:
            self._announced.announce_to(self._hear)
        try:
            async for data in self._source:
                self._hold(data)
                del data  # else it would stay here until more comes by this way
                while self._held > self.limits.max_held:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:  # noqa: BLE001  # it rises where the SDK reads
            self._source_error = error
        except asyncio.CancelledError:
            if not self.was_cut:
                raise
            self._reading.uncancel()
            if self._broken_off:
                raise

    def _hear(self) -> None:
        """Something has come. The step that reads it takes it; but a journal that is slow does not slow the provider."""
        self._has_heard = True
        if self._is_recording:
            self._hold(self._take_announced())
        elif not self._is_due:
            self._is_due = True
            self._schedule_in_run(self._step)

    def _hold(self, data: bytes) -> None:
        """Keeps bytes that came, and sees to it that they are read."""
        if self.was_cut or not data:
            return
        self._unread.append(data)
        self._held += len(data)
        if not self._is_due and not self._is_recording:
            self._is_due = True
            self._schedule_in_run(self._step)

    def _go_on(self) -> None:
        """Goes on with what is here, after the SDK has seen what was let out."""
        if not self._is_due and not self._is_recording:
            self._is_due = True
            self.loop.call_soon(self._step)

    def _step(self) -> None:
        """Reads what is here, and has what it says recorded. Nothing is being recorded yet."""
        self._is_due = False
        if self._broken_off:
            return
        try:
            data = self._pop_unread() if self._unread else b""
            if self._has_heard:
                data += self._take_announced()
            if data:
                if self._kept is not None:
                    self._kept.read(data)
                read = self.collapser.feed(data)
            elif self._has_ended:
                read = self._last_read()
            else:
                return
        except Exception as error:  # noqa: BLE001  # it rises where the SDK reads
            self._fail(error)
            return
        events = read.events if self._kept is None else self._with_kept(self._kept, read)
        if events or read.error is not None or self._is_last:
            self._is_recording = True
            self._response.submit(events, partial(self._recorded, read))
        else:
            self._let_out(read)

    def _take_announced(self) -> bytes:
        """What the source has kept; nothing while enough is here."""
        if self._announced is None or self._held > self.limits.max_held or self.was_cut:
            return b""
        self._has_heard = False
        return self._announced.take()

    def _pop_unread(self) -> bytes:
        data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._held -= len(data)
        self._room.set()
        return data

    def _last_read(self) -> Read:
        if self._source_error is not None:
            raise self._source_error
        self._is_last = True
        end = self.collapser.end()
        if end.error is not None:  # what is open was left out, so that there is nothing to judge
            logger.warning("response %s ended in an error: %s", self._response.response_id, end.error)
            end.error = None
        return end

    def _with_kept(self, kept: KeptBody, read: Read) -> Sequence[WireEvent | Kept]:
        """The events, with the response as the SDK gets it in the same append as its end: what is whole is kept."""
        for output in read.outputs:
            kept.add(output.data)
        ends = any(isinstance(event, ResponseEnded) and event.finish_reason is not None for event in read.events)
        follows = bool(read.outputs) and self._is_kept  # some wires have something to say after the end
        self._is_kept |= ends
        decoder = self._response.decoder
        more: list[Kept] = [*kept.named(decoder.answer_id), *kept.checked(decoder.checkpoint)]
        events: Sequence[WireEvent | Kept] = [*more, *read.events] if more else read.events
        return [*events, kept.event()] if ends or follows else events

    def _recorded(self, read: Read, error: Exception | None) -> None:
        self._is_recording = False
        if self._broken_off:
            return
        for event in read.events:
            if type(event) is CallDiscarded and event.reason == "interrupted":
                self._was_interrupted = True
        if error is None and read.error is not None:
            error = self._judge(read.error)
        if error is None:
            self._let_out(read)
        else:
            self._fail(error)  # it rises where the SDK reads

    def _let_out(self, read: Read) -> None:
        """Lets out what was recorded, and goes on."""
        if read.outputs and not self._pushed(read.outputs):
            self._outputs += read.outputs
            self._held += sum(len(output.data) for output in read.outputs)
            self._news.set()
        if self._is_last:
            self._complete.set()
        elif self._outputs or self._has_ended:
            self._go_on()
        elif self._unread or (self._has_heard and self._held <= self.limits.max_held):
            self._is_due = True
            self._schedule_in_run(self._step)

    def _pushed(self, outputs: Sequence[Output]) -> bool:
        """Whether a reader that waits has got them without being woken."""
        if self._push is None or not self._is_awaited or self._outputs or self._news.is_set():
            return False
        for output in outputs:
            if output.call_ids:
                return False  # they wait for hooks
        return self._push(outputs[0].data if len(outputs) == 1 else b"".join([output.data for output in outputs]))

    def _judge(self, error: WireError) -> WireError | None:
        """The wire cannot be read any further. The rest is the SDK's to judge, unless it would be half a call."""
        if error.provider_message is None and self._was_interrupted:
            return error
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
        self._error = self._error or error  # at once: the end of the run, which may come of it, says less
        self._break_off()

    def _stopped(self, reason: str) -> None:
        self._fail(RunOver(f"the run was ended: {reason}"))

    def _break_off(self) -> None:
        """Cancels the reading, once: what it does at its end must not be cancelled too.

        If it has not begun it is not cancelled, because it would never begin, and not come to its end either.
        """
        self._undo_stop()
        if not self._broken_off:
            self._broken_off = True
            if self._has_begun:
                self._reading.cancel()

    # -- forwarding --

    def _pop_with_followers(self, output: Output) -> bytes:
        """The output and those after it that wait for no hook: a sync client pays for each piece that it takes."""
        followers = list(takewhile(lambda follower: not follower.call_ids, self._outputs))
        del self._outputs[: len(followers)]
        self._free(output, *followers)
        return b"".join([output.data, *(follower.data for follower in followers)])

    def _free(self, *outputs: Output) -> None:
        self._held -= sum(len(output.data) for output in outputs)
        self._room.set()
        if self._has_heard:
            self._go_on()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    async def _woken(self) -> bool:
        """Waits for news, for a while. False if none came."""
        self._news.clear()
        if self._outputs or self._reading.done():
            return True
        timer = self.loop.call_later(self.limits.keep_alive_every, self._news.set)
        self._is_awaited = True
        try:
            await self._news.wait()
        finally:
            self._is_awaited = False
            timer.cancel()
        return bool(self._outputs) or self._reading.done()

    async def _settled(self, local_id: str) -> AsyncIterator[bytes]:
        """Waits for the hooks of a whole call, and keeps the stream alive meanwhile."""
        run = self._response.run
        call_id = self._response.call_ids[local_id]
        waiting = asyncio.ensure_future(run.settled(call_id))
        try:
            while not (await asyncio.wait({waiting}, timeout=self.limits.keep_alive_every))[0]:
                yield self.collapser.keep_alive
        finally:
            waiting.cancel()
        await waiting

    def _call(self, local_id: str) -> Call:
        return self._response.run.call(self._response.call_ids[local_id])

    def _is_dropped(self, local_id: str) -> bool:
        """Whether a rejected call is left out, and the SDK gets the rest."""
        return self.drop is not None and self._call(local_id).reason != "aborted"

    def _is_rejected(self, local_id: str) -> bool:
        """Whether a call must not reach the SDK, since nothing there would refuse to run it."""
        call = self._call(local_id)
        if call.state is not CallState.DISCARDED:
            return False
        return call.reason == "aborted" or not self._forwards_rejected  # a run that was stopped forwards nothing more

    async def _read_on(self) -> AsyncIterator[bytes]:
        """Reads to the end for the other calls' sake, and keeps the stream alive meanwhile. The SDK gets nothing more."""
        while not self._reading.done():
            self._free(*self._outputs)
            self._outputs.clear()
            if not await self._woken():
                yield self.collapser.keep_alive
