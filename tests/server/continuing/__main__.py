from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence

from tests.journal.server import postgres_server

from . import __doc__ as described
from .audience import CLIENTS, MOMENTS, Audience
from .odd import OddStage, scenes
from .stage import Stage

KINDS = (
    *("llm", "sequential", "parallel", "loop", "transfer", "agent_tool", "workflow", "mcp"),
    *("long_running", "confirmation"),
)
WIRES = ("gemini", "anthropic", "openai_chat", "openai_responses")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.server.continuing", description=described)
    parser.add_argument("--kills", type=int, default=16, help="for each kind and wire, 16 by default: 304 in all")
    parser.add_argument("--journal", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--wire", choices=WIRES, action="append")
    parser.add_argument("--stop", action="store_true", help="end servers with SIGTERM: they hand their runs over")
    parser.add_argument(
        "--odd", action="store_true", help="what seldom happens instead: see tests/server/continuing/odd.py"
    )
    parser.add_argument(
        "--clients", action="store_true", help="what every client shows of such runs instead; installs with npm"
    )
    parser.add_argument("--client", choices=[*CLIENTS], action="append")
    parser.add_argument("--moment", choices=MOMENTS, action="append")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    is_well = True
    if given.odd:
        return 0 if play_odd(given.journal) else 1
    if given.clients:
        return 0 if play_clients(given.journal, given.client or [*CLIENTS], given.moment or MOMENTS) else 1
    how = {"how": signal.SIGTERM if given.stop else signal.SIGKILL, "replicas": 2}
    for kind, wire in plays(given.kind, given.wire):
        if given.journal == "sqlite":
            how["replicas"] = 2 if given.stop else 1
            is_well &= play(Stage("sqlite", kind, wire, given.kills, given.seed, **how))
        else:
            with postgres_server() as server:
                is_well &= play(Stage(server.get_uri(), kind, wire, given.kills, given.seed, **how))
    return 0 if is_well else 1


def plays(kinds: list[str] | None, wires: list[str] | None) -> list[tuple[str, str]]:
    """What is named; else every kind on one wire, and some on the others."""
    if kinds or wires:
        return [(kind, wire) for kind in kinds or KINDS for wire in wires or ["gemini"]]
    others = [(kind, wire) for wire in WIRES[1:] for kind in ("llm", "parallel", "confirmation")]
    return [*((kind, "gemini") for kind in KINDS), *others]


def play_odd(backend: str) -> bool:
    is_well = True
    for scene in scenes(backend):
        if backend == "sqlite":
            is_well &= play(OddStage("sqlite", scene))
        else:
            with postgres_server() as server:
                is_well &= play(OddStage(server.get_uri(), scene, database=server))
    return is_well


def play_clients(backend: str, clients: list[str], moments: Sequence[str]) -> bool:
    if backend == "sqlite":
        audience = Audience("sqlite", clients, moments)
        return play(audience) and audience.is_well
    with postgres_server() as server:
        audience = Audience(server.get_uri(), clients, moments)
        return play(audience) and audience.is_well


def play(stage: Stage) -> bool:
    asyncio.run(stage.play())
    for said in stage.said:
        print(said, flush=True)
    print(stage.line(), flush=True)
    return not stage.faults


if __name__ == "__main__":
    sys.exit(main())
