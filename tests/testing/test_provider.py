"""The real SDKs run against scripted providers, unchanged, over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from google import genai
from google.genai import errors as genai_errors
from google.genai import types as genai_types
from google.oauth2.credentials import Credentials

from callstream.errors import UsageError
from callstream.testing import (
    STAMP,
    Call,
    Cut,
    Delay,
    Failure,
    Finish,
    Parallel,
    ReceivedRequest,
    Refusal,
    ScriptedProvider,
    Text,
    Thought,
    Truncated,
    frames,
)
from callstream.testing.numbering import NumberedFrames, numbers_used
from tests.testing.asking import QUESTION, WIRES, Said, ask, asked, client_of, gemini, gemini_options, gemini_said

each_wire = pytest.mark.parametrize("wire", WIRES)
either_form = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
PARIS = {"city": "Paris, the one in France", "unit": "°C"}
NORMAL = {"gemini": "STOP", "anthropic": "tool_use", "openai_chat": "tool_calls", "openai_responses": "completed"}
LENGTH = {"gemini": "MAX_TOKENS", "anthropic": "max_tokens", "openai_chat": "length", "openai_responses": "incomplete"}
BROKEN = (httpx.TransportError, httpx2.TransportError)
PATHS = {
    "gemini": "/v1beta/models/m:streamGenerateContent?alt=sse",
    "anthropic": "/v1/messages",
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
}


def scripted(wire: str, script: Any, **options: Any) -> ScriptedProvider:
    """A provider that streams arguments, on every wire."""
    return ScriptedProvider(wire, script, **({"stream_args_unasked": True} if wire == "gemini" else {}), **options)


async def posted(provider: ScriptedProvider, body: Any = None, path: str | None = None) -> httpx.Response:
    async with httpx.AsyncClient(verify=False) as client:  # which saves reading certificates
        return await client.post(provider.origin + (path or PATHS[provider.wire]), json=body or {"stream": True})


# -- what is said ------------------------------------------------------------------------------------------------------


@each_wire
@either_form
async def test_text_and_thoughts_arrive(wire: str, stream: bool) -> None:
    script = [Thought("The user wants weather.", size=5), Text("It is ☀️ in Paris.", size=3)]
    async with scripted(wire, script) as provider:
        said = await asked(provider, stream=stream)
    assert (said.text, said.thoughts, said.calls) == ("It is ☀️ in Paris.", "The user wants weather.", [])


@each_wire
@either_form
async def test_calls_arrive_with_their_arguments(wire: str, stream: bool) -> None:
    async with scripted(wire, [Text("Let me look. "), Call("get_weather", PARIS)]) as provider:
        said = await asked(provider, stream=stream)
    assert said.calls == [("get_weather", PARIS)]
    assert said.text == "Let me look. "
    assert said.finish == NORMAL[wire]
    assert (said.pieces > 4) is stream


@each_wire
async def test_calls_that_come_whole_have_at_most_one_piece(wire: str) -> None:
    async with scripted(wire, [Call("get_weather", PARIS, streamed=False)]) as provider:
        said = await asked(provider)
    assert said.calls == [("get_weather", PARIS)]
    assert said.pieces <= 1


@each_wire
@either_form
async def test_parallel_calls_keep_apart(wire: str, stream: bool) -> None:
    calls = [Call("get_weather", {"city": "Paris"}, size=2), Call("get_weather", {"city": "Rome"}, size=2)]
    async with scripted(wire, [Parallel(calls)]) as provider:
        said = await asked(provider, stream=stream)
    assert said.calls == [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})]
    if wire != "gemini":
        assert len(set(said.call_ids)) == 2


@each_wire
async def test_a_missing_id_is_missing(wire: str) -> None:
    async with scripted(wire, [Call("get_weather", {"city": "Paris"}, call_id="")]) as provider:
        said = await asked(provider)
    assert said.calls == [("get_weather", {"city": "Paris"})]
    assert said.call_ids == [None]


@each_wire
async def test_a_truncated_call_ends_for_lack_of_tokens(wire: str) -> None:
    script = [Call("get_weather", {"city": "Paris"}, size=2, stop_after=2), Finish("length")]
    async with scripted(wire, script) as provider:
        said = await asked(provider)
    assert said.finish == LENGTH[wire]
    assert said.calls != [("get_weather", {"city": "Paris"})]


@each_wire
async def test_ids_are_not_used_twice(wire: str) -> None:
    script = [Parallel([Call("a", {"x": "1"}), Call("b", {"x": "2"})])]
    async with scripted(wire, script) as provider:
        bodies = [(await posted(provider)).text for _ in range(3)]
    assert len(set(bodies)) == 3
    if wire == "anthropic":
        assert [[f'"toolu_{n}"' in body for n in range(1, 7)] for body in bodies] == [
            [True, True, False, False, False, False],
            [False, False, True, True, False, False],
            [False, False, False, False, True, True],
        ]


@each_wire
@pytest.mark.parametrize("text", ["plain", "looks like 918273645000001"], ids=["renumbered", "encoded anew"])
def test_numbered_frames_are_those_of_the_encoder(wire: str, text: str) -> None:
    script = [Delay(0), Text(text), Parallel([Call("a", {"x": "1"}), Call("b", {"x": "2"})]), Call("c", {}), Finish()]
    numbered = NumberedFrames(wire, script, "some-model")
    for first in (1, 4, 1000):
        assert list(numbered.frames(first)) == list(frames(wire, script, model="some-model", first_id=first))
    assert numbers_used(script) == 3
    assert numbers_used([Text("x"), Call("a", call_id="mine")]) == 1


@each_wire
async def test_the_answer_names_the_model_that_was_asked(wire: str) -> None:
    async with scripted(wire, [Text("Hi")]) as provider:
        path = PATHS[wire].replace("models/m:", "models/my-model:")
        answer = await posted(provider, {"model": "my-model", "stream": True}, path)
    assert '"my-model"' in answer.text


async def test_the_helper_of_responses_puts_together_what_was_streamed() -> None:
    async with ScriptedProvider("openai_responses", [Text("Hm. ", size=1), Call("a", PARIS)]) as provider:
        async with client_of(provider) as client, client.responses.stream(model="m", input="x") as events:
            response = await events.get_final_response()
    assert response.output_text == "Hm. "
    assert json.loads(response.output[1].arguments) == PARIS


# -- which script answers ----------------------------------------------------------------------------------------------


@each_wire
async def test_one_script_answers_every_request(wire: str) -> None:
    async with scripted(wire, [Text("Always this.")]) as provider:
        assert [(await asked(provider)).text for _ in range(3)] == ["Always this."] * 3
        assert len(provider.requests) == 3


@each_wire
async def test_scripts_answer_one_request_each(wire: str) -> None:
    async with scripted(wire, [[Text("One.")], [Text("Two.")]]) as provider:
        assert [(await asked(provider)).text for _ in range(2)] == ["One.", "Two."]


@each_wire
async def test_a_request_after_the_last_script_is_an_error_there_and_here(wire: str) -> None:
    provider = scripted(wire, [[Text("One.")]]).start()
    await asked(provider)
    with pytest.raises(
        (anthropic.InternalServerError, openai.InternalServerError, genai_errors.ServerError), match="expected 1 req"
    ):
        await asked(provider)
    assert len(provider.requests) == 2, "the SDKs are told not to try again"
    with pytest.raises(UsageError, match="expected 1 requests, one a script, got another"):
        await provider.aclose()
    provider.close()  # what was raised is not raised again


async def test_a_function_of_the_request_answers_a_conversation() -> None:
    def script(request: ReceivedRequest) -> list[Any]:
        last = request.json["messages"][-1]["content"]
        return [Text("The result is " + last[0]["content"])] if isinstance(last, list) else [Call("add", {"a": 1})]

    async with ScriptedProvider("anthropic", script) as provider, client_of(provider) as client:
        messages: list[Any] = [{"role": "user", "content": "1 + 1?"}]
        first = await client.messages.create(model="claude", max_tokens=9, messages=messages)
        [call] = first.content
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "2"}
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = await client.messages.create(model="claude", max_tokens=9, messages=messages)
    assert second.content[0].text == "The result is 2"


async def test_an_async_function_answers_too() -> None:
    async def script(request: ReceivedRequest) -> list[Any]:
        await asyncio.sleep(0)
        return [Text(request.headers["x-who"])]

    async with ScriptedProvider("openai_chat", script) as provider:
        said = await asked(provider, default_headers={"X-Who": "me"})
    assert said.text == "me"


@pytest.mark.parametrize(
    ("made", "message"),
    [(lambda request: 1 / 0, "ZeroDivisionError"), (lambda request: [[Text("x")]], "got a list of scripts")],
    ids=["raises", "gives several"],
)
async def test_a_function_that_fails_is_an_error_there_and_here(made: Any, message: str) -> None:
    provider = ScriptedProvider("openai_chat", made).start()
    with pytest.raises(openai.InternalServerError, match=message):
        await asked(provider)
    with pytest.raises((ZeroDivisionError, UsageError)):
        provider.close()


async def test_a_failure_of_the_provider_is_a_note_on_the_error_of_the_test() -> None:
    with pytest.raises(openai.InternalServerError) as raised:
        async with ScriptedProvider("openai_chat", lambda request: 1 / 0) as provider:  # type: ignore[arg-type, return-value]
            await asked(provider)
    [note] = raised.value.__notes__
    assert note.startswith("the scripted provider failed: ZeroDivisionError: division by zero\nTraceback")
    assert "in <lambda>" in note


async def test_a_script_that_cannot_be_encoded_breaks_the_answer_and_is_raised() -> None:
    provider = ScriptedProvider("anthropic", [[Text("x"), Call("a", "free", custom=True)]]).start()
    with pytest.raises(BROKEN):
        await asked(provider)
    with pytest.raises(UsageError, match="no free-text tools"):
        provider.close()


@pytest.mark.parametrize(
    ("wire", "script", "options", "message"),
    [
        ("morse", [Text("x")], {}, "expected one of the wires"),
        ("gemini", [], {}, "expected a script"),
        ("gemini", "text", {}, "expected a script"),
        ("gemini", [Text("x"), [Text("x")]], {}, "a list of both"),
        ("gemini", ["text"], {}, "a list of both or of something else"),
        ("gemini", [["text"]], {}, "each a list of steps"),
        ("gemini", [[Finish(), Text("x")]], {}, "the script goes on"),
        ("gemini", [Text("x"), Refusal(429)], {}, "instead of any content"),
        ("gemini", [Text("x")], {"encoding": "br"}, "expected encoding"),
        ("gemini", [Text("x")], {"deltas_per_second": 0}, "expected deltas_per_second"),
        ("anthropic", [Text("x")], {"strict_signatures": True}, "Gemini's law"),
    ],
)
def test_mistakes_are_told_when_the_provider_is_made(wire: str, script: Any, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ScriptedProvider(wire, script, **options)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@each_wire
async def test_a_refusal_is_retried_by_the_sdk(wire: str) -> None:
    options: Any = {}
    if wire == "gemini":
        options = {
            "retry_options": genai_types.HttpRetryOptions(attempts=2, initial_delay=0.01, http_status_codes=[429])
        }
    script = [[Refusal(429, "Slow down.", retry_after=0.01)], [Text("Now then.")]]
    async with scripted(wire, script) as provider:
        assert (await asked(provider, **options)).text == "Now then."
        assert len(provider.requests) == 2


@each_wire
@either_form
@pytest.mark.parametrize("status", [400, 401, 404, 418])
async def test_a_refusal_is_the_sdks_own_error(wire: str, stream: bool, status: int) -> None:
    async with scripted(wire, [Delay(0.001), Refusal(status, "Not like this.")]) as provider:
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
    async with scripted(wire, [Refusal(status, "m", retry_after=3)]) as provider:
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


# -- the forms of an answer --------------------------------------------------------------------------------------------


@each_wire
@either_form
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_answers_are_read(wire: str, stream: bool, encoding: Any) -> None:
    async with scripted(wire, [Text("Short. " * 20, size=9), Call("a", PARIS)], encoding=encoding) as provider:
        said = await asked(provider, stream=stream)
    assert (said.text, said.calls) == ("Short. " * 20, [("a", PARIS)])


async def test_compression_flushes_after_each_event() -> None:
    script = [Text("One. "), Delay(60), Text("Two.")]
    async with (
        ScriptedProvider("anthropic", script, encoding="gzip") as provider,
        httpx.AsyncClient(verify=False) as client,
    ):
        headers = {"accept-encoding": "identity"}
        request = client.stream("POST", provider.origin + "/v1/messages", json={"stream": True}, headers=headers)
        async with asyncio.timeout(20), request as answer:
            assert answer.headers["content-encoding"] == "gzip"
            text = ""
            async for piece in answer.aiter_text():
                text += piece
                if "content_block_stop" in text:
                    break
    assert '"text":"One. "' in text


async def test_gemini_without_sse_is_a_json_array() -> None:
    async with ScriptedProvider("gemini", [Text("One, two.", size=3), Delay(0)]) as provider:
        answer = await posted(provider, path="/v1beta/models/m:streamGenerateContent")
    assert answer.headers["content-type"].startswith("application/json")
    texts = [item["candidates"][0]["content"]["parts"][0]["text"] for item in answer.json()]
    assert "".join(texts) == "One, two."


@pytest.mark.parametrize(("end", "is_json"), [(Failure("No."), True), (Truncated(), False)])
async def test_a_json_array_is_whole_only_if_the_stream_is(end: Any, is_json: bool) -> None:
    async with ScriptedProvider("gemini", [Text("One"), end]) as provider:
        answer = await posted(provider, path="/v1beta/models/m:streamGenerateContent")
    assert answer.text.endswith("]") is is_json


async def test_a_refusal_of_a_json_array_is_in_an_array() -> None:
    async with ScriptedProvider("gemini", [Refusal(503)]) as provider:
        answer = await posted(provider, path="/v1beta/models/m:streamGenerateContent")
    assert answer.json()[0]["error"]["status"] == "UNAVAILABLE"


@either_form
async def test_gemini_on_vertex_streams_arguments_when_the_sdk_asks_for_it(stream: bool) -> None:
    async with ScriptedProvider("gemini", [Call("get_weather", PARIS)]) as provider:
        client = genai.Client(
            vertexai=True,
            project="p",
            location="l",
            credentials=Credentials(token="none"),
            http_options=gemini_options(provider),
        )
        calling = genai_types.FunctionCallingConfig(stream_function_call_arguments=True)
        config = genai_types.GenerateContentConfig(
            tool_config=genai_types.ToolConfig(function_calling_config=calling),
            automatic_function_calling=genai_types.AutomaticFunctionCallingConfig(disable=True),
        )
        async with client.aio as aio:
            said = await gemini(aio, stream, config=config)
        [request] = provider.requests
    assert said.calls == [("get_weather", PARIS)]
    assert (said.pieces > 4) is stream
    verb = "streamGenerateContent" if stream else "generateContent"
    assert request.path == f"/v1beta1/projects/p/locations/l/publishers/google/models/gemini-3-pro:{verb}"


@either_form
async def test_anthropic_on_vertex(stream: bool) -> None:
    verb = "streamRawPredict" if stream else "rawPredict"
    async with ScriptedProvider("anthropic", [Text("Hi")]) as provider:
        path = f"/v1/projects/p/locations/l/publishers/anthropic/models/claude@1:{verb}"
        answer = await posted(provider, {"anthropic_version": "vertex-2023-10-16"}, path)
    assert ("event: message_stop" in answer.text) is stream
    assert '"claude@1"' in answer.text


def test_gemini_from_a_sync_client() -> None:
    with ScriptedProvider("gemini", [Thought("Hm."), Text("Hello", size=2), Call("a", {"x": "y"})]) as provider:
        with genai.Client(api_key="none", http_options=gemini_options(provider)) as client:
            chunks = list(client.models.generate_content_stream(model="gemini-3-pro", contents=QUESTION))
            whole = client.models.generate_content(model="gemini-3-pro", contents=QUESTION)
    for said in (gemini_said(chunks), gemini_said([whole])):
        assert (said.text, said.thoughts, said.calls) == ("Hello", "Hm.", [("a", {"x": "y"})])


@pytest.mark.parametrize("asks", [True, False])
async def test_gemini_streams_arguments_when_asked(asks: bool) -> None:
    script = [Parallel([Call("a", {"x": "long enough"}), Call("b", {"x": "long enough"})]), Call("c", {"x": "long"})]
    body = {"toolConfig": {"functionCallingConfig": {"streamFunctionCallArguments": asks}}}
    async with ScriptedProvider("gemini", script) as provider:
        assert ("partialArgs" in (await posted(provider, body)).text) is asks
        assert "partialArgs" not in (await posted(provider)).text


async def test_gemini_does_not_tell_of_a_call_that_never_ends_unless_it_streams_it() -> None:
    script = [Call("a", {"x": "long enough"}, stop_after=1), Finish("length")]
    async with ScriptedProvider("gemini", script) as provider:
        said = await asked(provider)
    assert (said.calls, said.finish) == ([], "MAX_TOKENS")


@pytest.mark.parametrize("asks", [True, False])
async def test_chat_tells_usage_when_asked(asks: bool) -> None:
    body = {"stream": True, "stream_options": {"include_usage": asks}}
    async with ScriptedProvider("openai_chat", [[Text("Hi"), Delay(0)]]) as provider:
        answer = await posted(provider, body)
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [chunk["choices"] for chunk in chunks].count([]) == int(asks)
    assert all(("usage" in chunk) is asks for chunk in chunks)


async def test_stamps_tell_when_a_frame_was_sent() -> None:
    before = time.monotonic_ns()
    async with ScriptedProvider("openai_chat", [Text(STAMP * 3, size=len(STAMP)), Delay(0)], stamp=True) as provider:
        said = await asked(provider)
    stamps = [int(said.text[at : at + 20]) for at in (0, 20, 40)]
    assert before < stamps[0] <= stamps[1] <= stamps[2] < time.monotonic_ns()


async def test_stamps_tell_the_time_of_sending_and_not_of_making() -> None:
    before = time.monotonic_ns()
    async with ScriptedProvider("openai_chat", [Text(STAMP)], stamp=True, deltas_per_second=20) as provider:
        said = await asked(provider)
    # The first event is the role's, so the text is sent a twentieth of a second after it.
    assert int(said.text) >= before + 50_000_000


async def test_pace_holds_events_back() -> None:
    """So slow that nothing but the first event can come while the test looks."""
    async with ScriptedProvider("openai_chat", [Text("abcdef", size=1)], deltas_per_second=0.01) as provider:
        async with client_of(provider) as client:
            stream = await client.chat.completions.create(model="m", messages=[], stream=True)
            async with asyncio.timeout(20):
                await anext(aiter(stream))
            assert provider.requests[0].sent == 1
            await stream.close()


async def test_pace_goes_on_to_the_end() -> None:
    async with ScriptedProvider("anthropic", [Text("abcdef", size=1), Delay(0)], deltas_per_second=5000) as provider:
        assert (await asked(provider)).text == "abcdef"


# -- thought signatures ------------------------------------------------------------------------------------------------


def content(role: str, *parts: genai_types.Part) -> genai_types.Content:
    return genai_types.Content(role=role, parts=list(parts))


def answered(*names: str) -> genai_types.Content:
    return content("user", *(genai_types.Part.from_function_response(name=n, response={"ok": True}) for n in names))


def called(name: str, signature: bytes | None = None) -> genai_types.Part:
    return genai_types.Part(function_call=genai_types.FunctionCall(name=name, args={}), thought_signature=signature)


USER = content("user", genai_types.Part(text=QUESTION))


async def test_strict_signatures_take_what_was_sent() -> None:
    scripts = [
        [Text("Hm."), Parallel([Call("a", {"x": "1"}), Call("b", {"x": "2"})])],
        [Call("c", {"x": "3"})],
        [Text("Done.")],
    ]
    async with ScriptedProvider("gemini", scripts, strict_signatures=True) as provider, client_of(provider) as client:
        history = [USER]
        for names in (["a", "b"], ["c"]):
            chunks = await client.models.generate_content_stream(model="gemini-3-pro", contents=history)
            parts = [p async for chunk in chunks for p in chunk.candidates[0].content.parts]
            named = [part for part in parts if part.function_call and part.function_call.name]
            assert [part.function_call.name for part in named] == names
            assert [part.thought_signature is not None for part in named] == [True, False][: len(names)]
            # Two contents of one step are one step.
            history += [content("model", part) for part in named]
            history.append(answered(*names))
        last = await client.models.generate_content(model="gemini-3-pro", contents=history)
    assert last.text == "Done."


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([USER, content("model", called("get_weather")), answered("get_weather")], "missing"),
        ([USER, content("model", called("get_weather"), called("b", b"x")), answered("get_weather", "b")], "missing"),
        ([USER, content("model", called("get_weather", b"never sent")), answered("get_weather")], "Corrupted"),
    ],
    ids=["missing", "missing on the first", "never sent"],
)
async def test_strict_signatures_refuse_as_gemini_3_does(contents: Any, message: str) -> None:
    async with ScriptedProvider("gemini", [Text("Fine.")], strict_signatures=True) as provider:
        async with client_of(provider) as client:
            with pytest.raises(genai_errors.ClientError) as raised:
                await client.models.generate_content(model="gemini-3-pro", contents=contents)
    assert (raised.value.code, raised.value.status) == (400, "INVALID_ARGUMENT")
    if message == "missing":
        assert "is missing a thought_signature in functionCall parts" in str(raised.value)
        assert "function call `default_api:get_weather` , position 2." in str(raised.value)
    else:
        assert "Corrupted thought signature." in str(raised.value)


@pytest.mark.parametrize(
    "contents",
    [
        [USER],
        [USER, content("model", called("a", b"skip_thought_signature_validator"), called("b")), answered("a", "b")],
        [USER, content("model", called("a")), answered("a"), content("model", genai_types.Part(text="So.")), USER],
    ],
    ids=["nothing called", "the sentinel", "an earlier turn"],
)
async def test_strict_signatures_let_pass(contents: Any) -> None:
    async with ScriptedProvider("gemini", [Text("Fine.")], strict_signatures=True) as provider:
        async with client_of(provider) as client:
            answer = await client.models.generate_content(model="gemini-3-pro", contents=contents)
    assert answer.text == "Fine."


@pytest.mark.parametrize(
    ("contents", "status"),
    [
        ([{"role": "model", "parts": [{"function_call": {"name": "a"}}]}], 400),
        ([{"role": "model", "parts": [{"functionCall": {"name": "a"}, "thought_signature": "c2ln"}]}], 200),
        (
            [
                {
                    "role": "model",
                    "parts": [{"functionCall": {}, "thoughtSignature": "skip_thought_signature_validator"}],
                }
            ],
            200,
        ),
        ("not contents", 200),
        (["not a content", {"parts": "not parts"}], 200),
    ],
)
async def test_strict_signatures_know_both_spellings(contents: Any, status: int) -> None:
    async with ScriptedProvider("gemini", [Call("a", signature="c2ln")], strict_signatures=True) as provider:
        await posted(provider)
        answer = await posted(provider, {"contents": contents})
    assert answer.status_code == status


async def test_a_call_can_be_left_unsigned() -> None:
    async with ScriptedProvider("gemini", [Call("a", {"x": 1}, signature="")], strict_signatures=True) as provider:
        assert "thoughtSignature" not in (await posted(provider)).text


# -- requests ----------------------------------------------------------------------------------------------------------


@each_wire
async def test_requests_are_kept_in_order(wire: str) -> None:
    async with scripted(wire, [Text("Hi")]) as provider:
        await asked(provider)
        await asked(provider, stream=False)
        first, second = provider.requests
    assert first.method == "POST"
    assert provider.origin + first.path == provider.origin + PATHS[wire].partition("?")[0].replace(
        "/m:", "/gemini-3-pro:"
    )
    assert QUESTION in json.dumps(first.json)
    assert first.headers["content-type"] == "application/json"
    assert [request.fate for request in (first, second)] == ["answered", "answered"]
    assert first.sent >= second.sent == 1
    assert repr(second).startswith("<ReceivedRequest POST /v1")


async def test_a_client_that_leaves_is_noticed_while_nothing_is_sent() -> None:
    async with ScriptedProvider("anthropic", [Text("Wait"), Delay(60), Text("for it")]) as provider:
        async with client_of(provider) as client:
            stream = await client.messages.create(model="m", max_tokens=1, messages=[], stream=True)
            await anext(aiter(stream))
            await stream.close()
        async with asyncio.timeout(20):
            while provider.requests[0].fate == "open":  # noqa: ASYNC110  # another thread decides
                await asyncio.sleep(0.001)
        assert provider.requests[0].fate == "left"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/chat/completions/x"), ("GET", "/v1/messages"), ("POST", "/v1/responses")]
)
async def test_another_place_is_not_found(method: str, path: str) -> None:
    async with ScriptedProvider("anthropic", [Text("Hi")]) as provider, httpx.AsyncClient(verify=False) as client:
        answer = await client.request(method, provider.origin + path, json={})
    assert answer.status_code == 404
    assert f"expected POST /v1/messages, got {method} {path}" in answer.json()["error"]["message"]


async def test_a_body_that_is_no_object_is_refused() -> None:
    async with ScriptedProvider("anthropic", [Text("Hi")]) as provider, httpx.AsyncClient(verify=False) as client:
        answers = [
            await client.post(provider.origin + "/v1/messages", content=content) for content in (b"[]", b"{", b"\xff")
        ]
        assert [request.json for request in provider.requests] == [[], None, None]
    assert [answer.status_code for answer in answers] == [400, 400, 400]


# -- the server --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@each_wire
async def test_two_hundred_streams_at_once(wire: str) -> None:
    script = [Text("abcdefgh" * 5, size=8), Call("write", {"content": "x" * 24})]
    async with scripted(wire, script) as provider, client_of(provider) as client:
        said: list[Said] = await asyncio.gather(*[ask(client, wire) for _ in range(200)])
        assert len(provider.requests) == 200
    assert {(each.text, json.dumps(each.calls)) for each in said} == {
        ("abcdefgh" * 5, json.dumps([("write", {"content": "x" * 24})]))
    }
    if wire != "gemini":
        assert len({each.call_ids[0] for each in said}) == 200


async def test_many_providers_at_once_and_no_thread_stays() -> None:
    def providers_running() -> int:
        return sum("provider" in thread.name for thread in threading.enumerate())

    async with contextlib.AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(ScriptedProvider(w, [Text(w)])) for w in WIRES * 5]
        assert providers_running() == 20
        assert [each.text for each in await asyncio.gather(*map(asked, providers))] == list(WIRES * 5)
    assert providers_running() == 0


async def test_closing_breaks_off_what_is_being_answered() -> None:
    provider = ScriptedProvider("anthropic", [Text("Wait"), Delay(60)]).start()
    async with client_of(provider) as client:
        stream = await client.messages.create(model="m", max_tokens=1, messages=[], stream=True)
        await anext(aiter(stream))
        await provider.aclose()
        with pytest.raises(BROKEN):
            async for _ in stream:
                pass
    assert provider.requests[0].fate == "cut"
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", int(provider.origin.rpartition(":")[2]))


async def test_a_slow_reader_holds_the_provider_up_and_loses_nothing() -> None:
    text = "0123456789abcdef" * 60_000
    async with ScriptedProvider("openai_chat", [Text(text, size=16)]) as provider:
        port = int(provider.origin.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        head = "POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: 15\r\n\r\n"
        writer.write(head.encode() + b'{"stream":true}')
        await reader.read(1)
        async with asyncio.timeout(60):
            while True:  # until it has stopped sending
                sent = provider.requests[0].sent
                await asyncio.sleep(0.05)
                if 0 < sent == provider.requests[0].sent:
                    break
        assert sent < 60_000
        body = await reader.read(-1)
        writer.close()
        await writer.wait_closed()
    assert body.count(b'"content":"0123456789abcdef"') == 60_000


def test_a_provider_is_started_once_and_closed_as_often_as_one_likes() -> None:
    provider = ScriptedProvider("anthropic", [Text("Hi")])
    with pytest.raises(UsageError, match="before it is started"):
        provider.base_url  # noqa: B018
    provider.close()
    provider.start()
    with pytest.raises(UsageError, match="started before"):
        provider.start()
    provider.close()
    provider.close()


async def test_a_provider_that_was_never_started_can_be_closed() -> None:
    await ScriptedProvider("anthropic", [Text("Hi")]).aclose()


def test_a_port_that_is_taken_is_told() -> None:
    with ScriptedProvider("anthropic", [Text("Hi")]) as provider:
        port = int(provider.origin.rpartition(":")[2])
        other = ScriptedProvider("anthropic", [Text("Hi")], port=port)
        with pytest.raises(OSError, match=str(port)):
            other.start()
        other.close()


async def exchanged(provider: ScriptedProvider, *pieces: bytes) -> bytes:
    """What a server says to raw bytes, sent one by one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(provider.origin.rpartition(":")[2]))
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.005)
    answer = await reader.read(-1)
    writer.close()
    await writer.wait_closed()
    return answer


async def test_requests_come_in_any_pieces_and_one_after_another() -> None:
    first = b'POST /v1/messages HTTP/1.1\r\nContent-Length: 10\r\n\r\n{"n": "1"}'
    second = (
        b"POST /v1/messages HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b'4\r\n{"n"\r\n6;x=y\r\n: "2"}\r\n0\r\n\r\n'
    )
    script = lambda request: [Text("number " + request.json["n"])]  # noqa: E731
    both = first + second
    for pieces in ([both], [both[at : at + 7] for at in range(0, len(both), 7)]):
        async with ScriptedProvider("anthropic", script) as provider:
            answer = await exchanged(provider, *pieces)
        assert [answer.count(text) for text in (b"HTTP/1.1 200 OK", b"number 1", b"number 2")] == [2, 1, 1]


@pytest.mark.parametrize("bad", [b"nonsense\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: many\r\n\r\n"])
async def test_what_is_not_http_is_told_so(bad: bytes) -> None:
    async with ScriptedProvider("anthropic", [Text("Hi")]) as provider:
        assert (await exchanged(provider, bad)).startswith(b"HTTP/1.1 400 Bad Request")
        assert provider.requests == []
