"""Functions, objects and web apps that are served by the command, and what it refuses."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import httpx
import pytest

from .asking import APPROVING, asked
from .commands import ran, serving

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]


FUNCTION = """
from callstream import Callstream, current_run
from callstream.server import create_app

cs = Callstream("sqlite:///own.db")


async def agent(given):
    assert current_run().engine is cs.engine
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


def test_a_server_and_its_journal_run_on_uvloop(tmp_path: Path) -> None:
    pytest.importorskip("uvloop", reason="not on every platform")
    says = FUNCTION.replace('"delta": "Hello."', '"delta": loops()') + (
        "\n\ndef loops():\n"
        "    import asyncio\n"
        "    journal = cs.journal._worker._loop\n"
        "    return ' '.join(type(loop).__module__ for loop in (asyncio.get_running_loop(), journal))\n"
    )
    (tmp_path / "own.py").write_text(says)
    with serving("serve", "own.py:app", "--port", "0", cwd=tmp_path) as server:
        assert "".join(event.get("delta", "") for event in asked(server)) == "uvloop uvloop"


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
    assert "wrong:app is of type int; expected a google-adk App or agent" in done.err
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
