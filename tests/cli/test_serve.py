"""An ordinary application of google-adk, unchanged, served by the command; its model is a scripted provider."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from callstream.testing import Finish, ScriptedProvider, Text, ToolCall
from tests.gated import GatedProvider

from .asking import asked
from .commands import Server, ran, serving

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]


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
    return [Text("Let me look. "), ToolCall("get_weather", {"city": CITY}, size=4), Finish()]


@pytest.fixture
def provider() -> Iterator[GatedProvider]:
    with GatedProvider("gemini", answers, held=4) as made:
        yield made


@pytest.fixture
def env(provider: GatedProvider) -> dict[str, str]:
    return {"GOOGLE_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": provider.base_url}


def check_weather(server: Server, provider: GatedProvider, **run: str) -> None:
    """The model writes the end of its first call only when the client has seen its beginning."""
    events = asked(server, seen=lambda event: provider.open() if event["type"] == "TOOL_CALL_ARGS" else None, **run)
    assert provider.was_opened
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-1]) == ("RUN_STARTED", "RUN_FINISHED")
    pieces = [event["delta"] for event in events if event["type"] == "TOOL_CALL_ARGS"]
    assert json.loads("".join(pieces)) == {"city": CITY}
    [result] = [event for event in events if event["type"] == "TOOL_CALL_RESULT"]
    assert json.loads(result["content"]) == {"city": CITY, "degrees": 20}
    text = "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
    assert text == "Let me look. It is warm."


def test_an_agent_in_a_file(tmp_path: Path, env: dict[str, str], provider: GatedProvider) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    with serving("serve", "agent.py:root_agent", "--port", "0", env=env, cwd=tmp_path) as server:
        check_weather(server, provider)
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


def test_an_app_in_a_module_with_a_journal_that_is_named(
    tmp_path: Path, env: dict[str, str], provider: GatedProvider
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "shop.py").write_text(APP)
    arguments = ("serve", "shop:app", "--port", "0", "--journal", "sqlite:///kept.db", "--on-disconnect", "stop")
    with serving(*arguments, env=env, cwd=tmp_path) as server:
        check_weather(server, provider)
        check_weather(server, provider, thread="t2", run="r2")
        assert httpx.get(f"{server.url}/api/agent").json()["name"] == "weather_app"
        watched = ran("watch", "r2", "--server", server.url)
        assert watched.code == 0
        assert f"  city: {CITY}\n" in watched.out
        assert server.end(signal.SIGINT) == 130
    assert not any("Traceback" in line for line in server.lines)
    runs = ran("runs", "--json", "--journal", "sqlite:///kept.db", cwd=tmp_path)
    assert [json.loads(line)["run_id"] for line in runs.out.splitlines()] == ["r1", "r2"]


def test_an_agent_folder_with_its_variables(tmp_path: Path, env: dict[str, str], provider: GatedProvider) -> None:
    folder = tmp_path / "weather"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import agent\n")
    (folder / "agent.py").write_text(AGENT)
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in env.items()))
    with serving("serve", "weather", "--port", "0", cwd=tmp_path) as server:
        check_weather(server, provider)


def test_an_adk_agent_with_a_callstream_of_its_own(
    tmp_path: Path, env: dict[str, str], provider: GatedProvider
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "mine.py").write_text(
        "from agent import root_agent\n"
        "from callstream import Callstream\n"
        "from callstream.adk import ADKAgent\n"
        "agent = ADKAgent(root_agent, 'mine', user_id='ada', callstream=Callstream('sqlite:///own.db'))\n"
    )
    with serving("serve", "mine:agent", "--port", "0", env=env, cwd=tmp_path) as server:
        check_weather(server, provider)
        server.end()
    assert not (tmp_path / "callstream.db").exists()
    assert json.loads(ran("runs", "--json", "--journal", "sqlite:///own.db", cwd=tmp_path).out)["principal"] == "ada"
    refused = ran("serve", "mine:agent", "--journal", "sqlite:///x.db", env=env, cwd=tmp_path)
    assert refused.code == 2
    assert "mine:agent has its own Callstream and journal; --journal cannot be combined with it" in refused.err
    refused = ran("serve", "mine:agent", "--forget-after", "30d", env=env, cwd=tmp_path)
    assert (refused.code, "--forget-after cannot be combined" in refused.err) == (2, True)


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
