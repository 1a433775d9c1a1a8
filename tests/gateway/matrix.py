"""What SDKs for Python and Node get through the gateway, beside what they get without it: ``make gateway``.

Shapes: every shape of arguments on every wire; *exact* is that the SDK has the calls that the provider sent, *equal* that
all its events are those that it gets without a gateway, *bytes* that the body is. Ends: streams that end badly, by what the
SDK makes of them. Cuts: the client's connection breaks after each event and the application asks again; *whole* is that it
has the answer, *asked* how often the provider was.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from bench.table import Table
from callstream import Callstream
from callstream.gateway import GatewaySettings, create_gateway
from callstream.testing import Cut, Failure, Finish, HttpError, Text, ToolCall, Truncated
from callstream.testing.bodies import BodiesProvider
from callstream.testing.shapes import SHAPES
from tests.gateway.gates import NAMES, Cutter, Gate, Node, gate, until_unread
from tests.sdks import SDKS
from tests.server.serving import serving

LINGERS = GatewaySettings(linger=30.0)
WORDS = "The moon pulls at the sea. " * 3
ANSWER = [Text(WORDS, size=12), ToolCall("write", {"title": "Tides", "content": WORDS}, size=12), Finish()]
BEGUN = [Text("Half of "), ToolCall("write", {"title": "Tides", "content": WORDS}, size=12)]
ENDS: dict[str, list[Any]] = {
    "finish: length": [*BEGUN, Finish("length")],
    "no finish": [*BEGUN, Truncated()],
    "connection breaks": [*BEGUN, Cut()],
    "error event": [*BEGUN, Failure("overloaded")],
    "503": [HttpError(503, "later")],
}


@asynccontextmanager
async def before(provider: Any) -> AsyncIterator[str]:
    """The base URL of a gateway before that provider."""
    name = NAMES[provider.wire]
    base = provider.origin if name == "gemini" else f"{provider.origin}/v1"
    app = create_gateway(Callstream("memory:"), upstreams={name: base}, settings=LINGERS)
    async with serving(app) as server:
        yield f"http://127.0.0.1:{server.port}/{name}" + provider.base_url.removeprefix(provider.origin)


async def by_python(wire: str, base_url: str, *, times: int = 1, retries: int = 0) -> Any:
    """What the SDK has in the end, or the error that it raised."""
    sdk = SDKS[wire]
    error: Exception | None = None
    for _ in range(times):
        try:
            async with sdk.client(base_url, None, retries) as client:
                return await sdk.ask(client)
        except Exception as raised:  # noqa: BLE001  # of any SDK
            error = raised
    return error


async def shapes(wire: str, node: Node) -> tuple[int, ...]:
    python = equal = in_node = same = 0
    for shape in SHAPES:
        expected = [(name, args) for name, args in shape.calls]
        frames = shape.frames(wire)
        async with BodiesProvider(wire, [frames] * 5) as provider, before(provider) as base_url:
            direct, passed = await by_python(wire, provider.base_url), await by_python(wire, base_url)
            calls = [(name, args) for _, name, args in passed.calls]
            python += passed.told == direct.told and (wire == "gemini" or calls == expected)
            there, here = await node.ask(wire, provider.base_url), await node.ask(wire, base_url)
            equal += here["error"] is None and here["events"] == there["events"]
            in_node += wire == "gemini" or [tuple(call) for call in here["events"][-1]["calls"]] == expected
            url, body = SDKS[wire].raw(base_url)
            async with httpx.AsyncClient(timeout=20) as client:
                same += (await client.post(url, json=body)).content == b"".join(frames)
    return python, in_node, equal, same


def in_short(found: Any) -> str:
    if isinstance(found, Exception):
        return f"raises {type(found).__name__}"
    return f"finish {getattr(found.finish, 'name', found.finish)}"


def node_in_short(found: Any) -> str:
    return f"raises {found['error']['name']}" if found["error"] else f"finish {found['events'][-1]['finish']}"


async def ends(wire: str, node: Node, table: Table) -> int:
    """How many ends differ from those without a gateway."""
    wrong = 0
    for name, script in ENDS.items():
        retries = 2 if name == "503" else 0
        async with gate(wire, [script] * 20) as gateway:
            direct = [
                in_short(await by_python(wire, gateway.provider.base_url, retries=retries)),
                node_in_short(await node.ask(wire, gateway.provider.base_url, retries=retries)),
            ]
            asked = len(gateway.provider.requests)
            passed = [
                in_short(await by_python(wire, gateway.base_url, retries=retries)),
                node_in_short(await node.ask(wire, gateway.base_url, retries=retries)),
            ]
            requests = f"{len(gateway.provider.requests) - asked} ({asked})"
        is_same = passed == direct and requests == f"{asked} ({asked})"
        wrong += not is_same
        table.row(wire, name, passed[0], passed[1], requests, "as without" if is_same else f"without: {direct}")
    return wrong


async def cuts(wire: str, node: Node, language: str) -> tuple[int, int, int]:
    """At how many places the connection was cut, how many answers were whole, and how often the provider was asked."""
    wanted: Any = None
    whole = places = asked = 0
    async with gate(
        wire, [ANSWER] * 200, settings=LINGERS, deltas_per_second=150, stream_args_unasked=wire == "gemini"
    ) as gateway:
        async with Cutter(gateway.server.port) as cutter:
            base_url = gateway.base_url.replace(f"http://127.0.0.1:{gateway.server.port}", cutter.origin)
            while True:
                cutter.next_cut = places if wanted is not None else None
                before_it = len(gateway.provider.requests)
                found = await _again(language, wire, base_url, node, gateway)
                if wanted is None:
                    wanted = found
                    continue
                if cutter.next_cut is not None:  # there are not as many events
                    return places, whole, asked
                places += 1
                whole += found == wanted
                asked += len(gateway.provider.requests) - before_it


async def _again(language: str, wire: str, base_url: str, node: Node, gateway: Gate) -> Any:
    for _ in range(3):
        if language == "Python":
            found = await by_python(wire, base_url)
            if not isinstance(found, Exception):
                return found.text, [call[1:] for call in found.calls], found.finish
        else:
            answer = await node.ask(wire, base_url)
            if answer["error"] is None:
                return answer["events"][-1], len(answer["events"])
        await until_unread(gateway)
    return None


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wire", choices=tuple(NAMES), action="append")
    wires = parser.parse_args().wire or tuple(NAMES)
    missed = 0
    async with Node() as node:
        columns = ["wire", "exact, Python", "exact, Node", "events equal, Node", "bytes identical", "of"]
        table = Table("Shapes", columns)
        for wire in wires:
            found = await shapes(wire, node)
            missed += sum(len(SHAPES) - each for each in found)
            table.row(wire, *found, len(SHAPES))
        table.print()
        table = Table("Ends", ["wire", "end", "Python", "Node", "requests (without)", "is"])
        for wire in wires:
            missed += await ends(wire, node, table)
        table.print()
        table = Table("Cuts", ["wire", "SDK", "places", "whole", "provider asked"])
        for wire in wires:
            for language in ("Python", "Node"):
                places, whole, asked = await cuts(wire, node, language)
                missed += (places - whole) + abs(asked - places)
                table.row(wire, language, places, whole, asked)
        table.print()
    print(f"missed: {missed}")
    return 1 if missed else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # what breaks is meant to
    sys.exit(asyncio.run(main()))
