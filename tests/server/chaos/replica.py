"""One replica: ``python -m tests.server.chaos.replica --journal URL --sessions URL --provider URL --log FILE --port N …``."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import socket
import sys
import warnings
from typing import Any

warnings.filterwarnings("ignore")

from google.adk.agents import LlmAgent  # noqa: E402
from google.adk.models import Gemini  # noqa: E402
from google.adk.sessions import DatabaseSessionService  # noqa: E402
from google.adk.tools import LongRunningFunctionTool, ToolContext  # noqa: E402
from google.genai import types  # noqa: E402

from callstream import Callstream, open_journal  # noqa: E402
from callstream.adk import ADKAgent, AGUIToolset  # noqa: E402
from callstream.journal import Housekeeping  # noqa: E402
from callstream.server import ServerSettings, create_app  # noqa: E402
from callstream.server.serving import Supervisor, serve  # noqa: E402


class Log:
    """What tools did, of all processes, a line each."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, **told: Any) -> None:
        os.write(self._file, json.dumps({**told, "pid": os.getpid()}).encode() + b"\n")


def agent_of(provider: str, log: Log) -> LlmAgent:
    async def work(label: str, body: str, tool_context: ToolContext) -> str:
        """Works."""
        call_id = tool_context.function_call_id
        log.write(did="start", call_id=call_id, args={"label": label, "body": body})
        await asyncio.sleep(random.uniform(0.02, 0.3))
        log.write(did="end", call_id=call_id)
        return "worked"

    def approve(label: str, body: str) -> dict[str, str]:
        """Asks a person."""
        return {"status": "pending"}

    options = types.HttpOptions(base_url=provider, retry_options=types.HttpRetryOptions(attempts=1))
    model = Gemini(model="gemini-2.5-flash", client_kwargs={"api_key": "none", "http_options": options})
    tools: list[Any] = [work, LongRunningFunctionTool(approve), AGUIToolset()]
    return LlmAgent(name="worker", model=model, tools=tools)


async def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("journal", "sessions", "provider", "log"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--lease", type=float, required=True)
    parser.add_argument("--go-on", action="store_true", help="with the runs of dead replicas")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--control", type=int, help="of a worker: its socket that is shared with the supervisor")
    given = parser.parse_args()
    if given.workers > 1 and given.control is None:
        await supervise(given.port, given.workers)
        return
    logging.basicConfig(level=logging.ERROR, format=f"replica {given.port} %(name)s: %(message)s")
    housekeeping = Housekeeping(sweep_every=0.5, compact_after=4.0)
    callstream = Callstream(open_journal(given.journal, lease_ttl=given.lease, housekeeping=housekeeping))
    agent = ADKAgent(
        adk_agent=agent_of(given.provider, Log(given.log)),
        app_name="chaos",
        user_id="somebody",
        callstream=callstream,
        session_service=DatabaseSessionService(given.sessions, pool_size=15, max_overflow=15, pool_timeout=120),
    )
    settings = ServerSettings(heartbeat_seconds=2.0, busy_wait=20.0, continue_runs=given.go_on)
    app = create_app(agent, settings=settings)
    if given.control is not None:
        await serve(app, sockets=[], control=socket.socket(fileno=given.control), log_level="error")
    else:
        await serve(app, port=given.port, log_level="error")


async def supervise(port: int, workers: int) -> None:
    def command(control: int, number: int) -> list[str]:
        return [sys.executable, "-m", "tests.server.chaos.replica", *sys.argv[1:], "--control", str(control)]

    with socket.create_server(("127.0.0.1", port), backlog=2048) as listening:
        await Supervisor(command, workers, listening).run(lambda: None)


if __name__ == "__main__":
    asyncio.run(main())
