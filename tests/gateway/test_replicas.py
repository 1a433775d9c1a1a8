"""Coming back to another process on the same journal: after a restart, or at another replica."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest

from callstream.gateway import GatewaySettings
from callstream.testing import Finish, Text, ToolCall
from tests.gateway.gates import NAMES, Gate, gate, until_unread
from tests.journal.conftest import drop_schema, schema_url
from tests.sdks import SDKS

LONG = "The moon pulls at the sea. " * 4
SCRIPT = [Text(LONG, size=9), ToolCall("write", {"title": "Tides", "content": LONG}, size=12), Finish()]
LINGERS = GatewaySettings(linger=30.0)


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Any]:
    """What replicas share. The first has the provider that answers."""
    return {"journal": f"sqlite:///{tmp_path / 'calls.db'}", "settings": LINGERS, "deltas_per_second": 40}


async def read(gateway: Gate, *, leave: bool = False, **headers: str) -> bytes:
    url, body = SDKS[gateway.provider.wire].raw(gateway.base_url)
    content = b""
    async with (
        httpx.AsyncClient(timeout=30) as client,
        client.stream("POST", url, json=body, headers=headers) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        async for data in answer.aiter_raw():
            content += data
            if leave:
                break
    return content


async def until_kept(gateway: Gate, *, whole: bool) -> Any:
    """The answer that a client has left, when the journal has it."""
    kept = gateway.server.app.state.gateway._answers._answers
    async with asyncio.timeout(20):
        while True:
            for answer in kept.values():
                runs = await gateway.callstream.journal.runs(run_id=answer.kept_as) if answer.kept_as else []
                if runs and runs[0].last_seq > whole:
                    return answer
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("wire", NAMES)
async def test_an_answer_survives_a_restart(wire: str, place: dict[str, Any]) -> None:
    async with gate(wire, [SCRIPT], **place) as before:
        half = await read(before, leave=True)
        expected = (await until_kept(before, whole=True)).content
    async with gate(wire, [SCRIPT], **place) as after:
        assert await read(after) == expected
        assert expected.startswith(half)
        assert len(half) < len(expected)
        assert after.provider.requests == []


@pytest.mark.parametrize("wire", NAMES)
async def test_another_replica_follows_an_answer_that_is_being_written(wire: str, place: dict[str, Any]) -> None:
    async with gate(wire, [SCRIPT], **place) as one, gate(wire, [SCRIPT], **place) as two:
        await read(one, leave=True)
        answer = await until_kept(one, whole=False)
        assert not answer.is_over
        content = await read(two)
        assert content == answer.content
        assert (len(one.provider.requests), two.provider.requests) == (1, [])


@pytest.mark.postgres
async def test_replicas_on_one_postgresql(place: dict[str, Any], postgres_url: str) -> None:
    schema = f"test_{uuid.uuid4().hex[:12]}"
    place["journal"] = schema_url(postgres_url, schema)
    async with gate("anthropic", [SCRIPT, SCRIPT], **place) as one, gate("anthropic", [SCRIPT], **place) as two:
        await read(one, leave=True)
        followed = await until_kept(one, whole=False)
        assert await read(two) == followed.content
        await read(one, leave=True)
        kept = await until_kept(one, whole=True)
        assert await read(two) == kept.content
        assert (len(one.provider.requests), two.provider.requests) == (2, [])
    await drop_schema(postgres_url, schema)


async def test_an_answer_is_given_once(place: dict[str, Any]) -> None:
    async with gate("anthropic", [SCRIPT, SCRIPT], **place) as one, gate("anthropic", [SCRIPT], **place) as two:
        await read(one, leave=True)
        await until_kept(one, whole=True)
        await read(two)
        assert two.provider.requests == []
        await read(one)
        assert len(one.provider.requests) == 2
        await read(two)
        assert len(two.provider.requests) == 1


async def test_a_client_may_be_cut_off_at_each_replica(place: dict[str, Any]) -> None:
    long = [Text(LONG * 80_000, size=400_000), Finish()]  # more than the network holds
    place["deltas_per_second"] = None
    async with gate("anthropic", [long], **place) as one, gate("anthropic", [long], **place) as two:
        await read(one, leave=True)
        expected = (await until_kept(one, whole=True)).content
        await read(two, leave=True)
        await until_kept(two, whole=True)
        assert await read(one) == expected
        assert (len(one.provider.requests), two.provider.requests) == (1, [])


async def test_another_credential_gets_nothing_of_it(place: dict[str, Any]) -> None:
    async with gate("anthropic", [SCRIPT], **place) as one, gate("anthropic", [SCRIPT], **place) as two:
        await read(one, leave=True, authorization="Bearer one")
        answer = await until_kept(one, whole=True)
        attach = {"callstream-attach": answer.response_id}
        url, body = SDKS["anthropic"].raw(two.base_url)
        async with httpx.AsyncClient(timeout=20) as client:
            for headers in ({}, {"authorization": "Bearer two"}):
                assert (await client.post(url, json=body, headers={**headers, **attach})).status_code == 404
            mine = await client.post(url, json=body, headers={"authorization": "Bearer one", **attach})
            assert mine.content == answer.content
        await read(two, authorization="Bearer two")
        assert len(two.provider.requests) == 1


async def test_another_replica_has_the_durable_stream_from_any_offset(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gate("anthropic", [SCRIPT], **place) as one, gate("anthropic", [SCRIPT], **place) as two:
        await read(one, leave=True)
        answer = await until_kept(one, whole=False)
        path, offset = f"/responses/{answer.response_id}", {"offset": "100"}
        monkeypatch.setattr("callstream.gateway.answers._POLL_SECONDS", 0.05)
        early = await two.server.client.get(path, params=offset)
        assert (early.status_code, "retry-after" in early.headers) == (503, True)
        monkeypatch.undo()
        await until_kept(one, whole=True)
        assert (await two.server.client.get(path, params=offset)).content == answer.content[100:]
    async with gate("anthropic", [SCRIPT], **place) as three:
        first = await three.server.client.get(path, params=offset)
        assert (first.status_code, first.content) == (200, answer.content[100:])


async def test_an_answer_that_broke_off_is_asked_for_anew_elsewhere(place: dict[str, Any]) -> None:
    place["settings"] = GatewaySettings(linger=0.4)
    place["deltas_per_second"] = 8
    async with gate("anthropic", [SCRIPT], **place) as one:
        await read(one, leave=True)
        await until_kept(one, whole=False)
        place["deltas_per_second"] = None
        async with gate("anthropic", [SCRIPT], **place) as two:
            await one.provider.aclose()
            assert b"message_stop" in await read(two)
            assert len(two.provider.requests) == 1


async def test_a_client_that_came_back_elsewhere_is_no_reason_to_stop(place: dict[str, Any]) -> None:
    """An answer is read on for as long as it lingers, or as somebody waits for it."""
    place["settings"] = GatewaySettings(linger=0.5)
    place["deltas_per_second"] = 15
    async with gate("anthropic", [SCRIPT], **place) as one, gate("anthropic", [SCRIPT], **place) as two:
        await read(one, leave=True)
        await until_kept(one, whole=False)
        assert b"message_stop" in await read(two)
        assert len(one.provider.requests) == 1


async def test_what_is_kept_is_in_no_list_and_goes_after_the_window(place: dict[str, Any]) -> None:
    place["settings"] = GatewaySettings(linger=30.0, window=0.5)
    async with gate("anthropic", [SCRIPT, SCRIPT], **place) as gateway:
        await read(gateway, leave=True)
        answer = await until_kept(gateway, whole=True)
        assert len(await gateway.runs()) == 1
        assert len((await gateway.server.client.get("/api/threads")).json()["threads"]) == 1
        async with asyncio.timeout(20):
            while await gateway.callstream.journal.runs(run_id=answer.kept_as):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await read(gateway)
        assert len(gateway.provider.requests) == 2


async def test_nothing_is_kept_of_what_was_delivered(place: dict[str, Any]) -> None:
    async with gate("anthropic", [SCRIPT], **place) as gateway:
        await read(gateway)
        await until_unread(gateway)
        stats = await gateway.callstream.journal.stats()
        assert stats["runs"] == 1


async def test_answers_under_way_come_to_their_end_when_a_gateway_stops(place: dict[str, Any]) -> None:
    async with gate("anthropic", [SCRIPT], shutdown_seconds=20.0, **place) as gateway:
        reading = asyncio.create_task(read(gateway))
        async with asyncio.timeout(20):
            while not gateway.provider.requests:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        closing = asyncio.create_task(gateway.server.app.state.close())
        assert b"message_stop" in await reading
        await closing


async def test_a_client_that_leaves_while_the_gateway_stops_gets_its_answer_from_the_next(
    place: dict[str, Any],
) -> None:
    async with gate("anthropic", [SCRIPT], shutdown_seconds=20.0, **place) as one:
        half = await read(one, leave=True)
        await until_unread(one)
    async with gate("anthropic", [SCRIPT], **place) as two:
        content = await read(two)
        assert content.startswith(half)
        assert content.endswith(b'data: {"type":"message_stop"}\n\n')
        assert (len(one.provider.requests), two.provider.requests) == (1, [])
