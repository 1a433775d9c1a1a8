"""The past of a thread: the records of many runs, in the order in which they are folded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Final

from callstream.events import Record, in_order
from callstream.journal.journal import Journal
from callstream.journal.rows import RunRow

_SHORT: Final = 500
"""A run of so many records is read together with others."""
_AT_ONCE: Final = 3000


async def history(journal: Journal, runs: Iterable[RunRow]) -> AsyncGenerator[Sequence[Record], None]:
    """What the runs have in the journal now, run after run, some thousand records at a time.

    Short runs are read many at once, so that a thread of thousands of them costs what its records cost. Folded records
    stand where the first of their pieces stood, and adjacent pieces of a call or a message may be one record.
    """
    short: list[str] = []
    size = 0
    for row in runs:
        is_short = row.outcome is not None and row.last_seq <= _SHORT
        if is_short:
            short.append(row.run_id)
            size += row.last_seq
        if short and (size >= _AT_ONCE or not is_short):
            yield await journal.read_whole(short, merged=True)
            short, size = [], 0
        if not is_short:
            async for records in _long(journal, row):
                yield records
    if short:
        yield await journal.read_whole(short, merged=True)


async def _long(journal: Journal, row: RunRow) -> AsyncGenerator[Sequence[Record], None]:
    """The records of a run as they are. As soon as numbers are missing, since pieces were folded into a later record, the
    rest is put in order first.
    """
    after = 0
    rest: list[Record] = []
    pages = _pages(journal, row.run_id) if row.outcome is None else journal.batches(row.run_id)
    async with aclosing(pages):
        async for records in pages:
            if rest or records[-1].seq != after + len(records):
                rest += records
            else:
                yield records
            after = records[-1].seq
    ordered = in_order(rest)
    for start in range(0, len(ordered), _AT_ONCE):
        yield ordered[start : start + _AT_ONCE]


async def _pages(journal: Journal, run_id: str) -> AsyncGenerator[Sequence[Record], None]:
    """What there is now of a run that has not ended."""
    page: list[Record] = []
    async for record in journal.read(run_id):
        page.append(record)
        if len(page) == _AT_ONCE:
            yield page
            page = []
    if page:
        yield page
