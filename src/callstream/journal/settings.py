"""What a journal can be told when it is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from callstream.errors import UsageError
from callstream.events import RunEvent

Redact: TypeAlias = Callable[[RunEvent], RunEvent]


class Housekeeping(msgspec.Struct, frozen=True, kw_only=True):
    """What the journal does by itself. Seconds; None turns a duty off.

    ``compact_after``: how long after its end a run is compacted. ``sweep_every``: how often runs of dead processes are
    looked for (the first time when the journal opens). ``retain``: how long after its end a run is erased.
    """

    compact_after: float | None = 60.0
    sweep_every: float | None = 10.0
    retain: float | None = None


class JournalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all journals share.

    ``writer_id``: a name for this process in the store; made unique by the journal. ``lease_ttl``: seconds after which
    a process that no longer renews its lease counts as dead. ``retry_seconds``: how long an append or a read waits for a
    store that is away, and an append for room in the queue, before it fails. ``max_pending_bytes``: how much may wait to
    be written. ``gather_seconds``: how long after one batch of records those of other runs gather for the next; 0 writes
    everything at once, which costs more. A run that writes alone never waits. ``redact`` is applied to every event before
    it is stored; it sees the pieces of a call one by one, so what is spread over several pieces it cannot recognise.
    ``migrate``: bring an older schema up to date at opening; otherwise that is an error.
    """

    writer_id: str | None = None
    lease_ttl: float = 15.0
    retry_seconds: float = 5.0
    max_pending_bytes: int = 64 * 1024 * 1024
    gather_seconds: float = 0.015
    redact: Redact | None = None
    housekeeping: Housekeeping | None = Housekeeping()
    migrate: bool = True

    def __post_init__(self) -> None:
        if self.lease_ttl <= 0:
            raise UsageError(f"lease_ttl must be more than 0 seconds, got {self.lease_ttl}")
        if self.max_pending_bytes <= 0:
            raise UsageError(f"max_pending_bytes must be more than 0, got {self.max_pending_bytes}")
        if not 0 <= self.gather_seconds <= 1:
            raise UsageError(f"gather_seconds must be between 0 and 1, got {self.gather_seconds}")
