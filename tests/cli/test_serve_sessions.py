"""Sessions of google-adk under `callstream serve`: an answer after a restart needs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callstream.testing import Finish, ScriptedProvider, Text, ToolCall

from .asking import APPROVING, asked
from .commands import PATIENCE, Server, ran, serving

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]


def approving(request: Any) -> list[Any]:
    said = json.dumps(request.json["contents"])
    if "functionResponse" in said:
        return [Text("Approved." if '"ok": true' in said else "What?"), Finish()]
    return [ToolCall("approve", {"what": "x"}), Finish()]


def post_answer(server: Server, call_id: str, content: str = '{"ok": true}') -> httpx.Response:
    message = {"id": "answer", "role": "tool", "toolCallId": call_id, "content": content}
    given = {"threadId": "t1", "runId": "r2", "messages": [message], "tools": [], "context": [], "state": {}}
    return httpx.post(f"{server.url}/agui", json={**given, "forwardedProps": {}}, timeout=PATIENCE)


def ask_and_restart(
    folder: Path, *first: str, then: tuple[str, ...], env: dict[str, str], program: str = APPROVING
) -> tuple[Server, Server, httpx.Response]:
    """A call awaits an answer when the server ends; another server is given the answer."""
    (folder / "agent.py").write_text(program)
    with serving("serve", "agent.py", "--port", "0", *first, env=env, cwd=folder) as before:
        (pending,) = asked(before)[-1]["outcome"]["pendingToolCallIds"]
        assert before.end() == 0
    with serving("serve", "agent.py", "--port", "0", *then, env=env, cwd=folder) as after:
        answered = post_answer(after, pending)
        assert after.end() == 0
    return before, after, answered


@pytest.fixture
def approval_env() -> Iterator[dict[str, str]]:
    with ScriptedProvider("gemini", approving) as made:
        yield {"GOOGLE_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": made.base_url}


def test_answer_after_a_restart_with_nothing_configured(tmp_path: Path, approval_env: dict[str, str]) -> None:
    before, _, answered = ask_and_restart(tmp_path, then=(), env=approval_env)
    assert answered.status_code == 200
    assert "Approved." in answered.text
    assert "sessions: sqlite:///callstream-sessions.db" in before.lines
    assert not any("in memory" in line for line in before.lines)
    assert json.loads(ran("calls", "--json", cwd=tmp_path).out)["state"] == "completed"


MIGRATED = (
    APPROVING
    + """
from callstream.ag_ui_adk import ADKAgent

OWN = None
agent = ADKAgent(adk_agent=root_agent, app_name="asker", user_id="demo")
agent.callstream.on_args_complete("approve", lambda call, signal: print(call.name, file=open("hooked", "a")))
del root_agent
"""
)


def test_adk_agent_without_a_journal_is_given_one(tmp_path: Path, approval_env: dict[str, str]) -> None:
    """What its program has registered with its Callstream stays."""
    before, _, answered = ask_and_restart(tmp_path, then=(), env=approval_env, program=MIGRATED)
    assert "Approved." in answered.text
    assert {"journal: sqlite:///callstream.db", "sessions: sqlite:///callstream-sessions.db"} <= set(before.lines)
    assert json.loads(ran("calls", "--json", cwd=tmp_path).out)["state"] == "completed"
    assert (tmp_path / "hooked").read_text() == "approve\n"


def test_adk_agent_without_a_journal_takes_the_options(tmp_path: Path, approval_env: dict[str, str]) -> None:
    places = ("--journal", "sqlite:///one.db", "--sessions", "sqlite:///two.db", "--forget-after", "30d")
    _, _, answered = ask_and_restart(tmp_path, *places, then=places, env=approval_env, program=MIGRATED)
    assert "Approved." in answered.text
    assert {"one.db", "two.db"} <= {path.name for path in tmp_path.iterdir()}
    assert not (tmp_path / "callstream.db").exists()


def test_adk_agent_with_sessions_of_its_own_is_given_a_journal(tmp_path: Path, approval_env: dict[str, str]) -> None:
    program = MIGRATED.replace(
        'user_id="demo"', 'user_id="demo", session_service=SqliteSessionService("own.db")'
    ).replace("OWN = None", "from google.adk.sessions.sqlite_session_service import SqliteSessionService")
    _, _, answered = ask_and_restart(tmp_path, then=(), env=approval_env, program=program)
    assert "Approved." in answered.text
    assert (tmp_path / "callstream.db").exists()
    assert not (tmp_path / "callstream-sessions.db").exists()
    done = ran("serve", "agent.py", "--sessions", "memory:", env=approval_env, cwd=tmp_path)
    assert done.code == 2
    assert "agent.py has its own session_service; --sessions cannot be combined with it" in done.err


def test_answer_needs_its_session(tmp_path: Path, approval_env: dict[str, str]) -> None:
    """It is refused, and still awaited, by the server and by the journal."""
    before, after, answered = ask_and_restart(tmp_path, "--sessions", "memory:", then=(), env=approval_env)
    assert any("WARNING" in line and "sessions are in memory" in line for line in before.lines)
    assert not any("WARNING" in line for line in after.lines)
    assert answered.status_code == 409
    assert answered.json()["error"]["code"] == "answer_refused"
    assert "The session in which approve asked is gone" in answered.json()["error"]["message"]
    assert json.loads(ran("calls", "--json", cwd=tmp_path).out)["state"] == "awaiting"


def test_sessions_in_a_file_of_their_own(tmp_path: Path, approval_env: dict[str, str]) -> None:
    named = {**approval_env, "CALLSTREAM_SESSIONS": "sqlite:///kept.db"}
    _, _, answered = ask_and_restart(tmp_path, then=("--sessions", "sqlite:///kept.db"), env=named)
    assert "Approved." in answered.text
    assert (tmp_path / "kept.db").exists()
    assert not (tmp_path / "callstream-sessions.db").exists()


def test_sessions_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(APPROVING)
    (tmp_path / "own.py").write_text("async def own(input):\n    yield\n")
    done = ran("serve", "agent.py", "--sessions", "postgresql://me:secret@host/db", cwd=tmp_path)
    assert done.code == 2
    assert "CALLSTREAM_SESSIONS" in done.err
    assert "secret" not in done.err
    done = ran("serve", "own.py:own", "--sessions", "memory:", cwd=tmp_path)
    assert done.code == 2
    assert "--sessions cannot be combined with it" in done.err
    done = ran("serve", "agent.py", "--sessions", "file.db", cwd=tmp_path)
    assert "expected memory:, sqlite:///file.db or postgresql://" in done.err


def test_a_place_that_cannot_be_used_is_said_at_the_start(tmp_path: Path, approval_env: dict[str, str]) -> None:
    (tmp_path / "agent.py").write_text(APPROVING)
    done = ran(
        *("serve", "agent.py", "--port", "0", "--sessions", "sqlite:///nofolder/x.db"), env=approval_env, cwd=tmp_path
    )
    assert (done.code, done.out) == (1, "")
    assert "the sessions cannot be opened: OperationalError: unable to open database file" in done.err
    assert "Traceback" not in done.err


def test_sessions_lie_beside_the_journal_whatever_its_name(tmp_path: Path, approval_env: dict[str, str]) -> None:
    (tmp_path / "agent.py").write_text(APPROVING)
    env = {**approval_env, "HOME": str(tmp_path)}
    for place, folder in (("a#1", "a#1"), ("a%231", "a%231"), ("~", ".")):
        (tmp_path / folder).mkdir(exist_ok=True)
        with serving(
            "serve", "agent.py", "--port", "0", "--journal", f"sqlite:///{place}/calls.db", env=env, cwd=tmp_path
        ):
            assert (tmp_path / folder / "calls-sessions.db").exists()
            assert (tmp_path / folder / "calls.db").exists()


def test_an_age_for_an_archive_that_is_none_is_refused(tmp_path: Path, approval_env: dict[str, str]) -> None:
    (tmp_path / "agent.py").write_text(APPROVING)
    done = ran("serve", "agent.py", "--port", "0", "--archive-after", "3d", env=approval_env, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "--archive-after needs an archive" in done.err
