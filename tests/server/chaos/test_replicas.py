"""Several replicas on one PostgreSQL: any of them serves any stream and takes any answer and any stop."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.adk.sessions import DatabaseSessionService

from callstream.testing import Delay, Finish, ScriptedProvider, Text, ToolCall
from tests.adk.conftest import IGNORED
from tests.agui.model import StrictClient
from tests.journal.server import postgres_server
from tests.server.serving import Stream, run_input, tool_message

from .fleet import Fleet, Replica
from .plan import PAINT, args_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.subprocess,
    pytest.mark.postgres,
    *(pytest.mark.filterwarnings(warning) for warning in IGNORED),
]
LEASE = 2.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgres_server() as server:
        yield server.get_uri()


@asynccontextmanager
async def replicas(script: list[Any], url: str, folder: Path) -> AsyncIterator[tuple[list[Replica], httpx.AsyncClient]]:
    sessions = url.replace("postgresql://", "postgresql+asyncpg://", 1)
    async with DatabaseSessionService(sessions) as service:
        await service.list_sessions(app_name="chaos")
    async with ScriptedProvider("gemini", script, stream_args_unasked=True, deltas_per_second=50) as provider:
        arguments = ["--journal", f"{url}&schema=replicas", "--sessions", sessions, "--provider", provider.base_url]
        arguments += ["--log", str(folder / "log"), "--lease", str(LEASE), "--go-on"]
        fleet = Fleet([Replica(arguments) for _ in range(2)], random.Random(1))
        try:
            await fleet.start()
            async with httpx.AsyncClient(timeout=60) as http:
                yield fleet.replicas, http
        finally:
            await fleet.close()


@asynccontextmanager
async def posted(http: httpx.AsyncClient, replica: Replica, path: str, body: Any = None) -> AsyncIterator[Stream]:
    async with http.stream("POST", f"{replica.url}{path}", json=body) as response:
        assert response.status_code == 200, await response.aread()
        yield Stream(response)


def folded(events: list[dict[str, Any]]) -> StrictClient:
    client = StrictClient()
    for event in events:
        client.take(event)
    return client


async def test_replicas_share_streams_answers_stops_and_deaths(postgres: str, tmp_path: Path) -> None:
    waits = [ToolCall("work", args_of("long")), Delay(60.0), Finish()]
    script = [
        [Text("I paint."), ToolCall("paint", args_of("first")), Finish()],  # a stream and an answer
        [Text("Thank you."), Finish()],
        waits,  # a stop
        waits,  # a death
        [Text("Gone on."), Finish()],
        [Text("Back again."), Finish()],
    ]
    async with replicas(script, postgres, tmp_path) as ((one, other), http):
        # The stream of one replica's run, from the other.
        async with posted(http, one, "/agui", run_input("Go", thread="a", tools=[PAINT])) as stream:
            await stream.until("TOOL_CALL_ARGS")
            async with posted(http, other, "/threads/a/connect") as joined:
                client = folded(await joined.all())
            await stream.all()
        assert client.ended is not None
        (pending,) = client.ended["outcome"]["pendingToolCallIds"]
        call = client.call(pending)
        assert call is not None
        assert json.loads(call["function"]["arguments"]) == args_of("first")

        # The answer, to the other.
        messages = [*client.messages, tool_message(pending, {"said": "first"})]
        async with posted(http, other, "/agui", run_input(None, thread="a", messages=messages)) as stream:
            texts = [event["delta"] for event in await stream.all() if event["type"] == "TEXT_MESSAGE_CONTENT"]
        assert "".join(texts) == "Thank you."

        # A stop, asked of the other.
        async with posted(http, one, "/agui", run_input("Go", thread="b")) as stream:
            await stream.until("TOOL_CALL_ARGS")
            answer = await http.post(f"{other.url}/runs/{stream.run_id}/stop")
            assert answer.status_code == 202
            assert (await stream.all())[-1]["outcome"] == {"type": "cancelled"}

        # The death of one: who watches the run from the other sees it go on there, and the thread, too.
        async with posted(http, one, "/agui", run_input("Go", thread="c")) as stream:
            await stream.until("TOOL_CALL_ARGS")
            async with posted(http, other, "/threads/c/connect") as joined:
                begun = await joined.until("TOOL_CALL_START")
                await one.kill()
                async with asyncio.timeout(LEASE + 30):
                    client = folded([*begun, *await joined.all()])
        assert client.ended is not None
        assert (client.ended["type"], client.ended["outcome"]) == ("RUN_FINISHED", {"type": "success"})
        assert [message["content"] for message in client.messages if message["role"] == "assistant"] == ["Gone on."]
        messages = [*client.messages, {"id": "again", "role": "user", "content": "Again"}]
        async with posted(http, other, "/agui", run_input(None, thread="c", messages=messages)) as stream:
            texts = [event["delta"] for event in await stream.all() if event["type"] == "TEXT_MESSAGE_CONTENT"]
        assert "".join(texts) == "Back again."
        assert not (tmp_path / "log").exists() or "long" not in (tmp_path / "log").read_text(encoding="utf-8")
