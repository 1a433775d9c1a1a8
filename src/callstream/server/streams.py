"""The streams from which clients read runs: AG-UI events or raw records, as server-sent events.

A stream is a reader of the journal and nothing else: the reader copes with a run that is compacted meanwhile. All waiting
records are sent at once with their deltas merged, so a client that has fallen behind gets fewer and longer deltas, and
nothing is kept in memory for it. For a client that joins, too, only what the rest needs is kept once it has been sent the
past.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing
from functools import partial
from itertools import groupby
from typing import IO, Any, Final, TypeAlias

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from callstream import codec
from callstream.agui import AguiEvent, Conversation, Position, Translator, View, encode_sse, merge
from callstream.agui.events import MessagesSnapshot
from callstream.agui.presentation import Presenter, is_delta
from callstream.errors import CallstreamError, Compacted, JournalError
from callstream.events import KEPT, ArgsAppended, Record, RunEnded, in_order
from callstream.journal import Journal, RunRow, history
from callstream.server.health import JournalHealth, is_in_log
from callstream.server.requests import STREAMS
from callstream.server.settings import ServerSettings

logger = logging.getLogger("callstream.server")

# A response of server-sent events: sent as they arrive, kept alive while there are none, cut off when they are not read.
#
# A frame is sent in pieces, each after the client has accepted the one before. So a client that accepts nothing holds up
# only one piece and the frame itself; a large frame is in a file, not in memory.
#
# Most frames are a single delta for a client that is waiting for it. Such a frame needs no task: ``EventStream.write``
# sends it straight to the connection, if the server allows that (``serve`` does) and nothing is queued there.
#
# If a stream cannot show its run to the end, it is not ended normally: its connection is closed without the final chunk.
# Most clients take a stream that ends for a success, whatever came last, and one that breaks for an error, after which
# they reconnect.
#
# ``Pulse`` is the clock of all streams: it decides when to send a heartbeat, and when a reader has stalled.

_BEATS: Final = 15
"""How many ticks there are in the shorter of the two times; both are accurate to one tick."""


class Pulse:
    """One timer for all streams: with the default settings, a thousand idle streams wake the loop once a second."""

    def __init__(self, settings: ServerSettings) -> None:
        shorter = min(settings.heartbeat_seconds, settings.stall_seconds)
        self._every = shorter / _BEATS
        self.heartbeat_seconds = settings.heartbeat_seconds - self._every
        """After this long without an event a heartbeat is sent on the current tick; the next tick would be too late."""
        self.stall_seconds = settings.stall_seconds
        self._streams: set[EventStream] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, stream: EventStream) -> None:
        self._streams.add(stream)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._every, self._beat)

    def remove(self, stream: EventStream) -> None:
        self._streams.discard(stream)
        if not self._streams and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._every, self._beat)
        now = loop.time()
        for stream in self._streams:
            stream.beat(now)


HEARTBEAT: Final = b": keep-alive\n\n"
CONNECTION: Final = "callstream.connection"
"""The key of the ``ClientConnection`` in a request's state, where ``serve`` puts it."""
Frame: TypeAlias = bytes | IO[bytes]
"""Whole events, in memory or in a file, which is closed after it has been sent."""
_CUT_SECONDS: Final = 1.0
_PIECE: Final = 64 * 1024
# Without the second one, nginx holds events back until it has filled a buffer.
_HEADERS: Final = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}


class ClientConnection:
    """One of uvicorn's connections, by its protocol: ASGI does not expose it. ``serve`` gives every request its own."""

    __slots__ = ("_is_lost", "_leaving", "_protocol")

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._is_lost = False
        self._leaving: asyncio.Future[None] | None = None

    def lose(self) -> None:
        self._is_lost = True
        if self._leaving is not None and not self._leaving.done():
            self._leaving.set_result(None)

    def leaving(self) -> asyncio.Future[None]:
        """A future that is done when the connection is lost; only one caller at a time may wait for it."""
        self._leaving = asyncio.get_running_loop().create_future()
        if self._is_lost:
            self._leaving.set_result(None)
        else:
            self._protocol.flow.resume_reading()  # uvicorn pauses after a large body, and would not notice the end
        return self._leaving

    def cut(self) -> None:
        """Drops the connection and everything that is still queued for it.

        A normal close sends all of that first, which never finishes if the client accepts nothing.
        """
        self._protocol.transport.abort()

    def close(self) -> None:
        """Closes the connection after everything queued has been sent, which the client then need not read again."""
        self._protocol.transport.close()

    @property
    def is_free(self) -> bool:
        """Whether a piece of the response's body could be sent at once."""
        protocol = self._protocol
        cycle = protocol.cycle
        if cycle is None or cycle.disconnected or cycle.response_complete or protocol.flow.write_paused:
            return False
        return bool(
            cycle.response_started and cycle.scope["http_version"] == "1.1" and not protocol.transport.is_closing()
        )

    def write(self, piece: bytes) -> None:
        """Sends a piece of the body as a chunk, as uvicorn does over HTTP/1.1 for a response without a length."""
        self._protocol.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))


class Unfinished(Exception):
    """Raised by frames that end before their run does."""


class EventStream(Response):
    """``watching`` is entered while a client reads, ``held`` is exited afterwards. ``run_id`` is for the log.

    ``health``: that of the journal that the frames come from, if the stream is to break off when it becomes unavailable.

    The request's own task sends the frames. It is interrupted when the client leaves, when the reader stalls and when a
    heartbeat fails.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[Frame, None],
        pulse: Pulse,
        *,
        run_id: str,
        watching: AbstractAsyncContextManager[object],
        held: AbstractContextManager[object],
        headers: Mapping[str, str] | None = None,
        health: JournalHealth | None = None,
    ) -> None:
        self._frames = frames
        self._health = health
        self._pulse = pulse
        self._run_id = run_id
        self._watching = watching
        self._held = held
        self._sending = asyncio.Lock()
        self._connection: ClientConnection | None = None  # while the response is sent
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        self._began: float | None = None  # when sending of the current piece began
        self._limit: asyncio.Timeout | None = None  # of the sending; None once it has ended or been interrupted
        self._beating: asyncio.Task[None] | None = None
        self._has_stalled = False
        self.status_code = 200
        self.background = None
        self.init_headers({**_HEADERS, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (left_to_guard := scope.get(STREAMS)) is None:
            await self.respond(scope, receive, send)
        else:
            left_to_guard.append(partial(self.respond, scope, receive, send))

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = connection_of(scope)
        with self._held:
            async with self._watching, aclosing(self._frames):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                self.raw_headers = []  # they have been sent, and a stream may last long
                self._to_client = send
                self._connection = connection
                leaving = asyncio.ensure_future(until_left(receive) if connection is None else connection.leaving())
                leaving.add_done_callback(self._interrupt)
                try:
                    is_whole = await self._send_frames()
                    if self._has_stalled:
                        self._cut_off(connection)
                        await asyncio.wait({leaving}, timeout=_CUT_SECONDS)
                    elif not is_whole:
                        await break_off(connection, leaving)
                finally:
                    self._connection = None
                    tasks = [leaving] if self._beating is None else [leaving, self._beating]
                    for task in tasks:
                        task.cancel()
                    await asyncio.wait(tasks)
                for task in tasks:
                    if not task.cancelled():
                        task.result()

    @property
    def is_free(self) -> bool:
        """Whether ``write`` may be called: nothing else is being sent, and the client accepts data."""
        connection = self._connection
        return self._began is None and not self._has_stalled and connection is not None and connection.is_free

    def write(self, frame: bytes) -> None:
        """Sends a small number of whole events straight to the connection."""
        if self._connection is not None:  # the caller has checked is_free
            self._connection.write(frame)
            self._sent_at = self._loop.time()

    async def _send_frames(self) -> bool:
        """Sends the frames until they end or this is interrupted. Returns whether the response is whole."""
        limit = self._limit = asyncio.timeout(None)
        self._pulse.add(self)
        try:
            async with limit:
                sending = self._send_all()
                await (sending if self._health is None else self._health.guard(sending))
            return True
        except TimeoutError:
            if not limit.expired():
                raise
        except Unfinished:
            pass
        except JournalError as error:
            if not is_in_log(error):
                logger.error(
                    "a stream of run %s broke off because the journal could not be read: %s",
                    self._run_id,
                    error,
                    extra={"run_id": self._run_id},
                )
        finally:
            self._pulse.remove(self)
            self._limit = None
        return False

    async def _send_all(self) -> None:
        while (frame := await anext(self._frames, None)) is not None:
            await self._send(frame)
            del frame
        await self._send(b"", more=False)

    async def _send(self, frame: Frame, *, more: bool = True) -> None:
        """Sends the frame, unless the reader has stalled: then nothing more is sent."""
        if self._has_stalled:
            return
        async with self._sending:
            for piece in _pieces(frame):
                self._began = self._loop.time()
                await self._to_client({"type": "http.response.body", "body": piece, "more_body": more})
            self._began = None
        self._sent_at = self._loop.time()

    def beat(self, now: float) -> None:
        """Checks whether the reader has stalled. Sends a heartbeat if nothing else was sent for a while."""
        if self._began is not None:
            if now - self._began >= self._pulse.stall_seconds:
                self._has_stalled = True
                self._interrupt()
        elif now - self._sent_at >= self._pulse.heartbeat_seconds and self._beating is None:
            if self.is_free:
                self.write(HEARTBEAT)
            else:
                self._beating = asyncio.ensure_future(self._send(HEARTBEAT))
                self._beating.add_done_callback(self._end_beat)

    def _end_beat(self, beating: asyncio.Task[None]) -> None:
        if beating.cancelled() or beating.exception() is None:
            self._beating = None
        else:
            self._interrupt()  # ``respond`` raises the error

    def _interrupt(self, _: object = None) -> None:
        """Ends the sending of frames, whatever it waits for."""
        if self._limit is not None:
            self._limit.reschedule(self._loop.time())
            self._limit = None

    def _cut_off(self, connection: ClientConnection | None) -> None:
        logger.info(
            "disconnecting a reader of run %s that accepted no data for %s s",
            self._run_id,
            self._pulse.stall_seconds,
            extra={"run_id": self._run_id},
        )
        if connection is not None:
            connection.cut()


async def break_off(connection: ClientConnection | None, leaving: asyncio.Future[None]) -> None:
    """Ends a response without its last chunk. If the server is not ``serve``, the response just returns without it, and
    uvicorn logs an error.
    """
    for end in (connection.close, connection.cut) if connection is not None else ():
        if not leaving.done():
            end()
            await asyncio.wait({leaving}, timeout=_CUT_SECONDS)


def connection_of(scope: Scope) -> ClientConnection | None:
    found: ClientConnection | None = scope.get("state", {}).get(CONNECTION)
    return found


async def until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _pieces(frame: Frame) -> Iterator[bytes]:
    if isinstance(frame, bytes):
        if len(frame) <= _PIECE:
            yield frame
        else:
            for start in range(0, len(frame), _PIECE):
                yield frame[start : start + _PIECE]
    else:
        with frame:
            while piece := frame.read(_PIECE):
                yield piece


END: Final = b"event: end\ndata: {}\n\n"
_LARGE: Final = 512 * 1024
"""A prelude that is larger is kept in a file until the client has read it."""
_JOINS_AT_ONCE: Final = 4
_FEW: Final = 50
"""How many records may be sent without waiting for the client to accept some of them."""

_Batches: TypeAlias = AsyncGenerator[Sequence[Record], None]
_Numbered: TypeAlias = list[tuple[int, list[AguiEvent]]]
"""Events, each group with the number of the record that caused it."""


Snapshot: TypeAlias = Callable[[int, Collection[str]], Awaitable[MessagesSnapshot | None]]
"""Makes a snapshot of all messages of a thread, up to a record of the followed run, given by its number.

If calls are given too: None, unless one of them has another answer than that of the client.
"""


def live(journal: Journal, run_id: str, view: View, client: Client) -> AsyncGenerator[bytes, None]:
    """A run from its beginning."""
    client.begin(Translator(view))
    return client.rest(journal.batches(run_id, push=client.push))


async def resume(
    journal: Journal, run_id: str, position: Position, view: View, client: Client
) -> AsyncGenerator[bytes, None]:
    """The rest of a run for a client that has read it up to a position. Raises Compacted if that is no longer known."""
    translator = Translator(view)
    client.begin(translator, is_ready=False)
    half_read: _Numbered = []
    async with aclosing(journal.batches(run_id, push=client.push)) as batches:
        records: Sequence[Record] | None = ()
        unread: Sequence[Record] = ()
        while translator.seq < position.seq and not unread and (records := await anext(batches, None)):
            read = [record for record in records if record.seq <= position.seq]
            unread = records[len(read) :]
            for record in records:
                if record.first_seq is not None and _cuts(position, record):
                    raise Compacted(run_id, position.whole, record.first_seq, record.seq)
            for seq, events in await client.tell(read):
                if seq <= position.whole:
                    client.show(events)
                else:
                    half_read.append((seq, events))
        for (first, seq), events in _merge(half_read):
            shown = client.show(events)
            # The position of a group's last event is that of the whole group, so at least that event is still to come.
            yield encode_sse(shown, seq, first=first, skip=min(position.events or 0, len(shown) - 1))
        if unread:
            yield client.encode(await client.tell(unread))
        if records and isinstance(records[-1].event, RunEnded):
            return
        client.is_ready = True
        async for frame in client.rest(batches):
            yield frame


def _cuts(position: Position, record: Record) -> bool:
    """Whether the client has read only a part of what is now a single record."""
    first = record.first_seq or record.seq
    return first <= position.seq < record.seq or first <= position.whole < record.seq


class Joins:
    """Threads for clients that join them. Only a few are assembled at once; the others wait for their turn."""

    def __init__(self, journal: Journal, view: View) -> None:
        self._journal = journal
        self._view = view
        self._turns = asyncio.Semaphore(_JOINS_AT_ONCE)

    async def join(self, runs: Sequence[RunRow], client: Client) -> AsyncGenerator[Frame, None]:
        """A thread, given its runs, the oldest first: its past, then the last run live."""
        last = runs[-1]
        client.is_ready = False
        async with aclosing(self._journal.batches(last.run_id, push=client.push)) as batches:
            async with self._turns:
                if last.outcome is None:
                    conversation = await self._conversation(runs[:-1])
                    while conversation.run_id != last.run_id or conversation.seq < last.last_seq:
                        conversation.apply(in_order(await anext(batches)))
                        await asyncio.sleep(0)
                else:
                    conversation = await self._conversation(runs)
                frame = await asyncio.to_thread(_prelude_frame, conversation, client)
                if not conversation.has_ended:
                    client.begin(conversation.onlooker)
            del conversation
            yield frame
            del frame
            if client.is_ready:
                async for rest in client.rest(batches):
                    yield rest

    async def snapshot(self, runs: Sequence[RunRow], last_seq: int, own: Iterable[Any] = ()) -> MessagesSnapshot:
        """The messages of a thread up to a record of its last run, and those messages of ``own`` that no run knows."""
        conversation = await self._conversation(runs, last_seq)
        return conversation.snapshot(each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in own)

    async def _conversation(self, runs: Sequence[RunRow], last_seq: int | None = None) -> Conversation:
        """The thread as it stands, or up to a record of its last run."""
        conversation = Conversation(self._view)
        async with aclosing(history(self._journal, runs)) as batches:
            async for records in batches:
                if last_seq is not None:
                    last_run_id = runs[-1].run_id
                    records = [each for each in records if each.run_id != last_run_id or each.seq <= last_seq]
                conversation.apply(records)
                await asyncio.sleep(0)  # reading from memory never waits, so other tasks would not get a turn
        return conversation


def _prelude_frame(conversation: Conversation, client: Client) -> Frame:
    """Encodes a thread's past. To be called in another thread, since this takes long for a long conversation."""
    events = client.show(conversation.prelude())
    # A client that has read only part of a prelude has to begin again, so only its end is a position to resume from.
    frames = [*(encode_sse([event]) for event in events[:-1]), encode_sse(events[-1:], conversation.seq)]
    if sum(map(len, frames)) <= _LARGE:
        return b"".join(frames)
    file = tempfile.TemporaryFile()  # noqa: SIM115  # closed after it has been sent
    file.writelines(frames)
    file.seek(0)
    return file


class Client:
    """The events that one client gets of a run: pushed straight into its ``stream`` if that is free, else read by ``rest``.

    ``is_ready``: whether it has got everything before; until then nothing is pushed. Where events are not enough, it gets
    a ``snapshot`` of all messages. ``answers``: the calls that it answers in the run's input.
    """

    def __init__(self, presentation: Presenter | None, snapshot: Snapshot, answers: Collection[str] = ()) -> None:
        self.stream: EventStream | None = None
        self._presentation = presentation
        self._snapshot = snapshot
        self._answers = answers
        self.is_ready = False

    def begin(self, translator: Translator, *, is_ready: bool = True) -> None:
        """``translator``: an onlooker, if the client joined in the middle."""
        self._translator = translator
        translator.answers = self._answers
        self.is_ready = is_ready

    def push(self, records: Sequence[Record]) -> bool:
        stream = self.stream
        if not self.is_ready or len(records) > _FEW or stream is None or not stream.is_free:
            return False
        for record in records:
            if self._translator.may_want_snapshot(record):
                return False
        if len(records) > 1:
            records = _joined(records)
        numbered = [(record.seq, events) for record in records if (events := self._translator.feed(record))]
        if numbered and (frame := self.encode(numbered)):
            stream.write(frame)
        return True

    async def tell(self, records: Sequence[Record]) -> _Numbered:
        numbered: _Numbered = []
        for record in in_order(records):
            events = self._translator.feed(record)
            if self._translator.snapshot_at is not None:
                self._translator.place(await self._snapshot(record.seq, self._translator.doubted), events)
            if events:
                numbered.append((record.seq, events))
        return numbered

    async def rest(self, batches: _Batches) -> AsyncGenerator[bytes, None]:
        """Everything to come, to the run's end; raises ``Unfinished`` if the journal ends before it."""
        async with aclosing(batches):
            async for records in batches:
                has_ended = isinstance(records[-1].event, RunEnded)
                frame = self.encode(await self.tell(records))
                del records
                if frame:
                    yield frame
                if has_ended:
                    return
                del frame  # the wait for the next one may be long
        raise Unfinished

    def show(self, events: Sequence[AguiEvent]) -> Sequence[AguiEvent]:
        return events if self._presentation is None else self._presentation.show(events)

    def encode(self, numbered: _Numbered) -> bytes:
        if len(numbered) == 1:  # the usual case
            seq, events = numbered[0]
            return encode_sse(events if self._presentation is None else self._presentation.show(events), seq)
        return b"".join([encode_sse(self.show(events), seq, first=first) for (first, seq), events in _merge(numbered)])


def _joined(records: Sequence[Record]) -> Sequence[Record]:
    """Pieces of one call as a single piece, with the number of the last: what ``merge`` would do with their events later."""
    pieces = [record.event for record in records if isinstance(record.event, ArgsAppended)]
    if len(pieces) < len(records) or any(piece.call_id != pieces[0].call_id for piece in pieces):
        return records
    whole = ArgsAppended(pieces[0].call_id, "".join([piece.text for piece in pieces]))
    return [msgspec.structs.replace(records[-1], event=whole)]


def _merge(numbered: _Numbered) -> Iterator[tuple[tuple[int, int], list[AguiEvent]]]:
    """The events with the numbers of their first and last record; adjacent records that hold only deltas become one."""
    for are_deltas, stretch in groupby(numbered, key=lambda each: all(map(is_delta, each[1]))):
        records = list(stretch)
        if are_deltas and len(records) > 1:
            yield (records[0][0], records[-1][0]), merge(event for _, events in records for event in events)
        else:
            yield from (((seq, seq), events) for seq, events in records)


async def raw(journal: Journal, run_id: str, after: int) -> AsyncGenerator[bytes, None]:
    """The records of a run after a number, as they are in the journal.

    If the number lies within a range that compaction has folded, the reader gets a notice and then the whole range again.
    """
    is_read = False
    while not is_read:
        try:
            async with aclosing(journal.batches(run_id, after)) as batches:
                async for records in batches:
                    yield b"".join([_frame(record) for record in records if type(record.event) not in KEPT])
                    del records  # the wait for the next ones may be long
            is_read = True
        except Compacted as folded:
            yield b"event: compacted\ndata: %b\n\n" % codec.encode({"first": folded.first, "last": folded.last})
            after = folded.first - 1
    if not await _has_ended(journal, run_id):
        raise Unfinished
    yield END


async def _has_ended(journal: Journal, run_id: str) -> bool:
    """Whether the run has ended. If not, the journal was closed before that, and the reader may continue elsewhere."""
    try:
        rows = await journal.runs(run_id=run_id, limit=1)
    except CallstreamError:
        return False
    return bool(rows) and rows[0].outcome is not None


def _frame(record: Record) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (record.seq, codec.encode(msgspec.to_builtins(record)))
