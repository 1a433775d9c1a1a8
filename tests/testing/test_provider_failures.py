"""Scripted providers that refuse, fail and break off, as the real SDKs see it."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest
from google.genai import errors as genai_errors
from google.genai import types as genai_types

from callstream.testing import (
    Cut,
    Delay,
    Failure,
    HttpError,
    Text,
    Truncated,
    frames,
)
from tests.testing.asking import asked, client_of

from .answering import BROKEN, each_wire, either_form, posted, scripted


@each_wire
async def test_a_refusal_is_retried_by_the_sdk(wire: str) -> None:
    options: Any = {}
    if wire == "gemini":
        options = {
            "retry_options": genai_types.HttpRetryOptions(attempts=2, initial_delay=0.01, http_status_codes=[429])
        }
    script = [[HttpError(429, "Slow down.", retry_after=0.01)], [Text("Now then.")]]
    async with scripted(wire, script) as provider:
        assert (await asked(provider, **options)).text == "Now then."
        assert len(provider.requests) == 2


@each_wire
@either_form
@pytest.mark.parametrize("status", [400, 401, 404, 418])
async def test_a_refusal_is_the_sdks_own_error(wire: str, stream: bool, status: int) -> None:
    async with scripted(wire, [Delay(0.001), HttpError(status, "Not like this.")]) as provider:
        with pytest.raises((anthropic.APIStatusError, openai.APIStatusError, genai_errors.ClientError)) as raised:
            await asked(provider, stream=stream)
    error: Any = raised.value
    assert (error.code if wire == "gemini" else error.status_code) == status
    assert "Not like this." in str(error)


@pytest.mark.parametrize(
    ("wire", "status", "kind"),
    [
        ("gemini", 429, {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}),
        ("anthropic", 529, {"type": "overloaded_error", "message": "m"}),
        ("openai_chat", 429, {"message": "m", "type": "requests", "param": None, "code": "rate_limit_exceeded"}),
        ("openai_responses", 500, {"message": "m", "type": "server_error", "param": None, "code": None}),
    ],
)
async def test_a_refusal_has_the_wires_words(wire: str, status: int, kind: Any) -> None:
    async with scripted(wire, [HttpError(status, "m", retry_after=3)]) as provider:
        answer = await posted(provider)
    assert (answer.status_code, answer.headers["retry-after"]) == (status, "3")
    assert answer.json()["error"] == kind


@each_wire
async def test_a_failure_in_the_stream_is_the_sdks_own_error(wire: str) -> None:
    async with scripted(wire, [Text("Well, "), Failure("It broke.")]) as provider:
        if wire == "openai_responses":
            async with client_of(provider) as client:
                kinds = [e.type async for e in await client.responses.create(model="m", input="x", stream=True)]
            assert kinds[-2:] == ["error", "response.failed"]
            return
        with pytest.raises((anthropic.APIStatusError, openai.APIError, genai_errors.APIError), match="It broke"):
            await asked(provider)


@each_wire
async def test_a_failure_of_a_whole_answer_is_an_http_error(wire: str) -> None:
    async with scripted(wire, [Text("Well, "), Failure("It broke.")]) as provider:
        options: Any = {} if wire == "gemini" else {"max_retries": 0}
        with pytest.raises((anthropic.APIStatusError, openai.APIStatusError, genai_errors.ServerError), match="It bro"):
            await asked(provider, stream=False, **options)


@each_wire
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_a_cut_connection_is_the_sdks_own_connection_error(wire: str, reset: bool) -> None:
    script = [Text("I was going to s", size=1), Delay(0.02), Cut(reset=reset)]
    async with scripted(wire, script) as provider:
        with pytest.raises((*BROKEN, anthropic.APIConnectionError, openai.APIConnectionError)):
            await asked(provider)
        assert provider.requests[0].fate == "cut"
        assert provider.requests[0].sent >= 16


@each_wire
async def test_a_whole_answer_can_be_cut_or_truncated(wire: str) -> None:
    options: Any = {} if wire == "gemini" else {"max_retries": 0}
    async with scripted(wire, [[Text("I was"), Cut()], [Text("I was"), Truncated()]]) as provider:
        with pytest.raises((*BROKEN, anthropic.APIConnectionError, openai.APIConnectionError)):
            await asked(provider, stream=False, **options)
        assert provider.requests[0].fate == "cut"
        with pytest.raises((ValueError, anthropic.APIError, openai.APIError, genai_errors.APIError)):
            await asked(provider, stream=False, **options)
        assert provider.requests[1].fate == "answered"


@pytest.mark.parametrize("wire", ["anthropic", "openai_chat", "openai_responses"])
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
async def test_a_connection_cut_before_the_answer_is_retried_by_the_sdk(wire: str, reset: bool) -> None:
    async with scripted(wire, [[Delay(0.001), Cut(reset=reset)], [Text("Here.")]]) as provider:
        assert (await asked(provider)).text == "Here."
        assert [request.fate for request in provider.requests] == ["cut", "answered"]
        assert provider.requests[0].sent == 0


@each_wire
async def test_a_truncated_body_ends_without_a_finish(wire: str) -> None:
    async with scripted(wire, [Text("I was"), Truncated()]) as provider:
        answer = await posted(provider)
    assert answer.status_code == 200
    assert (
        list(frames(wire, [Text("I was"), Truncated()], model="m" if wire == "gemini" else None))
        == [event.encode() for event in _events(answer.text, wire)]
        or wire == "openai_chat"
    )
    assert not any(word in answer.text for word in ("STOP", "message_stop", "[DONE]", "response.completed"))


def _events(text: str, wire: str) -> list[str]:
    end = "\r\n\r\n" if wire == "gemini" else "\n\n"
    return [event + end for event in text.split(end)[:-1]]
