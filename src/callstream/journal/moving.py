"""A journal copied into another store, whatever the two are.

Every run of the source is compared with the target's by digest, copied if it is missing there or differs, and compared
again: so an interrupted copy goes on where it was, and a copy that is made again copies what has changed. The source is
only read, and may be in use meanwhile; it is done when nothing was written to the source from the beginning to the end of
a pass. A run keeps its number, so the target has nothing but what the source has, or had and has forgotten.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeAlias

from callstream.errors import JournalError, UsageError
from callstream.journal.store import Store, StoreReader, forgotten_mark
from callstream.journal.whole import RunSize, WholeRun

_PASSES = 3
_PAGE = 500
_RECORDS = 20_000
"""Copied in one transaction at most, unless a single run has more."""

Do: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
Progress: TypeAlias = Callable[[int, int], object]
"""Called with how many runs are done, and how many there are."""


class Moved(NamedTuple):
    """Both journals have ``runs``, with ``records`` in all and this digest; ``copied`` of them were copied now.

    ``active`` is how many more go on in a process that is alive. They are not copied.
    """

    runs: int
    records: int
    copied: int
    digest: str
    active: int


class Side(NamedTuple):
    """A store, and how it is asked: on its journal's thread, and again while it is away."""

    store: Store
    reader: StoreReader
    do: Do


async def move(source: Side, target: Side, progress: Progress) -> Moved:
    for _ in range(_PASSES):
        before = await _stamp(source)
        await _check_target(source, target)
        moved = await _pass(source, target, progress)
        if moved.active or await _stamp(source) == before:
            return moved
    raise JournalError(
        f"{source.store.where} was written to while it was copied, {_PASSES} times: stop the processes that write to it, "
        "and copy again; what was copied stays"
    )


async def _stamp(source: Side) -> tuple[int, int, str]:
    """Another one after anything was written, but for pieces of runs that go on: with those, nobody asks."""
    stats = await source.do(source.reader.stats)
    sizes = hashlib.sha256()
    async for page in _pages(source):
        sizes.update(repr(page).encode())
    return stats["active_runs"], stats["orphaned_runs"], sizes.hexdigest()


async def _check_target(source: Side, target: Side) -> None:
    """Erases what the source has forgotten; refuses a target that has anything else that the source has not."""
    async for page in _pages(target):
        found = await source.do(source.reader.run_sizes, page[0].key - 1, page[-1].key, None)
        known = {(size.key, size.run_id) for size in found}
        strange = [size.key for size in page if (size.key, size.run_id) not in known]
        if not strange:
            continue
        for run in await target.do(target.reader.whole_runs, strange):
            mark = forgotten_mark(run.thread_id, run.principal)
            if not await source.do(source.reader.has_forgotten, mark):
                raise UsageError(
                    f"{target.store.where} has run {run.run_id!r}, which {source.store.where} has not: expected an empty "
                    "journal, or one that a copy of the same journal has begun"
                )
        await target.do(target.store.restore, [], strange)


async def _pass(source: Side, target: Side, progress: Progress) -> Moved:
    stats = await source.do(source.reader.stats)
    in_use = stats["active_runs"] > stats["orphaned_runs"]
    runs = records = copied = active = 0
    total = hashlib.sha256()
    async for page in _pages(source):
        waiting = [size for size in page if not (size.active and in_use)]
        active += len(page) - len(waiting)
        for some in _portions(waiting):
            found: Sequence[WholeRun] = await source.do(source.reader.whole_runs, some)
            copied += await _copy(target, found)
            for run in found:
                total.update(run.digest)
                records += len(run.records)
            runs += len(found)
            progress(runs, stats["runs"])
    async for marks in _marks(source):
        await target.do(target.store.keep_forgotten, marks)
    return Moved(runs, records, copied, total.hexdigest(), active)


async def _copy(target: Side, runs: Sequence[WholeRun]) -> int:
    there = await _digests(target, runs)
    missing = [run for run in runs if there.get(run.key) != run.digest]
    if missing:
        await target.do(target.store.restore, missing, [])
        there = await _digests(target, missing)
        for run in missing:
            if there.get(run.key) != run.digest:
                raise JournalError(f"run {run.run_id!r} is not the same in {target.store.where} after it was copied")
    return len(missing)


async def _digests(side: Side, runs: Sequence[WholeRun]) -> dict[int, bytes]:
    found: Sequence[WholeRun] = await side.do(side.reader.whole_runs, [run.key for run in runs])
    return {run.key: run.digest for run in found}


def _portions(sizes: Sequence[RunSize]) -> list[list[int]]:
    portions: list[list[int]] = []
    room = 0
    for size in sizes:
        if not portions or size.last_seq > room:
            portions.append([])
            room = _RECORDS
        portions[-1].append(size.key)
        room -= size.last_seq
    return portions


async def _pages(side: Side) -> AsyncIterator[Sequence[RunSize]]:
    """All runs, in the order of their keys."""
    after = 0
    while page := await side.do(side.reader.run_sizes, after, None, _PAGE):
        yield page
        after = page[-1].key


async def _marks(side: Side) -> AsyncIterator[Sequence[str]]:
    after = ""
    while marks := await side.do(side.reader.forgotten, after, _PAGE):
        yield marks
        after = marks[-1]
