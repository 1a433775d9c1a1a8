"""google-adk calls tools with values of their annotated types, whichever library the types are of, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pytest
from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from pydantic import BaseModel, Field

from callstream import Callstream, tool
from callstream.testing import ScriptedProvider, Text, ToolCall

from .hosting import PATHS, Host, Models, agent_of

RAN: list[Any] = []


class Prefixed(BaseToolset):
    async def get_tools(self, readonly_context: Any = None) -> list[Any]:
        return [FunctionTool(judge)]

    async def close(self) -> None:
        pass


class Size(Enum):
    SMALL = "small"


class Point(msgspec.Struct):
    x: int


class Options(TypedDict):
    deep: bool


@dataclass
class Person:
    born: date


class Order(BaseModel):
    count: int


class Basket(msgspec.Struct):
    order: Order


@tool
async def act(
    day: date,
    key: UUID,
    size: Size,
    mode: Literal["fast", "slow"],
    point: Point,
    options: Options,
    person: Person,
    order: Order,
    basket: Basket,
    few: Annotated[int, msgspec.Meta(le=3, description="how many")],
    many: Annotated[int, Field(ge=10)],
) -> str:
    """Acts."""
    RAN.append(dict(locals()))
    return "done"


@tool(check="stream")
async def judge(few: Annotated[int, msgspec.Meta(le=3)], person: Person, note: str = "") -> str:
    """Is judged while it is written."""
    RAN.append(few)
    return "done"


WRITTEN = {
    "day": "2026-01-31",
    "key": "12345678-1234-5678-1234-567812345678",
    "size": "small",
    "mode": "fast",
    "point": {"x": 1},
    "options": {"deep": True},
    "person": {"born": "1990-05-01"},
    "order": {"count": 1},
    "basket": {"order": {"count": 2}},
    "few": 3,
    "many": 10,
}
VALUES = {
    "day": date(2026, 1, 31),
    "key": UUID("12345678-1234-5678-1234-567812345678"),
    "size": Size.SMALL,
    "mode": "fast",
    "point": Point(1),
    "options": {"deep": True},
    "person": Person(date(1990, 5, 1)),
    "order": Order(count=1),
    "basket": Basket(Order(count=2)),
    "few": 3,
    "many": 10,
}


@pytest.mark.parametrize("path", PATHS)
async def test_the_tool_gets_its_types(cs: Callstream, models: Models, path: str) -> None:
    RAN.clear()
    async with ScriptedProvider("anthropic", [[ToolCall("act", WRITTEN)], [Text("Ok.")]]) as provider:
        await Host(cs, agent_of(models(provider, path), act)).run()
        assert [VALUES] == RAN
        [declared] = provider.requests[0].json["tools"]
    properties = declared["input_schema"]["properties"]
    assert properties["few"] == {"description": "how many", "maximum": 3, "title": "Few", "type": "integer"}
    assert properties["point"]["properties"] == {"x": {"type": "integer"}}
    assert properties["basket"]["properties"]["order"]["properties"]["count"]["type"] == "integer"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"few": "3"}, "the argument 'few' should be an integer, got the string '3'"),
        ({"few": 4}, "the argument 'few'"),
        ({"day": "soon"}, "the argument 'day' should be a date such as 2026-01-31, got the string 'soon'"),
        ({"point": {"x": "1"}}, "the argument 'point.x' should be an integer, got the string '1'"),
        ({"order": {"count": "many"}}, "the argument 'order.count' should be an integer"),
    ],
)
async def test_the_model_reads_what_does_not_fit(
    cs: Callstream, models: Models, path: str, wrong: dict[str, Any], sentence: str
) -> None:
    RAN.clear()
    async with ScriptedProvider("anthropic", [[ToolCall("act", {**WRITTEN, **wrong})], [Text("Ok.")]]) as provider:
        await Host(cs, agent_of(models(provider, path), act)).run()
        assert RAN == []
        assert sentence in provider.requests[1].body.decode()
        [call] = await cs.journal.calls()
        assert (str(call.state), call.reason) == ("discarded", "invalid")


@pytest.mark.parametrize("path", PATHS)
async def test_a_tool_is_judged_while_it_is_written(cs: Callstream, models: Models, path: str) -> None:
    RAN.clear()
    wrong = {"few": 4, "person": {"born": "1990-05-01"}, "note": "long" * 50}
    right = {**wrong, "few": 3}
    async with ScriptedProvider(
        "anthropic", [[ToolCall("judge", wrong), ToolCall("judge", right)], [Text("Ok.")]]
    ) as provider:
        await Host(cs, agent_of(models(provider, path), judge)).run()
        assert RAN == [3]
        assert "judge did not run: the argument 'few' should be at most 3, got" in provider.requests[1].body.decode()
        calls = await cs.journal.calls()
        assert {(str(call.state), call.reason) for call in calls} == {("discarded", "invalid"), ("completed", None)}


@pytest.mark.parametrize("path", PATHS)
async def test_a_toolsets_prefix_changes_nothing(cs: Callstream, models: Models, path: str) -> None:
    RAN.clear()
    wrong = ToolCall("my_judge", {"few": 4, "person": {"born": "1990-05-01"}})
    async with ScriptedProvider("anthropic", [[wrong], [Text("Ok.")]]) as provider:
        await Host(cs, agent_of(models(provider, path), Prefixed(tool_name_prefix="my"))).run()
        assert RAN == []
        assert "my_judge did not run: the argument 'few' should be at most 3" in provider.requests[1].body.decode()
        [call] = await cs.journal.calls()
        assert (str(call.state), call.reason) == ("discarded", "invalid")


async def test_a_renamed_tool_is_judged_while_it_is_written(cs: Callstream, models: Models) -> None:
    RAN.clear()
    twice = ToolCall("my_judge", text='{"few": 1, "few": 2, "person": {"born": "1990-05-01"}}')
    async with ScriptedProvider("anthropic", [[twice], [Text("Ok.")]]) as provider:
        await Host(cs, agent_of(models(provider), Prefixed(tool_name_prefix="my"))).run()
        [call] = await cs.journal.calls()
    assert RAN == []
    assert (call.reason, call.detail) == ("malformed", "the name 'few' comes twice in an object")
