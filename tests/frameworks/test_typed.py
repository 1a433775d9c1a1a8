"""Frameworks that describe functions by pydantic call tools with values of their types, whichever library the types are of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, TypedDict

import msgspec
import pytest
from anthropic import AsyncAnthropic
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from callstream import Callstream, tool
from callstream.testing import ScriptedProvider, Text, ToolCall

RAN: list[Any] = []


class Point(msgspec.Struct):
    x: int


class Options(TypedDict):
    deep: bool


@dataclass
class Person:
    born: date


class Order(BaseModel):
    count: int


@tool
async def act(
    point: Point, options: Options, person: Person, order: Order, few: Annotated[int, msgspec.Meta(le=3)] = 1
) -> str:
    """Acts."""
    RAN.append((point, options, person, order, few))
    return "done"


WRITTEN = {
    "point": {"x": 1},
    "options": {"deep": True},
    "person": {"born": "1990-05-01"},
    "order": {"count": 1},
    "few": 3,
}
VALUES = (Point(1), {"deep": True}, Person(date(1990, 5, 1)), Order(count=1), 3)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({}, None),
        ({"few": 4}, "'few' should be at most 3, got the number 4"),
        ({"point": {"x": "1"}}, "'point.x' should be"),
    ],
)
async def test_pydantic_ai(wrong: dict[str, Any], sentence: str | None) -> None:
    RAN.clear()
    script = [[ToolCall("act", {**WRITTEN, **wrong}, call_id="c1")], [Text("Ok.")], [Text("Ok.")]]
    async with ScriptedProvider("anthropic", script) as provider, Callstream(tools=[act]) as cs:
        http = cs.httpx2_client()
        async with AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=http) as client:
            model = AnthropicModel("claude", provider=AnthropicProvider(anthropic_client=client))
            async with cs.run("t") as run:
                await Agent(model, tools=[act]).run("Act.")
                [call] = run.calls
        assert sentence is None or sentence in provider.requests[1].body.decode()
        declared = provider.requests[0].json["tools"][0]["input_schema"]["properties"]
    assert declared["few"]["maximum"] == 3
    assert declared["point"]["properties"]["x"]["type"] == "integer"
    assert ([VALUES] if sentence is None else []) == RAN
    assert call.reason == (None if sentence is None else "invalid")
