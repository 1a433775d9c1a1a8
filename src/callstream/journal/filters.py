"""Which runs and calls are meant: of a list, and of what is to be forgotten."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from callstream.calls import Call, CallState
from callstream.errors import UsageError
from callstream.journal.rows import RunRow


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str | None = None
    thread_id: str | None = None
    principal: str | None = None
    active: bool | None = None
    ended_before: float | None = None

    def fits(self, run: RunRow) -> bool:
        return (
            (self.run_id is None or run.run_id == self.run_id)
            and (self.thread_id is None or run.thread_id == self.thread_id)
            and (self.principal is None or run.principal == self.principal)
            and (self.active is None or (run.outcome is None) == self.active)
            and (self.ended_before is None or (run.ended_at is not None and run.ended_at < self.ended_before))
        )

    def conditions(self) -> dict[str, Any]:
        """The named conditions of a query, each with its value; True for one that takes none."""
        found = _given(self)
        active = found.pop("where_active", None)
        if active is not None:
            found["where_active" if active else "where_ended"] = True
        return found


class CallFilter(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str | None = None
    thread_id: str | None = None
    principal: str | None = None
    states: Sequence[CallState] | None = None
    provider_id: str | None = None

    def fits(self, call: Call, run: RunRow) -> bool:
        return (
            (self.run_id is None or call.run_id == self.run_id)
            and (self.thread_id is None or call.thread_id == self.thread_id)
            and (self.principal is None or run.principal == self.principal)
            and (self.states is None or call.state in self.states)
            and (self.provider_id is None or call.provider_id == self.provider_id)
        )

    def conditions(self) -> dict[str, Any]:
        """The named conditions of a query, each with its value."""
        found = _given(self)
        if self.states is not None:
            found["where_states"] = [state.value for state in self.states]
        return found


def forget_filter(before: float | None, thread: str | None, principal: str | None) -> RunFilter:
    """The ended runs that match all that is given."""
    if before is None and thread is None and principal is None:
        raise UsageError("forget needs before=, thread= or principal=: without them it would erase everything")
    if before is not None and math.isnan(before):
        raise UsageError("forget needs before= as seconds since 1970, got nan")
    return RunFilter(thread_id=thread, principal=principal, active=False, ended_before=before)


def forgotten_mark(thread_id: str, principal: str | None) -> str:
    """What is left of a thread that was erased for good. Nobody can read from it which thread it was, or whose."""
    return hashlib.sha256(msgspec.json.encode((thread_id, principal))).hexdigest()


def _given(wanted: RunFilter | CallFilter) -> dict[str, Any]:
    return {f"where_{name}": value for name, value in msgspec.structs.asdict(wanted).items() if value is not None}
