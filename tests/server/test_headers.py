"""What every answer has, and what none of them tells."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from starlette.routing import Route

from callstream import Callstream, Settings
from callstream.adk import ADKAgent
from callstream.server import ServerSettings, create_app
from callstream.server.requests import SECURITY
from callstream.testing import Failure, Finish, ToolCall, Truncated
from tests.adk.conftest import IGNORED
from tests.adk.hosting import Models, agent_of, scripted

from .agents import Stepping
from .principals import END, MARKER, refused
from .serving import run_input, served, serving, tool_message

pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]


# -- answers to everybody --


async def test_every_answer_has_the_security_headers(cs: Callstream) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs) as server:
        async with server.run() as stream:
            assert SECURITY.items() <= stream.headers.items()
            assert stream.headers["cache-control"] == "no-cache, no-transform"
            await stream.all()
        answers = [
            await server.client.request(method, path)
            for method, path in (
                ("GET", "/"),
                ("GET", "/healthz"),
                ("GET", "/api/runs"),
                ("GET", "/nowhere"),
                ("GET", "/page/nothing.js"),
                ("DELETE", "/agui"),
                ("POST", "/agui"),
                ("OPTIONS", "/agui"),
            )
        ]
        for answer in answers:
            assert SECURITY.items() <= answer.headers.items(), answer.request
            assert "access-control-allow-origin" not in answer.headers
            assert "server" not in answer.headers
        assert "script-src 'self'" in SECURITY["content-security-policy"]
        assert "unsafe" not in SECURITY["content-security-policy"]
        assert answers[2].headers["cache-control"] == "no-store"


async def test_a_bug_tells_nothing_and_leaks_no_traceback(cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(Stepping(free=True), callstream=cs) as server:
        assert server.app.debug is False

        async def broken(**given: Any) -> Any:
            raise ZeroDivisionError("the password is secret")

        with monkeypatch.context() as patch:
            patch.setattr(cs.journal, "runs", broken)
            answer = await server.get("/api/runs", params={"limit": 1})
        refused(answer, 500)
        assert SECURITY.items() <= answer.headers.items()
        for told in ("secret", "ZeroDivision", "Traceback", ".py"):
            assert told not in answer.text
        assert (await server.get("/api/runs")).status_code == 200


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "BREW", "GET", "POST"])
async def test_wrong_methods_are_405(cs: Callstream, method: str) -> None:
    async with served(Stepping(free=True), callstream=cs) as server:
        routes = [route for route in server.app.routes if isinstance(route, Route)]
        served_there = {route.path for route in routes if method in (route.methods or ())}
        for route in routes:
            if route.path in served_there:
                continue
            path = route.path.replace(":path", "")
            path = path.format(run_id="r", thread_id="t", call_id="c", chat_id="t", agent_id="default")
            answer = await server.client.request(method, path)
            assert answer.status_code == 405, (method, route.path)
            known = {each for other in routes if other.path == route.path for each in other.methods or ()}
            assert set(answer.headers["allow"].split(", ")) == known, route.path
            if method != "HEAD":
                refused(answer, 405)


async def test_a_stream_has_no_head(cs: Callstream) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs) as server, server.run() as stream:
        await stream.until("TOOL_CALL_START")
        assert (await server.client.head(f"/runs/{stream.run_id}/events")).status_code == 405
        agent.step(10)


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py",
        "/page/../../errors.py",
        "/page/%2e%2e/app.py",
        "/page/%2e%2e%2fapp.py",
        "/page/..%5capp.py",
        "/page//etc/passwd",
        "/page/%2fetc/passwd",
        "/page/%00",
        "/page/index.html%00.js",
        "/page/" + "a" * 5000,
        "/page/",
        "/page",
        "/../app.py",
        "//agui",
        "/agui/",
        "/page/%ff",
    ],
)
async def test_no_way_out_of_the_page(cs: Callstream, path: str) -> None:
    """Over a socket: a client's library would tidy the path up first."""
    async with served(Stepping(free=True), callstream=cs) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.split()[1] in (b"404", b"405"), answer
        assert json.loads(body)["error"]["code"]
        assert b"import" not in body


# -- logs --


@pytest.mark.parametrize("path", ["tap", "partial"])
@pytest.mark.parametrize(
    "script",
    [
        [ToolCall("write", {"content": MARKER}), Finish()],
        [ToolCall("write", text=f'{{"content": "{MARKER}" oops'), Finish()],
        [ToolCall("write", {"content": MARKER * 10}, stop_after=5), Truncated()],
        [ToolCall("write", {"content": MARKER * 10}, stop_after=5), Failure("overloaded")],
        [ToolCall("write", {"content": MARKER * 100}), Finish()],
        [ToolCall("unknown_tool", {"content": MARKER}), Finish()],
    ],
    ids=["whole", "malformed", "truncated", "failed", "too long", "unknown"],
)
async def test_argument_text_is_in_no_log(
    url: str, script: list[Any], path: str, caplog: pytest.LogCaptureFixture
) -> None:
    def write(content: str) -> str:
        """Writes."""
        return "written"

    seen: list[str] = []

    async def hook(delta: Any, signal: Any) -> None:
        seen.append(delta.text)

    wire = "anthropic"
    async with (
        Callstream(url, settings=Settings(max_args_bytes=1000)) as cs,
        scripted(wire, [script, END, END]) as provider,
    ):
        cs.on_args_delta("write", hook)
        models = Models(cs)
        agent = ADKAgent(agent_of(models(provider, path), write), callstream=cs)
        app = create_app(agent, settings=ServerSettings())
        with caplog.at_level(logging.DEBUG):
            for name in ("callstream", "callstream.server", "uvicorn", "uvicorn.error"):
                caplog.set_level(logging.DEBUG, name)  # which the fixture undoes
            async with serving(app) as server, server.run("Go") as stream:
                events = await stream.all()
                await server.finished(stream.run_id)
                await server.post("/agui", json={"messages": MARKER})
                await server.post("/agui", content=MARKER.encode())
                await server.post("/agui", json=run_input(None, messages=[tool_message("nobody's", MARKER)]))
        await models.aclose()
    assert events
    ours = [record for record in caplog.records if record.name.split(".")[0] in ("callstream", "uvicorn", "asyncio")]
    assert any(record.levelno <= logging.INFO for record in ours)
    formatter = logging.Formatter()
    offending = [text for record in ours if MARKER[:12] in (text := formatter.format(record))]
    assert offending == []
