"""An answer outlives its reader: the same request again gets it, and nobody else does."""

from __future__ import annotations

import asyncio

import anthropic
import httpx
import pytest

from callstream.gateway import GatewaySettings
from callstream.testing import Cut, Delay, Finish, ScriptedProvider, Text, Thought, ToolCall
from tests.gateway.gates import NAMES, Gate, Valve, before, gate, port_of, until_unread
from tests.sdks import SDKS

WIRES = tuple(NAMES)
LONG = "The moon pulls at the sea. " * 4
SCRIPT = [Text(LONG, size=9), ToolCall("write", {"title": "Tides", "content": LONG}, size=12), Finish()]
LINGERS = GatewaySettings(linger=30.0)


async def read(
    gateway: Gate, *, leave_after: int | None = None, leave_after_events: int | None = None, **headers: str
) -> bytes:
    """What a client reads; ``leave_after``: how many bytes at least before it breaks the connection."""
    url, body = SDKS[gateway.provider.wire].raw(gateway.base_url)
    content = b""
    async with (
        httpx.AsyncClient(timeout=20) as client,
        client.stream("POST", url, json=body, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        async for data in answer.aiter_raw():
            content += data
            if leave_after is not None and len(content) >= leave_after:
                return content
            if leave_after_events is not None and content.count(b"data:") >= leave_after_events:
                return content
    return content


@pytest.mark.parametrize("wire", WIRES)
async def test_the_same_request_gets_the_answer_that_its_client_left(wire: str) -> None:
    provider = ScriptedProvider(wire, [SCRIPT] * 20, stream_args_unasked=wire == "gemini")
    async with provider, Valve(port_of(provider)) as valve, before(provider, LINGERS, valve.origin) as gateway:
        events = (await read(gateway)).count(b"data:")
        for place in range(1, events, events // 5):
            valve.open.clear()
            valve.next_cut = place
            half = await read(gateway, leave_after_events=place)
            await until_unread(gateway)
            valve.open.set()
            whole = await read(gateway)
            assert whole.startswith(half)
            assert len(half) < len(whole)
            assert (half.count(b"data:"), whole.count(b"data:")) == (place, events)
            run = (await gateway.runs())[-1]
            assert await gateway.arguments(run.run_id) == [("write", {"title": "Tides", "content": LONG})]
        assert len(provider.requests) == 1 + len(range(1, events, events // 5))


async def test_equal_requests_at_the_same_time_stay_two() -> None:
    async with gate("anthropic", [SCRIPT, SCRIPT], settings=LINGERS, deltas_per_second=40) as gateway:
        await asyncio.gather(read(gateway), read(gateway))
        assert len(gateway.provider.requests) == 2


async def test_an_answer_that_was_delivered_is_not_given_again() -> None:
    async with gate("anthropic", [SCRIPT, SCRIPT], settings=LINGERS) as gateway:
        await read(gateway)
        await until_unread(gateway)
        await read(gateway)
        assert len(gateway.provider.requests) == 2


async def test_a_client_that_leaves_at_the_last_event_has_got_its_answer() -> None:
    """Some SDKs close the connection there. The same question asked again is a new one."""
    async with gate("openai_chat", [[*SCRIPT[:-1], Finish()], SCRIPT], settings=LINGERS) as gateway:
        url, body = SDKS["openai_chat"].raw(gateway.base_url)
        content = b""
        async with httpx.AsyncClient(timeout=20) as client, client.stream("POST", url, json=body) as answer:
            async for data in answer.aiter_raw():
                content += data
                if b"[DONE]" in content:
                    break
        await until_unread(gateway)
        await read(gateway)
        assert len(gateway.provider.requests) == 2


async def test_another_credential_gets_nothing_of_it() -> None:
    async with gate("anthropic", [SCRIPT, SCRIPT], settings=LINGERS, deltas_per_second=40) as gateway:
        await read(gateway, leave_after=10, authorization="Bearer one")
        await until_unread(gateway)
        await read(gateway, authorization="Bearer two")
        assert len(gateway.provider.requests) == 2


async def test_without_lingering_the_upstream_is_closed_when_the_client_leaves() -> None:
    async with gate(
        "anthropic", [SCRIPT, SCRIPT], settings=GatewaySettings(linger=0.0), deltas_per_second=20
    ) as gateway:
        await read(gateway, leave_after=10)
        async with asyncio.timeout(20):
            while not (runs := await gateway.runs()) or runs[0].outcome is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert [run.outcome for run in runs] == ["cancelled"]
        await read(gateway)
        assert len(gateway.provider.requests) == 2


@pytest.mark.parametrize("linger", [0.0, 30.0])
async def test_a_client_may_leave_before_the_answer_begins(linger: float) -> None:
    settings = GatewaySettings(linger=linger)
    async with gate("anthropic", [[Delay(1.0), *SCRIPT], SCRIPT], settings=settings) as gateway:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await read(gateway)
        await until_unread(gateway)
        [asked] = gateway.provider.requests
        if linger:
            assert b"message_stop" in await read(gateway)
            assert len(gateway.provider.requests) == 1
        else:
            async with asyncio.timeout(20):
                while asked.fate == "open":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert (asked.fate, asked.sent) == ("left", 0)


async def test_an_answer_that_broke_off_is_asked_for_anew() -> None:
    async with gate("anthropic", [[Text("Half"), Cut()], SCRIPT], settings=LINGERS) as gateway:
        with pytest.raises(httpx.RemoteProtocolError):
            await read(gateway)
        assert b"message_stop" in await read(gateway)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_client_that_comes_back_without_a_stream_gets_the_answer_whole(wire: str) -> None:
    """As Claude Code does after its connection broke."""
    sdk = SDKS[wire]
    script = [Thought("Hm.", signature="c2ln"), *SCRIPT] if wire != "openai_chat" else SCRIPT
    async with gate(wire, [script], settings=LINGERS, deltas_per_second=60) as gateway:
        await read(gateway, leave_after=40)
        await until_unread(gateway)
        url, body = sdk.raw(gateway.base_url)
        url, body = url.replace(":streamGenerateContent?alt=sse", ":generateContent"), {**body, "stream": False}
        if wire == "gemini":
            del body["stream"]
        async with httpx.AsyncClient(timeout=20) as client:
            answer = (await client.post(url, json=body)).raise_for_status()
        assert len(gateway.provider.requests) == 1
        if wire == "anthropic":
            message = anthropic.types.Message.model_validate(answer.json())
            assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
            assert message.content[2].input == {"title": "Tides", "content": LONG}
            assert message.stop_reason == "tool_use"
    async with gate(wire, [script]) as direct:
        url = url.replace(gateway.base_url, direct.provider.base_url)
        async with httpx.AsyncClient(timeout=20) as client:
            whole = (await client.post(url, json=body)).raise_for_status()
    told, expected = [await asyncio.to_thread(sdk.read, each.content, stream=False) for each in (answer, whole)]
    assert told.told == expected.told


async def test_a_client_that_knows_the_gateway_attaches_by_id_and_offset() -> None:
    async with gate("anthropic", [SCRIPT], settings=LINGERS, deltas_per_second=40) as gateway:
        url, body = SDKS["anthropic"].raw(gateway.base_url)
        async with httpx.AsyncClient(timeout=20) as client:
            async with client.stream("POST", url, json=body) as answer:
                name = answer.headers["callstream-response"]
                first = await anext(answer.aiter_raw())
            await until_unread(gateway)
            again = {"callstream-attach": name, "callstream-offset": str(len(first))}
            rest = await client.post(url, json=body, headers=again)
            whole = await client.post(url, json=body, headers={"callstream-attach": name})
            assert first + rest.content == whole.content
            unknown = await client.post(url, json=body, headers={"callstream-attach": "response_other"})
            assert (unknown.status_code, unknown.headers["x-should-retry"]) == (404, "false")
        assert len(gateway.provider.requests) == 1


@pytest.mark.parametrize("offset", ["-5", "-1", "now", "x", "1e3", "1_0", "+1", "", "99999999", "9" * 5000])
async def test_an_offset_that_an_answer_has_not_given_is_refused(offset: str) -> None:
    """What a client would append to what it has is no whole answer, and no end of one."""
    async with gate("anthropic", [SCRIPT], settings=LINGERS) as gateway:
        url, body = SDKS["anthropic"].raw(gateway.base_url)
        async with httpx.AsyncClient(timeout=20) as client:
            whole = await client.post(url, json=body)
            attach = {"callstream-attach": whole.headers["callstream-response"]}
            wrong = await client.post(url, json=body, headers={**attach, "callstream-offset": offset})
            assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "invalid_request_error")
            assert f"an offset of at most {len(whole.content)} bytes" in wrong.json()["error"]["message"]
            if offset not in ("-1", "now"):  # words of the Durable Stream's own
                place = whole.headers["callstream-stream"]
                assert (await gateway.server.client.get(place, params={"offset": offset})).status_code == 400
            end = {"callstream-offset": str(len(whole.content))}
            assert (await client.post(url, json=body, headers={**attach, **end})).content == b""
        await until_unread(gateway)


async def test_a_stopped_answer_ends_its_run_as_cancelled() -> None:
    async with gate("anthropic", [SCRIPT], settings=LINGERS, deltas_per_second=20) as gateway:
        url, body = SDKS["anthropic"].raw(gateway.base_url)
        async with httpx.AsyncClient(timeout=20) as client, client.stream("POST", url, json=body) as answer:
            content = answer.aiter_raw()
            await anext(content)
            name = answer.headers["callstream-response"]
            stopped = await gateway.server.client.delete(f"/responses/{name}")
            assert stopped.status_code == 204
            with pytest.raises(httpx.RemoteProtocolError):
                b"".join([data async for data in content])
        [run] = await gateway.runs()
        assert run.outcome == "cancelled"


async def test_each_answer_is_a_durable_stream_to_read() -> None:
    async with gate("anthropic", [SCRIPT], settings=LINGERS, deltas_per_second=40) as gateway:
        url, body = SDKS["anthropic"].raw(gateway.base_url)
        async with httpx.AsyncClient(timeout=20) as client:
            async with client.stream("POST", url, json=body, headers={"x-api-key": "k"}) as answer:
                place = answer.headers["callstream-stream"]
                stream, key = gateway.server.client, {"x-api-key": "k"}
                assert (await stream.get(place)).status_code == 404  # without the credential
                read_so_far, offset = b"", "-1"
                while True:
                    part = await stream.get(place, params={"offset": offset, "live": "long-poll"}, headers=key)
                    assert part.status_code in (200, 204)
                    read_so_far, offset = read_so_far + part.content, part.headers["stream-next-offset"]
                    if part.headers.get("stream-closed") == "true":
                        break
                assert b"".join([data async for data in answer.aiter_raw()]) == read_so_far
            assert (await stream.get(place, params={"offset": "now"}, headers=key)).content == b""
            assert (await stream.get(place, params={"offset": "99999999"}, headers=key)).status_code == 400


async def test_a_durable_stream_of_an_answer_that_broke_off_is_never_closed() -> None:
    async with gate("anthropic", [[Text("Half"), Cut()]], settings=LINGERS) as gateway:
        url, body = SDKS["anthropic"].raw(gateway.base_url)
        async with httpx.AsyncClient(timeout=20) as client:
            async with client.stream("POST", url, json=body) as answer:
                place = answer.headers["callstream-stream"]
                with pytest.raises(httpx.RemoteProtocolError):
                    b"".join([data async for data in answer.aiter_raw()])
            rest = await gateway.server.client.get(place)
            assert b"Half" in rest.content
            assert "stream-closed" not in rest.headers
            behind = await gateway.server.client.get(place, params={"offset": rest.headers["stream-next-offset"]})
            assert behind.status_code == 502
