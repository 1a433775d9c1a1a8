"""What a client reads of a run: AG-UI events or raw records, as server-sent events.

A stream is one reader of the journal and nothing else: what compaction does to a run meanwhile is the reader's affair.
All records that wait are sent at once with their deltas merged, so a reader that is behind gets fewer and longer ones,
and nothing is kept for it in memory. Of a client that joins, too, only what it needs for the rest is kept once it has
been told what was before.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import groupby
from typing import Any, Final, TypeAlias

import msgspec

from callstream import codec
from callstream.agui import AguiEvent, Conversation, Position, Translator, View, encode_sse, merge
from callstream.agui.conversation import Onlooker
from callstream.agui.events import is_delta
from callstream.errors import CallstreamError, Compacted
from callstream.events import KEPT, ArgsAppended, Record, RunEnded, in_order
from callstream.journal import Journal, RunRow, history
from callstream.server.agent import Presenter
from callstream.server.eventstream import Frame, Outlet, Unfinished

END: Final = b"event: end\ndata: {}\n\n"
_LARGE: Final = 512 * 1024
"""A prelude that is larger waits in a file until the client has taken it."""
_JOINS_AT_ONCE: Final = 4
_FEW: Final = 50
"""Records that may be sent without waiting until the client has taken some of them."""

_Batches: TypeAlias = AsyncGenerator[Sequence[Record], None]
_Told: TypeAlias = list[tuple[int, list[AguiEvent]]]
"""Events by the number of the record that caused them."""


Snapshot: TypeAlias = Callable[[int], Awaitable[AguiEvent]]
"""All messages of a thread, up to a record of the run that is followed."""


def live(
    journal: Journal, run_id: str, view: View, presentation: Presenter, outlet: Outlet, *, snapshot: Snapshot
) -> AsyncGenerator[bytes, None]:
    """A run from its beginning."""
    client = _Client(outlet, presentation, snapshot)
    client.begin(Translator(view))
    return client.rest(journal.batches(run_id, push=client.push))


async def resume(
    journal: Journal,
    run_id: str,
    position: Position,
    view: View,
    presentation: Presenter,
    outlet: Outlet,
    *,
    snapshot: Snapshot,
) -> AsyncGenerator[bytes, None]:
    """The rest of a run for a client that has read it up to a position. Compacted if that can no longer be told."""
    translator = Translator(view)
    client = _Client(outlet, presentation, snapshot)
    client.begin(translator, is_ready=False)
    half_read: _Told = []
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
                    presentation.show(events)
                else:
                    half_read.append((seq, events))
        for (first, seq), events in _merge(half_read):
            shown = presentation.show(events)
            # The position of a group's last event is that of the whole group, so that one at least is still to come.
            yield encode_sse(shown, seq, first=first, skip=min(position.events or 0, len(shown) - 1))
        if unread:
            yield _encode(await client.tell(unread), presentation)
        if records and isinstance(records[-1].event, RunEnded):
            return
        client.is_ready = True
        async for frame in client.rest(batches):
            yield frame


def _cuts(position: Position, record: Record) -> bool:
    """Whether the client has read a part of what is one record now."""
    first = record.first_seq or record.seq
    return first <= position.seq < record.seq or first <= position.whole < record.seq


class Joins:
    """Threads for clients that join them. So many at once are put together; others wait for their turn."""

    def __init__(self, journal: Journal, view: View) -> None:
        self._journal = journal
        self._view = view
        self._turns = asyncio.Semaphore(_JOINS_AT_ONCE)

    async def join(
        self, runs: Sequence[RunRow], presentation: Presenter, outlet: Outlet
    ) -> AsyncGenerator[Frame, None]:
        """A thread whose runs are given, the oldest first: what has been, then the last run live."""
        last = runs[-1]
        client = _Client(outlet, presentation, partial(self.snapshot, runs))
        async with aclosing(self._journal.batches(last.run_id, push=client.push)) as batches:
            async with self._turns:
                if last.outcome is None:
                    conversation = await self._conversation(runs[:-1])
                    while conversation.run_id != last.run_id or conversation.seq < last.last_seq:
                        conversation.apply(in_order(await anext(batches)))
                        await asyncio.sleep(0)
                else:
                    conversation = await self._conversation(runs)
                frame = await asyncio.to_thread(_prelude_frame, conversation, presentation)
                if not conversation.has_ended:
                    client.begin(conversation.onlooker)
            del conversation
            yield frame
            del frame
            if client.is_ready:
                async for rest in client.rest(batches):
                    yield rest

    async def snapshot(self, runs: Sequence[RunRow], last_seq: int, own: Sequence[Any] = ()) -> AguiEvent:
        """The messages of a thread up to a record of the last of its runs, and those of ``own`` that no run knows."""
        conversation = await self._conversation(runs, last_seq)
        return conversation.snapshot(each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in own)

    async def _conversation(self, runs: Sequence[RunRow], last_seq: int | None = None) -> Conversation:
        """The thread as it is, or up to a record of its last run."""
        conversation = Conversation(self._view)
        async with aclosing(history(self._journal, runs)) as batches:
            async for records in batches:
                if last_seq is not None:
                    last_run_id = runs[-1].run_id
                    records = [each for each in records if each.run_id != last_run_id or each.seq <= last_seq]
                conversation.apply(records)
                await asyncio.sleep(0)  # an answer from memory does not wait, and others want their turn
        return conversation


def _prelude_frame(conversation: Conversation, presentation: Presenter) -> Frame:
    """For a thread of its own, since a long conversation takes its time."""
    events = presentation.show(conversation.prelude())
    # A client that has read half of a prelude has to begin again, so only its end is a place to continue from.
    frames = [*(encode_sse([event]) for event in events[:-1]), encode_sse(events[-1:], conversation.seq)]
    if sum(map(len, frames)) <= _LARGE:
        return b"".join(frames)
    file = tempfile.TemporaryFile()  # noqa: SIM115  # closed when it has been sent
    file.writelines(frames)
    file.seek(0)
    return file


class _Client:
    """What one client gets of a run: pushed straight into its outlet if that is free, else by ``rest``, as it can take it.

    ``is_ready``: whether it has what came before. Until then nothing is pushed. Where events are not enough, it gets a
    ``snapshot`` of all messages.
    """

    def __init__(self, outlet: Outlet, presentation: Presenter, snapshot: Snapshot) -> None:
        self._outlet = outlet
        self._presentation = presentation
        self._snapshot = snapshot
        self.is_ready = False

    def begin(self, source: Translator | Onlooker, *, is_ready: bool = True) -> None:
        """``source``: what makes events of records for it: an onlooker, if it has joined in the middle."""
        self._source = source
        self.is_ready = is_ready

    def push(self, records: Sequence[Record]) -> bool:
        if not self.is_ready or len(records) > _FEW or not self._outlet.is_free:
            return False
        for record in records:
            if self._source.may_want_snapshot(record):
                return False
        if len(records) > 1:
            records = _joined(records)
        told = [(record.seq, events) for record in records if (events := self._feed(record))]
        if told and (frame := _encode(told, self._presentation)):
            self._outlet.write(frame)
        return True

    async def tell(self, records: Sequence[Record]) -> _Told:
        told: _Told = []
        for record in in_order(records):
            events = self._feed(record)
            if self._source.snapshot_at is not None:
                events.insert(self._source.snapshot_at, await self._snapshot(record.seq))
            if events:
                told.append((record.seq, events))
        return told

    def _feed(self, record: Record) -> list[AguiEvent]:
        source = self._source
        return source.feed(record) if isinstance(source, Translator) else source.feed(record)[0]

    async def rest(self, batches: _Batches) -> AsyncGenerator[bytes, None]:
        """What comes, to the run's end; ``Unfinished`` if the journal ends before it."""
        async with aclosing(batches):
            async for records in batches:
                has_ended = isinstance(records[-1].event, RunEnded)
                frame = _encode(await self.tell(records), self._presentation)
                del records
                if frame:
                    yield frame
                if has_ended:
                    return
                del frame  # for the next one, the client may wait long
        raise Unfinished


def _joined(records: Sequence[Record]) -> Sequence[Record]:
    """Pieces of one call as one, with the number of the last; what ``merge`` would make of their events later."""
    pieces = [record.event for record in records if isinstance(record.event, ArgsAppended)]
    if len(pieces) < len(records) or any(piece.call_id != pieces[0].call_id for piece in pieces):
        return records
    whole = ArgsAppended(pieces[0].call_id, "".join([piece.text for piece in pieces]))
    return [msgspec.structs.replace(records[-1], event=whole)]


def _encode(told: _Told, presentation: Presenter) -> bytes:
    if len(told) == 1:
        seq, events = told[0]
        return encode_sse(presentation.show(events), seq)
    return b"".join([encode_sse(presentation.show(events), seq, first=first) for (first, seq), events in _merge(told)])


def _merge(told: _Told) -> Iterator[tuple[tuple[int, int], list[AguiEvent]]]:
    """The events of records, by the first and the last record's number; adjacent records of deltas alone become one."""
    for are_deltas, stretch in groupby(told, key=lambda each: all(map(is_delta, each[1]))):
        records = list(stretch)
        if are_deltas and len(records) > 1:
            yield (records[0][0], records[-1][0]), merge(event for _, events in records for event in events)
        else:
            yield from (((seq, seq), events) for seq, events in records)


async def raw(journal: Journal, run_id: str, after: int) -> AsyncGenerator[bytes, None]:
    """The records of a run after a number, as they are in the journal.

    If the number lies inside a range that compaction has folded, the reader gets a notice and the range again, whole.
    """
    is_read = False
    while not is_read:
        try:
            async with aclosing(journal.batches(run_id, after)) as batches:
                async for records in batches:
                    yield b"".join([_frame(record) for record in records if type(record.event) not in KEPT])
                    del records  # for what comes next, the reader may wait long
            is_read = True
        except Compacted as folded:
            yield b"event: compacted\ndata: %b\n\n" % codec.encode({"first": folded.first, "last": folded.last})
            after = folded.first - 1
    if not await _has_ended(journal, run_id):
        raise Unfinished
    yield END


async def _has_ended(journal: Journal, run_id: str) -> bool:
    """False where the journal was closed before the run ended: the reader may continue elsewhere."""
    try:
        rows = await journal.runs(run_id=run_id, limit=1)
    except CallstreamError:
        return False
    return bool(rows) and rows[0].outcome is not None


def _frame(record: Record) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (record.seq, codec.encode(msgspec.to_builtins(record)))
