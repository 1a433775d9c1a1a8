"""Callstream and Run: where decoder, ledger, hooks and journal meet."""

from __future__ import annotations

from callstream.runtime.callstream import Callstream, Settings
from callstream.runtime.limits import TextLimits
from callstream.runtime.observing import Observer, remote_parent
from callstream.runtime.response import Response
from callstream.runtime.run import Run, current_run

__all__ = ["Callstream", "Observer", "Response", "Run", "Settings", "TextLimits", "current_run", "remote_parent"]
