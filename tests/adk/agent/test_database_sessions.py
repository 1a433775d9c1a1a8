"""google-adk's DatabaseSessionService: sessions in SQLite and in PostgreSQL, through SQLAlchemy."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("sqlalchemy", reason="sqlalchemy, which DatabaseSessionService needs, is not installed")

from google.adk.sessions import DatabaseSessionService
from google.adk.tools import LongRunningFunctionTool
from google.adk.tools.tool_context import ToolContext

from callstream import Callstream
from callstream.adk.serving import open_sessions, prepare_sessions, sessions_beside
from callstream.calls import CallState
from callstream.errors import UsageError
from callstream.testing import Finish, Parallel, Text, ToolCall
from tests.adk.hosting import PATHS, Host, Models, agent_of, answer, function_calls_in, scripted, text_of
from tests.journal.server import postgres_server

from .agents import adk_agent, gemini
from .clients import Client

END = [Text("Done."), Finish()]
STORES = ("sqlite", pytest.param("postgres", marks=pytest.mark.postgres))


@pytest.fixture(scope="module")
def postgres_uri() -> Iterator[str]:
    with postgres_server() as server:
        yield server.get_uri()


@pytest.fixture
def sessions_in(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    """Opens the sessions; each time as a new process would."""
    if request.param == "sqlite":
        url, options = f"sqlite+aiosqlite:///{tmp_path}/sessions.db", {}
    else:
        uri = urlsplit(request.getfixturevalue("postgres_uri"))
        host = parse_qs(uri.query).get("host", [uri.hostname or ""])[0]
        url = f"postgresql+asyncpg://{uri.username}@/{uri.path.lstrip('/')}?host={host}"
        options = {"connect_args": {"password": uri.password}} if uri.password else {}

    @asynccontextmanager
    async def opened() -> AsyncIterator[DatabaseSessionService]:
        service = DatabaseSessionService(url, **options)
        try:
            yield service
        finally:
            await service.close()

    return opened


def approve(what: str) -> None:
    """Asks a person."""


@pytest.mark.parametrize("sessions_in", STORES, indirect=True)
@pytest.mark.parametrize("path", PATHS)
async def test_answer_after_restart_with_database_sessions(path: str, sessions_in: Any, tmp_path: Path) -> None:
    """Two calls of one tool, answered by another process in the wrong order, once."""
    asking = [ToolCall("approve", {"what": "first"}), ToolCall("approve", {"what": "second"})]
    async with scripted("gemini", [[Parallel(asking), Finish()], END]) as provider:
        asked: list[Any] = []
        for number in (1, 2):
            async with Callstream(f"sqlite:///{tmp_path}/calls.db") as cs, sessions_in() as sessions:
                models = Models(cs)
                agent = agent_of(models(provider, path), LongRunningFunctionTool(approve), output_key="said")
                host = Host(cs, agent, sessions=sessions)
                if number == 1:
                    asked = function_calls_in(await host.run())
                    assert [call.state for call in await host.calls()] == [CallState.AWAITING] * 2
                else:
                    answers = [answer("approve", call.id, {"to": (call.args or {})["what"]}) for call in asked]
                    events = await host.run(answers[::-1])
                    assert "Done." in text_of(events)
                    assert await host.run(answers[:1]) != []  # it came before, and changes nothing
                    assert [call.result for call in await host.calls()] == [{"to": "first"}, {"to": "second"}]
                    assert (await host.session()).state["said"] == "Done."
                await models.aclose()
        body = provider.requests[1].body.decode()
        assert len(provider.requests) == 2
    assert body.index('"to":"first"'.replace(":", ": ")) < body.index('"to": "second"')


@pytest.mark.parametrize("sessions_in", STORES, indirect=True)
async def test_thread_and_state_after_restart_with_database_sessions(
    sessions_in: Any, tmp_path: Path, models: Models
) -> None:
    """A thread of an agent: state both ways, only unseen messages, a pending call, in three processes."""

    def count(tool_context: ToolContext) -> int:
        """Counts."""
        tool_context.state["n"] = tool_context.state.get("n", 0) + 1
        return int(tool_context.state["n"])

    script = [
        [ToolCall("count", {}), Finish()],
        [Text("One."), Finish()],
        [ToolCall("count", {}), ToolCall("approve", {"what": "x"}), Finish()],
        [Text("Approved."), Finish()],
    ]
    thread, messages, pending = f"thread-{uuid.uuid4()}", [], ""
    async with scripted("gemini", script) as provider:
        for number in (1, 2, 3):
            async with Callstream(f"sqlite:///{tmp_path}/calls.db") as cs, sessions_in() as sessions:
                root = agent_of(gemini(models, provider), count, LongRunningFunctionTool(approve))
                agent = adk_agent(cs, root, session_service=sessions)
                client = Client(agent, thread)
                client._number, client.messages = number * 10, messages
                if number == 1:
                    client.state = {"color": "blue"}
                    await client.send("one")
                    assert client.text() == "One."
                    assert client.state == {"color": "blue", "n": 1}
                elif number == 2:
                    await client.send("two")
                    (pending,) = client.pending()
                    assert client.state["n"] == 2
                else:
                    await client.answer({pending: {"ok": True}})
                    assert client.text() == "Approved."
                    state = await agent.thread_state(thread)
                    assert state["state"] == {"color": "blue", "n": 2}
                    assert [message["role"] for message in state["messages"]][:2] == ["user", "assistant"]
                    assert await agent.thread_state("another") is None
                messages = client.messages
                await agent.close()
        contents = provider.requests[2].json["contents"]
        said = [part["text"] for content in contents for part in content["parts"] if part.get("text")]
        assert said == ["one", "One.", "two"]
        assert len(provider.requests) == 4


@pytest.mark.postgres
async def test_sessions_beside_a_journal_in_postgres(postgres_uri: str, models: Models) -> None:
    """They are in the journal's database, in a schema of their own."""
    url = f"{postgres_uri}{'&' if '?' in postgres_uri else '?'}schema=beside"
    assert sessions_beside(url) == url
    async with scripted("gemini", [[ToolCall("approve", {"what": "x"}), Finish()], END]) as provider:
        for number in (1, 2):
            async with Callstream(url) as cs:
                sessions: Any = open_sessions(url)
                await asyncio.gather(*(prepare_sessions(sessions, url) for _ in range(4)))
                root = agent_of(gemini(models, provider), LongRunningFunctionTool(approve))
                client = Client(adk_agent(cs, root, session_service=sessions))
                if number == 1:
                    await client.send()
                    (asked,), messages = client.pending(), client.messages
                else:
                    client.messages, client._number = messages, 10
                    await client.answer({asked: {"ok": True}})
                    assert client.text() == "Done."
                await client.agent.close()
                await sessions.close()


@pytest.mark.parametrize("place", ["text.db", "folder", "older.db"])
def test_a_file_that_holds_no_sessions_is_the_users_mistake(tmp_path: Path, place: str) -> None:
    (tmp_path / "text.db").write_text("These are no sessions. " * 100)
    (tmp_path / "folder").mkdir()
    with closing(sqlite3.connect(tmp_path / "older.db")) as older:
        older.execute("CREATE TABLE events (id TEXT, actions BLOB)")  # as google-adk kept them before 1.0
    with pytest.raises(UsageError, match=f"^these sessions cannot be opened: .*{place}"):
        open_sessions(f"sqlite:///{tmp_path}/{place}")


def test_sessions_beside_a_journal() -> None:
    assert sessions_beside("memory:") == "memory:"
    assert sessions_beside("sqlite:///calls.db?durability=power") == "sqlite:///calls-sessions.db"
    assert sessions_beside("sqlite:////data/calls") == "sqlite:////data/calls-sessions"


@pytest.mark.parametrize("folder", ["~", "100%25", "c#"])
async def test_sessions_are_in_the_folder_of_their_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "~"))
    (tmp_path / folder).mkdir()
    journal = "sqlite:///~/calls.db" if folder == "~" else f"sqlite:///{tmp_path}/{folder}/calls.db"
    async with Callstream(journal) as cs, cs.run("thread"):
        pass
    sessions = sessions_beside(journal)
    await prepare_sessions(open_sessions(sessions), sessions)
    assert {file.name for file in (tmp_path / folder).iterdir()} >= {"calls.db", "calls-sessions.db"}


async def test_a_place_that_cannot_be_opened_leaves_no_thread_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that outlives the event loop writes a traceback of its own."""
    url = f"sqlite:///{tmp_path}/nofolder/sessions.db"
    sessions = open_sessions(url)
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(sqlite3.OperationalError, match="unable to open database file"):
        await asyncio.wait_for(prepare_sessions(sessions, url), 1)
    assert started == []


async def test_errors_of_the_store_repeat_nothing_of_the_conversation(tmp_path: Path) -> None:
    from google.adk.events.event import Event
    from google.genai import types
    from sqlalchemy import text

    sessions: Any = open_sessions(f"sqlite+aiosqlite:///{tmp_path}/sessions.db")
    session = await sessions.create_session(app_name="app", user_id="user")
    async with sessions.db_engine.begin() as connection:
        await connection.execute(
            text("CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        )
    said = types.Content(role="user", parts=[types.Part(text="my PIN is 4711")])
    with pytest.raises(Exception, match="disk full") as failed:
        await sessions.append_event(session, Event(author="user", content=said))
    assert "4711" not in str(failed.value)
    await sessions.db_engine.dispose()
