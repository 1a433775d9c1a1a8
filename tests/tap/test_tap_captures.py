"""Every recorded body through the transport itself: what comes out, and what the journal has of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest

from callstream import CallState, Callstream, Settings
from callstream.tap import Collapse, TapTransport
from callstream.testing.encoders import ENCODERS
from tests.captures import WIRES, Capture, body, captures, each_capture

NAMES = {recorded: wire for wire, recorded in WIRES.items()}


MINTED = re.compile(rb"call_[0-9a-f]{32}")  # ids of calls for which the provider sent none
ONCE = Settings(ask_again=0)
"""What is here is one answer: there is no other to be had by asking again."""
REQUEST = {"store": False, "anthropic_version": "any"}


def replaying(cs: Callstream, capture: Capture, collapse: Collapse) -> tuple[TapTransport, str]:
    """A transport that answers with the capture, and the address to ask."""
    encoder = ENCODERS[NAMES[capture.wire]]

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=body(capture), headers={"content-type": encoder.stream_type})

    transport = cs.transport(httpx.MockTransport(answer), collapse=collapse)
    return transport, f"http://127.0.0.1{encoder.place.replace('{model}', 'm')}"


async def through(cs: Callstream, capture: Capture, collapse: Collapse) -> bytes:
    transport, url = replaying(cs, capture, collapse)
    async with httpx.AsyncClient(transport=transport) as client:
        return (await client.post(url, json=REQUEST)).content


def through_sync(cs: Callstream, capture: Capture, collapse: Collapse) -> bytes:
    transport, url = replaying(cs, capture, collapse)
    with httpx.Client(transport=transport) as client:
        return client.post(url, json=REQUEST).content


@each_capture(*WIRES)
@pytest.mark.parametrize("collapse", ["all", "none"])
async def test_recorded_calls_exact_through_the_tap(capture: Capture, collapse: Collapse) -> None:
    async with Callstream(settings=ONCE) as cs:
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


@pytest.mark.wires
@pytest.mark.parametrize("wire", WIRES)
async def test_a_sync_client_gets_the_same_bytes(wire: str, wires: Path) -> None:
    for capture in captures(wire):
        async with Callstream(settings=ONCE) as cs:
            async with cs.run("thread") as run:
                expected = await through(cs, capture, "all")
            with cs.run("thread") as sync_run:
                passed = through_sync(cs, capture, "all")
            assert MINTED.sub(b"", passed) == MINTED.sub(b"", expected), capture.file
            states = [[(call.state, call.reason, call.args_json) for call in each.calls] for each in (run, sync_run)]
            assert states[0] == states[1], capture.file
