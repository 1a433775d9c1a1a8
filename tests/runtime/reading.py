"""Responses that are read into a run, and what its journal has then."""

from __future__ import annotations

from typing import Any

from callstream import Callstream, Run
from callstream.events import (
    Record,
)
from callstream.testing import ToolCall, encode

ARGS = {"title": "Notes", "content": "one\ntwo ☃ three"}


WRITE = ToolCall("write", ARGS, call_id="c1")


async def read(run: Run, wire: str, script: list[Any]) -> None:
    async with run.response(wire) as response:
        for chunk in encode(wire, script):
            await response.feed(chunk)


async def records(cs: Callstream, run: Run) -> list[Record]:
    return [record async for record in cs.journal.read(run.run_id)]


async def events(cs: Callstream, run: Run) -> list[Any]:
    return [record.event for record in await records(cs, run)]
