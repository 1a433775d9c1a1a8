from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import nullcontext

from bench.nats import nats_cluster
from tests.journal.server import postgres_server

from .chaos import Chaos


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.server.chaos", description="Kills replicas under load.")
    parser.add_argument("--threads", type=int, default=50)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lease", type=float, default=8.0, help="seconds after which a silent replica counts as dead")
    parser.add_argument(
        "--workers", type=int, default=1, help="one address with so many workers, instead of two replicas"
    )
    parser.add_argument("--go-on", action="store_true", help="replicas go on with the runs of dead ones")
    parser.add_argument("--log", choices=["nats"], help="the log of live runs beside PostgreSQL, on three servers")
    given = parser.parse_args()
    with postgres_server() as server, nats_cluster(3) if given.log else nullcontext() as cluster:
        chaos = Chaos(server.get_uri(), given.threads, given.turns, given.kills, given.seed, given.lease, given.workers)
        chaos.goes_on = given.go_on
        chaos.log = cluster.log if cluster is not None else ""
        asyncio.run(chaos.play())
    print(chaos.line(), flush=True)
    return 0 if chaos.is_well else 1


if __name__ == "__main__":
    sys.exit(main())
