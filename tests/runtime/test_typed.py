"""Tools are called with values of their annotated types by ``run.invoke``, or not at all."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from datetime import date
from typing import Annotated, Any

import pydantic
import pytest

from callstream import CallRejected, Callstream, Run, tool
from callstream.testing import Finish, ToolCall, encode

RAN: list[Any] = []


@dataclasses.dataclass
class Guest:
    name: str
    born: date


class Room(pydantic.BaseModel):
    beds: int = pydantic.Field(ge=1)


@tool
async def book(guest: Guest, room: Room, nights: int = 1) -> str:
    RAN.append((guest, room, nights))
    return "booked"


@tool
def shout(text: Annotated[str, pydantic.AfterValidator(lambda text: f"{text}!")]) -> str:
    return text


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    RAN.clear()
    async with Callstream(tools=[book, shout]) as cs, cs.run("thread") as run:
        yield run


async def read(run: Run, *calls: ToolCall) -> list[str]:
    async with run.response("anthropic") as response:
        for chunk in encode("anthropic", [*calls, Finish()]):
            await response.feed(chunk)
    return [call.call_id for call in run.calls]


GUEST = {"name": "Ann", "born": "1990-05-01"}


async def test_the_tool_gets_its_types(run: Run) -> None:
    [call_id] = await read(run, ToolCall("book", {"guest": GUEST, "room": {"beds": 2}, "nights": None}))
    assert await run.invoke(call_id) == "booked"
    assert [(Guest("Ann", date(1990, 5, 1)), Room(beds=2), 1)] == RAN
    assert run.call(call_id).args == {"guest": GUEST, "room": {"beds": 2}, "nights": None}, "what the model wrote"


async def test_a_value_is_converted_once(run: Run) -> None:
    [call_id] = await read(run, ToolCall("shout", {"text": "hi"}))
    assert await run.invoke(call_id) == "hi!"


async def test_what_does_not_fit_never_reaches_the_tool(run: Run) -> None:
    [call_id] = await read(
        run, ToolCall("book", {"guest": {**GUEST, "born": "long ago"}, "room": {"beds": 0}, "nights": "3"})
    )
    with pytest.raises(CallRejected) as rejected:
        await run.invoke(call_id)
    assert str(rejected.value) == (
        "book did not run: the argument 'guest.born' should be a date such as 2026-01-31, got the string 'long ago'. "
        "The argument 'room.beds' should be at least 1, got the number 0. "
        "The argument 'nights' should be an integer, got the string '3'; its arguments are guest, room, nights"
    )
    assert RAN == []
    assert run.call(call_id).reason == rejected.value.reason == "invalid"
    assert [refused.text for refused in run.refusals()] == [str(rejected.value)]
