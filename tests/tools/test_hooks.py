"""Hooks that are registered with a tool, and the fields that they name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from callstream import Callstream
from callstream.errors import UsageError
from callstream.tools import AbortSignal, Hooks, tool

from .samples import draw, write_document


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
