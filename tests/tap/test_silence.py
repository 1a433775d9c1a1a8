"""``first_byte`` and ``idle``: a streamed answer that falls silent ends as any other time-out of its SDK."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from callstream import CallState, Callstream, Settings, UsageError
from callstream.tap import Limits, TapSettings
from callstream.testing import Delay, ScriptedProvider, Text, ToolCall, encode
from callstream.wire import WIRES, provider_of
from callstream.wire.requests import Request
from tests.captures import ROOT
from tests.clock import jumping
from tests.sdks import SDKS
from tests.tap.clients import ask, sdk
from tests.tap.sync_clients import ask as ask_sync

ARGS = {"title": "Notes", "content": "one two three"}
SILENT = [Text("Hello."), ToolCall("write", ARGS, call_id="c1", stop_after=3), Delay(60)]


class Paced(httpx.AsyncBaseTransport, httpx.AsyncByteStream):
    """A transport of a program's own, which sends bytes and waits for so many seconds in between."""

    def __init__(self, *steps: bytes | float, head_after: float = 0.0) -> None:
        self._steps = steps
        self._head_after = head_after
        self.is_closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(self._head_after)
        headers = {"content-type": "text/event-stream" if b"stream" in request.content else "application/json"}
        return httpx.Response(200, headers=headers, stream=self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self._steps:
            if isinstance(step, bytes):
                yield step
            else:
                await asyncio.sleep(step)

    async def aclose(self) -> None:
        self.is_closed = True


def frames(script: Sequence[Any]) -> list[bytes]:
    return [frame for frame in encode("openai_chat", script) if isinstance(frame, bytes)]


async def post(cs: Callstream, inner: Paced, body: Any = None, **limits: Any) -> httpx.Response:
    async with httpx.AsyncClient(transport=cs.transport(inner, **limits)) as client:
        return await client.post("http://x/chat/completions", json={"stream": True} if body is None else body)


@jumping
async def test_the_time_until_the_first_byte() -> None:
    body = frames([Text("Hello.")])
    async with Callstream() as cs:
        for slow in (Paced(*body, head_after=6), Paced(6.0, *body), Paced(3.0, *body, head_after=3)):
            with pytest.raises(httpx.ReadTimeout, match="within 5 seconds"):
                await post(cs, slow, first_byte=5)
        for fast in (Paced(*body, head_after=4), Paced(4.0, *body), Paced(2.0, *body, head_after=2)):
            assert (await post(cs, fast, first_byte=5)).content == b"".join(body)
            assert (await post(cs, fast, first_byte=5, idle=1)).content == b"".join(body)
        assert (await post(cs, Paced(90.0, *body, head_after=90))).content == b"".join(body)
        assert (await post(cs, Paced(90.0, *body), idle=1)).content == b"".join(body)  # it has not begun
        assert len(await cs.journal.runs()) == 8  # an attempt that never began leaves nothing


@jumping
async def test_the_time_between_bytes() -> None:
    """It begins anew with every byte, those that say nothing included."""
    first, *rest = frames([Text("Hello.")])
    pings = [step for _ in range(20) for step in (4.0, b": ping\n\n")]
    async with Callstream() as cs:
        silent = Paced(first, 6.0, *rest)
        with pytest.raises(httpx.ReadTimeout, match="continue within 5 seconds"):
            await post(cs, silent, idle=5)
        assert silent.is_closed
        assert (await post(cs, Paced(first, 4.0, *rest, 4.0), idle=5)).content == first + b"".join(rest)
        assert (await post(cs, Paced(first, *pings, *rest), idle=5)).content.endswith(b"".join(rest))
        outcomes = [run.outcome for run in await cs.journal.runs()]
    assert outcomes == ["finished", "finished", "failed"]


@jumping
async def test_only_streams_fall_silent() -> None:
    whole = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}'
    async with Callstream() as cs:
        slow = Paced(30.0, whole[:20], 30.0, whole[20:], head_after=30)
        assert (await post(cs, slow, {"model": "m"}, first_byte=1, idle=1)).content == whole


@jumping
async def test_time_in_which_nobody_reads_does_not_count() -> None:
    body = frames([Text("Hello, world. " * 20, size=8)])
    async with Callstream() as cs:
        limits = TapSettings(idle=5, limits=Limits(max_held=64))
        transport: Any = cs.transport(Paced(*body), settings=limits)
        async with httpx.AsyncClient(transport=transport) as client:
            async with client.stream("POST", "http://x/chat/completions", json={"stream": True}) as response:
                read = []
                async for data in response.aiter_raw():
                    read.append(data)
                    if len(read) < 3:
                        await asyncio.sleep(60)
        assert b"".join(read) == b"".join(body)


@jumping
async def test_the_settings_of_the_callstream_count_for_all_its_clients() -> None:
    first, *rest = frames([Text("Hello.")])
    async with Callstream(settings=Settings(first_byte=10, idle=5)) as cs:
        with pytest.raises(httpx.ReadTimeout, match="5 seconds"):
            await post(cs, Paced(first, 6.0, *rest))
        with pytest.raises(httpx.ReadTimeout, match="10 seconds"):
            await post(cs, Paced(11.0, first, *rest))
        assert (await post(cs, Paced(first, 6.0, *rest), idle=float("inf"))).content.endswith(b"".join(rest))


@pytest.mark.parametrize("seconds", [0, -1, "5", float("nan")])
@pytest.mark.parametrize("name", ["first_byte", "idle"])
def test_limits_are_seconds(name: str, seconds: Any) -> None:
    with pytest.raises(UsageError, match=f"expected {name} to be a number of seconds"):
        Settings(**{name: seconds})
    with pytest.raises(UsageError, match=f"expected {name} to be a number of seconds"):
        Callstream().http_client(**{name: seconds})


@pytest.mark.parametrize("wire", WIRES)
def test_each_wire_knows_its_requests_for_streams(wire: str) -> None:
    url, body = SDKS[wire].raw("http://x") if wire in SDKS else ("http://x/model/m/converse-stream", {})
    path = url.partition("?")[0].removeprefix("http://x")
    assert provider_of(wire).is_streamed(Request(path, json.dumps(body).encode()))
    whole = path.replace("streamGenerate", "generate").replace("-with-response-stream", "").removesuffix("-stream")
    assert not provider_of(wire).is_streamed(Request(whole, json.dumps({**body, "stream": False}).encode()))


# -- over HTTP ---------------------------------------------------------------------------------------------------------


async def bare(wire: str, provider: ScriptedProvider) -> BaseException:
    """What the SDK raises by itself when bytes do not come in time."""
    library: Any = httpx2 if SDKS[wire].library == "httpx2_client" else httpx
    http = library.AsyncClient(timeout=library.Timeout(30, read=1))
    async with SDKS[wire].client(provider.base_url, http, 0) as client:
        with pytest.raises(Exception) as raised:
            await SDKS[wire].ask(client)
    return raised.value


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("wire", ["anthropic", "openai_chat", "openai_responses", "gemini"])
async def test_the_sdk_raises_what_it_would_for_a_read_time_out(wire: str, kind: str) -> None:
    aborted: list[str] = []
    async with Callstream() as cs, ScriptedProvider(wire, SILENT, stream_args_unasked=True) as provider:
        cs.on_args_abort("write", lambda call, reason: aborted.append(reason))
        asking = ask(wire, provider, cs, idle=1)
        if kind == "sync":
            asking.close()
            asking = asyncio.to_thread(ask_sync, wire, provider, cs, idle=1)
        with pytest.raises(Exception) as raised:
            await asking
        # google-genai has no read time-out, unless it is told one for the whole request.
        expected = httpx.ReadTimeout("") if wire == "gemini" else await bare(wire, provider)
        (call,) = await cs.journal.calls()
        (run,) = await cs.journal.runs()
    assert type(raised.value).__name__ == type(expected).__name__
    assert aborted == ["interrupted"]
    assert (call.state, call.reason, call.detail) == (CallState.DISCARDED, "interrupted", "ReadTimeout")
    assert run.outcome == "failed"


TIMEOUTS: dict[str, Any] = {
    "anthropic": anthropic.APITimeoutError,
    "openai_chat": openai.APITimeoutError,
    "gemini": httpx.ReadTimeout,
}


@pytest.mark.parametrize("wire", TIMEOUTS)
async def test_the_sdk_asks_again_for_a_stream_that_does_not_begin(wire: str) -> None:
    async with Callstream() as cs, ScriptedProvider(wire, [Delay(60), Text("Hello.")]) as provider:
        async with sdk(wire, provider, cs, first_byte=0.5, max_retries=1) as client:
            with pytest.raises(TIMEOUTS[wire]):
                await SDKS[wire].ask(client)
        assert len(provider.requests) == 2
        assert await cs.journal.runs() == []


def test_the_page_shows_how() -> None:
    page = (ROOT / "docs" / "howto" / "tap.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "tap.md", "exec"), names)
    assert names["cs"].settings == Settings(first_byte=120, idle=60)
