"""Who may do what: principals and strangers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route

from callstream import Callstream, Run
from callstream.server import ServerSettings
from callstream.server.requests import SECURITY
from tests.adk.conftest import IGNORED

from .agents import Stepping
from .principals import by_name, refused
from .serving import run_input, served

pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]


PUBLIC = {"/", "/page", "/healthz", "/readyz"}
"""What needs no principal: a page without data, and whether the process lives."""


LISTS = {
    "/api/agent": None,
    "/copilotkit/info": None,
    "/api/threads": "threads",
    "/api/runs": "runs",
    "/api/calls": "calls",
}
"""What everybody may ask for, and gets his own of."""


NOTHING = {
    "/agui": (200, b'{"messages":[],"activeRun":null,"interrupts":null}'),
    "/ui/{chat_id}/stream": (204, b""),
    "/ui/{chat_id}/messages": (200, b"[]"),
    "/copilotkit/agent/{agent_id}/connect": (200, b""),
    "/copilotkit/agent/{agent_id}/stop/{thread_id}": (200, b'{"stopped":false}'),
}
"""What is answered about a thread of somebody else's, as about one that there is not; to POST /agui: 404."""
UI_MESSAGE = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Go"}]}


async def by_name_later(request: Any) -> str | None:
    await asyncio.sleep(0)
    return by_name(request)


@pytest.mark.parametrize("auth", [by_name, by_name_later])
async def test_every_route_wants_a_principal_and_hides_what_is_not_his(cs: Callstream, auth: Any) -> None:
    """Walks the app's own routes, so that a new one cannot be forgotten."""
    agent = Stepping()
    async with served(agent, callstream=cs, auth=auth) as server:
        server.headers = {"x-user": "ann"}
        async with server.run() as stream:
            await stream.until("TOOL_CALL_START")
            ids = {"run_id": stream.run_id, "thread_id": "thread", "call_id": f"call-{stream.run_id}"}
            ids |= {"chat_id": ids["thread_id"], "agent_id": "default"}
            walked = set()
            for route in server.app.routes:
                if route.path in PUBLIC:  # type: ignore[attr-defined]
                    continue
                assert isinstance(route, Route), route
                named = route.path.replace(":path", "")
                walked.add(named)
                path = named.format(**ids)
                for method in sorted((route.methods or set()) - {"HEAD"}):
                    given = run_input() if route.path != "/ui" else {"id": "thread", "messages": [UI_MESSAGE]}
                    body = {"json": given} if method == "POST" else {"params": {"threadId": "thread"}}
                    nobody = await server.client.request(method, path, **body)
                    refused(nobody, 401)
                    assert nobody.headers["www-authenticate"] == "Bearer"
                    stranger = await server.client.request(method, path, headers={"x-user": "bob"}, **body)
                    if route.path in LISTS:
                        assert stranger.status_code == 200
                        key = LISTS[route.path]
                        assert key is None or stranger.json()[key] == []
                    elif named in NOTHING and (method, named) != ("POST", "/agui"):
                        assert (stranger.status_code, stranger.content) == NOTHING[named]
                    else:
                        refused(stranger, 404)
                        for secret in ("I write", "ann"):
                            assert secret not in stranger.text
                for query in ("run_id", "thread_id") if route.path in LISTS else ():
                    asked = await server.client.get(path, params={query: ids[query]}, headers={"x-user": "bob"})
                    assert stream.run_id not in asked.text
            assert walked >= {
                "/agui",
                "/ui",
                "/copilotkit/agent/{agent_id}/run",
                *NOTHING,
                "/threads/{thread_id}/connect",
                "/runs/{run_id}/events",
                "/runs/{run_id}/stop",
            }
            row = (await server.get(f"/api/runs/{stream.run_id}")).json()
            assert (row["outcome"], row["principal"]) == (None, "ann")  # nobody has stopped it
            agent.step(10)
            await stream.all()


async def test_public_routes_tell_nothing_of_anybody(cs: Callstream) -> None:
    async with served(Stepping(free=True), callstream=cs, auth=by_name) as server:
        server.headers = {"x-user": "somebody in particular"}
        async with server.run("my secret") as stream:
            await stream.all()
        for path in ("/", "/healthz", "/readyz"):
            answer = await server.client.get(path)
            assert answer.status_code == 200
            for told in ("my secret", stream.run_id, "somebody in particular"):
                assert told not in answer.text
        mounted = [route for route in server.app.routes if isinstance(route, Mount)]
        assert [route.path for route in mounted] == ["/page"]


async def test_a_principal_has_what_is_his(cs: Callstream) -> None:
    async with served(Stepping(free=True), callstream=cs, auth=by_name) as server:
        server.headers = {"x-user": "ann"}
        async with server.run() as stream:
            await stream.all()
        async with server.connect() as joined:
            assert (await joined.all())[0]["type"] == "RUN_STARTED"
        assert [row["run_id"] for row in (await server.get("/api/runs")).json()["runs"]] == [stream.run_id]
        assert (await server.get(f"/api/calls/call-{stream.run_id}")).status_code == 200


async def test_two_principals_with_one_thread_id_at_once(cs: Callstream) -> None:
    """One of them owns the thread; the other is refused before his agent does anything."""
    agent = Stepping(free=True)
    async with served(agent, callstream=cs, auth=by_name, settings=ServerSettings(busy_wait=5)) as server:

        async def begin(user: str) -> int:
            answer = await server.client.post("/agui", json=run_input(f"of {user}"), headers={"x-user": user})
            return answer.status_code

        assert 404 in await asyncio.gather(begin("ann"), begin("bob"), begin("ann"))
        owner = (await cs.journal.runs(thread_id="thread"))[-1].principal
        assert {given.messages[0].content for given in agent.inputs} == {f"of {owner}"}
        other = ({"ann", "bob"} - {owner}).pop()
        refused(await server.client.post("/threads/thread/connect", headers={"x-user": other}), 404)
        joined = await server.client.post("/threads/thread/connect", headers={"x-user": str(owner)})
        assert f"of {other}" not in joined.text


@pytest.mark.parametrize("when_busy", ["wait", "refuse"])
async def test_who_comes_too_late_to_own_a_thread_does_not_hear_of_its_run(
    url: str, when_busy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread was free when he asked; another's run goes on in it when his is to begin."""
    checked, go = asyncio.Event(), asyncio.Event()
    cs, agent = Callstream(url), Stepping()
    start = Run.start

    async def slow_for_bob(engine: Any, started: Any, run_id: str, **options: Any) -> Any:
        if run_id == "bob's":
            checked.set()
            await go.wait()
        return await start(engine, started, run_id, **options)

    monkeypatch.setattr(Run, "start", slow_for_bob)
    async with served(agent, callstream=cs, auth=by_name, settings=ServerSettings(when_busy=when_busy)) as server:
        late = asyncio.create_task(
            server.client.post("/agui", json=run_input(runId="bob's"), headers={"x-user": "bob"})
        )
        await checked.wait()
        server.headers = {"x-user": "ann"}
        async with server.run() as stream:
            await stream.until("TOOL_CALL_START")
            go.set()
            async with asyncio.timeout(10):
                answer = await late
            refused(answer, 404)
            assert stream.run_id not in answer.text
            agent.step(5)
            await stream.all()


async def test_a_path_cannot_write_lines_of_its_own_into_the_log(
    cs: Callstream, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(request: Any) -> str:
        raise RuntimeError("no")

    async with served(Stepping(free=True), callstream=cs, auth=broken) as server:
        refused(await server.get("/api/runs/x%0dERROR%20all%20is%20lost%1b%5b2J"), 500)
    [message] = [record.getMessage() for record in caplog.records if "all%20is%20lost" in record.getMessage()]
    assert message.isprintable()


async def test_an_auth_that_raises_lets_nobody_in_and_tells_nothing(
    cs: Callstream, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(request: Any) -> str:
        raise RuntimeError("the password is secret")

    async with served(Stepping(), callstream=cs, auth=broken) as server:
        for method, path in (("GET", "/api/runs"), ("POST", "/agui"), ("POST", "/runs/x/stop")):
            answer = await server.client.request(method, path)
            refused(answer, 500)
            assert "secret" not in answer.text
            assert SECURITY.items() <= answer.headers.items()
    assert "the password is secret" in caplog.text


@pytest.mark.parametrize("status", [401, 403, 499])
async def test_an_auth_may_refuse_with_starlettes_own_exception(cs: Callstream, status: int) -> None:
    def refusing(request: Any) -> str:
        raise HTTPException(status, "internal detail")

    async with served(Stepping(), callstream=cs, auth=refusing) as server:
        answer = await server.get("/api/runs")
        refused(answer, status)
        assert "internal detail" not in answer.text


@pytest.mark.parametrize("found", ["", None, "a\0b", "x" * 300, "a\nb"])
async def test_a_principal_without_a_usable_name_is_nobody(cs: Callstream, found: Any) -> None:
    async with served(Stepping(), callstream=cs, auth=lambda request: found) as server:
        refused(await server.get("/api/runs"), 401)


async def test_a_principal_that_is_no_text_is_a_mistake(cs: Callstream) -> None:
    async with served(Stepping(), callstream=cs, auth=lambda request: {"user": "ann"}) as server:
        refused(await server.get("/api/runs"), 500)
