"""What a writer remembers of the runs that it owns, so that a delta needs no question to the store.

A cache of what was committed and nothing else: the store checks every fact that it rests on in the writing transaction,
and on any doubt it is emptied and read anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from callstream.calls import CallState
from callstream.errors import CallstreamError, LeaseLost, UsageError
from callstream.events import RunStarted
from callstream.journal.rows import NOWHERE, Row, Source


class Append(msgspec.Struct, eq=False):
    """One append on its way.

    ``base`` is the run's last number when it was first planned. With it, planning the append again, after a commit of
    which nobody knows whether it happened, finds out.
    """

    run_id: str
    rows: Sequence[Row]
    after: int | None = None
    base: int | None = None


class Held(msgspec.Struct, eq=False):
    """A call as the writer remembers it. Its number counts the calls of its run. ``has_args``: its arguments have ended."""

    call_id: str
    run_key: int
    number: int
    state: CallState
    has_args: bool = False


class Owned(msgspec.Struct, eq=False):
    """A run as the writer remembers it. ``refusal`` is set where this process may not write to it."""

    run_id: str
    key: int
    writer: str
    epoch: int
    started_at: float = 0.0
    last_seq: int = 0
    last_ms: int = 0
    ended: bool = False
    is_new: bool = False
    refusal: CallstreamError | None = None
    sources: dict[Source, int] = msgspec.field(default_factory=lambda: {NOWHERE: 0})
    calls: dict[str, Held] = {}


class RunFacts(msgspec.Struct, frozen=True):
    """A run's row as far as ownership goes. Epoch 0 is a run that is not there yet.

    Of a compacted run the writer may be forgotten: nobody writes to it.
    """

    run_id: str
    key: int
    writer: str | None = None
    epoch: int = 0
    started_at: float = 0.0
    last_seq: int = 0
    last_ms: int = 0
    ended: bool = False


def claim(facts: RunFacts, writer: str | None = None) -> Owned:
    """The run as that writer may use it, or as its owner may.

    The epoch of a run rises when it is taken over. So an ended run refuses a stranger because it ended; one that was
    taken over refuses everyone but its taker because the lease was lost.
    """
    refusal: CallstreamError | None = None
    if writer is not None and facts.writer != writer:
        if facts.ended and facts.epoch == 1:
            refusal = ended_error(facts.run_id)
        else:
            what = "was taken over" if facts.epoch > 1 else "belongs to another process"
            owner = "" if facts.writer is None else f" (writer {facts.writer!r})"
            refusal = LeaseLost(f"run {facts.run_id!r} {what}{owner}; this is writer {writer!r}")
    return Owned(
        facts.run_id,
        facts.key,
        facts.writer or "",
        facts.epoch,
        facts.started_at,
        facts.last_seq,
        facts.last_ms,
        facts.ended,
        refusal=refusal,
    )


def ended_error(run_id: str) -> UsageError:
    return UsageError(f"run {run_id!r} has ended: nothing can be added to it")


class Memory:
    """The runs that this process owns and the calls in them, by id."""

    def __init__(self) -> None:
        self.runs: dict[str, Owned] = {}
        self.calls: dict[str, Held] = {}

    def add(self, run: Owned) -> None:
        self.runs[run.run_id] = run
        self.calls.update(run.calls)

    def drop(self, run_id: str) -> None:
        run = self.runs.pop(run_id, None)
        for call_id in run.calls if run else ():
            self.calls.pop(call_id, None)

    def clear(self) -> None:
        self.runs.clear()
        self.calls.clear()

    def unknown_runs(self, batch: Iterable[Append]) -> list[str]:
        return list(dict.fromkeys([append.run_id for append in batch if append.run_id not in self.runs]))

    @staticmethod
    def exclusive_threads(batch: Iterable[Append]) -> list[str]:
        """The threads of which the store must say whether they have an exclusive run already."""
        starts = [append.rows[0].event for append in batch if append.rows]
        return [event.thread_id for event in starts if isinstance(event, RunStarted) and event.exclusive]

    def unknown_calls(self, batch: Iterable[Append]) -> list[str]:
        """The calls of which the store must say whether they exist and where they stand."""
        names: dict[str, None] = {}
        for append in batch:
            for row in append.rows:
                call_id = getattr(row.event, "call_id", None)
                if call_id is not None and call_id not in self.calls:
                    names[call_id] = None
        return list(names)
