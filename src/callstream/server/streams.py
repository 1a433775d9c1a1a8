"""What a client reads of a run: AG-UI events or raw records, as server-sent events.

A stream is a follower of the journal and nothing else. All records that wait are sent at once with their deltas merged,
so a reader that is behind gets fewer and longer ones, and nothing is kept for it in memory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from itertools import groupby
from typing import Final

import msgspec

from callstream.agui import AguiEvent, Conversation, Position, Translator, View, encode_sse, merge
from callstream.agui.events import is_delta, json_bytes
from callstream.errors import CallstreamError, Compacted, JournalError
from callstream.events import Record, RunEnded
from callstream.journal import Journal, RunRow
from callstream.server.agent import Presentation

END: Final = b"event: end\ndata: {}\n\n"


async def live(journal: Journal, run_id: str, view: View, presentation: Presentation) -> AsyncGenerator[bytes, None]:
    """A run from its beginning."""
    async for frame in _followed(journal, run_id, 0, Translator(view), presentation):
        yield frame


async def resumed(
    journal: Journal, run_id: str, position: Position, view: View, presentation: Presentation
) -> AsyncGenerator[bytes, None]:
    """The rest of a run for a client that has read it up to a position. Compacted if that can no longer be told."""
    translator = Translator(view)
    half_read: list[tuple[int, list[AguiEvent]]] = []
    async for record in journal.read(run_id):
        if record.seq > position.seq:
            if record.first_seq is not None and record.first_seq <= position.seq:
                raise Compacted(run_id, position.seq, record.first_seq, record.seq)
            break
        if (record.first_seq or record.seq) <= position.whole < record.seq:
            raise Compacted(run_id, position.whole, record.first_seq or record.seq, record.seq)
        events = translator.feed(record)
        if record.seq <= position.whole:
            presentation.shown(events)
        elif events:
            half_read.append((record.seq, events))
    for (first, seq), events in _merged(half_read):
        shown = presentation.shown(events)
        # The position of a group's last event is that of the whole group, so that one at least is still to come.
        yield encode_sse(shown, seq, first=first, skip=min(position.events or 0, len(shown) - 1))
    async for frame in _followed(journal, run_id, position.seq, translator, presentation):
        yield frame


async def joined(
    journal: Journal, runs: Iterable[RunRow], view: View, presentation: Presentation
) -> AsyncGenerator[bytes, None]:
    """A thread whose runs are given, the oldest first: what has been, then the last run live."""
    conversation = Conversation(view)
    run_id = ""
    for row in runs:
        run_id = row.run_id
        # Folded records come where their last piece stood; in the order of their first they make sense.
        records = [record async for record in journal.read(run_id)]
        conversation.take(sorted(records, key=lambda record: record.first_seq or record.seq))
    ended = conversation.has_ended
    prelude = presentation.shown(conversation.prelude())
    # Whoever has read half of a prelude has to begin again, so only its end is a place to continue from.
    yield encode_sse(prelude[:-1]) + encode_sse(prelude[-1:], conversation.seq)
    if not ended:
        async for frame in _followed(journal, run_id, conversation.seq, conversation, presentation):
            yield frame


async def _followed(
    journal: Journal, run_id: str, after: int, translator: Translator | Conversation, presentation: Presentation
) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(journal.batches(run_id, after)) as batches:
            async for records in batches:
                told = [(record.seq, events) for record in records if (events := translator.feed(record))]
                frame = b"".join(
                    [encode_sse(presentation.shown(events), seq, first=first) for (first, seq), events in _merged(told)]
                )
                if frame:
                    yield frame
                if isinstance(records[-1].event, RunEnded):
                    return
    except JournalError:
        # A stream that merely stops looks like success.
        yield encode_sse(presentation.shown(translator.end()))
        raise
    yield encode_sse(presentation.shown(translator.end()))  # the journal was closed


def _merged(told: list[tuple[int, list[AguiEvent]]]) -> Iterator[tuple[tuple[int, int], list[AguiEvent]]]:
    """The events of records, by the first and the last record's number; adjacent records of deltas alone become one."""
    for are_deltas, stretch in groupby(told, key=lambda each: all(map(is_delta, each[1]))):
        records = list(stretch)
        if are_deltas and len(records) > 1:
            yield (records[0][0], records[-1][0]), merge(event for _, events in records for event in events)
        else:
            yield from (((seq, seq), events) for seq, events in records)


async def raw(journal: Journal, run_id: str, after: int) -> AsyncGenerator[bytes, None]:
    """The records of a run after a number, as they are in the journal.

    If the number lies inside a range that compaction has folded, the reader is told so and gets the range again, whole.
    """
    try:
        async for frame in _records(journal, run_id, after):
            yield frame
    except Compacted as folded:
        yield b"event: compacted\ndata: %b\n\n" % json_bytes({"first": folded.first, "last": folded.last})
        async for frame in _records(journal, run_id, folded.first - 1):
            yield frame
    if await _has_ended(journal, run_id):
        yield END


async def _records(journal: Journal, run_id: str, after: int) -> AsyncGenerator[bytes, None]:
    async with aclosing(journal.batches(run_id, after)) as batches:
        async for records in batches:
            yield b"".join(map(_frame, records))


async def _has_ended(journal: Journal, run_id: str) -> bool:
    """False where the journal was closed before the run ended: whoever reads may go on elsewhere."""
    try:
        rows = await journal.runs(run_id=run_id, limit=1)
    except CallstreamError:
        return False
    return bool(rows) and rows[0].outcome is not None


def _frame(record: Record) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (record.seq, json_bytes(msgspec.to_builtins(record)))
