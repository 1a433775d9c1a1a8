"""A log as an engine has it, as plain as can be: ordered appends with a fence, in this process."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from callstream.journal import Journal, JournalSettings, open_journal
from callstream.journal.paired import PairedStore
from callstream.journal.rows import RecordColumns
from callstream.journal.worker import Inline, JournalThread
from callstream.journal.writer import CopyPieces, Heard, Stale


class Engine:
    """What all logs of one place share. ``appends`` counts the batches."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.turns: dict[str, int] = {}
        self.records: dict[int, list[RecordColumns]] = {}
        self.logs: set[EngineLog] = set()
        self.appends = 0


class EngineLog:
    """See ``Log``. Nothing here waits."""

    where = "the log of the tests"
    name = "log_stream=tests"
    is_persistent = True
    room = 100_000

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn = -1

    async def open(self, writer: str, heard: Heard, journal_id: str) -> None:
        self._writer = writer
        self._heard = heard
        self._engine.logs.add(self)

    async def close(self) -> None:
        self._engine.logs.discard(self)

    async def check(self, size: int) -> None: ...

    async def take_turn(self) -> None:
        await self.fence([self._writer])
        self._turn = self._engine.turns[self._writer]

    async def append(self, records: Sequence[RecordColumns]) -> None:
        with self._engine.lock:
            if self._engine.turns.get(self._writer) != self._turn:
                raise Stale
            for record in records:
                lines = self._engine.records.setdefault(record[0], [])
                assert not lines or lines[-1][1] < record[1], "appends to a run are in order, and none comes twice"
                lines.append(record)
            self._engine.appends += 1
            others = [log for log in self._engine.logs if log is not self]
        added: dict[int, list[RecordColumns]] = {}
        for record in records:
            added.setdefault(record[0], []).append(record)
        for log in others:
            log._heard([(key, partial(list, lines)) for key, lines in added.items()])

    async def fence(self, writers: Collection[str]) -> None:
        with self._engine.lock:
            for writer in writers:
                self._engine.turns[writer] = self._engine.turns.get(writer, 0) + 1

    async def last(self, owners: Mapping[int, str]) -> Mapping[int, tuple[int, int]]:
        with self._engine.lock:
            found = {key: self._engine.records[key][-1] for key in owners if key in self._engine.records}
        return {key: (seq, at_ms) for key, (_, seq, at_ms, *_) in found.items()}

    async def read(self, run_key: int, writer: str, after: int, limit: int | None) -> Sequence[RecordColumns]:
        with self._engine.lock:
            return [record for record in self._engine.records.get(run_key, ()) if record[1] > after][:limit]

    async def listen(self, writer: str) -> None: ...

    async def trim(self, copy_pieces: CopyPieces, followed: Mapping[str, Collection[int]]) -> None:
        """Nothing stays here for long: a test asks for it."""
        with self._engine.lock:
            records = [record for lines in self._engine.records.values() for record in lines]
        await copy_pieces(records)
        await self.erase({record[0] for record in records})

    async def trim_dead(self, kept: Callable[[], Awaitable[Collection[str]]]) -> None:
        await kept()

    async def erase(self, run_keys: Collection[int]) -> None:
        with self._engine.lock:
            for key in run_keys:
                self._engine.records.pop(key, None)

    def figures(self) -> dict[str, float]:
        return {"batches": self._engine.appends}

    async def stored_bytes(self) -> int:
        with self._engine.lock:
            return sum(len(record[-1]) for lines in self._engine.records.values() for record in lines)


def paired(url: str, engine: Engine, settings: dict[str, Any]) -> Journal:
    """The journal of that URL, with the engine beside it."""
    index = open_journal(url, **settings)._store  # type: ignore[attr-defined]
    worker = Inline if url.startswith("memory:") else JournalThread
    return Journal(PairedStore(index, EngineLog(engine)), JournalSettings(**settings), worker)
