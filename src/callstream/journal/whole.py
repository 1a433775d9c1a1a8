"""A run as a whole, as one store hands it to another: every row of it, and nothing about which processes are alive.

Two stores hold the same run if the digests are the same. A run that has ended no longer has an owner, so none is included.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from callstream.calls import CallState
from callstream.errors import JournalError
from callstream.journal.plan import CallChange, Memory, Owned, Plan, RunChange
from callstream.journal.rows import Stored


class WholeCall(NamedTuple):
    """The columns of a call. ``result`` is JSON text."""

    number: int
    call_id: str
    name: str
    state: str
    provider_id: str | None
    message_id: str | None
    signature: str | None
    encoding: str
    reason: str | None
    detail: str | None
    result: str | None
    error: str | None
    ran_early: bool
    started_at: float
    updated_at: float
    first_seq: int
    args_seq: int | None


WholeSource: TypeAlias = tuple[int, str | None, str | None, str | None]
"""number, response_id, author, message_id"""
WholeRecord: TypeAlias = tuple[int, int, int, int | None, int, str, int | None]
"""seq, at_ms, source, call, kind, body, first_seq"""


class WholeRun(msgspec.Struct, frozen=True):
    """``last_seq`` is None until the run has ended; from then on ``writer`` is empty and ``exclusive`` false."""

    key: int
    run_id: str
    thread_id: str
    principal: str | None
    outcome: str | None
    reason: str | None
    started_at: float
    ended_at: float | None
    last_seq: int | None
    compacted: bool
    epoch: int
    writer: str
    exclusive: bool
    sources: list[WholeSource] = []
    calls: list[WholeCall] = []
    records: list[WholeRecord] = []

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(msgspec.msgpack.encode(self)).digest()

    @property
    def attempt(self) -> int:
        """See ``RunRow``. The epoch also rises when a process merely ends a dead one's run, which is not an attempt."""
        return max(1, self.epoch - (self.outcome == "failed" and self.reason == "interrupted"))


class RunSize(NamedTuple):
    """``last_seq`` is how many records the run has at most."""

    key: int
    run_id: str
    active: bool
    last_seq: int
    compacted: bool


def whole_runs(
    runs: Iterable[Sequence[Any]],
    sources: Iterable[Sequence[Any]],
    calls: Iterable[Sequence[Any]],
    records: Iterable[Sequence[Any]],
) -> list[WholeRun]:
    """Runs from the rows of a database. Rows of the last three begin with the run's key, and are in order."""
    found = {}
    for row in runs:
        columns = list(row)
        columns[9], columns[12] = bool(columns[9]), bool(columns[12])
        found[columns[0]] = WholeRun(*columns)
    for key, *source in sources:
        found[key].sources.append(tuple(source))
    for key, *call in calls:
        call[12] = bool(call[12])
        found[key].calls.append(WholeCall(*call))
    for key, *record in records:
        found[key].records.append(tuple(record))
    return list(found.values())


def plan_of(runs: Iterable[WholeRun]) -> Plan:
    """A plan that writes those runs into tables that have nothing of them; it leaves out the records of compacted runs."""
    plan = Plan([], Memory(), 0.0)
    for run in runs:
        last_seq = run.last_seq or run.records[-1][0]
        owned = Owned(run.run_id, run.key, run.writer, run.epoch, run.started_at, last_seq)
        plan.changed[owned] = None
        plan.runs[owned] = RunChange(
            is_new=True,
            **{name: getattr(run, name) for name in RunChange.__struct_fields__ if name != "is_new"},
        )
        plan.sources += [(run.key, *source) for source in run.sources]
        if not run.compacted:
            plan.records += [(run.key, *columns) for *columns, _ in run.records]  # type: ignore[misc]
        for call in run.calls:
            columns = {**call._asdict(), "state": CallState(call.state)}
            plan.calls[call.call_id] = CallChange(run_key=run.key, old_state=None, **columns)
    return plan


def stored_rows(run: WholeRun) -> list[Stored]:
    """The run's records as they are stored in a log."""
    messages = {number: message_id for number, _, _, message_id in run.sources}
    return [
        Stored(seq, at_ms, source, call, kind, body, messages.get(source), first_seq)
        for seq, at_ms, source, call, kind, body, first_seq in run.records
    ]


_FIRST_LINE = b"callstream pack 1\n"
_ZLIB = b"z"
"""How a run is encoded: as MessagePack, compressed by zlib."""
NONCE_BYTES = 16
_decoder = msgspec.msgpack.Decoder(WholeRun)


class PackPlace(NamedTuple):
    """Where a run is: in which pack, and in which of its bytes."""

    run_key: int
    run_id: str
    pack: str
    start: int
    size: int


class Pack(NamedTuple):
    """Many runs in one object of the archive: a line that identifies the format, some random bytes, and the runs, each
    compressed separately, so that one can be read without the others.

    A pack's name is the digest of its contents. The random bytes make every pack unique, so the name of a pack that was
    given up is never used again.
    """

    name: str
    data: bytes
    places: Sequence[PackPlace]


def encode_run(run: WholeRun) -> bytes:
    return _ZLIB + zlib.compress(msgspec.msgpack.encode(run), 6)


def decode_run(data: bytes, place: PackPlace) -> WholeRun:
    """Raises JournalError if those bytes are not that run."""
    try:
        if data[:1] != _ZLIB:
            raise ValueError(f"begins with {data[:1]!r}")
        run = _decoder.decode(zlib.decompress(data[1:]))
    except (zlib.error, ValueError, msgspec.DecodeError) as error:
        raise JournalError(f"pack {place.pack} is damaged: run {place.run_id!r} cannot be read: {error}") from error
    if (run.key, run.run_id) != (place.run_key, place.run_id):
        raise JournalError(f"pack {place.pack} has run {run.run_id!r} where {place.run_id!r} should be")
    return run


def make_pack(runs: Sequence[tuple[int, str, bytes]], nonce: bytes) -> Pack:
    """A pack of runs, each given as its key, its id and its encoded bytes."""
    parts = [_FIRST_LINE, nonce]
    start = len(_FIRST_LINE) + len(nonce)
    spans: list[tuple[int, str, int, int]] = []
    for key, run_id, data in runs:
        spans.append((key, run_id, start, len(data)))
        parts.append(data)
        start += len(data)
    whole = b"".join(parts)
    name = digest_of(whole)
    return Pack(name, whole, [PackPlace(key, run_id, name, begin, size) for key, run_id, begin, size in spans])


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


GOING_ON = frozenset({CallState.RUNNING_EARLY, CallState.EXECUTING, CallState.AWAITING})
"""A run with a call in such a state is not archived: it will be read soon."""
PackState: TypeAlias = Literal["writing", "kept", "dirty", "gone"]


class Due(NamedTuple):
    """A run that may leave the index. ``ended_ago``: seconds, by the store's clock."""

    key: int
    run_id: str
    thread_id: str
    principal: str | None
    ended_ago: float


class PackFigures(NamedTuple):
    packs: int
    runs: int
    bytes: int


class Packs(Protocol):
    """What the index knows about packs. Awaited where the store is; methods that only read, where its reader is.

    A pack is registered here before it is written, so the archive never has an object that the index does not know about::

        writing -> kept -> dirty -> gone -> nothing
              \\____________________/

    ``writing``: its object, or a part of it, may exist. ``kept``: it holds runs. ``dirty``: a run in it was forgotten, so it
    has to be rewritten without that run. ``gone``: nothing refers to it, and its object has to be deleted. Only ``writing``
    becomes ``kept``, in the transaction that takes the runs out of the tables; so a process that was stopped for long
    cannot make use of an object that another process has given up.

    Anything may raise StoreUnavailable if it should be tried again, JournalError if not.
    """

    async def due(self, age: float, limit: int) -> Sequence[Due]:
        """The first ``limit`` runs that ended longer ago than that, are compacted, and are not in a pack.

        None of their calls is ``GOING_ON``. If another run records something about one of them later, that changes the
        call's row, which stays in the index.
        """
        ...

    async def begin(self, name: str) -> None:
        """Registers a pack that is about to be written."""

    async def keep(self, name: str, places: Sequence[PackPlace], size: int, instead_of: str | None) -> bool:
        """Makes that pack the only place of those runs.

        ``instead_of``: the pack that they were in, which is then gone. Without it they were in the tables, where their
        records and the contents of their calls are erased. Returns False, with nothing done, if one of the runs is no longer
        there, or the pack is no longer being written.
        """
        ...

    async def give_up(self, name: str) -> None:
        """Marks a pack that holds no run as gone."""

    async def give_up_stale(self, age: float) -> None:
        """Marks packs that have been ``writing`` for longer than that as gone: their processes have died, or will be
        refused.
        """

    async def drop(self, name: str) -> None:
        """Forgets a pack that is gone."""

    async def listed(self, state: PackState) -> Sequence[str]: ...

    async def newest(self) -> str | None:
        """The newest of the packs that hold runs."""
        ...

    async def in_pack(self, name: str) -> Sequence[PackPlace]:
        """The runs in that pack, in the order in which they are stored there."""
        ...

    async def places(self, run_ids: Sequence[str]) -> Sequence[PackPlace]:
        """The places of those of the runs that are in packs."""
        ...

    async def figures(self) -> PackFigures: ...
