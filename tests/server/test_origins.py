"""Other people's pages, and names that point to this machine."""

from __future__ import annotations

import json
import socket

import pytest

from callstream import Callstream
from callstream.server import ServerSettings
from tests.adk.conftest import IGNORED

from .agents import Stepping
from .principals import by_name, refused
from .serving import run_input, served

pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]


async def test_no_cors_unless_asked(cs: Callstream) -> None:
    origin = {"origin": "https://elsewhere.example"}
    preflight = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    async with served(Stepping(free=True), callstream=cs) as server:
        asked = await server.client.options("/agui", headers=preflight)
        refused(asked, 405)
        assert not [name for name in asked.headers if name.startswith("access-control")]
        read = await server.client.get("/api/runs", headers=origin)
        assert not [name for name in read.headers if name.startswith("access-control")]


async def test_cors_for_those_who_were_named(cs: Callstream) -> None:
    settings = ServerSettings(cors_origins=("https://app.example",))
    headers = {"origin": "https://app.example", "sec-fetch-site": "cross-site"}
    preflight = {**headers, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    async with served(Stepping(free=True), callstream=cs, settings=settings) as server:
        asked = await server.client.options("/agui", headers=preflight)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == "https://app.example"
        answer = await server.client.post("/agui", json=run_input(), headers=headers)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "x-run-id" in answer.headers["access-control-expose-headers"]
        other = {"origin": "https://elsewhere.example", "sec-fetch-site": "cross-site"}
        assert "access-control-allow-origin" not in (await server.client.get("/api/runs", headers=other)).headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_page_of_somebody_elses_cannot_start_or_stop_anything(cs: Callstream, site: str) -> None:
    """A form or a plain fetch needs no permission to send; the browser says where it comes from."""
    agent = Stepping(free=True)
    headers = {"sec-fetch-site": site, "origin": "https://elsewhere.example", "content-type": "text/plain"}
    async with served(agent, callstream=cs) as server:
        for path in ("/agui", "/runs/x/stop", "/threads/x/connect"):
            refused(await server.client.post(path, content=json.dumps(run_input()), headers=headers), 403)
        assert agent.inputs == []
        own = {"sec-fetch-site": "same-origin", "origin": server.url}
        assert (await server.client.post("/agui", json=run_input(), headers=own)).status_code == 200


@pytest.mark.parametrize("origin", ["https://elsewhere.example", "http://127.0.0.1:1", "null"])
async def test_a_page_of_somebody_elses_in_a_browser_that_names_its_origin_alone(cs: Callstream, origin: str) -> None:
    """Browsers say where a request comes from (Sec-Fetch-Site) over HTTPS and to loopback, and older ones not at all."""
    agent = Stepping(free=True)
    headers = {"origin": origin, "content-type": "text/plain"}
    async with served(agent, callstream=cs, settings=ServerSettings(cors_origins=("https://app.example",))) as server:
        for path in ("/agui", "/runs/x/stop", "/threads/x/connect"):
            refused(await server.client.post(path, content=json.dumps(run_input()), headers=headers), 403)
        assert agent.inputs == []
        for own in (server.url, server.url.upper(), "https://app.example"):
            assert (await server.client.post("/agui", json=run_input(), headers={"origin": own})).status_code == 200
        assert (await server.client.get("/api/runs", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "8.8.8.8",
        "[2001:db8::1]",
        "[::1].evil.example",
        "[::1]evil.example:80",
        "[::1",
        "127.0.0.1:80@evil.example",
        "127.0.0.1:80.evil.example",
        "localhost:evil.example",
        "localhost@evil.example",
        "localhost/evil.example",
    ],
)
async def test_a_name_that_points_to_loopback_is_not_loopback(cs: Callstream, host: str) -> None:
    async with served(Stepping(free=True), callstream=cs) as server:
        answer = await server.client.get("/api/runs", headers={"host": host})
        refused(answer, 421)
    async with served(
        Stepping(free=True), callstream=Callstream(), settings=ServerSettings(allowed_hosts=("*",))
    ) as server:
        assert (await server.client.get("/api/runs", headers={"host": host})).status_code == 200
    async with served(Stepping(free=True), callstream=Callstream(), auth=by_name) as server:
        assert (await server.client.get("/api/runs", headers={"host": host, "x-user": "ann"})).status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "app.localhost", "127.0.0.1:99", "127.1.2.3", "[::1]:8000"]
)
async def test_loopbacks_own_names_are(cs: Callstream, host: str) -> None:
    async with served(Stepping(free=True), callstream=cs) as server:
        assert (await server.client.get("/api/runs", headers={"host": host})).status_code == 200


async def test_allowed_hosts_are_allowed(cs: Callstream) -> None:
    settings = ServerSettings(allowed_hosts=("Agent.example",))
    async with served(Stepping(free=True), callstream=cs, settings=settings) as server:
        assert (await server.client.get("/api/runs", headers={"host": "agent.example:80"})).status_code == 200
        refused(await server.client.get("/api/runs", headers={"host": "other.example"}), 421)


def test_the_default_address_is_loopback() -> None:
    import inspect

    from callstream.server.serving import serve

    host = inspect.signature(serve).parameters["host"].default
    assert socket.gethostbyname(host) == "127.0.0.1"
