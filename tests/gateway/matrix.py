"""What SDKs for Python and Node get through the gateway, beside what they get without it: ``make gateway``.

Shapes: every shape of arguments on every wire; *exact* is that the SDK has the calls that the provider sent, *equal* that
all its events are those that it gets without a gateway, *bytes* that the body is. Ends: streams that end badly, by what the
SDK makes of them. Cuts: the client's connection breaks before each event and the application asks again; *whole* is that it
has the answer, *asked* how often the provider was. The provider waits until the gateway has seen the client leave: what was
handed to the network before may have been read. Held: a call is held for a person, behind a proxy that breaks connections
which are silent for a small part of that time; *without* is what comes of it without signs of life.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from itertools import product
from typing import Any

import httpx

from bench.table import Table
from callstream.gateway import GatewaySettings
from callstream.guards import Rule, Rules
from callstream.testing import Cut, Failure, Finish, HttpError, ScriptedProvider, Text, ToolCall, Truncated
from callstream.testing.bodies import BodiesProvider
from callstream.testing.shapes import SHAPES
from tests.gateway.gates import NAMES, Cutter, Impatient, Node, Valve, awaiting, before, gate, port_of, until_unread
from tests.sdks import SDKS
from tests.server.serving import run_input, tool_message

LINGERS = GatewaySettings(linger=30.0)
WORDS = "The moon pulls at the sea. " * 3
ANSWER = [Text(WORDS, size=12), ToolCall("write", {"title": "Tides", "content": WORDS}, size=12), Finish()]
BEGUN = [Text("Half of "), ToolCall("write", {"title": "Tides", "content": WORDS}, size=12)]
HELD, IMPATIENCE = 6.0, 2.0
ENDS: dict[str, list[Any]] = {
    "finish: length": [*BEGUN, Finish("length")],
    "no finish": [*BEGUN, Truncated()],
    "connection breaks": [*BEGUN, Cut()],
    "error event": [*BEGUN, Failure("overloaded")],
    "503": [HttpError(503, "later")],
}


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
        async with BodiesProvider(wire, [frames] * 5) as provider, before(provider, LINGERS) as gateway:
            base_url = gateway.base_url
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
    whole = asked = 0
    provider = ScriptedProvider(wire, [ANSWER] * 200, stream_args_unasked=wire == "gemini")
    async with provider, Valve(port_of(provider)) as valve, before(provider, LINGERS, valve.origin) as gateway:
        async with Cutter(gateway.server.port) as cutter:
            base_url = gateway.base_url.replace(f"http://127.0.0.1:{gateway.server.port}", cutter.origin)
            cutter.next_cut = most = 1_000_000  # which only counts
            wanted = await told(language, wire, base_url, node)
            events = most - cutter.next_cut
            for place in range(events):
                asked_before = len(provider.requests)
                valve.open.clear()
                cutter.next_cut, valve.next_cut = place, max(place, 1)  # the head comes with the first event
                cut = await told(language, wire, base_url, node)
                assert cut is None, f"{wire}: {language} takes {place} of {events} events for the answer"
                await until_unread(gateway)
                valve.open.set()
                whole += await told(language, wire, base_url, node) == wanted
                asked += len(provider.requests) - asked_before
    return events, whole, asked


async def told(language: str, wire: str, base_url: str, node: Node) -> Any:
    """What the SDK has in the end; None if it raised."""
    if language == "Node":
        answer = await node.ask(wire, base_url)
        return None if answer["error"] else (answer["events"][-1], len(answer["events"]))
    found = await by_python(wire, base_url)
    return None if isinstance(found, Exception) else (found.text, [call[1:] for call in found.calls], found.finish)


AI_SDK = {"anthropic": "ai_anthropic", "openai_chat": "ai_chat", "openai_responses": "ai_openai"}


async def held(wire: str, node: Node, client: str, every: float) -> str:
    """What a client makes of a call that was held for a person for longer than a proxy waits."""
    rules = Rules([Rule(name="ask", tool="write", action="ask")])
    settings = GatewaySettings(keep_alive_seconds=every)
    async with gate(wire, [ANSWER] * 2, guards=[rules], settings=settings) as gateway:
        await by_python(wire, gateway.provider.base_url)  # SDKs take seconds over what they see for the first time
        async with Impatient(gateway.server.port, IMPATIENCE) as proxy:
            base_url = gateway.base_url.replace(f":{gateway.server.port}", f":{proxy.port}")
            if client == "AI SDK":
                asking = node.ask(AI_SDK[wire], base_url)
            else:
                asking = told(client, wire, base_url, node)
            answer = asyncio.create_task(asking)
            question = await awaiting(gateway)
            await asyncio.wait({answer}, timeout=HELD)
            if not answer.done():
                said = tool_message(question.call_id, {"approved": True})
                reply = run_input(None, thread=question.thread_id, messages=[said])
                async with gateway.server.stream("POST", "/agui", json=reply) as stream:
                    await stream.all()
            found = await answer
    if found is None or (isinstance(found, dict) and found["error"]):
        return "breaks"
    return f"finish {found['events'][-1]['finish']}" if isinstance(found, dict) else f"finish {finish_of(found)}"


def finish_of(found: Any) -> Any:
    last = found[0]["finish"] if isinstance(found[0], dict) else found[2]
    return getattr(last, "name", last)


async def show_shapes(wires: Sequence[str], node: Node) -> int:
    columns = ["wire", "exact, Python", "exact, Node", "events equal, Node", "bytes identical", "of"]
    table, missed = Table("Shapes", columns), 0
    for wire in wires:
        found = await shapes(wire, node)
        missed += sum(len(SHAPES) - each for each in found)
        table.row(wire, *found, len(SHAPES))
    table.print()
    return missed


async def show_ends(wires: Sequence[str], node: Node) -> int:
    table = Table("Ends", ["wire", "end", "Python", "Node", "requests (without)", "is"])
    missed = sum([await ends(wire, node, table) for wire in wires])
    table.print()
    return missed


async def show_cuts(wires: Sequence[str], node: Node) -> int:
    table, missed = Table("Cuts", ["wire", "SDK", "places", "whole", "provider asked"]), 0
    for wire, language in product(wires, ("Python", "Node")):
        places, whole, asked = await cuts(wire, node, language)
        missed += (places - whole) + abs(asked - places)
        table.row(wire, language, places, whole, asked)
    table.print()
    return missed


async def show_held(wires: Sequence[str], node: Node) -> int:
    title = f"Calls that are held for {HELD:g} s, before a proxy that waits for {IMPATIENCE:g} s"
    table, missed = Table(title, ["wire", "client", "is", "without"]), 0
    for wire in wires:
        for client in ("Python", "Node", *(("AI SDK",) if wire in AI_SDK else ())):
            kept, without = [await held(wire, node, client, every) for every in (IMPATIENCE / 5, 600.0)]
            missed += kept == "breaks"
            table.row(wire, client, kept, without)
    table.print()
    return missed


SHOWN = {"shapes": show_shapes, "ends": show_ends, "cuts": show_cuts, "held": show_held}


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wire", choices=tuple(NAMES), action="append")
    parser.add_argument("--only", choices=tuple(SHOWN), action="append")
    options = parser.parse_args()
    missed = 0
    async with Node() as node:
        for name, show in SHOWN.items():
            if not options.only or name in options.only:
                missed += await show(options.wire or tuple(NAMES), node)
    print(f"missed: {missed}")
    return 1 if missed else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # what breaks is meant to
    sys.exit(asyncio.run(main()))
