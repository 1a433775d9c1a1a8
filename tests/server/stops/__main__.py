from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

from tests.journal.server import postgres_server  # noqa: E402

from .soak import Soak  # noqa: E402
from .stage import stage  # noqa: E402
from .stops import Stops  # noqa: E402


async def play(kind: str, folder: Path, postgres: str, stops: int, soak: float, seed: int) -> bool:
    async with stage(kind, folder, postgres) as made:
        playing = Stops(made, stops, seed)
        await playing.play()
        left = await made.left()
        failures = [*playing.problems, *await made.failures()]
        ways = ", ".join(f"{count} {way}" for way, count in sorted(playing.ways.items()))
        print(
            f"{kind}: {playing.stopped} stops ({ways}; {playing.early} in the first 100 ms), then {len(playing.threads)} "
            f"threads run; {len(failures)} failures, {left['locks']} locks, {left['cursors']} open cursors, "
            f"{left['tasks']} tasks left",
            flush=True,
        )
        is_well = not failures and not any(left.values())
        for line in [*failures[:20], *(made.other_tasks() if left["tasks"] else ())]:
            print(f"  {line}", flush=True)
        if soak:
            soaking = Soak(made, soak, seed)
            await soaking.play()
            left = await made.left()
            failures = [*soaking.problems, *(each for each in await made.failures() if each not in failures)]
            (memory, memory_then), (files, files_then) = soaking.growth()
            did = ", ".join(f"{count} {what}" for what, count in sorted(soaking.did.items()))
            print(
                f"{kind}: {soak:g} s of soak ({did}): {len(failures)} failed runs, {left['locks']} locks, {left['cursors']} "
                f"open cursors, {left['tasks']} tasks left; memory {memory:.0f} → {memory_then:.0f} MB, "
                f"file descriptors {files:g} → {files_then:g}",
                flush=True,
            )
            for line in failures[:20]:
                print(f"  {line}", flush=True)
            is_well = is_well and not failures and not any(left.values()) and (soaking.is_flat or soak < 60)
        return is_well


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.server.stops", description="Stops runs at random moments.")
    parser.add_argument("--stops", type=int, default=2000, help="for both kinds of sessions together")
    parser.add_argument("--soak", type=float, default=15 * 60.0, help="seconds, for both together; 0 for none")
    parser.add_argument("--kinds", default="sqlite,postgres")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("google_adk").setLevel(logging.CRITICAL)
    kinds = given.kinds.split(",")
    is_well = True
    with postgres_server() as server, tempfile.TemporaryDirectory(prefix="callstream-stops-") as folder:
        for kind in kinds:
            place = Path(folder) / kind
            place.mkdir()
            shares = given.stops // len(kinds), given.soak / len(kinds)
            is_well = asyncio.run(play(kind, place, server.get_uri(), *shares, given.seed)) and is_well
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
