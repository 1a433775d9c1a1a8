"""What the log says: who, what, which run; as text and as JSON."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from callstream import Callstream, Run
from callstream.events import InputKept, RunStarted
from callstream.server import ServerSettings
from callstream.server.logs import JsonFormatter, LogObserver

from .agents import Scripted, Stepping
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
    assert began["message"] == f"run {stream.run_id} of thread thread started"
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


async def test_a_run_that_another_process_goes_on_with_is_not_said_to_have_ended(
    cs: Callstream, lines: io.StringIO
) -> None:
    log = LogObserver()
    run = await Run.start(cs.engine, RunStarted("thread"), "r", kept=InputKept("app", "{}"))
    log.run_started(run)
    assert await run.hand_over()
    log.run_ended(run)
    assert [record["message"] for record in told(lines)] == ["run r of thread thread started"]


async def test_a_failure_is_told_with_its_exception(cs: Callstream, lines: io.StringIO) -> None:
    async def broken(given: Any) -> None:
        raise RuntimeError("out of order")

    async with served(broken, callstream=cs) as server, server.run() as stream:
        await stream.all()
        await server.finished(stream.run_id)
    of_run = [record for record in told(lines) if record.get("run_id") == stream.run_id]
    began, failure = of_run  # once, not twice
    assert (began["level"], failure["level"], failure["outcome"]) == ("info", "error", "failed")
    assert "RuntimeError: out of order" in failure["exception"]


async def test_a_run_that_takes_too_long_is_logged_once(cs: Callstream, lines: io.StringIO) -> None:
    async def slow(given: Any) -> None:
        await asyncio.Event().wait()

    settings = ServerSettings(run_seconds=0.05)
    async with served(slow, callstream=cs, settings=settings) as server, server.run() as stream:
        await stream.all()
        await server.finished(stream.run_id)
    _, failure = [record for record in told(lines) if record.get("run_id") == stream.run_id]
    assert failure["level"] == "error"
    assert "TimeoutError: the run took longer than 0.05 s" in failure["exception"]


async def test_a_failure_without_an_exception_is_logged_with_its_reason_on_one_line(
    cs: Callstream, lines: io.StringIO
) -> None:
    async def gives_up(given: Any) -> Any:
        yield {"type": "RUN_ERROR", "message": "no more\nINFO forged: line"}

    async with served(gives_up, callstream=cs) as server, server.run() as stream:
        await stream.all()
        await server.finished(stream.run_id)
    _, failure = [record for record in told(lines) if record.get("run_id") == stream.run_id]
    assert failure["level"] == "error"
    assert "no more" in failure["message"] + failure.get("exception", "")
    assert "\n" not in failure["message"]


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


async def test_a_tool_s_name_writes_no_line_of_its_own(cs: Callstream, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "callstream.server")
    name = "write\nERROR callstream: all is lost\x1b[31m"
    events = [
        {"type": "TOOL_CALL_START", "toolCallId": "c\nd", "toolCallName": name},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c\nd", "delta": "{}"},
        {"type": "TOOL_CALL_END", "toolCallId": "c\nd"},
    ]
    async with served(Scripted(events), callstream=cs) as server, server.run() as stream:
        await stream.all()
    said = [record.getMessage() for record in caplog.records if "of tool" in record.getMessage()]
    assert said
    assert all(text.isprintable() for text in said)
