"""A scripted Gemini that wants its thought signatures back."""

from __future__ import annotations

from typing import Any

import pytest
from google.genai import errors as genai_errors
from google.genai import types as genai_types

from callstream.testing import (
    Parallel,
    ScriptedProvider,
    Text,
    ToolCall,
)
from tests.testing.asking import QUESTION, client_of

from .answering import answered, content, posted


def called(name: str, signature: bytes | None = None) -> genai_types.Part:
    return genai_types.Part(function_call=genai_types.FunctionCall(name=name, args={}), thought_signature=signature)


USER = content("user", genai_types.Part(text=QUESTION))


async def test_strict_signatures_take_what_was_sent() -> None:
    scripts = [
        [Text("Hm."), Parallel([ToolCall("a", {"x": "1"}), ToolCall("b", {"x": "2"})])],
        [ToolCall("c", {"x": "3"})],
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
    async with ScriptedProvider("gemini", [ToolCall("a", signature="c2ln")], strict_signatures=True) as provider:
        await posted(provider)
        answer = await posted(provider, {"contents": contents})
    assert answer.status_code == status


async def test_a_call_can_be_left_unsigned() -> None:
    async with ScriptedProvider("gemini", [ToolCall("a", {"x": 1}, signature="")], strict_signatures=True) as provider:
        assert "thoughtSignature" not in (await posted(provider)).text
