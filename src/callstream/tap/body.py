"""The body of a response on its way through the tap.

The provider's bytes are taken in at the provider's pace. They are cut, decoded and collapsed, and what they say is
recorded; then, and never before, what they are to the SDK may leave. What comes while a write is under way is taken
together by the next one: the faster deltas come, the more of them share a write. Bytes that come while nothing is written
wait for the run's turn (``Run.when_due``), which is now unless other runs write too. Pieces of text and arguments then go
the short way, straight into the journal; all else is recorded by the reader.

What may leave waits in order for the SDK, and a whole call waits for its hooks; so a slow hook of a call holds back the
bytes after it, never the reading, and never another call's hooks. A host that waits for the hooks of each call by itself,
before it runs the tool, gets calls at once: there a tool does not wait for another call's hooks either. Reading stops only
while more than ``max_held`` bytes are here, those that were not decoded yet and those that wait for the SDK together.
While a call is held, the wire's own sign of life goes down every few seconds, so that nobody's idle limit fires.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Collection
from functools import partial
from itertools import takewhile
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from callstream.calls import Call, CallState
from callstream.errors import CallstreamError, RunOver, WireError
from callstream.events import CallDiscarded
from callstream.flag import Flag
from callstream.runtime import Response
from callstream.runtime.waiting import wait_until_done
from callstream.tap.encoding import Decoding
from callstream.wire.collapsing import Collapser, Output, Read

logger = logging.getLogger("callstream")

OnEnd: TypeAlias = Callable[[BaseException | None], Awaitable[None]]
"""Told when a response was read, and what broke it off, if anything did. May be told twice."""
Drop: TypeAlias = Callable[[bytes, Collection[str]], bytes]
"""Takes the calls of these wire ids out of whole frames."""


@runtime_checkable
class Delivering(Protocol):
    """A source that need not wake anybody for what comes."""

    def deliver_to(self, take: Callable[[bytes], bool]) -> None:
        """Has what comes while the source is being awaited given to ``take``; what that refuses is yielded."""


class Limits(msgspec.Struct, frozen=True):
    """``max_held``: bytes that may wait here, on both sides, before reading stops. ``keep_alive_every``: seconds.

    ``max_whole``: bytes of an answer that is not streamed, after its Content-Encoding was undone.
    """

    max_held: int = 8 * 1024 * 1024
    max_whole: int = 64 * 1024 * 1024
    keep_alive_every: float = 5.0


class TappedBody:
    """Reads one streamed response. Made on the loop of the request, where the reader begins at once."""

    def __init__(
        self,
        source: AsyncIterable[bytes],
        close_source: Callable[[], Awaitable[None]],
        response: Response,
        collapser: Collapser[Any],
        *,
        decoding: Decoding | None = None,
        forwards_rejected: bool = False,
        waits_for_hooks: bool = True,
        limits: Limits | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._source = source
        self._close_source = close_source
        self._response = response
        self._collapser = collapser
        self._decoding = decoding
        self._forwards_rejected = forwards_rejected
        self._waits_for_hooks = waits_for_hooks
        self.drop: Drop | None = None
        """Takes calls that hooks reject out of what is forwarded, in place of raising."""
        self._limits = limits or Limits()
        self._on_end = on_end
        self._is_recording = False  # the reader records, or was told to
        self._is_on_short_way = False  # pieces are being written
        self._awaits_turn = False  # bytes wait until others have come too
        self._has_ended = False  # the source
        self._decoded: Read | None = None  # what the pump has decoded and the reader has to record
        self._unread: list[bytes] = []  # as they came
        self._unread_bytes = 0
        self._outputs: list[Output] = []  # what was recorded, and may leave
        self._output_bytes = 0
        self._came = Flag()  # bytes, or the end of them; for the reader
        self._went = Flag()  # bytes of either side; for the pump
        self._left = Flag()  # an output; for the reader
        self._news = Flag()  # for the SDK
        self._error: Exception | None = None
        self._has_begun = False
        self._broken_off = False
        self._was_interrupted = False
        self._undo_stop = response.run.on_stop(self._stopped)
        self._reader = asyncio.create_task(self._read(), name=f"callstream reader of {response.response_id}")
        self._reader.add_done_callback(lambda reader: self._news.set())

    async def chunks(self, reader: object = None) -> AsyncGenerator[bytes, None]:
        """What the SDK reads, by ``reader``, which stays in use until it has read all."""
        try:
            while True:
                while not self._outputs:
                    if self._reader.done():
                        self._raise_error()
                        return
                    if not await self._woken() and self._collapser.is_holding:
                        yield self._collapser.keep_alive
                output = self._outputs.pop(0)
                rejected: list[str] = []
                for call_id in output.call_ids if self._waits_for_hooks else ():
                    async for sign_of_life in self._settled(call_id):
                        yield sign_of_life
                    if self._is_rejected(call_id) and self._is_dropped(call_id):
                        rejected.append(self._call(call_id).wire_id)
                    elif self._is_rejected(call_id):
                        self._took(output)
                        async for sign_of_life in self._read_on():
                            yield sign_of_life
                        raise self._response.run.rejection(self._response.call_ids[call_id])
                if rejected and self.drop is not None:
                    self._took(output)
                    yield self.drop(output.data, rejected)
                else:
                    yield self._take_with_followers(output)
        finally:
            if await self._close():
                await self._tell_end()  # again: hooks may have rejected a call after the last byte had been read

    async def aclose(self) -> None:
        """The SDK wants no more: reading ends, upstream is closed, calls that are not complete are discarded.

        All of that is done by the reader, in its own task, whoever waits for it.
        """
        await self._close()

    def abandon(self) -> None:
        """Nobody can read or close the response any more. May be called in any thread."""
        try:
            self.loop.call_soon_threadsafe(self._break_off)
        except RuntimeError:
            pass  # the loop is closed, and its tasks with it

    async def _close(self) -> bool:
        """False if the reader has not ended yet, because its store hangs and the SDK's task is being cancelled."""
        self._break_off()
        return await wait_until_done(self._reader)

    # -- reading --

    async def _read(self) -> None:
        is_complete = False
        self._has_begun = True
        try:
            if not self._broken_off:
                await self._record_all()
                is_complete = True
        except asyncio.CancelledError:
            if not self._broken_off:
                raise
            self._reader.uncancel()  # nobody but the SDK is in a hurry: what follows may take its time
        except Exception:  # noqa: BLE001  # it was noted, and rises where the SDK reads
            pass
        finally:
            self._undo_stop()
            try:
                await self._close_source()
            finally:
                if not is_complete:
                    await self._interrupted()
                await self._tell_end()

    async def _record_all(self) -> None:
        """Decodes and records what the source sends, and lets it leave."""
        pump = asyncio.create_task(self._pump(), name="callstream pump")
        pump.add_done_callback(self._source_ended)
        try:
            while self._is_recording or self._is_on_short_way or not self._has_ended:
                await self._came.wait()
                self._came.clear()
                self._raise_error()
                if not self._is_on_short_way:
                    await self._record_unread()
            pump.result()
            await self._record(self._at_end())
        except Exception as error:
            self._error = self._error or error  # at once: the end of the run, which may come of it, says less
            raise
        finally:
            pump.cancel()
            await asyncio.wait({pump})

    async def _record_unread(self) -> None:
        if self._decoded is not None:
            read, self._decoded = self._decoded, None
            await self._record(read)
        while self._unread and (self._has_ended or self._decoding is not None):
            data = self._take_unread()
            if self._decoding is not None:
                await self._record_decoded(self._decoding, data)
            else:
                await self._record(self._collapser.feed(data))
        self._is_recording = False
        if self._unread:
            self._await_turn()

    async def _record_decoded(self, decoding: Decoding, data: bytes) -> None:
        for piece in decoding.feed(data):
            await self._record(self._collapser.feed(piece))
            while self._output_bytes > self._limits.max_held:  # a few bytes may hold a great many
                self._left.clear()
                await self._left.wait()

    async def _pump(self) -> None:
        if isinstance(self._source, Delivering):
            self._source.deliver_to(self._accept)
        async for data in self._source:
            self._hold(data)
            del data  # else it would stay here until more comes, which may be given to ``_accept``
            while self._unread_bytes + self._output_bytes > self._limits.max_held:
                self._went.clear()
                await self._went.wait()

    def _accept(self, data: bytes) -> bool:
        if self._unread_bytes + self._output_bytes > self._limits.max_held:
            return False
        self._hold(data)
        return True

    def _hold(self, data: bytes) -> None:
        """Keeps bytes that came, and sees to it that somebody reads them."""
        self._unread.append(data)
        self._unread_bytes += len(data)
        if self._is_recording or self._is_on_short_way or self._awaits_turn:
            return
        if self._decoding is not None:
            self._leave_to_reader()
        else:
            self._await_turn()

    def _await_turn(self) -> None:
        self._awaits_turn = True
        self._response.run.when_due(self._take_turn)

    def _take_turn(self) -> None:
        self._awaits_turn = False
        if self._unread and not self._is_recording and not self._is_on_short_way and not self._broken_off:
            self._take(self._collapser.feed(self._take_unread()))

    def _take_unread(self) -> bytes:
        data = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        self._went.set()
        return data

    def _take(self, read: Read) -> None:
        """Sends what came while nothing else was recorded on its way: the short one, or to the reader."""
        if read.error is None and not read.events:
            self._let_out(read)
        elif read.error is None and self._is_recorded_now(read):
            self._is_on_short_way = True
        else:
            self._decoded = read
            self._leave_to_reader()

    def _is_recorded_now(self, read: Read) -> bool:
        try:
            return self._response.record_now(read.events, partial(self._written, read))
        except CallstreamError:
            return False  # the reader meets it too, and has somebody to tell

    def _leave_to_reader(self) -> None:
        self._is_recording = True
        self._came.set()

    def _written(self, read: Read, error: Exception | None) -> None:
        self._is_on_short_way = False
        if error is None:
            self._let_out(read)
        else:
            self._error = self._error or error
        if error is not None or self._has_ended:
            self._leave_to_reader()
        elif self._unread:
            self._await_turn()

    def _source_ended(self, pump: asyncio.Task[None]) -> None:
        self._has_ended = True
        self._is_recording |= bool(self._unread) and not self._is_on_short_way
        self._came.set()

    def _at_end(self) -> Read:
        end = self._collapser.end()
        if end.error is not None:  # what is open was left out, so that there is nothing to judge
            logger.warning("response %s ended in an error: %s", self._response.response_id, end.error)
            end.error = None
        return end

    async def _record(self, read: Read) -> None:
        await self._response.record(read.events)
        self._was_interrupted |= any(
            isinstance(event, CallDiscarded) and event.reason == "interrupted" for event in read.events
        )
        if read.error is not None:
            self._judge(read.error)
        self._let_out(read)

    def _let_out(self, read: Read) -> None:
        if read.outputs:
            self._outputs += read.outputs
            self._output_bytes += sum(len(output.data) for output in read.outputs)
            self._news.set()

    def _judge(self, error: WireError) -> None:
        """The wire cannot be read any further. The rest is the SDK's to judge, unless it would be half a call."""
        if error.provider_message is None and self._was_interrupted:
            raise error
        logger.warning("cannot continue to read response %s: %s", self._response.response_id, error)

    async def _tell_end(self) -> None:
        if self._on_end is not None:
            await self._on_end(self._error or self._response.decoder.error)

    async def _interrupted(self) -> None:
        reason = type(self._error).__name__ if self._error is not None else "the reader went away"
        try:
            await self._response.interrupt("aborted" if self._error is None else "interrupted", reason)
        except RunOver:
            pass  # the run's end has discarded them

    def _stopped(self, reason: str) -> None:
        self._error = self._error or RunOver(f"the run was ended: {reason}")
        self._break_off()

    def _break_off(self) -> None:
        """Cancels the reader, once: what it does at its end must not be cancelled too.

        A reader that has not begun is not cancelled, because it would never begin, and not come to its end either.
        """
        self._undo_stop()
        if not self._broken_off:
            self._broken_off = True
            if self._has_begun:
                self._reader.cancel()

    # -- forwarding --

    def _take_with_followers(self, output: Output) -> bytes:
        """The output and those after it that wait for no hook: a sync client pays for each piece that it takes."""
        followers = list(takewhile(lambda follower: not follower.call_ids, self._outputs))
        del self._outputs[: len(followers)]
        self._took(output, *followers)
        return b"".join([output.data, *(follower.data for follower in followers)])

    def _took(self, *outputs: Output) -> None:
        self._output_bytes -= sum(len(output.data) for output in outputs)
        self._went.set()
        self._left.set()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    async def _woken(self) -> bool:
        """Waits for news, for a while. False if none came."""
        self._news.clear()
        if self._outputs or self._reader.done():
            return True
        timer = self.loop.call_later(self._limits.keep_alive_every, self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()
        return bool(self._outputs) or self._reader.done()

    async def _settled(self, local_id: str) -> AsyncIterator[bytes]:
        """Waits for the hooks of a whole call, and keeps the stream alive meanwhile."""
        run = self._response.run
        call_id = self._response.call_ids[local_id]
        waiting = asyncio.ensure_future(run.settled(call_id))
        try:
            while not (await asyncio.wait({waiting}, timeout=self._limits.keep_alive_every))[0]:
                yield self._collapser.keep_alive
        finally:
            waiting.cancel()
        await waiting

    def _call(self, local_id: str) -> Call:
        return self._response.run.call(self._response.call_ids[local_id])

    def _is_dropped(self, local_id: str) -> bool:
        """Whether a rejected call is left out, and the SDK gets the rest."""
        return self.drop is not None and self._call(local_id).reason != "aborted"

    def _is_rejected(self, local_id: str) -> bool:
        """Whether a call must not reach the SDK, since nobody there would refuse to run it."""
        call = self._call(local_id)
        if call.state is not CallState.DISCARDED:
            return False
        return call.reason == "aborted" or not self._forwards_rejected  # a run that was stopped forwards nothing more

    async def _read_on(self) -> AsyncIterator[bytes]:
        """Reads to the end for the other calls' sake, and keeps the stream alive meanwhile. The SDK gets nothing more."""
        while not self._reader.done():
            self._took(*self._outputs)
            self._outputs.clear()
            if not await self._woken():
                yield self._collapser.keep_alive
