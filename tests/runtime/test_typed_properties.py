"""Any annotation, any arguments, any wire and split: the tool gets what msgspec or pydantic makes of the JSON, or nothing."""

from __future__ import annotations

import dataclasses
import json
from datetime import date, datetime
from enum import Enum
from itertools import count
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream import Callstream, tool
from callstream.errors import InvalidArguments
from callstream.testing import Finish, ToolCall, encode

COUNT = count()  # a schema has no two types of one name


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Level(Enum):
    ONE = 1
    TWO = 2


# Values of JSON that fit one or another annotation. Gemini writes 5.0 as 5, so there are no whole floats.
TEXTS = st.sampled_from(
    [
        "",
        "a",
        "small",
        "fast",
        "5",
        "2026-01-31",
        "2026-01-31T10:00:00Z",
        "12345678-1234-5678-1234-567812345678",
        "2026",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers(-2, 12) | st.sampled_from([0.5, -1.5]) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "5"]), inner, max_size=3),
    max_leaves=6,
)


class Kind(NamedTuple):
    """An annotation, and values of JSON of which many fit it."""

    annotation: Any
    values: st.SearchStrategy[Any]


PLAIN = [
    Kind(int, st.integers(-2, 12)),
    Kind(float, st.integers(-2, 12) | st.just(0.5)),
    Kind(bool, st.booleans()),
    Kind(str, TEXTS),
    Kind(date, st.just("2026-01-31")),
    Kind(datetime, st.just("2026-01-31T10:00:00Z")),
    Kind(UUID, st.just("12345678-1234-5678-1234-567812345678")),
    Kind(Size, st.sampled_from(["small", "large"])),
    Kind(Level, st.sampled_from([1, 2])),
    Kind(Literal["fast", "slow"], st.sampled_from(["fast", "slow"])),
]
METAS = [
    Kind(Annotated[int, msgspec.Meta(ge=0, lt=10, multiple_of=2)], st.integers(-2, 12)),
    Kind(Annotated[str, msgspec.Meta(min_length=1, max_length=5, pattern="a|s")], TEXTS),
    Kind(Annotated[list[int], msgspec.Meta(max_length=2)], st.lists(st.integers(0, 3), max_size=3)),
]
FIELDS = [
    Kind(Annotated[int, pydantic.Field(ge=0, lt=10, multiple_of=2)], st.integers(-2, 12)),
    Kind(Annotated[str, pydantic.Field(min_length=1, max_length=5, pattern="a|s")], TEXTS),
    Kind(Annotated[list[int], pydantic.Field(max_length=2)], st.lists(st.integers(0, 3), max_size=3)),
]


def members(x: Kind, y: Kind) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"x": x.values}, optional={"y": y.values})


def as_dataclass(x: Kind, y: Kind) -> Kind:
    fields = [("x", x.annotation), ("y", y.annotation | None, None)]
    return Kind(
        dataclasses.make_dataclass(f"Data{next(COUNT)}", fields, namespace={"__module__": __name__}), members(x, y)
    )


def as_struct(x: Kind, y: Kind) -> Kind:
    fields = [("x", x.annotation), ("y", y.annotation | None, None)]
    return Kind(msgspec.defstruct(f"Record{next(COUNT)}", fields, module=__name__), members(x, y))


def as_typed_dict(x: Kind, y: Kind) -> Kind:
    return Kind(TypedDict(f"Typed{next(COUNT)}", {"x": x.annotation}), members(x, y))  # type: ignore[operator]


def as_model(x: Kind, y: Kind) -> Kind:
    config = pydantic.ConfigDict(strict=True)
    fields: Any = {"x": (x.annotation, ...), "y": (y.annotation | None, None)}
    return Kind(pydantic.create_model(f"Model{next(COUNT)}", __config__=config, **fields), members(x, y))


def kinds(leaves: list[Kind], *makes: Any) -> st.SearchStrategy[Kind]:
    def contain(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
        return st.one_of(
            inner.map(lambda kind: Kind(list[kind.annotation], st.lists(kind.values, max_size=2))),  # type: ignore[name-defined]
            inner.map(lambda kind: Kind(dict[str, kind.annotation], st.dictionaries(TEXTS, kind.values, max_size=2))),  # type: ignore[name-defined]
            inner.map(lambda kind: Kind(kind.annotation | None, kind.values | st.none())),
            *(st.builds(make, inner, inner) for make in makes),
        )

    return st.recursive(st.sampled_from(leaves), contain, max_leaves=4)


OF_MSGSPEC = kinds([*PLAIN, *METAS], as_dataclass, as_struct, as_typed_dict)
OF_PYDANTIC = kinds([*FIELDS, *PLAIN], as_model).map(
    # something of pydantic's has to occur in it
    lambda kind: Kind(Annotated[kind.annotation, pydantic.Field(description="it")], kind.values)
)


def by_msgspec(annotation: Any, text: str) -> Any:
    return msgspec.json.decode(text, type=annotation)


def by_pydantic(annotation: Any, text: str) -> Any:
    class Whole(pydantic.RootModel[annotation]):  # type: ignore[valid-type]
        model_config = pydantic.ConfigDict(strict=True)

    return Whole.model_validate_json(text).root


@pytest.mark.parametrize(("found", "convert"), [(OF_MSGSPEC, by_msgspec), (OF_PYDANTIC, by_pydantic)])
@given(data=st.data())
async def test_the_tool_gets_what_the_library_makes_of_it(
    found: st.SearchStrategy[Kind], convert: Any, data: Any
) -> None:
    kind = data.draw(found)
    value = data.draw(kind.values | VALUES)
    try:
        expected = [convert(kind.annotation, json.dumps(value))]
    except (msgspec.ValidationError, pydantic.ValidationError):
        expected = []
    ran: list[Any] = []

    def act(it: Any) -> str:
        ran.append(it)
        return "done"

    act.__annotations__ = {"it": kind.annotation}
    made = tool(check=data.draw(st.sampled_from(["end", "stream"])))(act)
    try:
        made(it=value)
    except InvalidArguments as invalid:
        assert all(fault.path[0] == "it" for fault in invalid.faults)
    assert ran == expected
    assert [type(each) for each in ran] == [type(each) for each in expected]
    ran.clear()

    wire = data.draw(st.sampled_from(["anthropic", "openai_chat", "openai_responses", "gemini"]))
    # In pieces, Gemini's wire has no value for an empty container: which it is the schema says.
    body = b"".join(encode(wire, [ToolCall("act", {"it": value}, streamed=wire != "gemini"), Finish()]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=4)))
    async with Callstream(tools=[made]) as cs, cs.run("t") as run:
        async with run.response(wire) as response:
            for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
                await response.feed(body[start:end])
        await run.run_tools()
        [call] = run.calls
        assert call.reason == (None if expected else "invalid"), call.detail
    assert ran == expected
