from __future__ import annotations

import asyncio
import copy
import dataclasses
import enum
import functools
import inspect
import json
import threading
import typing
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pytest

from callstream import Callstream
from callstream.errors import UsageError
from callstream.tools import AbortSignal, Hooks, Progress, is_tool, no_progress, tool
from callstream.tools.progress import current_progress

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Place(TypedDict, total=False):
    street: typing.Required[str]
    number: int


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Item(msgspec.Struct):
    """One line of an order."""

    title: str
    price: float | None = None


class Node(msgspec.Struct):
    text: str
    children: list[Node] = []


async def write_document(title: str, content: str, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes a document.

    It is kept.

    Args:
        title: What it is called,
            in a few words.
        content (str): The text.
        progress: Where to report.

    Returns:
        Its id.
    """
    await progress(1, 2, "half")
    return {"title": title, "content": content}


# -- the function that is left -----------------------------------------------------------------------------------------


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
    assert made.__module__ == __name__


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


# -- hooks -------------------------------------------------------------------------------------------------------------


def test_hooks_are_registered_in_order_and_given_back() -> None:
    made = tool(write_document)

    def first(delta: Any, signal: AbortSignal) -> None: ...
    async def second(delta: Any, signal: AbortSignal) -> None: ...
    async def field(delta: Any, signal: AbortSignal) -> None: ...
    def ready(call: Any, signal: AbortSignal) -> None: ...
    def undo(call: Any, reason: str) -> None: ...

    assert made.on_args_delta(first) is first
    assert made.on_args_delta(second) is second
    assert made.on_field("content")(field) is field
    assert made.hooks.on_field("$.items[0]['my key']")(field) is field
    assert made.on_args_complete(ready) is ready
    assert made.on_args_abort(undo) is undo
    hooks = made.hooks
    assert [(hook.function, hook.is_async) for hook in hooks.args_delta] == [(first, False), (second, True)]
    assert [hook.path for hook in hooks.field] == [("content",), ("items", 0, "my key")]
    assert [hook.function for hook in (*hooks.args_complete, *hooks.args_abort)] == [ready, undo]


def test_hooks_of_two_collections_join() -> None:
    one, two = Hooks(), Hooks()
    assert not one
    one.on_args_delta(lambda delta, signal: None)
    two.on_args_delta(lambda delta, signal: None)
    two.on_args_abort(lambda call, reason: None)
    both = one | two
    assert both.args_delta == one.args_delta + two.args_delta
    assert both.args_abort == two.args_abort
    assert all((one, two, both))


def test_hooks_refuse_what_cannot_be_one() -> None:
    hooks = Hooks()
    wrong: Any
    for wrong in (lambda delta: None, lambda: None, lambda a, b, c: None):
        with pytest.raises(UsageError, match=r"takes \(delta, signal\)"):
            hooks.on_args_delta(wrong)
    with pytest.raises(UsageError, match=r"takes \(call, reason\), got 3"):
        hooks.on_args_abort(3)  # type: ignore[type-var]

    def steps(call: Any, signal: AbortSignal) -> Iterator[int]:
        yield 1

    async def stream(call: Any, signal: AbortSignal) -> AsyncIterator[int]:
        yield 1

    for wrong in (steps, stream):
        with pytest.raises(UsageError, match="must not yield"):
            hooks.on_args_complete(wrong)
    for path in ("", "$.", "$.items[*]"):
        with pytest.raises(UsageError, match="name of a field or a JSON path"):
            hooks.on_field(path)
    assert not hooks


def test_field_hook_without_a_field_is_told_what_is_missing() -> None:
    @tool
    def write(content: str) -> None: ...

    async def grow(field: Any, signal: AbortSignal) -> None: ...

    with pytest.raises(UsageError, match=r'on_field takes the name of a field, as in @tool\.on_field\("content"\)'):
        write.on_field(grow)  # type: ignore[arg-type]


def test_hooks_take_callable_objects_and_functions_without_a_signature() -> None:
    class Listener:
        async def __call__(self, delta: Any, signal: AbortSignal) -> None: ...

    hooks = Hooks()
    hooks.on_args_delta(Listener())
    hooks.on_args_delta(max)
    assert [hook.is_async for hook in hooks.args_delta] == [True, False]
    assert hooks.args_delta[1].name == "max"


# -- progress and the signal -------------------------------------------------------------------------------------------


async def test_progress_reports_when_called_awaited_or_not() -> None:
    reports: list[Any] = []
    progress = Progress(reports.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        progress(1)
        await progress(2, 10)
        await progress(done=3, total=10, message="three")
        progress({"any": ["JSON"]})
        progress("text")
        progress(message="only a word")
        progress(True)
        assert no_progress(4) is not None
        await no_progress(5)
    assert reports == [
        {"done": 1, "total": None, "message": None},
        {"done": 2, "total": 10, "message": None},
        {"done": 3, "total": 10, "message": "three"},
        {"any": ["JSON"]},
        "text",
        {"done": None, "total": None, "message": "only a word"},
        True,
    ]
    assert repr(no_progress) == "no_progress"


async def test_progress_awaited_lets_others_run() -> None:
    order: list[str] = []

    async def other() -> None:
        order.append("other")

    task = asyncio.create_task(other())
    await no_progress(1)
    order.append("tool")
    await task
    assert order == ["other", "tool"]


async def test_signal_is_set_once_and_wakes_who_waits() -> None:
    signal = AbortSignal()
    assert (signal.aborted, signal.reason) == (False, None)
    waiting = [asyncio.create_task(signal.wait()) for _ in range(2)]
    gone = asyncio.create_task(signal.wait())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    assert len(signal._waiting) == 2
    assert signal.abort("stopped")
    assert not signal.abort("again")
    assert await asyncio.gather(*waiting) == ["stopped", "stopped"]
    assert await signal.wait() == "stopped"
    assert (signal.aborted, signal.reason) == (True, "stopped")
    assert repr(signal) == "AbortSignal(reason='stopped')"


def test_signal_crosses_threads_and_loops() -> None:
    signal = AbortSignal()
    ready = threading.Barrier(3)
    heard: list[str] = []

    def listen() -> None:
        async def main() -> None:
            waiting = asyncio.create_task(signal.wait())
            await asyncio.sleep(0)
            await asyncio.to_thread(ready.wait, 10)
            heard.append(await asyncio.wait_for(waiting, 10))

        asyncio.run(main())

    threads = [threading.Thread(target=listen) for _ in range(2)]
    for thread in threads:
        thread.start()
    ready.wait(10)
    signal.abort("everywhere")
    for thread in threads:
        thread.join(10)
    assert heard == ["everywhere", "everywhere"]


def test_signal_ignores_a_loop_that_is_closed() -> None:
    signal = AbortSignal()
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(signal.wait())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert signal.abort("late")
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]  # it is left pending on purpose


# -- declarations ------------------------------------------------------------------------------------------------------


@tool
def order(
    text: str,
    count: int,
    place: Place,
    points: list[Point],
    colour: Colour,
    kind: Literal["a", "b"] = "a",
    limit: Optional[int] = None,  # noqa: UP045  # both spellings are tried
    ratio: float | None = 0.5,
    items: tuple[Item, ...] = (),
    tags: dict[str, int] | None = None,
    size: Size = Size.LARGE,
    number: Annotated[int, "An even number."] = 2,
    whatever: Any = None,
    progress: Progress = no_progress,
) -> None:
    """Orders things.

    Args:
        text: What for.
        number: Not this text.
    """


ORDER_PROPERTIES = {
    "text": {"type": "string", "description": "What for."},
    "count": {"type": "integer"},
    "place": {"$ref": "#/$defs/Place"},
    "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
    "colour": {"$ref": "#/$defs/Colour"},
    "kind": {"enum": ["a", "b"], "default": "a"},
    "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "ratio": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": 0.5},
    "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}, "default": []},
    "tags": {"anyOf": [{"type": "object", "additionalProperties": {"type": "integer"}}, {"type": "null"}]},
    "size": {"$ref": "#/$defs/Size", "default": 2},
    "number": {"type": "integer", "description": "An even number.", "default": 2},
    "whatever": {},
}


def test_schema_for_anthropic_and_openai() -> None:
    declared = order.schema("anthropic")
    assert (declared["name"], declared["description"]) == ("order", "Orders things.")
    schema = declared["input_schema"]
    assert schema["properties"] == ORDER_PROPERTIES
    assert schema["required"] == ["text", "count", "place", "points", "colour"]
    assert set(schema["$defs"]) == {"Place", "Point", "Colour", "Item", "Size"}
    assert schema["$defs"]["Place"]["required"] == ["street"]
    assert schema["$defs"]["Point"]["properties"]["y"] == {"type": "number", "default": 0.0}
    assert schema["$defs"]["Item"]["description"] == "One line of an order."
    chat, responses = order.schema("openai"), order.schema("openai_responses")
    assert chat == {
        "type": "function",
        "function": {"name": "order", "description": "Orders things.", "parameters": schema},
    }
    assert responses == {"type": "function", **chat["function"], "strict": False}
    json.dumps([declared, chat, responses])


def test_schema_for_gemini_is_written_out() -> None:
    declared = order.schema("gemini")
    properties = declared["parameters"]["properties"]
    assert "$ref" not in json.dumps(declared)
    assert "$defs" not in json.dumps(declared)
    assert "default" not in json.dumps(declared)
    assert "additionalProperties" not in json.dumps(declared)
    assert properties["place"]["properties"] == {"street": {"type": "string"}, "number": {"type": "integer"}}
    assert properties["points"]["items"]["required"] == ["x"]
    assert properties["colour"] == {"title": "Colour", "type": "string", "enum": ["blue", "red"]}
    assert properties["kind"] == {"type": "string", "enum": ["a", "b"]}
    assert properties["limit"] == {"type": "integer", "nullable": True}
    assert properties["tags"] == {"type": "object", "nullable": True}
    assert properties["size"] == {"title": "Size", "type": "integer", "description": "One of: 1, 2."}
    assert properties["items"]["items"]["properties"]["price"] == {"type": "number", "nullable": True}


def test_schema_for_gemini_of_odd_shapes() -> None:
    @tool
    def odd(
        pair: tuple[int, str],
        same: tuple[int, int],
        either: int | str | None,
        choice: Literal["a", None],
        mixed: Annotated[Literal[1, "b"], "Pick."],
        positive: Annotated[int, msgspec.Meta(ge=1, multiple_of=2)],
        unique: set[str],
    ) -> None: ...

    properties = odd.schema("gemini")["parameters"]["properties"]
    assert properties["pair"]["items"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert (properties["pair"]["minItems"], properties["pair"]["maxItems"]) == (2, 2)
    assert properties["same"]["items"] == {"type": "integer"}
    assert properties["either"] == {"anyOf": [{"type": "integer"}, {"type": "string"}], "nullable": True}
    assert properties["choice"] == {"type": "string", "enum": ["a"], "nullable": True}
    assert properties["mixed"]["description"].startswith("Pick. One of: ")
    assert properties["positive"] == {"type": "integer", "minimum": 1}
    assert properties["unique"] == {"type": "array", "items": {"type": "string"}}


def test_schema_of_a_tool_without_parameters() -> None:
    @tool
    def ping() -> None:
        """Answers."""

    assert ping.schema("gemini") == {"name": "ping", "description": "Answers."}
    assert ping.schema("anthropic")["input_schema"] == {"type": "object", "properties": {}}


def test_schema_of_a_method_leaves_out_what_it_is_bound_to() -> None:
    class Shop:
        @tool
        def buy(self, title: str) -> str:
            """Buys."""
            return title

        @classmethod
        @tool
        def open(cls, place: Colour) -> None: ...

    assert Shop().buy.schema("anthropic")["input_schema"] == {
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
    }
    assert list(Shop.open.schema("openai")["function"]["parameters"]["properties"]) == ["place"]


def test_schema_of_a_partial_is_that_of_its_function() -> None:
    def paint(colour: Colour, title: str) -> str:
        """Paints."""
        return title

    painted = tool(functools.partial(functools.partial(paint), title="door"))
    assert painted.schema("gemini") == {
        "name": "paint",
        "description": "Paints.",
        "parameters": {
            "type": "object",
            "properties": {
                "colour": {"title": "Colour", "type": "string", "enum": ["blue", "red"]},
                "title": {"type": "string"},
            },
            "required": ["colour"],
        },
    }


def test_schema_of_callable_objects_and_classes_resolves_their_annotations() -> None:
    class Painter:
        def __init__(self, colour: Colour) -> None: ...

        def __call__(self, place: Place) -> None: ...

    made: tuple[Any, ...] = (tool(Painter(Colour.RED)), tool(Painter))
    assert [list(one.schema("openai")["function"]["parameters"]["properties"]) for one in made] == [
        ["place"],
        ["colour"],
    ]


def test_schema_of_recursive_types() -> None:
    @tool
    def plant(tree: Node) -> None: ...

    schema = plant.schema("anthropic")["input_schema"]
    assert schema["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    with pytest.raises(UsageError, match="'Node' contains itself"):
        plant.schema("gemini")


def test_schema_refuses_what_it_cannot_describe() -> None:
    @tool
    def open_ended(*names: str) -> None: ...

    @tool
    def strange(signal: AbortSignal) -> None: ...

    with pytest.raises(UsageError, match=r"takes \*names: 'str'|takes \*names: str"):
        open_ended.schema("openai")
    with pytest.raises(UsageError, match="parameter 'signal' of tool 'strange': no JSON Schema"):
        strange.schema("openai")
    with pytest.raises(UsageError, match="expected one of the providers anthropic, openai, openai_chat"):
        order.schema("cohere")  # type: ignore[arg-type]


def test_schema_tells_two_types_of_one_name_apart() -> None:
    def a_class(field: str) -> Any:
        return msgspec.defstruct("Thing", [(field, int)])

    one, two = a_class("x"), a_class("y")

    def both(a: Any, b: Any) -> None: ...

    both.__annotations__ = {"a": one, "b": two}
    with pytest.raises(UsageError, match="two different types are named 'Thing'"):
        tool(both).schema("openai")


# -- other people's frameworks -----------------------------------------------------------------------------------------


def test_schema_of_pydantic_models() -> None:
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", number=(int, ...))
    model = pydantic.create_model("Outer", inner=(inner, ...), inners=(list[inner], []))

    def take(one: Any, many: Any = None) -> None: ...

    take.__annotations__ = {"one": model, "many": list[model] | None}
    declared = tool(take).schema("anthropic")["input_schema"]
    assert declared["properties"]["one"]["properties"]["inner"] == {"$ref": "#/$defs/Inner"}
    assert declared["$defs"]["Inner"]["required"] == ["number"]
    flat = tool(take).schema("gemini")["parameters"]["properties"]
    assert flat["one"]["properties"]["inner"]["properties"]["number"]["type"] == "integer"
    assert flat["many"]["items"]["properties"]["inners"]["items"]["title"] == "Inner"


def test_schema_of_a_class_that_describes_itself() -> None:
    class Odd:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return {
                "allOf": [{"$ref": "#/$defs/Part"}],
                "type": "object",
                "properties": {
                    "maybe": {"type": ["string", "null"]},
                    "either": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
                    "when": {"type": "string", "format": "date-time"},
                    "where": {"type": "string", "format": "uri"},
                    "fixed": {"const": "yes"},
                    "any": {"type": "array", "items": True},
                },
                "additionalProperties": False,
                "$defs": {"Part": {"description": "A part."}},
            }

    instance = Odd()

    def take(odd: Any = instance) -> None: ...

    take.__annotations__ = {"odd": Odd}
    made = tool(take)
    assert made.schema("anthropic")["input_schema"]["properties"]["odd"] == {
        key: value for key, value in Odd.model_json_schema().items() if key != "$defs"
    }  # A default that is not JSON is left out.
    assert made.schema("gemini")["parameters"]["properties"]["odd"] == {
        "description": "A part.",
        "type": "object",
        "properties": {
            "maybe": {"type": "string", "nullable": True},
            "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "when": {"type": "string", "format": "date-time"},
            "where": {"type": "string"},
            "fixed": {"type": "string", "enum": ["yes"]},
            "any": {"type": "array"},
        },
    }


def test_docstring_with_sections_in_any_order() -> None:
    @tool
    def speak(text: str, loud: bool, progress_callback: Any = None, **more: str) -> None:
        """Speaks.

        Returns:
            Nothing.

        Args:
            text: What
                to say.

            loud (bool): How: with a colon.
            progress_callback: Hidden,
                with a second line.

        It ends here: no parameter.
        """

    assert "Hidden" not in (speak.__doc__ or "")
    assert "second line" not in (speak.__doc__ or "")
    assert (speak.__doc__ or "").endswith("It ends here: no parameter.")

    @tool
    def quiet(text: str, loud: bool) -> None: ...

    quiet.__doc__ = speak.__doc__
    described = tool(quiet).schema("openai")["function"]
    assert described["description"] == "Speaks."
    assert described["parameters"]["properties"] == {
        "text": {"type": "string", "description": "What to say."},
        "loud": {"type": "boolean", "description": "How: with a colon."},
    }


@pytest.mark.filterwarnings("default")
def test_declaration_of_google_adk() -> None:
    function_tool = pytest.importorskip("google.adk.tools.function_tool")
    tools = pytest.importorskip("google.adk.tools")

    @tool
    async def write(title: str, content: str, progress: Progress = no_progress) -> dict[str, Any]:
        """Writes a document."""
        return {}

    async def in_context(title: str, tool_context: Any, progress: Progress = no_progress) -> dict[str, Any]:
        return {"context": tool_context}

    in_context.__annotations__["tool_context"] = tools.ToolContext

    @tool
    async def stream(title: str, progress: Progress = no_progress) -> AsyncIterator[int]:
        yield 1

    def declared(made: Any) -> dict[str, Any]:
        found = function_tool.FunctionTool(made)._get_declaration().model_dump(exclude_none=True)
        return typing.cast(dict[str, Any], found)

    def names(made: Any) -> list[str]:
        found = declared(made)
        schema = found.get("parameters") or found["parameters_json_schema"]
        return list(schema["properties"])

    assert declared(write)["name"] == "write"
    assert declared(write)["description"] == "Writes a document."
    assert names(write) == ["title", "content"]
    assert names(tool(in_context)) == ["title"]
    assert names(stream) == ["title"]
    assert function_tool.FunctionTool(stream)._spec.is_generator
    assert function_tool.FunctionTool(tool(in_context))._context_param_name == "tool_context"


@pytest.mark.filterwarnings("default")
async def test_call_by_google_adk() -> None:
    function_tool = pytest.importorskip("google.adk.tools.function_tool")
    invoked = function_tool.FunctionTool(tool(write_document))
    assert await invoked._invoke_callable(tool(write_document), {"title": "a", "content": "b"}) == {
        "title": "a",
        "content": "b",
    }


def test_declaration_for_google_genai() -> None:
    types = pytest.importorskip("google.genai.types")
    for made in (order, tool(write_document)):
        types.FunctionDeclaration.model_validate(made.schema("gemini"))
    with pytest.raises(ValueError, match="extra"):
        types.Schema.model_validate({"type": "object", "$defs": {}})


@pytest.mark.filterwarnings("default")
async def test_declaration_of_langchain() -> None:
    tools = pytest.importorskip("langchain_core.tools")
    made = tools.StructuredTool.from_function(coroutine=tool(write_document), parse_docstring=True)
    schema = made.args_schema.model_json_schema()
    assert list(schema["properties"]) == ["title", "content"]
    assert schema["properties"]["content"]["description"] == "The text."
    assert await made.ainvoke({"title": "a", "content": "b"}) == {"title": "a", "content": "b"}


async def test_declaration_by_pydantics_validated_calls() -> None:
    """The way of Pydantic AI and the OpenAI Agents SDK: type hints, signature and kind of the function."""
    pydantic = pytest.importorskip("pydantic")
    made = tool(write_document)
    hints = typing.get_type_hints(made, include_extras=True)
    fields = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(made).parameters.items()
    }
    schema = pydantic.create_model(made.__name__, **fields).model_json_schema()
    assert list(schema["properties"]) == ["title", "content"]
    assert inspect.iscoroutinefunction(made)
    checked = pydantic.validate_call(made)
    assert await checked(title="a", content="b") == {"title": "a", "content": "b"}
    with pytest.raises(pydantic.ValidationError):
        await checked(title="a", content=3)


class Part(TypedDict):
    title: str
    children: list[Part]


@tool
def draw(
    parts: list[Part], colours: dict[str, str], anything: Any, pair: tuple[int, str], note: str | None = None
) -> None: ...


FIELDS = [
    "$",
    "parts",
    "$.parts[0].title",
    "$.parts[0].children[3].title",
    "$.colours.sky",
    "$.anything.x[0]",
    "$.pair[1]",
    "note",
]


@pytest.mark.parametrize("path", FIELDS)
def test_on_field_takes_what_the_arguments_may_have(path: str) -> None:
    draw.on_field(path)(lambda field, signal: None)
    cs = Callstream(tools=[draw])
    cs.on_field("draw", path, lambda field, signal: None)


@pytest.mark.parametrize(
    "path", ["part", "$.parts.title", "$.parts[0].titel", "$.colours.sky.x", "$.pair.x", "$.note.x", "progress"]
)
def test_on_field_refuses_what_the_arguments_cannot_have(path: str) -> None:
    expected = r"tool 'draw' has no argument at '.+'; its arguments: parts, colours, anything, pair, note"
    with pytest.raises(UsageError, match=expected):
        draw.on_field(path)
    with pytest.raises(UsageError, match=expected):
        Callstream(tools=[draw]).on_field("draw", path, lambda field, signal: None)
    cs = Callstream()
    cs.on_field("draw", path, lambda field, signal: None)
    with pytest.raises(UsageError, match=expected):
        cs.add_tool(draw)


def test_on_field_takes_anything_where_no_schema_can_be_made() -> None:
    @tool
    def free(**kwargs: Any) -> None: ...

    free.on_field("whatever")(lambda field, signal: None)


def test_the_wire_of_chat_completions_is_a_name_for_its_schema() -> None:
    assert draw.schema("openai_chat") == draw.schema("openai")
