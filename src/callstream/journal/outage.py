"""When a store cannot be written: how it says so, and what the log says of it."""

from __future__ import annotations

import logging
import time

from callstream.errors import JournalError

_log = logging.getLogger("callstream.journal")

_PASSING_SECONDS = 1.0

_REFUSAL_SECONDS = 30.0
"""How long a refusal counts if no further append is tried."""


class StoreAway(JournalError):
    """The store cannot be reached or is locked just now. Worth trying again for a while.

    It is not known whether what was being written is written: each append's ``base`` tells when it is tried again.
    """


class Unstorable(JournalError):
    """The store cannot hold such a value. It takes others."""


class Outage:
    """Whether the store takes appends. The log says once that it cannot be written, and once that it can again.

    A lock or a restart that passes within a second is not worth a line, unless an append has failed by then. A store that
    was away is back as soon as anything was written to it. One that refused an append (a full disk) may well take a
    smaller row, so it has to take an append.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._since: float | None = None
        self._is_told = False
        self._refusal: JournalError | None = None
        self._refused_at = 0.0

    @property
    def refusal(self) -> JournalError | None:
        """Why the store has refused an append a moment ago and has taken none since."""
        return self._refusal if time.monotonic() - self._refused_at < _REFUSAL_SECONDS else None

    def begin(self, error: JournalError, *, gave_up: bool = False) -> None:
        now = time.monotonic()
        if self._since is None:
            self._since = now
        if not isinstance(error, StoreAway):
            self._refusal, self._refused_at = error, now
        if not self._is_told and (gave_up or self._refusal or now - self._since >= _PASSING_SECONDS):
            self._is_told = True
            _log.error("the journal cannot be written, trying again: %s", error)

    def end(self, *, by_append: bool) -> None:
        if self._since is None or (self._refusal is not None and not by_append):
            return
        if self._is_told:
            seconds = time.monotonic() - self._since
            _log.warning("the journal can be written again, after %.1f s: %s", seconds, self._where)
        self._since, self._is_told, self._refusal = None, False, None
