"""Gemini's long answers: google-genai asks for the rest with a token, and the answers to all of its requests are one response."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from google import genai
from google.genai import types

from callstream import Callstream, tool
from callstream.calls import CallState
from callstream.events import MessageEnded, MessageStarted, ResponseEnded, TextAppended
from callstream.testing import ReceivedRequest, Text, ToolCall
from callstream.testing.bodies import BodiesProvider
from callstream.testing.encoders import encode
from callstream.testing.httpserver import HttpAnswer
from callstream.testing.provider import Route
from tests.sdks import SDKS
from tests.sdks.gemini import GeminiSdk

SDK: GeminiSdk = SDKS["gemini"]  # type: ignore[assignment]
ARGS = {"title": "Notes", "content": "one two three"}
TOKENS = ("+/8=", "+/9+")
"""Of bytes that the two alphabets of base64 write differently."""
CONFIG = types.GenerateContentConfig(
    tools=[types.Tool(function_declarations=[types.FunctionDeclaration(name="write")])],
    automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
)


class WholeProvider(BodiesProvider):
    """Answers with JSON, each time with the next."""

    def __init__(self, wire: str, answers: list[dict[str, Any]]) -> None:
        super().__init__(wire, [[json.dumps(answer).encode()] for answer in answers])

    async def answer(self, request: ReceivedRequest, route: Route) -> HttpAnswer:
        body = self._bodies[len(self.requests) - 1]
        return HttpAnswer(200, [("content-type", "application/json")], body)


def chunk(*parts: dict[str, Any], finish: str | None = None, token: str | None = None, **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}}
    if finish is not None:
        candidate["finishReason"] = finish
    if token is not None:
        candidate["continuationToken"] = token
    return {"candidates": [candidate], **more}


def event(payload: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\r\n\r\n"


def limit(token: str) -> bytes:
    return event(chunk(finish="CONTINUATION", token=token, usageMetadata={"candidatesTokenCount": 5}))


def hops(frames: list[bytes], *places: int) -> list[list[bytes]]:
    """The frames of one answer in several, cut at these places."""
    edges = [0, *places, len(frames)]
    cut = [frames[start:stop] for start, stop in pairwise(edges)]
    return [[*part, limit(token)] for part, token in zip(cut, TOKENS, strict=False)][: len(places)] + cut[-1:]


ANSWER = list(encode("gemini", [Text("I write."), ToolCall("write", ARGS, call_id="c1"), Text("Done.")]))


@pytest.fixture
async def cs() -> AsyncIterator[Callstream]:
    @tool
    async def write(title: str, content: str) -> str:
        """Writes a document."""
        return "written"

    async with Callstream(tools=[write]) as callstream:
        yield callstream


async def asked(client: Any, **config: Any) -> list[Any]:
    made = CONFIG.model_copy(update=config)
    stream = await client.aio.models.generate_content_stream(model="gemini-3", contents="go", config=made)
    return [each async for each in stream]


def tokens(provider: Any) -> list[str | None]:
    sent = [request.json.get("continuationToken") for request in provider.requests]
    return [None if token is None else token.translate(str.maketrans("-_", "+/")) for token in sent]


async def events_of(cs: Callstream) -> list[Any]:
    return [record.event for run in await cs.journal.runs() async for record in cs.journal.read(run.run_id)]


async def read_as_one(cs: Callstream) -> None:
    """That the journal has one response with one message, and in it all that the answers have."""
    events = await events_of(cs)
    assert sum(isinstance(each, MessageStarted) for each in events) == 1
    assert sum(isinstance(each, MessageEnded) for each in events) == 1
    assert "".join(each.text for each in events if isinstance(each, TextAppended)) == "I write.Done."
    (ended,) = [each for each in events if isinstance(each, ResponseEnded)]
    assert ended.finish_reason == "STOP"


@pytest.mark.parametrize("place", range(1, len(ANSWER)))
async def test_a_call_and_text_in_two_answers_are_one_call_and_one_message(cs: Callstream, place: int) -> None:
    async with BodiesProvider("gemini", hops(ANSWER, place)) as provider:
        async with SDK.client(provider.base_url, cs.httpx_client(), 0) as client, cs.run("t"):
            answer = SDK.fold(await asked(client))
        assert tokens(provider) == [None, TOKENS[0]]
    assert (answer.calls, answer.pieces) == ([("c1", "write", ARGS)], 0)
    assert (answer.text, answer.finish) == ("I write.Done.", types.FinishReason.STOP)
    (listed,) = await cs.journal.calls()
    call = await cs.journal.call(listed.call_id)
    assert call is not None
    assert (call.state, json.loads(call.args_json or "")) == (CallState.RELEASED, ARGS)
    await read_as_one(cs)


@pytest.mark.parametrize("in_run", [True, False])
@pytest.mark.parametrize("collapse", ["known", "none"])
async def test_three_answers_are_one(cs: Callstream, in_run: bool, collapse: Any) -> None:
    bodies = hops(ANSWER, 3, 6)
    async with BodiesProvider("gemini", bodies) as provider:
        async with SDK.client(provider.base_url, cs.httpx_client(collapse=collapse), 0) as client:
            if in_run:
                async with cs.run("t"):
                    answer = SDK.fold(await asked(client))
            else:
                answer = SDK.fold(await asked(client))
        assert tokens(provider) == [None, *TOKENS]
    assert answer.text == "I write.Done."
    await read_as_one(cs)
    assert len(await cs.journal.runs()) == 1
    usage = [each.usage for each in await events_of(cs) if isinstance(each, ResponseEnded)]
    last = json.loads(ANSWER[-1].removeprefix(b"data: "))["usageMetadata"]["candidatesTokenCount"]
    assert [each and each["candidatesTokenCount"] for each in usage] == [5 + 5 + last]


def test_sync_client(cs: Callstream) -> None:
    with BodiesProvider("gemini", hops(ANSWER, 4)) as provider:
        with httpx.Client(transport=cs.transport()) as http:  # type: ignore[arg-type]
            options = types.HttpOptions(base_url=provider.base_url, httpx_client=http)
            client = genai.Client(api_key="none", http_options=options)
            chunks = list(client.models.generate_content_stream(model="gemini-3", contents="go", config=CONFIG))
    assert SDK.fold(chunks).calls == [("c1", "write", ARGS)]


async def test_a_program_that_does_not_ask_for_the_rest_never_gets_the_call(cs: Callstream) -> None:
    """It is refused when the program asks for something else; and the model learns of it then."""
    bodies = [hops(ANSWER, 5)[0], list(encode("gemini", [Text("Again.")]))]
    async with BodiesProvider("gemini", bodies) as provider:
        async with SDK.client(provider.base_url, cs.httpx_client(), 0) as client, cs.run("t") as run:
            first = SDK.fold(await asked(client, automatic_continuation=False))
            assert (first.calls, first.finish) == ([], types.FinishReason.CONTINUATION)
            await asked(client)
            (call,) = run.calls
            assert (call.state, call.reason) == (CallState.DISCARDED, "truncated")
        assert "cut off" in json.dumps(provider.requests[1].json)


async def test_a_run_may_end_before_the_rest_is_asked_for(cs: Callstream) -> None:
    async with BodiesProvider("gemini", [hops(ANSWER, 5)[0], ANSWER]) as provider:
        async with SDK.client(provider.base_url, cs.httpx_client(), 0) as client:
            async with cs.run("t"):
                await asked(client, automatic_continuation=False)
            # Somebody asks for it afterwards: it is an answer of its own.
            answer = SDK.fold(await asked(client, continuation_token=b"\xfb\xff"))
    assert answer.calls == [("c1", "write", ARGS)]
    assert next(call.state for call in await cs.journal.calls()) is CallState.DISCARDED
    assert all(run.outcome is not None for run in await cs.journal.runs(thread_id="t"))


async def test_the_model_is_not_asked_again_between_two_answers(cs: Callstream) -> None:
    """But after the last, if all of the calls were refused."""
    unfit = ToolCall("write", {"title": 1, "content": "x"}, call_id="bad")
    refused = hops(list(encode("gemini", [unfit, ToolCall("write", {"title": 2}, call_id="worse")])), 7)
    good = list(encode("gemini", [ToolCall("write", ARGS, call_id="good")]))
    async with BodiesProvider("gemini", [*refused, good]) as provider:
        async with SDK.client(provider.base_url, cs.httpx_client(), 0) as client, cs.run("t"):
            answer = SDK.fold(await asked(client))
        assert tokens(provider) == [None, TOKENS[0], None]
        last = json.dumps(provider.requests[2].json)
    assert "bad" in last
    assert "worse" in last
    assert answer.calls == [("good", "write", ARGS)]
    assert {call.call_id: call.reason for call in await cs.journal.calls()}["bad"] == "invalid"


async def test_the_request_for_the_rest_says_what_the_first_said(cs: Callstream) -> None:
    """Also where the tap has added a note to it."""
    cut = [*ANSWER[:5], event(chunk(finish="MAX_TOKENS"))]
    async with BodiesProvider("gemini", [cut, *hops(ANSWER, 5)]) as provider:
        async with SDK.client(provider.base_url, cs.httpx_client(ask_again=0), 0) as client, cs.run("t"):
            await asked(client)
            await asked(client)
        _, first, rest = [request.json for request in provider.requests]
    assert "cut off" in json.dumps(first)
    assert {name: value for name, value in rest.items() if name != "continuationToken"} == first


async def test_answers_that_are_not_streamed(cs: Callstream) -> None:
    first = chunk({"text": "I write."}, finish="CONTINUATION", token=TOKENS[0], responseId="r1")
    call = {"functionCall": {"name": "write", "args": ARGS, "id": "c1"}}
    half = {"functionCall": {"name": "write", "willContinue": True, "id": "half"}}
    middle = chunk(half, finish="CONTINUATION", token=TOKENS[1], responseId="r2")
    last = chunk({"text": "Done."}, call, finish="STOP", responseId="r3")

    async with WholeProvider("gemini", [first, middle, last]) as provider, cs.run("t"):
        async with SDK.client(provider.base_url, cs.httpx_client(), 0) as client:
            merged = SDK.fold(
                [await client.aio.models.generate_content(model="gemini-3", contents="go", config=CONFIG)]
            )
        assert tokens(provider) == [None, *TOKENS]
    assert (merged.text, merged.calls) == ("I write.Done.", [("c1", "write", ARGS)])
    assert next((each.call_id, each.reason) for each in await cs.journal.calls()) == ("half", "truncated")
    await read_as_one(cs)
