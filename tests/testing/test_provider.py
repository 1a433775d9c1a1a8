"""The real SDKs run against scripted providers, unchanged: what is said, and which script answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest
from google.genai import errors as genai_errors

from callstream.errors import UsageError
from callstream.testing import (
    Delay,
    Finish,
    HttpError,
    Parallel,
    ReceivedRequest,
    ScriptedProvider,
    Text,
    Thought,
    ToolCall,
    frames,
)
from callstream.testing.provider import NumberedFrames, numbers_used
from tests.testing.asking import asked, client_of

from .answering import BROKEN, PARIS, PATHS, each_wire, either_form, posted, scripted

NORMAL = {"gemini": "STOP", "anthropic": "tool_use", "openai_chat": "tool_calls", "openai_responses": "completed"}
LENGTH = {"gemini": "MAX_TOKENS", "anthropic": "max_tokens", "openai_chat": "length", "openai_responses": "incomplete"}


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
    async with scripted(wire, [Text("Let me look. "), ToolCall("get_weather", PARIS)]) as provider:
        said = await asked(provider, stream=stream)
    assert said.calls == [("get_weather", PARIS)]
    assert said.text == "Let me look. "
    assert said.finish == NORMAL[wire]
    assert (said.pieces > 4) is stream


@each_wire
async def test_calls_that_come_whole_have_at_most_one_piece(wire: str) -> None:
    async with scripted(wire, [ToolCall("get_weather", PARIS, streamed=False)]) as provider:
        said = await asked(provider)
    assert said.calls == [("get_weather", PARIS)]
    assert said.pieces <= 1


@each_wire
@either_form
async def test_parallel_calls_keep_apart(wire: str, stream: bool) -> None:
    calls = [ToolCall("get_weather", {"city": "Paris"}, size=2), ToolCall("get_weather", {"city": "Rome"}, size=2)]
    async with scripted(wire, [Parallel(calls)]) as provider:
        said = await asked(provider, stream=stream)
    assert said.calls == [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})]
    if wire != "gemini":
        assert len(set(said.call_ids)) == 2


@each_wire
async def test_a_missing_id_is_missing(wire: str) -> None:
    async with scripted(wire, [ToolCall("get_weather", {"city": "Paris"}, call_id="")]) as provider:
        said = await asked(provider)
    assert said.calls == [("get_weather", {"city": "Paris"})]
    assert said.call_ids == [None]


@each_wire
async def test_a_truncated_call_ends_for_lack_of_tokens(wire: str) -> None:
    script = [ToolCall("get_weather", {"city": "Paris"}, size=2, stop_after=2), Finish("length")]
    async with scripted(wire, script) as provider:
        said = await asked(provider)
    assert said.finish == LENGTH[wire]
    assert said.calls != [("get_weather", {"city": "Paris"})]


@each_wire
async def test_ids_are_not_used_twice(wire: str) -> None:
    script = [Parallel([ToolCall("a", {"x": "1"}), ToolCall("b", {"x": "2"})])]
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
    script = [
        Delay(0),
        Text(text),
        Parallel([ToolCall("a", {"x": "1"}), ToolCall("b", {"x": "2"})]),
        ToolCall("c", {}),
        Finish(),
    ]
    numbered = NumberedFrames(wire, script, "some-model")
    for first in (1, 4, 1000):
        assert list(numbered.frames(first)) == list(frames(wire, script, model="some-model", first_id=first))
    assert numbers_used(script) == 3
    assert numbers_used([Text("x"), ToolCall("a", call_id="mine")]) == 1


@each_wire
async def test_the_answer_names_the_model_that_was_asked(wire: str) -> None:
    async with scripted(wire, [Text("Hi")]) as provider:
        path = PATHS[wire].replace("models/m:", "models/my-model:")
        answer = await posted(provider, {"model": "my-model", "stream": True}, path)
    assert '"my-model"' in answer.text


async def test_the_helper_of_responses_puts_together_what_was_streamed() -> None:
    async with ScriptedProvider("openai_responses", [Text("Hm. ", size=1), ToolCall("a", PARIS)]) as provider:
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
    with pytest.raises(UsageError, match="expected 1 requests, one per script, got another"):
        await provider.aclose()
    provider.close()  # what was raised is not raised again


async def test_a_function_of_the_request_answers_a_conversation() -> None:
    def script(request: ReceivedRequest) -> list[Any]:
        last = request.json["messages"][-1]["content"]
        return [Text("The result is " + last[0]["content"])] if isinstance(last, list) else [ToolCall("add", {"a": 1})]

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
    provider = ScriptedProvider("anthropic", [[Text("x"), ToolCall("a", "free", custom=True)]]).start()
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
        ("gemini", [Text("x"), HttpError(429)], {}, "instead of any content"),
        ("gemini", [Text("x")], {"encoding": "br"}, "expected encoding"),
        ("gemini", [Text("x")], {"deltas_per_second": 0}, "expected deltas_per_second"),
        ("anthropic", [Text("x")], {"strict_signatures": True}, "Gemini's law"),
    ],
)
def test_mistakes_are_told_when_the_provider_is_made(wire: str, script: Any, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ScriptedProvider(wire, script, **options)
