"""The function that `@tool` leaves: its signature, its kinds, what it refuses."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from callstream.errors import UsageError
from callstream.tools import Progress, is_tool, no_progress, tool
from callstream.tools.parameters import current_progress

from .samples import write_document

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


async def test_tool_is_called_like_its_function() -> None:
    made = tool(write_document)
    assert await made("a", content="b") == {"title": "a", "content": "b"}
    reports: list[Any] = []
    await made("a", "b", Progress(reports.append))
    await made("a", "b", progress=Progress(reports.append))
    assert reports == [{"done": 1, "total": 2, "message": "half"}] * 2


def test_tool_leaves_the_function_alone() -> None:
    before = (inspect.signature(write_document), dict(write_document.__annotations__), dict(write_document.__dict__))
    made = tool(name="other")(write_document)
    made.on_args_complete(lambda call, signal: None)
    assert (inspect.signature(write_document), write_document.__annotations__, write_document.__dict__) == before
    assert made.__name__ == "other"
    assert made.__wrapped__ is write_document  # type: ignore[attr-defined]
    assert made.__module__ == write_document.__module__


def test_tool_hides_progress_from_signature_annotations_and_docstring() -> None:
    made = tool(write_document)
    assert list(inspect.signature(made).parameters) == ["title", "content"]
    assert made.__annotations__ == {"title": str, "content": str, "return": dict[str, Any]}
    assert typing.get_type_hints(made) == made.__annotations__
    assert inspect.getdoc(made) == (
        "Writes a document.\n\nIt is kept.\n\nArgs:\n    title: What it is called,\n        in a few words.\n"
        "    content (str): The text.\n\nReturns:\n    Its id."
    )
    assert made.progress_parameter == "progress"


def test_tool_hides_a_section_that_told_of_progress_only() -> None:
    @tool
    def counted(progress: Progress) -> None:
        """Counts.

        Args:
            progress: Where to report.
        """

    assert counted.__doc__ == "Counts."


@pytest.mark.parametrize(
    "function",
    [
        lambda a, progress_callback=None: None,
        lambda a, progress=no_progress: None,
        lambda a, progress=None: None,
        lambda a, progress: None,
        lambda a, *, progress=None: None,
    ],
)
def test_tool_hides_progress_by_name_or_default(function: Any) -> None:
    assert list(inspect.signature(tool(function)).parameters) == ["a"]


def test_tool_hides_optional_progress_and_keeps_its_default() -> None:
    @tool
    def counted(a: int, report: Progress | None = None, other: Annotated[int, "more"] = 3) -> Any:
        return report

    assert list(inspect.signature(counted).parameters) == ["a", "other"]
    assert counted(1) is None
    assert counted(1, 2) is None  # The second positional argument of the visible signature is `other`.


def test_tool_hides_a_progress_that_is_a_callable() -> None:
    @tool
    def counted(a: int, progress: Callable[..., Any] | None = None) -> Any:
        return progress

    assert list(inspect.signature(counted).parameters) == ["a"]
    assert counted(1) is None
    mine = Progress(lambda data: None)
    token = current_progress.set(mine)
    try:
        assert counted(1) is mine
    finally:
        current_progress.reset(token)


def _bars() -> list[Callable[..., Any]]:
    def whole(progress: int) -> None: ...
    def optional(progress: float | None = None) -> None: ...
    def anything(progress: Any = None) -> None: ...
    def unfinished(progress=0.5) -> None: ...  # type: ignore[no-untyped-def]
    def nameless(progress=None, /) -> None: ...  # type: ignore[no-untyped-def]
    def beside(progress=None, report: Progress = no_progress) -> None: ...  # type: ignore[no-untyped-def]

    return [whole, optional, anything, unfinished, nameless, beside]


@pytest.mark.parametrize("function", _bars(), ids=lambda function: function.__name__)
def test_tool_keeps_an_argument_named_progress(function: Callable[..., Any]) -> None:
    made = tool(function)
    assert list(inspect.signature(made).parameters) == ["progress"]
    assert made.progress_parameter in (None, "report")


def test_tool_fills_progress_in_where_the_caller_sees_no_such_parameter() -> None:
    @tool
    def middle(a: int, progress: Progress, b: int) -> tuple[int, Progress, int]:
        return a, progress, b

    call: Any = middle
    assert call(1, 2) == (1, no_progress, 2)
    assert call(a=1, b=2) == (1, no_progress, 2)
    mine = Progress(lambda data: None)
    assert call(1, mine, 2) == (1, mine, 2)
    token = current_progress.set(mine)
    try:
        assert call(1, 2) == (1, mine, 2)
        assert call(1, b=2) == (1, mine, 2)
        assert call(1, b=2, progress=no_progress) == (1, no_progress, 2)
    finally:
        current_progress.reset(token)


def test_tool_fills_progress_after_positional_only_parameters() -> None:
    @tool
    def shifted(a: int, /, progress: Progress, b: int) -> tuple[int, Progress, int]:
        return a, progress, b

    call: Any = shifted
    assert call(1, 2) == (1, no_progress, 2)


def test_tool_refuses_two_progress_parameters_and_a_nameless_one() -> None:
    def two(progress: Progress, progress_callback: Any) -> None: ...
    def nameless(progress: Progress, /) -> None: ...

    with pytest.raises(UsageError, match="at most one parameter for progress"):
        tool(two)
    with pytest.raises(UsageError, match="needs to have a name"):
        tool(nameless)


def test_tool_resolves_annotations_one_by_one() -> None:
    @tool
    def half(a: int, b: Unknown, progress: Progress) -> None: ...

    parameters = inspect.signature(half).parameters
    assert [p.annotation for p in parameters.values()] == [int, "Unknown"]
    with pytest.raises(UsageError, match="parameter 'b' of tool 'half': its annotation 'Unknown' names nothing"):
        half.schema("anthropic")


def test_tool_is_of_its_functions_kind() -> None:
    async def coroutine() -> None: ...
    def plain() -> None: ...
    def steps() -> Iterator[int]:
        yield 1

    async def stream() -> AsyncIterator[int]:
        yield 1

    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    for function in (coroutine, plain, steps, stream):
        made: Any = tool(function)
        assert inspect.isfunction(made)
        assert [kind(made) for kind in kinds] == [kind(function) for kind in kinds]
        assert asyncio.iscoroutinefunction(made) == asyncio.iscoroutinefunction(function)


async def test_tool_runs_sync_generator_and_async_generator_functions() -> None:
    reports: list[Any] = []
    closed: list[str] = []

    @tool
    def plain(a: int, progress: Progress = no_progress) -> int:
        progress(a)
        return a

    @tool
    def steps(a: int, progress: Progress = no_progress) -> Iterator[int]:
        progress({"at": a})
        yield a
        yield a + 1

    @tool
    async def stream(a: int, progress: Progress = no_progress) -> AsyncIterator[int]:
        try:
            await progress("going")
            yield a
            yield a + 1
        finally:
            closed.append("stream")

    progress = Progress(reports.append)
    assert plain(1, progress) == 1
    assert list(steps(1, progress=progress)) == [1, 2]
    assert [item async for item in stream(1, progress=progress)] == [1, 2]
    first = stream(5)
    assert await anext(first) == 5
    await first.aclose()  # type: ignore[attr-defined]
    assert closed == ["stream", "stream"]
    assert reports == [{"done": 1, "total": None, "message": None}, {"at": 1}, "going"]


async def test_tool_of_a_bound_method_a_callable_object_and_a_partial() -> None:
    class Shop:
        """A shop."""

        async def sell(self, title: str, progress: Progress = no_progress) -> str:
            return f"{self!r} {title}"

        @tool
        async def buy(self, title: str, progress: Progress = no_progress) -> str:
            return f"{self!r} {title}"

        async def __call__(self, title: str) -> str:
            return title

        def __repr__(self) -> str:
            return "shop"

    shop = Shop()
    sell = tool(shop.sell)
    assert list(inspect.signature(sell).parameters) == ["title"]
    assert await sell("x") == "shop x"
    assert list(inspect.signature(shop.buy).parameters) == ["title"]
    assert await shop.buy("x") == "shop x"  # type: ignore[arg-type, call-arg]
    called = tool(shop)
    assert inspect.iscoroutinefunction(called)
    assert (called.__name__, called.__doc__) == ("Shop", "A shop.")
    assert await called("y") == "y"
    partial = tool(functools.partial(shop.sell, title="z"))
    assert await partial() == "shop z"


def test_tool_with_arguments() -> None:
    @tool(name="say", description="Says it.", hook_timeout=2.5, on_hook_error="isolate")
    def speak(text: str) -> str:
        """Speaks.

        Args:
            text: What.
        """
        return text

    assert (speak.__name__, speak.__doc__, speak.hook_timeout, speak.on_hook_error) == (
        "say",
        "Says it.",
        2.5,
        "isolate",
    )
    assert speak.schema("anthropic") == {
        "name": "say",
        "description": "Says it.",
        "input_schema": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "What."}},
            "required": ["text"],
        },
    }


def test_tool_refuses_what_it_cannot_use() -> None:
    with pytest.raises(UsageError, match="expected a function"):
        tool(3)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="whose parameters can be read"):
        tool(max)
    with pytest.raises(UsageError, match="hook_timeout"):
        tool(hook_timeout=0)
    with pytest.raises(UsageError, match="on_hook_error"):
        tool(on_hook_error="retry")  # type: ignore[call-overload]


def test_tool_is_known_as_one_and_copies_as_itself() -> None:
    made = tool(write_document)
    assert is_tool(made)
    assert not is_tool(write_document)
    assert copy.deepcopy(made) is made


def test_a_name_that_no_provider_accepts_is_refused() -> None:
    with pytest.raises(UsageError, match="without white space, got 'two words'"):
        tool(name="two words")(lambda text: text)
