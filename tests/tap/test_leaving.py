"""Programs that leave a stream before its end, and then end themselves."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from callstream import Callstream
from callstream.testing import ScriptedProvider, Text, ToolCall
from tests.sdks import SDKS
from tests.tap.clients import WIRES, sdk

SCRIPT = [Text("one two three " * 20, size=4), ToolCall("write", {"text": "x" * 500}, call_id="c1")]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """When the collector finds the generators of openai's stream, asyncio closes each of them, and one may be in the
    middle of closing another: it logs that, without Callstream too.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def first_event(wire: str, client: Any) -> None:
    async for _ in await SDKS[wire].stream(client):
        break


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("in_run", [True, False])
@pytest.mark.parametrize("wire", WIRES)
def test_leaving_a_stream_early_logs_nothing_at_shutdown(
    wire: str, in_run: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def program() -> None:
        cs = Callstream()
        async with ScriptedProvider(wire, SCRIPT) as provider:
            make = cs.http_client if SDKS[wire].takes_httpx2 else cs.httpx_client
            async with sdk(wire, provider, cs, client=make) as client:
                if in_run:
                    async with cs.run("thread"):
                        await first_event(wire, client)
                else:
                    await first_event(wire, client)
        await cs.aclose()

    asyncio.run(program())
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
