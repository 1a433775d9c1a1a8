"""``Streamed`` by itself, and the tools that have such a parameter."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
import pytest

from callstream import ArgumentsAborted, Streamed, UsageError, tool


class Item(msgspec.Struct):
    name: str


async def pieces_of(stream: Streamed[Any]) -> list[Any]:
    return [piece async for piece in stream]


async def test_pieces_that_are_there_and_pieces_that_come() -> None:
    stream: Streamed[str] = Streamed()
    stream.put("one")
    reading = asyncio.create_task(pieces_of(stream))
    await asyncio.sleep(0)
    stream.put(" two")
    assert (stream.text, stream.is_complete) == ("one two", False)
    assert "arriving" in repr(stream)
    await asyncio.sleep(0)
    stream.end()
    assert await reading == ["one", " two"]
    assert (stream.text, stream.items, stream.is_complete) == ("one two", ["one", " two"], True)
    assert "complete" in repr(stream)
    stream.abort("truncated")  # too late
    assert await pieces_of(stream) == []


async def test_an_abort_rises_where_the_stream_is_read() -> None:
    stream: Streamed[str] = Streamed()
    stream.put("one")
    reading = asyncio.create_task(pieces_of(stream))
    await asyncio.sleep(0)
    stream.abort("truncated")
    with pytest.raises(ArgumentsAborted, match="truncated") as raised:
        await reading
    assert raised.value.reason == "truncated"
    assert "aborted: truncated" in repr(stream)
    with pytest.raises(ArgumentsAborted):
        next(stream)
    assert stream.text == "one"


def test_a_thread_waits_for_the_next_piece() -> None:
    stream: Streamed[str] = Streamed()
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.extend(stream))
    reader.start()
    for piece in ("one", " two"):
        stream.put(piece)
    stream.end()
    reader.join(5)
    assert seen == ["one", " two"]


def test_streams_for_tests() -> None:
    assert list(Streamed.of("a", "b")) == ["a", "b"]
    assert list(Streamed.of(["a", "b"])) == ["a", "b"]
    assert list(Streamed.of()) == []
    assert Streamed.of("ab").text == "ab"


async def test_streams_for_tests_that_are_aborted() -> None:
    stream = Streamed.of("a", "b", aborted="invalid", detail="it is too long")
    assert [await anext(stream), await anext(stream)] == ["a", "b"]
    with pytest.raises(ArgumentsAborted, match="invalid: it is too long") as raised:
        await anext(stream)
    assert (raised.value.reason, raised.value.detail) == ("invalid", "it is too long")
    assert ArgumentsAborted("truncated").detail is None


async def test_a_loop_is_not_blocked_by_for() -> None:
    """Whether the pieces are there or not, so that a test finds the mistake."""

    @tool
    async def count(content: Streamed[str]) -> int:
        return sum(len(piece) for piece in content)

    @tool
    async def each(content: Streamed[str]) -> AsyncIterator[str]:
        for piece in content:
            yield piece

    @tool
    async def in_a_thread(content: Streamed[str]) -> list[str]:
        return await asyncio.to_thread(lambda: list(content))

    for given in ("ab", Streamed.of("a", "b"), Streamed(), Streamed.of()):
        with pytest.raises(UsageError, match="async for"):
            await count(given)
    with pytest.raises(UsageError, match="async for"):
        await anext(each("ab"))
    with pytest.raises(UsageError, match="async for"):
        next(Streamed())
    assert await in_a_thread(Streamed.of("a", "b")) == ["a", "b"]


# -- tools --


@tool
async def write(title: str, content: Streamed[str], style: str = "plain") -> list[Any]:
    """Writes.

    Args:
        content: The text.
    """
    return [title, style, await pieces_of(content)]


def test_the_model_sees_a_plain_string_declared_last() -> None:
    parameters = write.schema("anthropic")["input_schema"]
    assert list(parameters["properties"]) == ["title", "style", "content"]
    assert parameters["properties"]["content"] == {"type": "string", "description": "The text."}
    assert parameters["required"] == ["title", "content"]
    assert list(inspect.signature(write).parameters) == ["title", "style", "content"]
    assert write.__annotations__["content"] is str


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (("t", "abc"), {}),
        (("t", Streamed.of("abc")), {}),
        (("t",), {"content": "abc"}),
        ((), {"content": Streamed.of("abc"), "title": "t", "style": "plain"}),
        (("t", "abc", "plain"), {}),
    ],
)
async def test_a_tool_can_be_called_by_hand(args: Any, kwargs: Any) -> None:
    assert await write(*args, **kwargs) == ["t", "plain", ["abc"]]


async def test_an_empty_string_is_a_stream_without_pieces() -> None:
    assert await write("t", "") == ["t", "plain", []]  # type: ignore[arg-type]


def test_items_have_their_type() -> None:
    @tool
    def add(items: Streamed[list[Item]]) -> list[Item]:
        return list(items)

    assert add(items=[{"name": "apples"}]) == [Item("apples")]  # type: ignore[arg-type]
    assert add(Streamed.of(Item("pears"))) == [Item("pears")]
    assert add.schema("openai")["function"]["parameters"]["properties"]["items"]["type"] == "array"


def test_a_streamed_parameter_may_be_optional() -> None:
    @tool
    def note(title: str, content: Streamed[str] | None = None) -> str:
        return title if content is None else "".join(content)

    @tool
    def log(content: Streamed[str] = Streamed.of("nothing")) -> str:  # noqa: B008
        return content.text

    assert (note("a"), note("a", None), note("a", "b")) == ("a", "a", "b")  # type: ignore[arg-type]
    assert note.schema("anthropic")["input_schema"]["required"] == ["title"]
    assert (log(), log("something")) == ("nothing", "something")  # type: ignore[arg-type]
    assert log.schema("anthropic")["input_schema"]["properties"]["content"]["default"] == "nothing"


def test_a_bare_streamed_is_text() -> None:
    @tool
    def note(content: Streamed) -> str:  # type: ignore[type-arg]
        return "".join(content)

    assert note(content="abc") == "abc"  # type: ignore[arg-type]


def test_a_streamed_parameter_may_be_described() -> None:
    @tool
    def note(content: Annotated[Streamed[str], "The text."]) -> str:
        return "".join(content)

    declared = note.schema("anthropic")["input_schema"]["properties"]["content"]
    assert declared == {"type": "string", "description": "The text."}
    assert note(content="abc") == "abc"  # type: ignore[arg-type]


async def test_a_reader_that_gave_up_is_not_waited_for() -> None:
    stream: Streamed[str] = Streamed()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(stream)
    assert stream.abort("truncated") is False


def test_a_list_of_anything() -> None:
    @tool
    def note(items: Streamed[list]) -> list[Any]:  # type: ignore[type-arg]
        return list(items)

    assert note(items=[1, "a"]) == [1, "a"]  # type: ignore[arg-type]


def test_keywords_stay_behind_the_streamed_parameter() -> None:
    @tool
    def note(content: Streamed[str], style: str = "plain", **options: Any) -> str:
        return "".join(content)

    assert list(inspect.signature(note).parameters) == ["style", "content", "options"]


def test_what_cannot_be_streamed_is_refused() -> None:
    with pytest.raises(UsageError, match="at most one Streamed parameter"):

        @tool
        def two(one: Streamed[str], other: Streamed[str]) -> None: ...

    with pytest.raises(UsageError, match=r"expected Streamed\[str\] or Streamed\[list"):

        @tool
        def number(count: Streamed[int]) -> None: ...

    with pytest.raises(UsageError, match="needs to have a name"):

        @tool
        def nameless(content: Streamed[str], /) -> None: ...
