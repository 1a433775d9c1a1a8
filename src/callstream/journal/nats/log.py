"""The log in NATS JetStream: three servers, any one of which may be lost.

One message holds one batch of a process. Each process has a subject of its own, and every message names the one that it
expects to be the last there. A new turn or a takeover begins with an empty message on the writer's subject; so a message
that was still under way when its writer gave up is refused, and so is every message of a process whose runs were taken over.

A process reads its own runs from memory. To read another's, it reads once everything that the run's owner has in the log,
and then gets what that owner adds, as long as one of its runs is followed here.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import msgspec
from nats.aio.subscription import Subscription

from callstream.errors import JournalError
from callstream.journal.nats.link import NatsAddress, NatsLink
from callstream.journal.rows import RecordColumns
from callstream.journal.store import StoreUnavailable
from callstream.journal.writer import CopyPieces, Heard, Stale

# -- messages of the log, and those of one writer sorted by run: pure --------------------------------------------------
# A message holds one batch: a list of parts, one per run, each with the number of its first record, how many there are,
# their time, and the records themselves as bytes, which are decoded when the run is read. An empty message adds nothing:
# it takes the writer's turn.


class _RunPart(NamedTuple):
    """Records of a run, numbered from ``first``. ``body``: source, call, kind and body of each of them."""

    key: int
    first: int
    size: int
    at_ms: int
    body: bytes

    @property
    def last(self) -> int:
        return self.first + self.size - 1


_Packed: TypeAlias = list[tuple[int, int, int, int, msgspec.Raw]]
_Columns: TypeAlias = tuple[int, int | None, int, str]
_encoder = msgspec.msgpack.Encoder()
_message_decoder = msgspec.msgpack.Decoder(_Packed)
_body_decoder = msgspec.msgpack.Decoder(list[_Columns])


def parts_of(records: Sequence[RecordColumns]) -> list[_RunPart]:
    """The records of a batch as parts. Those of one run have to be adjacent and in order."""
    parts: list[_RunPart] = []
    columns: list[_Columns] = []
    begin = end = (-1, 0, 0)  # run, number, time
    for key, seq, at_ms, source, call, kind, body in records:
        if end != (key, seq - 1, at_ms):
            if columns:
                parts.append(_part(begin, columns))
            begin, columns = (key, seq, at_ms), []
        columns.append((source, call, kind, body))
        end = (key, seq, at_ms)
    if columns:
        parts.append(_part(begin, columns))
    return parts


def _part(begin: tuple[int, int, int], columns: list[_Columns]) -> _RunPart:
    key, first, at_ms = begin
    return _RunPart(key, first, len(columns), at_ms, _encoder.encode(columns))


def pack(parts: Iterable[_RunPart]) -> bytes:
    return _encoder.encode([(*head, msgspec.Raw(body)) for *head, body in parts])


def unpack(message: bytes) -> list[_RunPart]:
    """Raises msgspec.DecodeError for anything that is not such a message."""
    if not message:
        return []
    return [
        _RunPart(key, first, size, ms, bytes(body)) for key, first, size, ms, body in _message_decoder.decode(message)
    ]


class _Kept(NamedTuple):
    part: _RunPart
    place: int
    at: float


def _first(kept: _Kept) -> int:
    return kept.part.first


class WriterView:
    """What one writer has appended, as far as it is needed here: every message up to the one at ``until`` has been seen.

    A place is the number that the engine has given to a message.
    """

    def __init__(self, at: float = 0.0) -> None:
        self.until = 0
        self.made_at = self.used_at = at
        self._runs: dict[int, list[_Kept]] = {}
        self._only: frozenset[int] | None = None

    def narrow(self, keys: Iterable[int]) -> None:
        """Keeps only those runs from now on."""
        self._only = frozenset(keys)
        self._runs = {key: kept for key, kept in self._runs.items() if key in self._only}

    def has(self, key: int) -> bool:
        """Whether records of that run are kept here."""
        return self._only is None or key in self._only

    def add(self, place: int, parts: Iterable[_RunPart], at: float) -> None:
        """Adds the next message, unless it has been added already."""
        if place > self.until:
            self.until = place
            for part in parts:
                if self._only is None or part.key in self._only:
                    self._runs.setdefault(part.key, []).append(_Kept(part, place, at))

    def last(self, key: int) -> tuple[int, int] | None:
        """Number and time of the run's last record."""
        kept = self._runs.get(key)
        return (kept[-1].part.last, kept[-1].part.at_ms) if kept else None

    def read(self, key: int, after: int, limit: int | None) -> list[RecordColumns]:
        """Up to ``limit`` records of the run after that number."""
        kept = self._runs.get(key, [])
        found: list[RecordColumns] = []
        for part, _, _ in kept[max(0, bisect_right(kept, after, key=_first) - 1) :]:
            if part.last > after:
                found += [record for record in records_of(part) if record[1] > after]
            if limit is not None and len(found) >= limit:
                return found[:limit]
        return found

    def erase(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._runs.pop(key, None)

    def older(self, at: float) -> list[RecordColumns]:
        """The records that were added before that time."""
        return [
            record
            for kept in self._runs.values()
            for part, _, since in kept
            if since < at
            for record in records_of(part)
        ]

    def erase_older(self, at: float) -> None:
        runs = {key: [one for one in kept if one.at >= at] for key, kept in self._runs.items()}
        self._runs = {key: kept for key, kept in runs.items() if kept}

    def age(self, now: float) -> float:
        """Seconds since the oldest part here was added. May be called in any thread."""
        return now - min((kept[0].at for kept in list(self._runs.values())), default=now)

    @property
    def oldest(self) -> int:
        """The place of the first message that is still needed; of the last one, if none is."""
        return min((kept[0].place for kept in self._runs.values()), default=self.until)


def records_of(part: _RunPart) -> list[RecordColumns]:
    key, first, _, at_ms, body = part
    return [
        (key, first + number, at_ms, source, call, kind, text)
        for number, (source, call, kind, text) in enumerate(_body_decoder.decode(body))
    ]


SETTLE_SECONDS = 300.0
"""How long pieces of a live run may stay in the log. Messages with pieces of ended or erased runs may stay as long."""
_UNUSED_SECONDS = 60.0
_CHECK = "check"
_LAGGING = 50
"""How often a server that is behind is asked again."""
_LAG_SECONDS = 0.02


class NatsLog:
    """See ``Log``."""

    is_persistent = True

    def __init__(self, address: NatsAddress, *, patience: float) -> None:
        self.where = address.where
        self.name = address.name
        self._link = NatsLink(address, patience)
        self._views: dict[str, WriterView] = {}
        self._own = WriterView()
        self._feeds: dict[str, Subscription] = {}
        self._purged = 0
        self._checked = 0
        self._batches = self._records = self._refused = 0

    async def open(self, writer: str, heard: Heard, journal_id: str) -> None:
        self._writer = _token(writer)
        self._heard = heard
        self._views, self._feeds, self._own = {}, {}, WriterView()
        await self._link.open(journal_id, broke=self._broke)

    async def close(self) -> None:
        await self._link.close()

    async def check(self, size: int) -> None:
        self._checked = await self._link.publish(_CHECK, bytes(min(size, self.room)), None)

    @property
    def room(self) -> int:
        return self._link.room

    # -- writing -------------------------------------------------------------------------------------------------------

    async def take_turn(self) -> None:
        """Appends that were under way and have arrived are in the log before the turn's message, so they are read here."""
        place = await self._link.publish(self._writer, b"", None)
        if not self._own.until:
            self._own.until = place  # the name is new, so nothing comes before
        await self._read_on(self._own, self._writer, place)

    async def append(self, records: Sequence[RecordColumns]) -> None:
        parts = parts_of(records)
        try:
            place = await self._link.publish(self._writer, pack(parts), self._own.until)
        except Stale:
            self._refused += 1
            raise
        self._own.add(place, parts, time.monotonic())
        self._batches += 1
        self._records += len(records)

    async def fence(self, writers: Collection[str]) -> None:
        await asyncio.gather(*(self._link.publish(_token(writer), b"", None) for writer in writers))

    # -- reading -------------------------------------------------------------------------------------------------------

    async def last(self, owners: Mapping[int, str]) -> Mapping[int, tuple[int, int]]:
        keys: dict[str, list[int]] = {}
        for key, writer in owners.items():
            keys.setdefault(writer, []).append(key)
        views = {writer: await self._view(writer, wanted) for writer, wanted in keys.items()}
        found = {key: views[writer].last(key) for key, writer in owners.items()}
        return {key: last for key, last in found.items() if last is not None}

    async def read(self, run_key: int, writer: str, after: int, limit: int | None) -> Sequence[RecordColumns]:
        return (await self._view(writer, [run_key])).read(run_key, after, limit)

    async def listen(self, writer: str) -> None:
        name = _token(writer)
        if name != self._writer and name not in self._feeds:
            feed = await self._link.listen(name, partial(self._hear, name))
            if self._feeds.setdefault(name, feed) is not feed:
                await feed.unsubscribe()

    def _hear(self, name: str, place: int, before: int, message: bytes) -> None:
        try:
            parts = unpack(message)
        except msgspec.DecodeError:
            return  # whoever reads it gets the error
        view = self._views.get(name)
        follows = view is not None and view.until == before
        if view is not None and follows:
            view.add(place, parts, time.monotonic())
        # An empty message takes a turn after a break: records may have been stored meanwhile without a notice.
        self._heard([(part.key, partial(records_of, part)) for part in parts] if parts and follows else None)

    def _broke(self) -> None:
        self._heard(None)

    async def _view(self, writer: str, keys: Collection[int]) -> WriterView:
        """Everything that the writer has in the log about those runs at this moment."""
        name = _token(writer)
        if name == self._writer:
            return self._own
        view = self._views.get(name)
        if view is None or not all(map(view.has, keys)):
            view = self._views[name] = WriterView(time.monotonic())
        view.used_at = time.monotonic()
        await self._read_on(view, name, await self._link.last(name))
        return view

    async def _read_on(self, view: WriterView, name: str, until: int) -> None:
        """Reads the messages after those known, up to that one. A server may not have it yet."""
        for _ in range(_LAGGING):
            while view.until < until and (found := await self._link.read(name, view.until + 1)):
                now = time.monotonic()
                for place, message in found:
                    try:
                        view.add(place, unpack(message), now)
                    except msgspec.DecodeError as error:
                        raise JournalError(f"{self.where} has a message at {place} that is not Callstream's") from error
            if view.until >= until:
                return
            await asyncio.sleep(_LAG_SECONDS)
        raise StoreUnavailable(f"{self.where} does not have everything yet that it has acknowledged")

    # -- giving back ---------------------------------------------------------------------------------------------------

    async def erase(self, run_keys: Collection[int]) -> None:
        """The room is freed when no other run needs the same messages."""
        for view in (self._own, *self._views.values()):
            view.erase(run_keys)

    async def trim(self, copy_pieces: CopyPieces, followed: Mapping[str, Collection[int]]) -> None:
        before = time.monotonic() - SETTLE_SECONDS
        if old := self._own.older(before):
            await copy_pieces(old)
            self._own.erase_older(before)
        oldest = self._own.oldest
        if oldest > self._purged:
            await self._link.purge(self._writer, oldest)
            self._purged = oldest
        if self._checked:
            await self._link.purge(_CHECK, self._checked)
            self._checked = 0
        await self._trim_others({_token(writer): keys for writer, keys in followed.items()})

    async def _trim_others(self, followed: Mapping[str, Collection[int]]) -> None:
        """Keeps other writers' messages for a minute, and after that only those of followed runs."""
        for name in self._feeds.keys() - followed.keys():
            await self._feeds.pop(name).unsubscribe()
        since = time.monotonic() - _UNUSED_SECONDS
        for name, view in list(self._views.items()):
            if name in followed and view.made_at < since:
                view.narrow(followed[name])
            elif view.used_at < since:
                del self._views[name]

    async def trim_dead(self, kept: Callable[[], Awaitable[Collection[str]]]) -> None:
        found = await self._link.writers()
        alive = {_token(writer) for writer in await kept()}
        for name, last in found.items():
            if name not in alive:
                await self._link.purge(name, last + 1)

    async def stored_bytes(self) -> int:
        return await self._link.stored_bytes()

    def figures(self) -> dict[str, float]:
        return {
            "batches": self._batches,
            "records": self._records,
            "refused": self._refused,
            "lag_seconds": round(self._own.age(time.monotonic()), 3),
        }


def _token(writer: str) -> str:
    """A name for subjects: a writer's name may contain anything, a subject's may not."""
    return hashlib.blake2s(writer.encode(), digest_size=12).hexdigest()
