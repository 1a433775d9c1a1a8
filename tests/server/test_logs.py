"""What the log says: who, what, which run; as text and as JSON."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from callstream import Callstream
from callstream.server.logs import JsonFormatter

from .agents import Stepping
from .serving import served


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the server's logger writes, as JSON."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("callstream.server")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield written
    logger.removeHandler(handler)
    logger.setLevel(level)


def told(lines: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


async def test_runs_and_calls_are_told_with_their_ids(cs: Callstream, lines: io.StringIO) -> None:
    async with served(Stepping(free=True), callstream=cs) as server, server.run() as stream:
        await stream.all()
        await server.finished(stream.run_id)
    records = told(lines)
    began, *calls, ended = [record for record in records if record.get("run_id") == stream.run_id]
    assert (began["level"], began["logger"], began["thread_id"]) == ("info", "callstream.server", "thread")
    assert began["message"] == f"run {stream.run_id} of thread thread began"
    assert [call["state"] for call in calls] == [
        "started",
        "args_streaming",
        "args_complete",
        "executing",
        "completed",
    ]
    assert {call["call_id"] for call in calls} == {f"call-{stream.run_id}"}
    assert (ended["outcome"], ended["calls"]) == ("finished", 1)
    assert ended["seconds"] >= 0


async def test_a_failure_is_told_with_its_exception(cs: Callstream, lines: io.StringIO) -> None:
    async def broken(given: Any) -> None:
        raise RuntimeError("out of order")

    async with served(broken, callstream=cs) as server, server.run() as stream:
        await stream.all()
        await server.finished(stream.run_id)
    [failure] = [record for record in told(lines) if record["level"] == "error"]
    assert failure["run_id"] == stream.run_id
    assert "RuntimeError: out of order" in failure["exception"]


def test_json_is_one_line_whatever_is_in_it() -> None:
    record = logging.makeLogRecord(
        {"name": "n", "levelno": 30, "levelname": "WARNING", "msg": "a\nb \ud800 %s", "args": ("c\0",), "size": 1.5}
    )
    record.thing = object  # type: ignore[attr-defined]
    line = JsonFormatter().format(record)
    assert "\n" not in line
    made = json.loads(line)
    assert made["message"] == "a\nb \ud800 c\0"
    assert made["size"] == 1.5
    assert made["thing"] == str(object)
    assert set(made) == {"time", "level", "logger", "message", "size", "thing"}
