"""What the server logs about its runs and calls, and a log format for machines.

Log records carry ``run_id``, ``thread_id`` and ``call_id`` where there is one. No record carries argument text.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Final
from urllib.parse import quote

from starlette.types import Scope

from callstream import codec
from callstream.calls import Call
from callstream.errors import JournalError
from callstream.logtext import printable
from callstream.runtime import Run

logger = logging.getLogger("callstream.server")

_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def describe_request(scope: Scope) -> str:
    """The method and the path of a request, one word each: a path arrives decoded, and could contain anything."""
    return f"{scope['method']} {quote(scope['path'])}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the record's own fields (``extra=``)."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: _plain(value) for name, value in vars(record).items() if name not in _USUAL}
        if record.exc_info:
            fields["exception"] = printable(self.formatException(record.exc_info))
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        return codec.encode_line(fields).decode()


class LogObserver:
    """An ``Observer`` that writes to the log: runs at INFO, calls at DEBUG."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}

    def run_started(self, run: Run) -> None:
        self._began[run.run_id] = perf_counter()
        is_first = run.keeping is None or run.keeping.attempt == 1
        what = "started" if is_first else "goes on here"
        logger.info("run %s of thread %s %s", run.run_id, run.thread_id, what, extra=_ids(run))

    def call_changed(self, run: Run, call: Call) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            extra = {**_ids(run), "call_id": call.call_id, "tool_name": call.name, "state": call.state.value}
            logger.debug("call %s of tool %s is %s", call.call_id, call.name, call.state, extra=extra)

    def run_ended(self, run: Run) -> None:
        seconds = round(perf_counter() - self._began.pop(run.run_id, perf_counter()), 3)
        extra = {**_ids(run), "outcome": run.outcome, "seconds": seconds, "calls": len(run.calls)}
        named = (run.run_id, run.thread_id)
        if run.is_left:
            return  # it goes on elsewhere, and the driver has logged that
        if run.outcome == "failed":
            # If the store failed, a traceback adds nothing: it is the same for all runs active at that moment.
            error = None if isinstance(run.error, JournalError) else run.error
            because = "" if error is not None or not run.reason else f": {run.reason}"
            logger.error("run %s of thread %s failed%s", *named, because, exc_info=error, extra=extra)
        else:
            logger.info("run %s of thread %s %s", *named, run.outcome or "ended", extra=extra)

    def streams_changed(self, change: int) -> None:
        pass


def _ids(run: Run) -> dict[str, Any]:
    return {"run_id": run.run_id, "thread_id": run.thread_id}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
