"""``callstream stop``: ends a run that a server has."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from callstream.cli.client import ServerClient, server_address
from callstream.cli.options import Commands, add_json, add_server
from callstream.cli.output import Printer


def add_to(commands: Commands) -> None:
    parser = commands.add(
        "stop",
        stop,
        summary="stop a run of a running server",
        description="""Asks a server to stop a run, in whichever process it is active: hooks are aborted, open calls
            discarded, the model's stream closed. This needs --server (or CALLSTREAM_SERVER).""",
        examples="""
            callstream stop run_8a1f --server http://127.0.0.1:8000
            callstream stop run_8a1f --server http://127.0.0.1:8000 --reason "wrong document" """,
    )
    parser.add_argument("stopped", metavar="RUN", help="the run's id")
    parser.add_argument("--reason", default="stopped", help="the reason for the journal (default: stopped)")
    add_server(parser)
    add_json(parser, "the server's answer, one JSON document")


async def stop(options: argparse.Namespace, out: Printer) -> int:
    client = ServerClient(server_address(options))
    answer = await client.post(f"/runs/{quote(options.stopped, safe='')}/stop", {"reason": options.reason})
    if options.json:
        out.json(answer)
    else:
        outcome = answer.get("outcome") if isinstance(answer, dict) else None
        out.line(f"run {options.stopped} has ended: {outcome}" if outcome else f"run {options.stopped} is stopping")
    return 0
