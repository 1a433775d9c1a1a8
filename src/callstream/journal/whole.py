"""A run as a whole, as one store gives it and another takes it: every row of it, and nothing of who is alive.

Two stores hold the same run if its digests are the same. A run that has ended has no owner any more, so that is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from callstream.calls import CallState
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
    """``last_seq`` is None while the run goes on; ``writer`` is empty and ``exclusive`` false when it does not."""

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
        """See ``RunRow``. The epoch also rises where a process merely ends the run of a dead one."""
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
    """Runs from the rows of a database; those of all but the first begin with the run's key, and are in order."""
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
    """What writes those runs into tables that have nothing of them, but for the records of compacted ones."""
    plan = Plan([], Memory(), 0.0)
    for run in runs:
        last_seq = run.last_seq or run.records[-1][0]
        owned = Owned(run.run_id, run.key, run.writer, run.epoch, run.started_at, last_seq)
        plan.changed[owned] = None
        plan.runs[owned] = RunChange(
            key=run.key,
            run_id=run.run_id,
            writer=run.writer,
            epoch=run.epoch,
            is_new=True,
            started_at=run.started_at,
            thread_id=run.thread_id,
            principal=run.principal,
            exclusive=run.exclusive,
            outcome=run.outcome,
            reason=run.reason,
            ended_at=run.ended_at,
        )
        plan.sources += [(run.key, *source) for source in run.sources]
        if not run.compacted:
            plan.records += [(run.key, *columns) for *columns, _ in run.records]  # type: ignore[misc]
        for call in run.calls:
            columns = call._asdict()
            columns["state"] = CallState(call.state)
            plan.calls[call.call_id] = CallChange(run_key=run.key, old_state=None, **columns)
    return plan


def folded_rows(runs: Iterable[WholeRun]) -> Mapping[int, list[Stored]]:
    """The records of the compacted ones, by key."""
    found: dict[int, list[Stored]] = {}
    for run in runs:
        if run.compacted:
            messages = {number: message_id for number, _, _, message_id in run.sources}
            found[run.key] = [
                Stored(seq, at_ms, source, call, kind, body, messages.get(source), first_seq)
                for seq, at_ms, source, call, kind, body, first_seq in run.records
            ]
    return found
