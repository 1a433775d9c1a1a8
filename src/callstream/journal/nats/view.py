"""Messages of the log: what they look like, and those of one writer sorted by run. Pure.

A message is what one batch brings: a list of parts, one a run, each with the number of its first record, how many there are,
their time, and the records themselves as bytes that are decoded when somebody reads the run. An empty message adds nothing:
it takes the writer's turn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from callstream.journal.rows import RecordColumns


class Part(NamedTuple):
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


def parts_of(records: Sequence[RecordColumns]) -> list[Part]:
    """The records of a batch, those of one run together and in order, as parts."""
    parts: list[Part] = []
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


def _part(begin: tuple[int, int, int], columns: list[_Columns]) -> Part:
    key, first, at_ms = begin
    return Part(key, first, len(columns), at_ms, _encoder.encode(columns))


def pack(parts: Iterable[Part]) -> bytes:
    return _encoder.encode([(*head, msgspec.Raw(body)) for *head, body in parts])


def unpack(message: bytes) -> list[Part]:
    """Raises msgspec.DecodeError for what is no such message."""
    if not message:
        return []
    return [Part(key, first, size, ms, bytes(body)) for key, first, size, ms, body in _message_decoder.decode(message)]


class _Kept(NamedTuple):
    part: Part
    place: int
    at: float


def _first(kept: _Kept) -> int:
    return kept.part.first


class View:
    """What one writer has appended, as far as it is needed: all of it up to the message at ``until``.

    A place is the number that the engine has given to a message.
    """

    def __init__(self, at: float = 0.0) -> None:
        self.until = 0
        self.made_at = self.used_at = at
        self._runs: dict[int, list[_Kept]] = {}
        self._only: frozenset[int] | None = None

    def narrow(self, keys: Iterable[int]) -> None:
        """From now on there are those runs only."""
        self._only = frozenset(keys)
        self._runs = {key: kept for key, kept in self._runs.items() if key in self._only}

    def has(self, key: int) -> bool:
        """Whether the run would be here."""
        return self._only is None or key in self._only

    def add(self, place: int, parts: Iterable[Part], at: float) -> None:
        """Takes the next message, unless it is here already."""
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
        """The first so many records of the run after that number."""
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
        """Seconds since the oldest of what is here was added. May be asked in any thread."""
        return now - min((kept[0].at for kept in list(self._runs.values())), default=now)

    @property
    def oldest(self) -> int:
        """The place of the first message that is needed; of the last one, if none is."""
        return min((kept[0].place for kept in self._runs.values()), default=self.until)


def records_of(part: Part) -> list[RecordColumns]:
    key, first, _, at_ms, body = part
    return [
        (key, first + number, at_ms, source, call, kind, text)
        for number, (source, call, kind, text) in enumerate(_body_decoder.decode(body))
    ]
