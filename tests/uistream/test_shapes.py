"""Every shape of arguments, on every wire, through the AI SDK's stream: what its reader folds are the calls that were made."""

from __future__ import annotations

from typing import Any

import pytest

from callstream import Callstream, Record
from callstream.testing import WIRES
from callstream.testing.shapes import SHAPES, Shape
from callstream.uistream import Chunk, ChunkTranslator, Merger, Sdk, encode_sse
from callstream.view import RunView
from tests.agui.judge import NodeProgram

SDKS: tuple[Sdk, ...] = (5, 6, 7)
SCHEMA = {"type": "object", "properties": {"items": {"type": "array"}, "o": {"type": "object"}}}


async def played(cs: Callstream, shape: Shape, wire: str) -> list[Record]:
    """The records of a run in which a model answers in that shape; the result of a call is its place."""
    async with await cs.start("thread") as run:
        response = run.response(wire, tools={"alpha": SCHEMA, "beta": SCHEMA})
        for frame in shape.frames(wire):
            await response.feed(frame)
        await response.end()
        for place, call_id in enumerate(response.call_ids.values()):
            await run.execute(call_id)
            await run.complete(call_id, place)
    return [record async for record in cs.journal.read(run.run_id)]


def live(records: list[Record], sdk: Sdk) -> list[Chunk]:
    translator, merger = ChunkTranslator("message", sdk=sdk), Merger()
    chunks = [chunk for record in records for chunk in merger.feed(translator.feed(record))]
    return [*chunks, *merger.flush()]


def folded(judge: NodeProgram, sdk: Sdk, chunks: list[Chunk]) -> list[tuple[str, Any, Any]]:
    verdict = judge.ask({"sdk": sdk, "body": encode_sse(chunks).decode()})
    assert verdict["errors"] == []
    parts = [part for part in verdict["message"]["parts"] if "toolCallId" in part]
    assert {part["state"] for part in parts} == {"output-available"}
    return [(part["type"].removeprefix("tool-"), part["input"], part["output"]) for part in parts]


@pytest.mark.slow
@pytest.mark.parametrize("wire", WIRES)
async def test_the_ai_sdk_folds_every_shape_to_its_calls(judge: NodeProgram, wire: str) -> None:
    async with Callstream("memory:") as cs:
        for shape in SHAPES:
            records = await played(cs, shape, wire)
            expected = [(name, args, place) for place, (name, args) in enumerate(shape.calls)]
            for sdk in SDKS:
                assert folded(judge, sdk, live(records, sdk)) == expected, (shape.name, sdk)
            replay = ChunkTranslator("message", sdk=7).replay([RunView.of(records)])
            assert folded(judge, 7, replay) == expected, shape.name
    print(f"{wire}: {len(SHAPES)} shapes")
