"""Every recorded body through the transport itself: what comes out, and what the journal has of it."""

from __future__ import annotations

import json

import httpx
import pytest

from callstream import CallState, Callstream
from callstream.tap import Collapse
from callstream.testing.encoders import ENCODERS
from tests.captures import WIRES, Capture, body, each_capture

NAMES = {recorded: wire for wire, recorded in WIRES.items()}


async def through(cs: Callstream, capture: Capture, collapse: Collapse) -> bytes:
    wire = NAMES[capture.wire]

    async def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=body(capture), headers={"content-type": ENCODERS[wire].stream_type})

    transport = cs.transport(httpx.MockTransport(answer), collapse=collapse)
    async with httpx.AsyncClient(transport=transport) as client:
        path = ENCODERS[wire].place.replace("{model}", "m")
        response = await client.post(f"http://127.0.0.1{path}", json={"store": False, "anthropic_version": "any"})
    return response.content


@each_capture(*WIRES)
@pytest.mark.parametrize("collapse", ["all", "none"])
async def test_recorded_calls_exact_through_the_tap(capture: Capture, collapse: Collapse) -> None:
    async with Callstream() as cs:
        async with cs.run("thread") as run:
            passed = await through(cs, capture, collapse)
        if collapse == "none":
            assert passed == body(capture)
        calls = run.calls
        assert [call.name for call in calls] == [call.name for call in capture.client_calls]
        for call, recorded in zip(calls, capture.client_calls, strict=True):
            kept = await cs.journal.call(call.call_id)
            assert kept is not None
            assert call.provider_id == recorded.id
            assert (kept.state is CallState.RELEASED) == recorded.complete
            if recorded.final_args_json is not None:
                assert kept.args == json.loads(recorded.final_args_json)
