"""The past of a thread: the records of many runs, in the order in which they are folded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Final

from callstream.events import Record
from callstream.journal.protocol import Journal, RunRow

_SHORT: Final = 500
"""A run of so many records is read together with others."""
_AT_ONCE: Final = 1000


async def history(journal: Journal, runs: Iterable[RunRow]) -> AsyncGenerator[Sequence[Record], None]:
    """What the runs have in the journal now, run after run, about a thousand records at a time.

    Short runs are read many at once, so that a thread of thousands of them costs what its records cost. Folded records
    stand where the first of their pieces stood.
    """
    short: list[str] = []
    size = 0
    for row in runs:
        is_short = row.outcome is not None and row.last_seq <= _SHORT
        if is_short:
            short.append(row.run_id)
            size += row.last_seq
        if short and (size >= _AT_ONCE or not is_short):
            yield await journal.read_whole(short)
            short, size = [], 0
        if not is_short:
            async for records in _long(journal, row):
                yield records
    if short:
        yield await journal.read_whole(short)


async def _long(journal: Journal, row: RunRow) -> AsyncGenerator[Sequence[Record], None]:
    """The records of a run as they are. As soon as numbers are missing, since pieces were folded into a later record, the
    rest is put in order first.
    """
    if row.outcome is None:
        yield [record async for record in journal.read(row.run_id)]
        return
    after = 0
    rest: list[Record] = []
    async with aclosing(journal.batches(row.run_id)) as batches:
        async for records in batches:
            if rest or records[-1].seq != after + len(records):
                rest += records
            else:
                yield records
            after = records[-1].seq
    rest.sort(key=lambda record: record.first_seq or record.seq)
    for start in range(0, len(rest), _AT_ONCE):
        yield rest[start : start + _AT_ONCE]
