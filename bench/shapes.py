"""Tables "shapes": what a client sees of a call's arguments, by Callstream and by ag_ui_adk, on the same server.

Each shape in which a provider may stream arguments is served over HTTP; the real SDK and google-adk's Runner take it, and
``ADKAgent.run`` of either package shows it. *Exact* is: the tools were run with the arguments that the provider sent,
every call was started and ended once, its joined TOOL_CALL_ARGS are those arguments (no text counts as no arguments), and
its result has its id. Anything else is said as it came out. ag_ui_adk has its streaming of arguments on; what it shows with
streaming off, as it is by default, is counted at the end.

The last table has the wires that google-adk has no model for, each read by the provider's own SDK over HTTP: alone, and with
the tap under it. *Exact* is there that the SDK has the arguments that the provider sent; *journal* that Callstream has them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import ExitStack
from typing import Any

from bench.comparison import worker
from bench.hosts import HOSTS, WIRES
from bench.table import Table
from callstream import Callstream
from callstream.testing.bodies import BodiesProvider
from callstream.testing.shapes import SHAPES, Shape
from tests.sdks import READ, SDKS, Answer
from tests.sdks.bedrock import bedrock_client, converse_events, fold_converse

NAMES = {
    "tap": "Callstream, tap",
    "partial events": "Callstream, partial events",
    "ag_ui_adk": "ag_ui_adk 0.11.0",
    "ag_ui_adk, whole": "ag_ui_adk 0.11.0, streaming off",
}
COUNTED_ONLY = "ag_ui_adk, whole"
EXACT = "exact"


class Shown:
    """What the events say of one call."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = ""
        self.ended = 0
        self.results: list[Any] = []


def shown_in(events: list[dict[str, Any]]) -> tuple[dict[str, Shown], str | None]:
    """The calls of a run by their ids, and the first breach of the protocol."""
    calls: dict[str, Shown] = {}
    for event in events:
        kind, named = event["type"], event.get("toolCallId", "")
        if kind == "RUN_ERROR":
            return calls, f"run error: {event['message']}"
        if not kind.startswith("TOOL_CALL_"):
            continue
        call = calls.get(named)
        if kind == "TOOL_CALL_START":
            if call is not None:
                return calls, "a call was started twice"
            calls[named] = Shown(event["toolCallName"])
        elif call is None:
            return calls, f"{kind} of a call that was not started"
        elif kind == "TOOL_CALL_ARGS":
            if call.ended:
                return calls, "arguments after the end of their call"
            call.text += event["delta"]
        elif kind == "TOOL_CALL_END":
            call.ended += 1
        elif kind == "TOOL_CALL_RESULT":
            call.results.append(_value(event["content"]))
    return calls, None


def verdict(shape: Shape, outcome: dict[str, Any]) -> str:
    """``exact``, or what is wrong first."""
    calls, breach = shown_in(outcome["events"])
    expected = [[name, args] for name, args in shape.calls]
    if outcome["error"] is not None:
        return _short(outcome["error"])
    shown = [[call.name, _value(call.text)] for call in calls.values()]
    if breach is None and outcome["ran"] != expected:
        ran = ", ".join(f"{name}({json.dumps(args, ensure_ascii=False)})" for name, args in outcome["ran"])
        breach = f"ran {ran or 'nothing'}"
    if breach is None and shown != expected:
        texts = ", ".join(f"{call.name} `{call.text}`" for call in calls.values())
        breach = f"shown {texts or 'nothing'}"
    if breach is None and any(call.ended != 1 for call in calls.values()):
        breach = f"ended {', '.join(str(call.ended) for call in calls.values())} times"
    results = [call.results for call in calls.values()]
    if breach is None and results != [[{"result": number}] for number in range(1, len(expected) + 1)]:
        breach = f"results {json.dumps(results)}"
    return EXACT if breach is None else _short(breach)


def _value(text: str) -> Any:
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return None


def _short(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= 70 else f"{line[:69]}…"


def tables(wires: list[str]) -> bool:
    passed = True
    counts = {host: dict.fromkeys(wires, 0) for host in HOSTS}
    with ExitStack() as stack:
        ask = {host: stack.enter_context(worker("bench.hosts", "--host", host)) for host in HOSTS}
        for wire in wires:
            table = Table(
                f"shapes of arguments on the wire {wire}",
                ["shape", *(NAMES[host] for host in HOSTS if host != COUNTED_ONLY)],
            )
            for shape in SHAPES:
                found: dict[str, str] = {}
                for host in HOSTS:
                    with BodiesProvider(wire, shape.bodies(wire)) as provider:
                        found[host] = verdict(shape, ask[host]({"wire": wire, "base_url": provider.base_url}))
                    counts[host][wire] += found[host] == EXACT
                passed = passed and found["tap"] == EXACT
                table.row(shape.name, *(said for host, said in found.items() if host != COUNTED_ONLY))
            table.print()
    summary = Table(f"exact, of {len(SHAPES)} shapes", ["", *wires])
    for host, each in counts.items():
        summary.row(NAMES[host], *each.values())
    summary.print()
    return passed


async def ask_sdk(wire: str, base_url: str, cs: Callstream | None = None) -> Answer:
    """What the provider's SDK has of one response, with the tap under it if there is a Callstream."""
    if wire not in SDKS:  # boto3 has no HTTP client that could be handed in
        client = bedrock_client(base_url)
        client = client if cs is None else cs.tap_boto(client, collapse="all")
        return await asyncio.to_thread(lambda: fold_converse(converse_events(client)))
    sdk = SDKS[wire]
    http = None if cs is None else getattr(cs, sdk.library)(collapse="all")
    async with sdk.client(base_url, http, 0) as client:
        return await sdk.ask(client)


async def sdk_verdicts(wire: str, shape: Shape) -> tuple[bool, bool, bool]:
    """Whether the arguments are exact in the SDK alone, in the SDK on the tap, and in the journal."""

    def is_exact(answer: Answer) -> bool:
        return tuple((name, args) for _, name, args in answer.calls) == shape.calls

    with BodiesProvider(wire, shape.bodies(wire)) as provider:
        alone = is_exact(await ask_sdk(wire, provider.base_url))
    with BodiesProvider(wire, shape.bodies(wire)) as provider:
        async with Callstream() as cs, cs.run("shapes") as run:
            tapped = is_exact(await ask_sdk(wire, provider.base_url, cs))
            recorded = tuple((call.name, call.args) for call in run.calls) == shape.calls
    return alone, tapped, recorded


def sdk_table() -> bool:
    passed = True
    table = Table(
        f"exact through the provider's own SDK, of {len(SHAPES)} shapes",
        ["wire", "SDK alone", "with the tap", "journal"],
    )
    for wire in (wire for wire in READ if wire not in WIRES):
        found = [asyncio.run(sdk_verdicts(wire, shape)) for shape in SHAPES]
        counts = [sum(column) for column in zip(*found, strict=True)]
        passed = passed and counts[1:] == [len(SHAPES)] * 2
        table.row(wire, *counts)
    table.print()
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wire", action="append", choices=WIRES, help="this one only; may be repeated")
    wires = parser.parse_args().wire
    passed = tables(wires or list(WIRES))
    return 0 if (wires or sdk_table()) and passed else 1


if __name__ == "__main__":
    sys.exit(main())
