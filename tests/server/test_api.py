"""What the journal knows, as JSON, and the files of the page."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from callstream import Callstream
from callstream.events import CallCompleted, CallStarted, MessageReceived
from callstream.journal import open_journal
from tests.captures import ROOT
from tests.journal.bucket import fake_bucket

from .agents import Stepping
from .serving import served


async def test_threads_are_listed_with_their_first_words(cs: Callstream) -> None:
    async with served(Stepping(free=True), callstream=cs) as server:
        for thread, text in (("a", "Write of tides"), ("b", "x" * 500), ("a", "And again")):
            async with server.run(text, thread=thread) as stream:
                await stream.all()
        for _ in range(2):
            listed = (await server.get("/api/threads")).json()["threads"]
            assert [(each["thread_id"], each["runs"], each["active"]) for each in listed] == [
                ("a", 2, False),
                ("b", 1, False),
            ]
            assert [each["title"] for each in listed] == ["Write of tides", "x" * 119 + "…"]
            assert all(each["started_at"] <= each["updated_at"] for each in listed)
        assert len((await server.get("/api/threads?limit=1")).json()["threads"]) == 1


async def test_what_programs_say_in_tags_is_no_title_unless_there_is_nothing_else(cs: Callstream) -> None:
    """Coding agents put their own words before the user's, or into messages before them."""
    said = {
        "before": ["<system-reminder>\nAttribution.\n</system-reminder>\nWrite of tides"],
        "apart": ["<environment_context>\n <cwd>/</cwd>\n</environment_context>", "Write of the moon"],
        "alone": ["<a>only</a>"],
        "unclosed": ["<b>Write"],
    }
    for thread, texts in said.items():
        async with cs.run(thread) as run:
            await run.record([MessageReceived("user", text) for text in texts])
    async with served(Stepping(), callstream=cs) as server:
        listed = (await server.get("/api/threads")).json()["threads"]
    assert {each["thread_id"]: each["title"] for each in listed} == {
        "before": "Write of tides",
        "apart": "Write of the moon",
        "alone": "<a>only</a>",
        "unclosed": "<b>Write",
    }


async def test_threads_are_listed_while_their_archive_is_away(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    cs = Callstream(open_journal(f"sqlite:///{tmp_path / 'calls.db'}", archive=folder.as_uri()))
    async with served(Stepping(free=True), callstream=cs) as server:
        async with server.run("Write of tides", thread="old") as stream:
            await stream.all()
        await cs.journal.compact(stream.run_id)
        assert await cs.journal.archive() == 1
        folder.rename(tmp_path / "elsewhere")
        listed = (await server.get("/api/threads")).json()["threads"]
        assert [(each["thread_id"], each["title"]) for each in listed] == [("old", None)]
        (tmp_path / "elsewhere").rename(folder)
        listed = (await server.get("/api/threads")).json()["threads"]
        assert [(each["thread_id"], each["title"]) for each in listed] == [("old", "Write of tides")]


async def test_requests_that_fail_because_the_archive_is_away_are_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The journal itself says nothing of it, since it can be written."""
    pytest.importorskip("obstore", reason="the extra archive is not installed")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with fake_bucket() as bucket:
        archive = f"s3://agents?endpoint={bucket.url}&region=local"
        journal = open_journal(f"sqlite:///{tmp_path / 'calls.db'}", archive=archive, retry_seconds=0.1)
        async with served(Stepping(free=True), callstream=Callstream(journal)) as server:
            async with server.run("Write of tides", thread="old") as stream:
                await stream.all()
            assert await journal.archive() == 1
            bucket.is_away = True
            assert (await server.get(f"/api/runs/{stream.run_id}/view")).status_code == 503
            with pytest.raises(httpx.RemoteProtocolError):
                async with server.connect("old") as joined:
                    await joined.all()
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [text.partition(": ")[0] for text in said] == [
        f"GET /api/runs/{stream.run_id}/view",
        f"a stream of run {stream.run_id} broke off because the journal could not be read",
    ]
    assert all("the bucket 'agents' cannot be reached" in text for text in said)


async def test_threads_say_how_many_calls_wait_for_an_answer(cs: Callstream) -> None:
    for thread, count in (("none", 0), ("two", 2)):
        async with cs.run(thread, principal="ada") as run:
            for number in range(count):
                call_id = f"{thread}-{number}"
                await run.record([CallStarted(call_id, "ask"), CallCompleted(call_id, "{}")])
                await run.await_answer(call_id)
    async with served(Stepping(), callstream=cs) as server:
        listed = (await server.get("/api/threads")).json()["threads"]
    assert {each["thread_id"]: each["awaiting"] for each in listed} == {"none": 0, "two": 2}


async def test_runs_and_calls_are_listed(cs: Callstream) -> None:
    async with served(Stepping(free=True), callstream=cs) as server:
        async with server.run(thread="a") as stream:
            await stream.all()
        [row] = (await server.get("/api/runs?thread_id=a&active=false")).json()["runs"]
        assert (row["run_id"], row["outcome"]) == (stream.run_id, "finished")
        assert (await server.get("/api/runs?active=true")).json() == {"runs": []}
        [call] = (await server.get("/api/calls?state=completed")).json()["calls"]
        assert (call["name"], call["args_json"]) == ("write", None)
        whole = (await server.get(f"/api/calls/{call['call_id']}")).json()
        assert whole["args_json"] == "".join(Stepping().pieces)
        assert (await server.get("/api/agent")).json()["name"] == "stepping"


async def test_a_run_is_shown_as_it_stands(cs: Callstream) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs) as server, server.run("Go", thread="a") as stream:
        await stream.until("TOOL_CALL_START")
        agent.step(2)
        await stream.until("TOOL_CALL_ARGS")
        path = f"/api/runs/{stream.run_id}/view"
        view = (await server.get(path)).json()
        assert [item["type"] for item in view["items"]] == ["input", "text", "call"]
        assert view["items"][2]["state"] == "args_streaming"
        assert "".join(agent.pieces).startswith(view["items"][2]["args_json"])
        assert "outcome" not in view or view["outcome"] is None
        agent.step(3)
        await stream.all()
        await server.finished(stream.run_id)
        view = (await server.get(path)).json()
        assert (view["run_id"], view["thread_id"], view["outcome"]) == (stream.run_id, "a", "finished")
        asked, said, call = view["items"]
        assert (asked["role"], asked["text"], said["text"], said["is_open"]) == ("user", "Go", "I write.", False)
        assert (call["name"], call["args_json"], call["result"]) == ("write", "".join(agent.pieces), {"written": True})
        await cs.journal.compact(stream.run_id)
        assert (await server.get(path)).json() == view
        assert (await server.get("/api/runs/nobody/view")).status_code == 404


async def test_the_newest_calls_are_listed_in_their_order(cs: Callstream) -> None:
    async with served(Stepping(free=True), callstream=cs) as server:
        for _ in range(3):
            async with server.run(thread="a") as stream:
                await stream.all()
        every = [call["call_id"] for call in (await server.get("/api/calls")).json()["calls"]]
        assert every == [call.call_id for call in await cs.journal.calls()]
        listed = (await server.get("/api/calls?limit=2")).json()["calls"]
        assert [call["call_id"] for call in listed] == every[-2:]


async def test_files_of_the_page_are_asked_for_anew(cs: Callstream) -> None:
    """Modules of two versions must not meet in one page."""
    async with served(Stepping(), callstream=cs) as server:
        for path in ("/", "/page/app.js", "/page/jsonreader.js"):
            answer = await server.get(path)
            assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache")
            etag = {"if-none-match": answer.headers["etag"]}
            assert path == "/" or (await server.client.get(path, headers=etag)).status_code == 304
        assert answer.content == (ROOT / "js" / "jsonreader.js").read_bytes()
        assert (await server.get("/page/jsonstream.js")).status_code == 404
