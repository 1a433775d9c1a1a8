"""``callstream demo``: a google-adk agent, a server, the inspector and a journal, in one command."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from callstream.cli.options import Commands, add_address, add_journal, hide_password, pace, refuse_secret
from callstream.cli.output import Printer, misused
from callstream.cli.serve import quiet_adk, serve_app

if TYPE_CHECKING:
    from callstream.adk import ADKAgent
    from callstream.cli.demo.agent import Cast

_PACE = 40.0


def add_to(commands: Commands) -> None:
    parser = commands.add(
        "demo",
        demo,
        summary="try everything: an agent, its server, the inspector, a journal",
        description="""Starts a google-adk agent that looks things up in parallel, writes a document whose text grows while
            the model writes it, reports progress, and asks before it publishes; with server, inspector and SQLite journal.
            The model is played by a scripted provider over real HTTP, unless the environment has a key: GEMINI_API_KEY
            or GOOGLE_API_KEY, GOOGLE_GENAI_USE_VERTEXAI with GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION,
            ANTHROPIC_API_KEY, OPENAI_API_KEY.""",
        examples="""
            callstream demo                               # then open the address that it prints
            callstream demo --terminal                    # the same in the terminal
            callstream demo --terminal --yes "Tell me about tea"
            callstream demo --folder tides                # keep what it makes; then: callstream calls, in that folder""",
    )
    parser.add_argument("message", nargs="?", help="what to say, with --terminal")
    parser.add_argument("--terminal", action="store_true", help="show it in the terminal, without server and page")
    parser.add_argument("--yes", action="store_true", help="approve what the agent asks, with --terminal")
    add_address(parser)
    parser.add_argument(
        "--pace", type=pace, default=_PACE, metavar="N", help="deltas per second of the script (default: 40)"
    )
    parser.add_argument(
        "--folder", metavar="FOLDER", help="where documents and journal are kept (default: a temporary folder)"
    )
    parser.add_argument("--model", metavar="NAME", help="another model of the provider whose key is in the environment")
    parser.add_argument("--scripted", action="store_true", help="use the script even if there is a key")
    add_journal(parser)


def demo(options: argparse.Namespace, out: Printer) -> int:
    quiet_adk()
    try:
        from callstream.cli.demo import agent as agents
    except ImportError as error:
        raise misused(f"the demo needs google-adk: pip install 'callstream[adk,server,cli]' ({error})") from error
    from callstream.callstream import Callstream
    from callstream.cli.demo.play import play
    from callstream.cli.demo.tools import Workshop
    from callstream.testing.provider import ScriptedProvider

    if not options.terminal and (options.message or options.yes):
        raise misused("a message and --yes need --terminal")
    logging.getLogger("google_adk").setLevel(logging.ERROR)
    with ExitStack() as stack:
        folder = Path(options.folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="callstream-demo-")))
        folder.mkdir(parents=True, exist_ok=True)
        cast = None if options.scripted else agents.real_cast(os.environ, options.model)
        if cast is None:
            provider = ScriptedProvider("gemini", play, deltas_per_second=options.pace, stream_args_unasked=True)
            stack.enter_context(provider)
            cast = agents.scripted_cast(provider.base_url)
        url = _journal(options, folder)
        # The script's own hurry is the tools' too.
        workshop = Workshop(folder, pause=0.12 * min(1.0, _PACE / options.pace))
        agent = agents.demo_agent(cast, workshop, Callstream(url))
        _introduce(cast, url, folder, out)
        if options.terminal:
            return asyncio.run(_in_terminal(agent, options, out))
        served = serve_app(
            agent, options, out, name="demo", label=cast.label, links=_built_pages(), shutdown_seconds=1.0
        )
        return asyncio.run(served)


def _built_pages() -> dict[str, str]:
    """Pages that only a checkout has, where ``make js`` was run."""
    from callstream.server.app import PAGE

    path = "page/react/index.html"
    return {path: "the same in a page of React"} if (PAGE.parent / path).is_file() else {}


async def _in_terminal(agent: ADKAgent, options: argparse.Namespace, out: Printer) -> int:
    from callstream.cli.demo.terminal import QUESTION, TerminalChat, show_calls

    try:
        await TerminalChat(agent, out, yes=options.yes).hold(options.message or QUESTION)
        await show_calls(agent, out)
    finally:
        await agent.close()
        await agent.callstream.aclose()
    return 0


def _journal(options: argparse.Namespace, folder: Path) -> str:
    """The one that is named on the command line, else one of its own: a play has no place in an application's."""
    if options.journal is not None:
        return refuse_secret(options.journal, "PGPASSWORD")
    return f"sqlite:///{folder.resolve()}/callstream.db"


def _introduce(cast: Cast, url: str, folder: Path, out: Printer) -> None:
    out.line(f"model      {cast.title}" + (" (no account needed, and no real model)" if cast.label else ""))
    if cast.note:
        out.line(f"           {cast.note}")
    out.line(f"journal    {hide_password(url)}")
    out.line(f"documents  {folder}")
    out.write("\n")
