"""Errors, refusals and codings of answers, as the SDK meets them over the tap."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from callstream import CallState, Callstream
from callstream.errors import WireError
from callstream.events import ArgsAppended, CallDiscarded
from callstream.tap import TapSettings
from callstream.tap.body import Limits
from callstream.testing import Cut, Failure, HttpError, ScriptedProvider, Text, ToolCall, encode
from callstream.testing.encoders import ENCODERS
from tests.sdks import SDKS
from tests.tap.clients import WIRES, ask
from tests.tap.test_tap import ARGS, WRITE, journaled, serving


@pytest.mark.parametrize("wire", WIRES)
async def test_an_error_in_the_stream_is_the_sdks_to_raise(cs: Callstream, wire: str) -> None:
    script = [Text("Hello. "), ToolCall("write", ARGS, call_id="c1", stop_after=2), Failure("overloaded today")]

    async def outcome(callstream: Callstream | None) -> str:
        try:
            answer = (
                await ask(wire, provider, callstream, collapse="all") if callstream else await ask(wire, provider, None)
            )
        except Exception as error:  # noqa: BLE001
            return type(error).__name__
        return f"answered {answer.text}"

    async with serving(wire, script) as provider:
        assert await outcome(cs) == await outcome(None)
    events = await journaled(cs, "c1")
    assert [event.reason for event in events if isinstance(event, CallDiscarded)] == ["interrupted"]


@pytest.mark.parametrize("wire", WIRES)
async def test_a_broken_connection_behaves_as_without_the_tap(cs: Callstream, wire: str) -> None:
    script = [Text("Hello. "), ToolCall("write", ARGS, call_id="c1", stop_after=2), Cut()]

    async def outcome(callstream: Callstream | None) -> type[BaseException]:
        with pytest.raises(Exception) as raised:  # the SDK's own; which one is compared
            await ask(wire, provider, callstream)
        return type(raised.value)

    async with serving(wire, script) as provider:
        assert await outcome(cs) is await outcome(None)
    events = await journaled(cs, "c1")
    assert [event.reason for event in events if isinstance(event, CallDiscarded)] == ["interrupted"]


@pytest.mark.parametrize("wire", [wire for wire in WIRES if SDKS[wire].retries_streams])
async def test_refusals_are_retried_by_the_sdk_and_leave_one_run(cs: Callstream, wire: str) -> None:
    scripts = [[HttpError(429, "slow down", retry_after=0)], [WRITE]]
    async with serving(wire, scripts) as provider:
        answer = await ask(wire, provider, cs, collapse="all", max_retries=2)
        assert len(provider.requests) == 2
    assert [args for _, _, args in answer.calls] == [ARGS]
    assert len(await cs.journal.runs()) == 1


async def test_4xx_pass_untouched(cs: Callstream) -> None:
    async with ScriptedProvider("openai_chat", [HttpError(400, "no such model")]) as provider:
        with pytest.raises(openai.BadRequestError, match="no such model"):
            await ask("openai_chat", provider, cs)
    assert await cs.journal.runs() == []


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("wire", WIRES)
async def test_what_comes_compressed_anyway_is_read(cs: Callstream, wire: str, encoding: Any) -> None:
    async with serving(wire, [WRITE], encoding=encoding) as provider:
        answer = await ask(wire, provider, cs, collapse="all")
        headers = provider.requests[0].headers
        assert headers["accept-encoding"] == "identity" or headers["authorization"].startswith("AWS4-")
    assert [args for _, _, args in answer.calls] == [ARGS]
    assert len([event for event in await journaled(cs, "c1") if isinstance(event, ArgsAppended)]) > 5


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
async def test_what_is_not_in_its_coding_is_the_librarys_error(cs: Callstream, coding: str, kind: str) -> None:
    if coding == "zstd":
        pytest.importorskip("zstandard")

    async def answer(request: httpx.Request) -> httpx.Response:
        headers = {"content-type": kind, "content-encoding": coding}
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(b"neither the one nor the other"))

    async with httpx.AsyncClient(transport=cs.transport(httpx.MockTransport(answer))) as client:
        with pytest.raises(httpx.DecodingError):
            await client.post("http://provider/v1/chat/completions", json={"messages": []})
    assert [run.outcome for run in await cs.journal.runs()] == ["failed"]


@pytest.mark.parametrize("coding", ["Identity", "IDENTITY", "identity, identity", " gzip , Identity"])
async def test_the_name_of_a_coding_is_read_in_any_case(cs: Callstream, coding: str) -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        body = b"".join(encode("openai_chat", [WRITE]))
        body = gzip.compress(body) if "gzip" in coding else body
        headers = {"content-type": "text/event-stream", "content-encoding": coding}
        return httpx.Response(200, headers=headers, stream=httpx.ByteStream(body))

    async with httpx.AsyncClient(transport=cs.transport(httpx.MockTransport(answer), collapse="all")) as client:
        await client.post("http://provider/v1/chat/completions", json={"messages": []})
    assert [call.name for call in await cs.journal.calls()] == ["write"]


@pytest.mark.parametrize("coding", ["gzip", "identity"])
async def test_depth_and_size_limits_of_an_answer_that_is_not_streamed(cs: Callstream, coding: str) -> None:
    """A few bytes that stand for a great many are refused before all of them are there."""
    body = b"0" * 10_000_000
    read = 0

    class Answer(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            nonlocal read
            packed = gzip.compress(body) if coding == "gzip" else body
            for start in range(0, len(packed), len(packed) // 10):
                read += 1
                yield packed[start : start + len(packed) // 10]

    async def answer(request: httpx.Request) -> httpx.Response:
        headers = {"content-type": "application/json", "content-encoding": coding}
        return httpx.Response(200, headers=headers, stream=Answer())

    settings = TapSettings(limits=Limits(max_whole=1_500_000))
    async with httpx.AsyncClient(transport=cs.transport(httpx.MockTransport(answer), settings=settings)) as client:
        with pytest.raises(WireError, match="at most 1500000 bytes from the provider"):
            await client.post("http://provider/v1/chat/completions", json={"messages": []})
    assert read == 2
    assert [run.outcome for run in await cs.journal.runs()] == ["failed"]


@pytest.mark.parametrize("wire", [wire for wire in WIRES if ENCODERS[wire].is_text])
async def test_what_is_no_text_in_a_field_that_nobody_reads_is_a_wire_error(cs: Callstream, wire: str) -> None:
    frames = list(encode(wire, [WRITE]))

    async def answer(request: httpx.Request) -> httpx.Response:
        body = b"".join(frames).replace(b'"c1"', b'"c1","unread":"\xff"')
        assert b"unread" in body
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    async with httpx.AsyncClient(transport=cs.transport(httpx.MockTransport(answer), wire=wire, collapse="all")) as c:
        try:
            response = await c.post("http://provider/anywhere", json={})
        except WireError:
            pass  # half a call would have passed
        else:
            assert b"unread" in response.content  # the SDK's to judge
    assert [call.state for call in await cs.journal.calls()] in ([], [CallState.DISCARDED])
    assert [run.outcome for run in await cs.journal.runs()] == ["failed"]
