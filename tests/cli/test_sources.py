"""Following a run of a server whose connection breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from callstream import codec
from callstream.cli import sources
from callstream.events import Record, RunEnded, RunStarted, TextAppended
from callstream.testing import Cut
from callstream.testing.httpserver import HttpAnswer, HttpServer, ReceivedRequest

from .commands import Ran

Run = Callable[..., Ran]

RECORDS = [
    Record("r", 1, 1.0, RunStarted("t")),
    Record("r", 2, 2.0, TextAppended("m", "Once ")),
    Record("r", 3, 3.0, TextAppended("m", "upon ")),
    Record("r", 4, 4.0, TextAppended("m", "a time.")),
    Record("r", 5, 5.0, RunEnded("finished")),
]
FOLDED = [RECORDS[0], Record("r", 4, 4.0, TextAppended("m", "Once upon a time."), first_seq=2), RECORDS[4]]
ROW = {
    "run_id": "r",
    "thread_id": "t",
    "principal": None,
    "outcome": None,
    "reason": None,
    "started_at": 1.0,
    "ended_at": None,
    "last_seq": 4,
}


def frame(record: Record) -> bytes:
    return b"id: %d\ndata: %s\n\n" % (record.seq, msgspec.json.encode(record))


def json_answer(value: Any, status: int = 200) -> HttpAnswer:
    body = msgspec.json.encode(value)
    return HttpAnswer(status, [("content-type", "application/json")], [body], length=len(body))


@contextmanager
def server(streams: Callable[[int], list[Any]]) -> Iterator[tuple[str, list[int]]]:
    """A server whose streams are told by what was asked for: ``after``."""
    asked: list[int] = []

    async def answering(request: ReceivedRequest) -> HttpAnswer:
        if request.path.startswith("/api/"):
            return json_answer(ROW)
        asked.append(int(request.query["after"]))
        return HttpAnswer(200, [("content-type", "text/event-stream")], streams(asked[-1]))

    made = HttpServer(answering)
    made.start()
    try:
        yield f"http://127.0.0.1:{made.port}", asked
    finally:
        made.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(seconds: float) -> None:
        return

    monkeypatch.setattr(sources, "_sleep", sleep)


SHOWN = "run r of thread t\nmodel: Once upon a time.\nrun r finished\n"


def test_a_stream_that_breaks_off_is_taken_up_where_it_was(run: Run) -> None:
    with server(lambda after: [*map(frame, RECORDS[after : after + 2]), Cut()]) as (url, asked):
        done = run("watch", "r", "--server", url)
    assert (done.code, done.out) == (0, SHOWN)
    assert asked == [0, 2, 4]


def test_a_stream_ends_where_the_server_says_so(run: Run) -> None:
    with server(lambda after: [*map(frame, RECORDS), b"event: end\ndata: {}\n\n"]) as (url, asked):
        assert run("watch", "r", "--server", url).out == SHOWN
    assert asked == [0]


def test_a_run_that_was_folded_meanwhile_is_told_from_its_beginning(run: Run) -> None:
    def streams(after: int) -> list[Any]:
        if after == 0 and len(asked) == 1:
            return [*map(frame, RECORDS[:3]), Cut()]
        if after == 3:
            return [b'event: compacted\ndata: {"first":2,"last":4}\n\n', *map(frame, FOLDED[1:])]
        return [*map(frame, FOLDED)]

    with server(streams) as (url, asked):
        done = run("watch", "r", "--server", url)
    assert asked == [0, 3, 0]
    assert done.out.split("--- from the beginning\n")[1] == SHOWN


def test_a_server_that_never_goes_on_is_given_up(run: Run) -> None:
    with server(lambda after: [b": hello\n\n", Cut()]) as (url, asked):
        done = run("watch", "r", "--server", url)
    assert done.code == 1
    assert "closed the stream of run r 6 times" in done.err
    assert len(asked) == 6


def test_what_is_no_callstream_server_is_told_so(run: Run) -> None:
    async def answering(request: ReceivedRequest) -> HttpAnswer:
        if request.path == "/api/runs/r":
            return json_answer({"hello": "world"})
        body = b"<html>"
        return HttpAnswer(200, [("content-type", "text/html")], [body], length=len(body))

    made = HttpServer(answering)
    made.start()
    url = f"http://127.0.0.1:{made.port}"
    assert "does not match this version of callstream" in run("watch", "r", "--server", url).err
    assert "did not send JSON; is it a Callstream server?" in run("runs", "--server", url).err
    made.close()


def test_the_token_of_the_environment_is_sent(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    async def answering(request: ReceivedRequest) -> HttpAnswer:
        seen.append(request.headers.get("authorization"))
        return json_answer({"error": {"code": "unauthorized", "message": "Who are you?"}}, 401)

    made = HttpServer(answering)
    made.start()
    monkeypatch.setenv("CALLSTREAM_TOKEN", "hush")
    monkeypatch.setenv("CALLSTREAM_SERVER", f"http://127.0.0.1:{made.port}")
    done = run("calls")
    assert (done.code, done.out) == (1, "")
    assert done.err == f"callstream calls: http://127.0.0.1:{made.port} refused the request: Who are you?\n"
    assert seen == ["Bearer hush"]
    made.close()


def test_half_a_surrogate_pair_in_a_record_is_read(run: Run) -> None:
    halves = [RECORDS[0], Record("r", 2, 2.0, TextAppended("m", "\ud83c")), RECORDS[4]]
    with server(lambda after: [b"id: %d\ndata: %s\n\n" % (each.seq, codec.encode(each)) for each in halves]) as (
        url,
        _,
    ):
        done = run("watch", "r", "--server", url)
    assert done.code == 0, done.err
    assert done.out == "run r of thread t\nmodel: \ufffd\nrun r finished\n"


def test_a_record_that_is_none_is_the_servers_fault(run: Run) -> None:
    with server(lambda after: [b"data: {}\n\n"]) as (url, _):
        done = run("watch", "r", "--server", url)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "does not match this version of callstream" in done.err
