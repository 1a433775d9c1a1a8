from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

from tests.journal.server import postgres_server

from . import __doc__ as described
from .stage import Stage

KINDS = ("llm", "sequential", "parallel", "loop", "transfer", "agent_tool")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.server.continuing", description=described)
    parser.add_argument("--kills", type=int, default=50, help="for each kind and wire")
    parser.add_argument("--journal", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--wire", choices=["gemini", "anthropic"], action="append")
    parser.add_argument("--stop", action="store_true", help="end servers with SIGTERM: they hand their runs over")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    is_well = True
    for kind in given.kind or KINDS:
        for wire in given.wire or ["gemini"]:
            how = {"how": signal.SIGTERM if given.stop else signal.SIGKILL, "replicas": 2}
            if given.journal == "sqlite":
                how["replicas"] = 2 if given.stop else 1
                is_well &= play(Stage("sqlite", kind, wire, given.kills, given.seed, **how))
            else:
                with postgres_server() as server:
                    url = server.get_uri()
                    schema = f"continuing_{os.getpid()}"
                    url = f"{url}{'&' if '?' in url else '?'}schema={schema}"
                    is_well &= play(Stage(url, kind, wire, given.kills, given.seed, **how))
    return 0 if is_well else 1


def play(stage: Stage) -> bool:
    asyncio.run(stage.play())
    for said in stage.said:
        print(said, flush=True)
    print(stage.line(), flush=True)
    return not stage.faults


if __name__ == "__main__":
    sys.exit(main())
