"""``python -m bench.continuing [--host callstream …]``."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import httpx

from bench.table import Table
from callstream import results_in
from callstream.events import ResultReceived
from callstream.testing import Delay, Finish, ReceivedRequest, Script, ScriptedProvider, Text, ToolCall, Truncated

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LONGEST, HANGING, SETTLING = 60.0, 3600.0, 0.5
TOOLS = (("look_up", {"topic": "rain"}), ("write_document", {"title": "Rain"}))


class Place(NamedTuple):
    """Where the process is killed: in a turn of the model, or in a tool."""

    turn: int | None = None
    where: str = ""

    @property
    def name(self) -> str:
        return self.where if self.turn is None else f"turn {self.turn + 1}, {self.where}"


PLACES = [
    *(Place(turn, where) for turn in (0, 1) for where in ("before", "text", "arguments")),
    *(Place(2, where) for where in ("before", "text")),
    *(Place(None, f"{name} {state}") for name, _ in TOOLS for state in ("begins", "has done it")),
]


class Model:
    """Answers turn by turn, and hangs once, at the place. ``paid``: turns whose answer went out whole."""

    def __init__(self, place: Place) -> None:
        self.place: Place | None = place
        self.requests = 0
        self.asked: list[int] = []
        self.paid: Counter[int] = Counter()
        self.again = 0

    def script(self, request: ReceivedRequest) -> Script:
        results = [each for each in results_in("openai_chat", request.body) if isinstance(each, ResultReceived)]
        turn = min(len(results), 2)
        self.requests += 1
        self.asked.append(turn)
        if self.place is not None and self.place.turn == turn:
            return _hangs(turn, self.place.where)
        self.again += self.paid[turn]
        self.paid[turn] = 1
        return _whole(turn)


def _whole(turn: int) -> Script:
    if turn == 2:
        return [Text("It is written.", size=4), Finish()]
    return [Text("Let me see.", size=4), ToolCall(*TOOLS[turn]), Finish()]


def _hangs(turn: int, where: str) -> Script:
    stay = Delay(HANGING)
    match where:
        case "before":
            return [stay, Finish()]
        case "text":
            return [Text("Let me", size=3), stay, Finish()]
        case _:
            return [Text("Let me see."), ToolCall(*TOOLS[turn], size=3, stop_after=3), stay, Truncated()]


class Outcome(NamedTuple):
    finished: bool
    paid_again: int
    repeated: int
    seconds: float


class Host:
    """A program that is started with a folder and a provider. ``python`` is that of its environment."""

    def __init__(self, name: str, program: str, environment: str) -> None:
        self.name = name
        self.program = HERE / program
        self.python = ROOT / environment / "bin/python"

    @property
    def lines(self) -> int:
        return sum(line.rstrip().endswith("# +") for line in self.program.read_text().splitlines())

    async def start(self, folder: Path, provider: str) -> asyncio.subprocess.Process:
        return await self._spawn(folder, provider, str(self.program))

    async def _spawn(self, folder: Path, provider: str, *arguments: str) -> asyncio.subprocess.Process:
        told = (folder / "output.txt").open("a")
        path = f"{ROOT}{os.pathsep}{ROOT / 'src'}" if self.name == "Callstream" else str(ROOT)
        return await asyncio.create_subprocess_exec(
            *(str(self.python), "-W", "ignore", *arguments),
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "CONTINUING_FOLDER": str(folder),
                "CONTINUING_PROVIDER": provider,
            },
            stdout=told,
            stderr=told,
        )

    async def has_finished(self, folder: Path) -> bool:
        return (folder / "finished").exists()


class Callstream(Host):
    """``callstream serve``, and a client that asks once."""

    async def start(self, folder: Path, provider: str) -> asyncio.subprocess.Process:
        told = folder / "port"
        is_first = not told.exists()
        if is_first:
            with socket.create_server(("127.0.0.1", 0)) as free:
                told.write_text(str(free.getsockname()[1]))
        target = ("serve", f"{self.program}:root_agent", "--journal", f"sqlite:///{folder}/calls.db")
        process = await self._spawn(folder, provider, "-m", "callstream", *target, "--port", told.read_text())
        if is_first:
            await self._ask(f"http://127.0.0.1:{told.read_text()}")
        return process

    async def _ask(self, address: str) -> None:
        message = {"id": "m", "role": "user", "content": "Go"}
        given = {"threadId": "t", "runId": "r", "messages": [message], "tools": [], "context": []}
        given |= {"state": {}, "forwardedProps": {}}
        async with httpx.AsyncClient(timeout=LONGEST) as client, asyncio.timeout(LONGEST):
            while True:
                try:
                    async with client.stream("POST", f"{address}/agui", json=given) as answer:
                        assert answer.status_code == 200, await answer.aread()
                        return
                except httpx.ConnectError:
                    await asyncio.sleep(0.05)

    async def has_finished(self, folder: Path) -> bool:
        async with httpx.AsyncClient() as client:
            try:
                answer = await client.get(f"http://127.0.0.1:{(folder / 'port').read_text()}/api/runs/r")
            except httpx.HTTPError:
                return False
        return bool(answer.status_code == 200 and answer.json()["outcome"] == "finished")


HOSTS = {
    "callstream": Callstream("Callstream", "with_callstream.py", ".venv"),
    "adk": Host("google-adk, resumable", "with_adk.py", ".venv"),
    "pydantic_ai": Host("Pydantic AI with DBOS", "with_dbos.py", ".venv-continuing-pydantic_ai"),
    "langgraph": Host("LangGraph with a checkpointer", "with_langgraph.py", ".venv-continuing-langgraph"),
}


async def killed(host: Host, place: Place) -> Outcome:
    """One run that is killed at the place, and started again."""
    model = Model(place)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        ScriptedProvider("openai_chat", model.script, stream_args_unasked=True) as provider,
    ):
        at, log = Path(folder), Path(folder) / "tools.log"
        log.touch()
        if place.turn is None:
            (at / "hang").write_text(place.where)
        process = await host.start(at, provider.base_url)
        try:
            async with asyncio.timeout(LONGEST):
                while not (place.turn in model.asked or place.where in log.read_text()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await asyncio.sleep(SETTLING)
            begun = Counter(line for line in log.read_text().splitlines() if line.endswith("begins"))
            process.send_signal(signal.SIGKILL)
            await process.wait()
            since, asked, size = time.monotonic(), model.requests, log.stat().st_size
            model.place = None
            (at / "hang").unlink(missing_ok=True)
            process = await host.start(at, provider.base_url)
            seconds = None
            is_finished = False
            while not is_finished and time.monotonic() < since + LONGEST:
                if seconds is None and (model.requests > asked or log.stat().st_size > size):
                    seconds = time.monotonic() - since
                await asyncio.sleep(0.02)
                is_over = process.returncode is not None
                is_finished = await host.has_finished(at)
                if is_over and not is_finished:
                    break
            if not is_finished:
                print(f"{host.name}, {place.name}:", (at / "output.txt").read_text()[-600:], file=sys.stderr)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        after = Counter(line for line in log.read_text().splitlines() if line.endswith("begins"))
        repeated = sum(count - 1 for name, count in after.items() if name in begun)
        return Outcome(is_finished, model.again, repeated, seconds if seconds is not None else time.monotonic() - since)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.continuing")
    parser.add_argument("--host", choices=HOSTS, action="append")
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    columns = ["", "kills", "finished", "turns paid again", "tools repeated", "lines", "going on (s, median)"]
    table = Table("runs whose process is killed, and started again", columns)
    is_well = True
    for name in given.host or HOSTS:
        host = HOSTS[name]
        if not host.python.exists():
            print(f"{host.name} is left out: make continuing-hosts", file=sys.stderr)
            continue
        outcomes = []
        for place in PLACES * given.rounds:
            outcome = asyncio.run(killed(host, place))
            outcomes.append(outcome)
            print(f"{host.name}, {place.name}: {outcome}", file=sys.stderr, flush=True)
        finished = sum(each.finished for each in outcomes)
        paid, repeated = (sum(counts) for counts in zip(*((each.paid_again, each.repeated) for each in outcomes)))  # noqa: B905
        waited = sorted(each.seconds for each in outcomes)[len(outcomes) // 2]
        table.row(host.name, len(outcomes), finished, paid, repeated, host.lines, waited)
        if name == "callstream":
            is_well = finished == len(outcomes) and not paid and not repeated
    table.print()
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
