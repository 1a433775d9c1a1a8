"""An ordinary application of google-adk, unchanged, served by the command; its model is a scripted provider."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callstream import Callstream
from callstream.testing import Call, Finish, ScriptedProvider, Text

from .commands import PATIENCE, Ran, Server, eventually, ran, serving

pytestmark = pytest.mark.subprocess
Run = Callable[..., Ran]

AGENT = '''
"""As the tutorials of google-adk have it: nothing of Callstream is in here."""
from google.adk.agents import Agent

def get_weather(city: str) -> dict:
    """Tells the weather.

    Args:
        city: The city.
    """
    return {"city": city, "degrees": 20}

root_agent = Agent(name="forecaster", model="gemini-2.5-flash", instruction="Help.", tools=[get_weather])
'''
APP = """
from google.adk.apps import App
from agent import root_agent
app = App(name="weather_app", root_agent=root_agent)
"""
CITY = "Paris, on both sides of the river, from the Bois de Vincennes to the Bois de Boulogne and beyond"


def answers(request: Any) -> list[Any]:
    said = json.dumps(request.json["contents"])
    if "functionResponse" in said or "function_response" in said:
        return [Text("It is warm."), Finish()]
    return [Text("Let me look. "), Call("get_weather", {"city": CITY}, size=4), Finish()]


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider("gemini", answers, stream_args_unasked=True, deltas_per_second=40) as made:
        yield made


@pytest.fixture
def env(provider: ScriptedProvider) -> dict[str, str]:
    return {"GOOGLE_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": provider.base_url}


def asked(server: Server, said: str = "Weather?", thread: str = "t1", run: str = "r1", **headers: str) -> list[Any]:
    """The AG-UI events of a run."""
    given = {
        "threadId": thread,
        "runId": run,
        "messages": [{"id": f"m-{run}", "role": "user", "content": said}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
    }
    answer = httpx.post(f"{server.url}/agui", json=given, headers=headers, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def check_weather(events: list[Any]) -> None:
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-1]) == ("RUN_STARTED", "RUN_FINISHED")
    pieces = [event["delta"] for event in events if event["type"] == "TOOL_CALL_ARGS"]
    assert len(pieces) > 5  # they came while the model wrote them
    assert json.loads("".join(pieces)) == {"city": CITY}
    [result] = [event for event in events if event["type"] == "TOOL_CALL_RESULT"]
    assert json.loads(result["content"]) == {"city": CITY, "degrees": 20}
    text = "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
    assert text == "Let me look. It is warm."


def test_an_agent_in_a_file(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    with serving("serve", "agent.py:root_agent", "--port", "0", env=env, cwd=tmp_path) as server:
        check_weather(asked(server))
        assert httpx.get(f"{server.url}/api/agent").json()["name"] == "forecaster"
        assert httpx.get(f"{server.url}/readyz").status_code == 200
        assert server.end() == 0
    assert "journal: sqlite:///callstream.db" in server.lines
    assert any("model gemini-2.5-flash (Gemini) is read at the wire" in line for line in server.lines)
    calls = ran("calls", "--json", cwd=tmp_path)
    assert json.loads(calls.out)["state"] == "completed"
    with sqlite3.connect(tmp_path / "callstream.db") as database:
        assert database.execute("SELECT count(*) FROM lease WHERE name LIKE 'writer:%'").fetchone() == (0,)
    database.close()


def test_an_app_in_a_module_with_a_journal_that_is_named(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "shop.py").write_text(APP)
    arguments = ("serve", "shop:app", "--port", "0", "--journal", "sqlite:///kept.db", "--on-disconnect", "stop")
    with serving(*arguments, env=env, cwd=tmp_path) as server:
        check_weather(asked(server))
        check_weather(asked(server, thread="t2", run="r2"))
        assert httpx.get(f"{server.url}/api/agent").json()["name"] == "weather_app"
        watched = ran("watch", "r2", "--server", server.url)
        assert watched.code == 0
        assert f"  city: {CITY}\n" in watched.out
        assert server.end(signal.SIGINT) == 130
    assert not any("Traceback" in line for line in server.lines)
    runs = ran("runs", "--json", "--journal", "sqlite:///kept.db", cwd=tmp_path)
    assert [json.loads(line)["run_id"] for line in runs.out.splitlines()] == ["r1", "r2"]


def test_an_agent_folder_with_its_variables(tmp_path: Path, env: dict[str, str]) -> None:
    folder = tmp_path / "weather"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import agent\n")
    (folder / "agent.py").write_text(AGENT)
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in env.items()))
    with serving("serve", "weather", "--port", "0", cwd=tmp_path) as server:
        check_weather(asked(server))


def test_an_adk_agent_with_a_callstream_of_its_own(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "mine.py").write_text(
        "from agent import root_agent\n"
        "from callstream import Callstream\n"
        "from callstream.adk import ADKAgent\n"
        "agent = ADKAgent(root_agent, 'mine', user_id='ada', callstream=Callstream('sqlite:///own.db'))\n"
    )
    with serving("serve", "mine:agent", "--port", "0", env=env, cwd=tmp_path) as server:
        check_weather(asked(server))
        server.end()
    assert not (tmp_path / "callstream.db").exists()
    assert json.loads(ran("runs", "--json", "--journal", "sqlite:///own.db", cwd=tmp_path).out)["principal"] == "ada"
    refused = ran("serve", "mine:agent", "--journal", "sqlite:///x.db", env=env, cwd=tmp_path)
    assert refused.code == 2
    assert "mine:agent has its own Callstream and journal; --journal cannot be combined with it" in refused.err
    refused = ran("serve", "mine:agent", "--forget-after", "30d", env=env, cwd=tmp_path)
    assert (refused.code, "--forget-after cannot be combined" in refused.err) == (2, True)


FUNCTION = """
from callstream import Callstream, current_run
from callstream.server import create_app

cs = Callstream("sqlite:///own.db")


async def agent(given):
    assert current_run().callstream is cs
    yield {"type": "TEXT_MESSAGE_CHUNK", "messageId": given.run_id, "delta": "Hello."}


app = create_app(agent, callstream=cs)
"""


@pytest.mark.parametrize("target", ["own.py:agent", "own.py:app", "own.py"])
def test_a_function_and_an_app_with_a_callstream_of_their_own(tmp_path: Path, target: str) -> None:
    (tmp_path / "own.py").write_text(FUNCTION)
    with serving("serve", target, "--port", "0", cwd=tmp_path) as server:
        assert "".join(event.get("delta", "") for event in asked(server)) == "Hello."
        server.end()
    assert not (tmp_path / "callstream.db").exists()
    assert json.loads(ran("runs", "--json", "--journal", "sqlite:///own.db", cwd=tmp_path).out)["outcome"] == "finished"
    refused = ran("serve", target, "--journal", "sqlite:///x.db", cwd=tmp_path)
    assert (refused.code, "--journal cannot be combined with it" in refused.err) == (2, True)


def test_a_function_beside_several_callstreams_has_to_name_its_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FUNCTION.replace("\n\napp =", "\n\nother = Callstream()\napp ="))
    refused = ran("serve", "own.py:agent", "--port", "0", cwd=tmp_path)
    assert (refused.code, "several Callstreams" in refused.err) == (2, True)
    with (tmp_path / "own.py").open("a") as file:
        file.write("agent.callstream = cs\n")
    with serving("serve", "own.py:agent", "--port", "0", cwd=tmp_path) as server:
        assert asked(server)[-1]["type"] == "RUN_FINISHED"


def test_any_object_with_run_and_who_may_ask_it(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "class Echo:\n"
        "    name = 'echo'\n"
        "    async def run(self, input):\n"
        "        yield {'type': 'TEXT_MESSAGE_START', 'messageId': 'm', 'role': 'assistant'}\n"
        "        yield {'type': 'TEXT_MESSAGE_CONTENT', 'messageId': 'm', 'delta': input.messages[-1].content}\n"
        "        yield {'type': 'TEXT_MESSAGE_END', 'messageId': 'm'}\n"
        "agent = Echo()\n"
        "def who(request):\n"
        "    return request.headers.get('x-user')\n"
    )
    with serving("serve", "plain:agent", "--auth", "plain:who", "--port", "0", cwd=tmp_path) as server:
        events = asked(server, "Hello", **{"x-user": "ada"})
        assert [event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"] == ["Hello"]
        assert httpx.get(f"{server.url}/api/runs").status_code == 401
        assert httpx.get(f"{server.url}/api/runs", headers={"x-user": "bob"}).json() == {"runs": []}
        refused = ran("runs", "--server", server.url)
        assert (refused.code, refused.out) == (1, "")
        assert "refused" in refused.err


def test_what_cannot_be_served_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("app = 7\nagent = lambda input: None\n")
    done = ran("serve", "wrong:app", cwd=tmp_path)
    assert done.code == 2
    assert "wrong:app is a int; expected a google-adk App or agent" in done.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = ran("serve", "wrong:agent", "--port", str(port), cwd=tmp_path)
    assert done.code == 1
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use; --port 0 picks a free one\n" in done.err
    done = ran("serve", "wrong:agent", "--journal", "sqlite:///no/such/folder/x.db", "--port", "0", cwd=tmp_path)
    assert (done.code, done.out) == (1, "")
    assert "could not be used" in done.err
    assert "Traceback" not in done.err
    done = ran("serve", "wrong:agent", "--auth", "wrong:app", cwd=tmp_path)
    assert (done.code, "is not callable" in done.err) == (2, True)


def test_a_web_app_is_not_taken_for_an_agent(tmp_path: Path) -> None:
    (tmp_path / "web.py").write_text(
        APPROVING.replace("root_agent = ", "writer = ")
        + "from callstream.ag_ui_adk import ADKAgent, create_adk_app\n"
        + "adk_agent = ADKAgent(adk_agent=writer, app_name='asker', user_id='demo')\n"
        + "app = create_adk_app(adk_agent)\n"
    )
    for named in ("web.py", "web.py:app"):
        done = ran("serve", named, cwd=tmp_path)
        assert done.code == 2
        assert f"{named} is a FastAPI app, which uvicorn runs" in done.err
        assert "name it: web.py:writer or web.py:adk_agent" in done.err


def test_the_world_is_not_let_in_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("async def agent(input): pass\n")
    with serving("serve", "plain:agent", "--host", "0.0.0.0", "--port", "0", cwd=tmp_path) as server:
        assert any("without --auth, anyone who can reach 0.0.0.0 can use this agent" in line for line in server.lines)


ECHO = """
import logging, warnings
async def agent(input):
    warnings.warn("old thing")
    logging.getLogger("shop").warning("two\\nlines")
    if input.messages[-1].content == "fail":
        raise RuntimeError("broken")
"""
PREFLIGHT = {"origin": "https://shop.example.com", "access-control-request-method": "POST"}


@pytest.mark.parametrize("how", ["options", "variables"])
def test_logs_for_machines_other_origins_and_retention(tmp_path: Path, how: str) -> None:
    (tmp_path / "plain.py").write_text(ECHO)
    url = f"sqlite:///{tmp_path}/callstream.db"
    asyncio.run(two_runs(url))
    with sqlite3.connect(tmp_path / "callstream.db") as database:
        database.execute("UPDATE run SET ended_at = ended_at - 86000 WHERE run_id = 'old'")
    database.close()
    values = {"log-format": "json", "forget-after": "20h", "cors-origin": "https://shop.example.com/"}
    options = [text for name, value in values.items() for text in (f"--{name}", value)]
    variables = {
        "CALLSTREAM_LOG_FORMAT": "json",
        "CALLSTREAM_FORGET_AFTER": "20h",
        "CALLSTREAM_CORS_ORIGINS": "https://shop.example.com",
        "CALLSTREAM_LEASE_TTL": "3000",
    }
    given = {"env": {} if how == "options" else variables, "cwd": tmp_path}
    arguments = ("--verbose", "--port", "0", *(options if how == "options" else ()))
    with serving("serve", "plain:agent", *arguments, **given) as server:  # type: ignore[arg-type]
        assert httpx.options(f"{server.url}/agui", headers=PREFLIGHT).headers["access-control-allow-origin"] == (
            "https://shop.example.com"
        )
        assert asked(server, "fail")[-1]["type"] == "RUN_ERROR"
        runs = f"{server.url}/api/runs?thread_id=kept"
        eventually(lambda: [row["run_id"] for row in httpx.get(runs).json()["runs"]] == ["new"])
        with sqlite3.connect(tmp_path / "callstream.db") as database:
            (expires,) = database.execute("SELECT max(expires_at) FROM lease WHERE name LIKE 'writer:%'").fetchone()
        database.close()
        assert (expires > time.time() + 1000) == (how == "variables")
        assert server.end() == 0
    lines = [json.loads(line) for line in server.lines if not line.startswith(server.url)]
    messages = {line["message"]: line for line in lines}
    assert messages["two\nlines"]["logger"] == "shop"
    assert "RuntimeError: broken" in messages["run r1 of thread t1 failed"]["exception"]
    assert messages["run r1 of thread t1 failed"]["run_id"] == "r1"
    assert any(line["logger"] == "uvicorn.access" and "POST /agui" in line["message"] for line in lines)
    assert any(line["logger"] == "py.warnings" and "old thing" in line["message"] for line in lines)
    assert any(line["message"] == f"journal: {'sqlite:///callstream.db'}" for line in lines)


async def two_runs(url: str) -> None:
    async with Callstream(url) as cs:
        for run_id in ("old", "new"):
            async with cs.run("kept", run_id):
                pass


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("forget-after", "1m", "expected an age in hours, days or weeks, such as 12h, 30d or 8w, got '1m'"),
        ("forget-after", "0d", "expected an age in hours, days or weeks, such as 12h, 30d or 8w, got '0d'"),
        ("cors-origin", "shop.example.com", "expected an origin such as https://app.example.com, got"),
        ("cors-origin", "https://shop.example.com/page", "expected an origin such as https://app.example.com, got"),
        ("log-format", "xml", "expected text or json, got 'xml'"),
    ],
)
def test_a_wrong_value_is_one_sentence(tmp_path: Path, run: Run, option: str, value: str, sentence: str) -> None:
    done = run("serve", "plain:agent", f"--{option}", value)
    assert done.code == 2
    assert f"argument --{option}: {sentence}" in done.err


def test_a_journal_that_is_away_at_the_start_is_one_line_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(ECHO)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"postgresql://me@127.0.0.1:{taken.getsockname()[1]}/calls"
        env = {"CALLSTREAM_RETRY_SECONDS": "0.1", "CALLSTREAM_JOURNAL": url, "CALLSTREAM_JOURNAL_FILE": ""}
        done = ran("serve", "plain:agent", "--port", "0", "--log-format", "json", env=env, cwd=tmp_path)
    assert (done.code, done.out) == (1, "")
    last = [json.loads(line) for line in done.err.splitlines()][-1]
    assert last["level"] == "error"
    assert "is away: ConnectionRefusedError" in last["message"]


@pytest.mark.parametrize("name", ["CALLSTREAM_RETRY_SECONDS", "CALLSTREAM_LEASE_TTL"])
def test_seconds_that_are_none(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "plain.py").write_text(ECHO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, "soon")
    done = run("serve", "plain.py:agent")
    assert done.code == 2
    assert f"invalid value for {name}: expected more than 0 seconds, got 'soon'" in done.err


def test_a_wrong_variable_is_one_sentence(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain.py").write_text(ECHO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALLSTREAM_FORGET_AFTER", "soon")
    done = run("serve", "plain.py:agent")
    assert done.code == 2
    assert "invalid value for CALLSTREAM_FORGET_AFTER: expected an age in hours, days or weeks" in done.err


# -- streamed arguments --


@pytest.mark.parametrize("how", ["default", "option"])
def test_providers_are_asked_to_stream_arguments_unless_told_not_to(tmp_path: Path, how: str) -> None:
    (tmp_path / "agent.py").write_text(AGENT.replace("gemini-2.5-flash", "projects/p/locations/l/endpoints/1"))
    with ScriptedProvider("gemini", answers) as provider:
        env = {"GOOGLE_API_KEY": "none", "GOOGLE_VERTEX_BASE_URL": provider.base_url, "GOOGLE_GENAI_USE_VERTEXAI": "1"}
        options = ["--no-stream-arguments"] if how == "option" else []
        env |= {"CALLSTREAM_STREAM_ARGUMENTS": "on"} if how == "option" else {}  # the option takes precedence
        with serving("serve", "agent.py:root_agent", "--port", "0", *options, env=env, cwd=tmp_path) as server:
            asked(server)
            assert ("streamFunctionCallArguments" in str(provider.requests[0].json)) is (how == "default")
            assert server.end() == 0


def test_streamed_arguments_of_what_has_clients_of_its_own(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain.py").write_text(ECHO)
    monkeypatch.chdir(tmp_path)
    done = run("serve", "plain.py:agent", "--no-stream-arguments")
    assert done.code == 2
    assert "plain.py:agent has clients of its own; --stream-arguments cannot be combined with it" in done.err
    monkeypatch.setenv("CALLSTREAM_STREAM_ARGUMENTS", "maybe")
    done = run("serve", "plain.py:agent")
    assert done.code == 2
    assert "invalid value for CALLSTREAM_STREAM_ARGUMENTS: expected true or false, got 'maybe'" in done.err


# -- sessions --

APPROVING = '''
from google.adk.agents import Agent
from google.adk.tools import LongRunningFunctionTool

def approve(what: str) -> None:
    """Asks a person."""

root_agent = Agent(name="asker", model="gemini-2.5-flash", tools=[LongRunningFunctionTool(approve)])
'''


def approving(request: Any) -> list[Any]:
    said = json.dumps(request.json["contents"])
    if "functionResponse" in said:
        return [Text("Approved." if '"ok": true' in said else "What?"), Finish()]
    return [Call("approve", {"what": "x"}), Finish()]


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
