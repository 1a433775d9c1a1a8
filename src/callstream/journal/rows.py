"""Records as a table stores them: events to columns and back, and the pieces of an ended run folded. Pure.

The ``body`` of a piece (of arguments, of text, of reasoning) is its text unchanged; any other event is JSON. A text that
a database cannot store as text (a NUL, half a surrogate pair) is stored as ASCII JSON, which the kind shows.

What a record carries beside its event hardly ever changes from one record to the next, so it is stored in a row of its
own, the ``Source``, and the record has that row's number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, cast, get_args

import msgspec

from callstream import codec
from callstream.calls import Call, CallState
from callstream.errors import UsageError
from callstream.events import (
    KEPT,
    ArgsAppended,
    CallCompleted,
    ReasoningAppended,
    Record,
    RunEvent,
    RunOutcome,
    TextAppended,
)

KEPT_THREAD = "callstream kept "
"""Prefix of threads whose runs only keep something for other processes: lists leave them out."""


class RunRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run as the journal lists it: ``outcome`` is None while it is running, ``last_seq`` numbers its last record.

    ``attempt``: how many processes have worked on it.
    """

    run_id: str
    thread_id: str
    principal: str | None
    outcome: RunOutcome | None
    reason: str | None
    started_at: float
    ended_at: float | None
    last_seq: int
    attempt: int = 1


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An event on its way into the journal, with what its record carries beside the event."""

    event: RunEvent
    response_id: str | None = None
    author: str | None = None


class Kind:
    """Plain numbers, because one is checked for every record."""

    EVENT = 0
    ARGS = 1
    TEXT = 2
    REASONING = 3


ESCAPED = 8
"""Added to a kind whose body is ASCII JSON because the text itself cannot be stored."""
ARGS_KINDS = (Kind.ARGS, Kind.ARGS | ESCAPED)


class Source(msgspec.Struct, frozen=True, gc=False):
    """Where a record came from. ``message_id`` only for pieces of text and reasoning, which have it nowhere else."""

    response_id: str | None
    author: str | None
    message_id: str | None


NOWHERE = Source(None, None, None)
"""The source of a record that is nothing but its event. It is number 0 of every run, and has no row."""


class Row(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An event prepared for the log by the task that appends it. Planning gives it its place there."""

    event: RunEvent
    kind: int
    body: str
    source: Source


RecordColumns: TypeAlias = tuple[int, int, int, int, int | None, int, str]
"""run_key, seq, at_ms, source, call, kind, body: a row to insert into the log."""


class Stored(NamedTuple):
    """A record as it is stored in the log, with the message that its source names."""

    seq: int
    at_ms: int
    source: int
    call: int | None
    kind: int
    body: str
    message_id: str | None
    first_seq: int | None = None


RecordRow: TypeAlias = tuple[int, int, int, str, str | None, str | None, str | None, str | None, int | None]
"""seq, at_ms, kind, body, response_id, author, message_id, call_id, first_seq: a row that queries for records return."""

_EVENT_TYPES = frozenset(get_args(RunEvent))
_PIECE_KINDS: dict[type, int] = {
    ArgsAppended: Kind.ARGS,
    TextAppended: Kind.TEXT,
    ReasoningAppended: Kind.REASONING,
}
_encoder = msgspec.json.Encoder(enc_hook=codec.plain)
_decoder = msgspec.json.Decoder(RunEvent)
_KEPT_BODIES = tuple(f'{{"type":"{kind.__struct_config__.tag}"' for kind in KEPT)
"""How the bodies of such events begin."""
_SOURCES = 4096
"""How many sources are cached: nearly every record has the same one as the record before it in its run."""
_ID_FIELDS = ("call_id", "message_id", "provider_id", "thread_id", "principal", "name", "within")


def prepare(event: Any, response_id: str | None = None, author: str | None = None) -> Row:
    """The row of an event. Raises UsageError for a value that is not an event of a run, or could not be read back as one."""
    kind = type(event)
    code = _PIECE_KINDS.get(kind)
    message_id = None if code is None or kind is ArgsAppended else event.message_id
    source = _source_of(response_id, author, message_id)
    if code is not None:
        if kind is ArgsAppended and (not event.call_id.isascii() or "\0" in event.call_id):
            check_id(event.call_id)
        text: str = event.text
        if text.isascii() and "\0" not in text:
            return Row(event, code, text, source)
        return Row(event, *_body(code, text), source)
    if kind is Entry:
        return prepare(event.event, event.response_id, event.author)
    if kind not in _EVENT_TYPES:
        raise UsageError(f"expected an event of a run, got {kind.__name__}: {event!r:.200}")
    for field in _ID_FIELDS:
        check_optional_id(getattr(event, field, None))
    if kind is CallCompleted and not isinstance(event.args_json, str | None):
        raise UsageError(f"expected args_json as JSON text, got {event!r:.200}")
    return Row(event, *_readable(event), source)


def redacting(redact: Callable[[RunEvent], RunEvent]) -> Callable[..., Row]:
    """``prepare`` for what is left of an event."""

    def prepared(event: Any, response_id: str | None = None, author: str | None = None) -> Row:
        if type(event) is Entry:
            return prepared(event.event, event.response_id, event.author)
        return prepare(redact(event), response_id, author)

    return prepared


@lru_cache(_SOURCES)
def _source_of(response_id: str | None, author: str | None, message_id: str | None) -> Source:
    for name in (response_id, author, message_id):
        check_optional_id(name)
    return Source(response_id, author, message_id) if response_id or author or message_id else NOWHERE


def whole_completion(event: CallCompleted) -> tuple[int, str]:
    """Kind and body of a completion that keeps its text, for a call without any stored pieces."""
    return _json(event)


def check_optional_id(name: str | None) -> str | None:
    return None if name is None else check_id(name)


def check_id(name: object) -> str:
    if type(name) is str and name.isascii() and "\0" not in name:
        return name
    if not isinstance(name, str) or not _plain(name):
        raise UsageError(f"an id must be text without NUL and without half a surrogate pair, got {name!r:.200}")
    return name


def is_storable(*names: str | None) -> bool:
    """Whether a database could have such ids at all. It cannot store a NUL or half a surrogate pair."""
    return all(name is None or _plain(name) for name in names)


def check_place(after: int) -> int:
    """The number of a record, capped at the greatest that a database can hold."""
    if after < 0:
        raise UsageError(f"expected the number of a record, or 0 for the beginning, got {after}")
    return min(after, 2**31 - 1)


def check_limit(limit: int | None) -> int | None:
    """The limit, capped at the greatest that a database can hold."""
    if limit is not None and limit < 0:
        raise UsageError(f"expected a limit of 0 or more, or None for all, got {limit}")
    return None if limit is None else min(limit, 2**63 - 1)


def clean(text: str | None) -> str | None:
    """The text as a column can hold it. The log has the exact text."""
    if text is None or _plain(text):
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def json_text(value: object) -> str:
    return codec.encode(value).decode()


def piece_text(kind: int, body: str) -> str:
    return cast(str, json.loads(body)) if kind & ESCAPED else body


def event_of(kind: int, body: str, call_id: str | None, message_id: str | None) -> RunEvent:
    if kind == Kind.EVENT:  # the most common when many records are read: there most are folded
        return cast(RunEvent, _decoder.decode(body))
    match kind & ~ESCAPED:
        case Kind.ARGS:
            return ArgsAppended(call_id or "", piece_text(kind, body))
        case Kind.TEXT:
            return TextAppended(message_id or "", piece_text(kind, body))
        case Kind.REASONING:
            return ReasoningAppended(message_id or "", piece_text(kind, body))
        case _:
            return cast(RunEvent, msgspec.convert(json.loads(body), RunEvent))


def known_events(rows: Iterable[tuple[int, str]]) -> Iterator[RunEvent]:
    """The events of (kind, body), except those of newer code, which this code does not know."""
    for kind, body in rows:
        try:
            yield event_of(kind, body, None, None)
        except msgspec.ValidationError:
            continue


def record_of(run_id: str, started_at: float, row: RecordRow) -> Record:
    seq, at_ms, kind, body, response_id, author, message_id, call_id, first_seq = row
    event = event_of(kind, body, call_id, message_id)
    return Record(run_id, seq, moment(started_at, at_ms), event, response_id, author, first_seq)


def merge_adjacent(rows: Sequence[RecordRow]) -> list[RecordRow]:
    """The rows of a run, with adjacent pieces of one call or message merged into one, at the place of the last.

    Pieces that cannot be stored as text are left as they are.
    """
    merged: list[RecordRow] = []
    texts: list[str] = []
    last: RecordRow | None = None  # of pieces that are not in ``merged`` yet; ``texts`` has their texts
    first_seq = 0
    for row in rows:
        kind = row[2]
        if last is not None:
            if kind == last[2] and row[4:8] == last[4:8]:
                texts.append(row[3])
                last = row
                continue
            merged.append(_one_piece(last, texts, first_seq))
            last = None
        if kind == Kind.EVENT or kind & ESCAPED:
            merged.append(row)
        else:
            last, texts, first_seq = row, [row[3]], row[8] or row[0]
    if last is not None:
        merged.append(_one_piece(last, texts, first_seq))
    return merged


def _one_piece(last: RecordRow, texts: list[str], first_seq: int) -> RecordRow:
    if len(texts) == 1:
        return last
    seq, at_ms, kind, _, response_id, author, message_id, call_id, _ = last
    return seq, at_ms, kind, "".join(texts), response_id, author, message_id, call_id, first_seq


def moment(started_at: float, at_ms: int) -> float:
    return round(started_at + at_ms / 1000, 3)


def join_pieces(pieces: Iterable[tuple[int, str]]) -> str:
    return "".join([piece_text(kind, body) for kind, body in pieces])


def call_of(row: Sequence[Any]) -> Call:
    """A call from the columns that queries for calls begin with: its fields in order, except its text."""
    call_id, name, state, *named = row[:9]
    reason, detail, result, error, ran_early, *times = row[9:16]
    result = None if result is None else codec.decode(result)
    columns = (call_id, name, CallState(state), *named, None, reason, detail, result, error, bool(ran_early), *times)
    return Call(*columns)


def call_with_pieces(call: Call, rows: Sequence[tuple[int, int, str]]) -> Call:
    """The call with its text, from (seq, kind, body) of its pieces and of the record that ended them.

    Where there are no pieces, that record may have kept the whole text. The input of a free-text tool becomes a JSON string.
    """
    pieces = join_pieces((kind, body) for _, kind, body in rows if kind in ARGS_KINDS)
    if not pieces and rows:
        _, kind, body = rows[-1]
        event = event_of(kind, body, call.call_id, None) if kind not in ARGS_KINDS else None
        if isinstance(event, CallCompleted) and event.call_id == call.call_id and event.args_json is not None:
            return msgspec.structs.replace(call, args_json=event.args_json)
    return msgspec.structs.replace(call, args_json=json_text(pieces) if call.encoding == "text" else pieces)


def fold(rows: Iterable[Stored]) -> list[Stored]:
    """The rows of an ended run, with the pieces of each call and of each message folded into one, at the place of the last.

    Text and reasoning of a message are folded separately. A group of one stays as it is. Records that were kept only so
    that the run could go on in another process are dropped.
    """
    kept: list[Stored] = []
    groups: dict[tuple[int, int | str | None], list[Stored]] = {}
    for row in rows:
        match row.kind & ~ESCAPED:
            case Kind.EVENT:
                if not row.body.startswith(_KEPT_BODIES):
                    kept.append(row)
            case Kind.ARGS:
                groups.setdefault((Kind.ARGS, row.call), []).append(row)
            case kind:
                groups.setdefault((kind, row.message_id), []).append(row)
    for (kind, _), pieces in groups.items():
        last = pieces[-1]
        if len(pieces) > 1:
            code, body = _body(kind, join_pieces((piece.kind, piece.body) for piece in pieces))
            last = last._replace(kind=code, body=body, first_seq=pieces[0].seq)
        kept.append(last)
    return sorted(kept, key=lambda row: row.seq)


def find_folded_range(ranges: Sequence[tuple[int, int]], after: int) -> tuple[int, int] | None:
    """The folded range around a place in the log, or None, extended until no other range reaches across its beginning.

    ``ranges`` are (first, last) of folded records. Ranges of parallel calls overlap, and reading from ``first - 1`` is
    possible only if that does not cut another range.
    """
    inside = [pair for pair in ranges if pair[0] <= after < pair[1]]
    if not inside:
        return None
    first, last = min(pair[0] for pair in inside), max(pair[1] for pair in inside)
    while earlier := [pair for pair in ranges if pair[0] < first <= pair[1]]:
        first = min(pair[0] for pair in earlier)
    return first, last


def _plain(text: str) -> bool:
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _body(kind: int, text: str) -> tuple[int, str]:
    return (kind, text) if _plain(text) else (kind | ESCAPED, json.dumps(text))


def _readable(event: RunEvent) -> tuple[int, str]:
    """Kind and body of an event that is not a piece.

    It is read back at once: structs do not check the values that they are made with, and a single record that cannot be
    read would make its whole run unreadable.
    """
    kind, body = _json(CallCompleted(event.call_id) if type(event) is CallCompleted else event)  # pieces are its text
    try:
        event_of(kind, body, None, None)
    except msgspec.ValidationError as error:
        raise UsageError(f"{type(event).__name__} was made with a value that it cannot hold: {error}") from None
    return kind, body


def _json(event: RunEvent) -> tuple[int, str]:
    try:
        return Kind.EVENT, _encoder.encode(event).decode()
    except UnicodeEncodeError:
        return Kind.EVENT | ESCAPED, json.dumps(msgspec.to_builtins(event, enc_hook=codec.plain))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{type(event).__name__} cannot be written as JSON: {error}") from error
