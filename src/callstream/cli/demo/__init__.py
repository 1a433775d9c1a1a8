"""``callstream demo``: a google-adk agent, a server, the inspector and a journal, in one command."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
import uuid
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callstream.calls import Call, CallState
from callstream.cli.options import Commands, JournalPlace, add_address, add_journal, pace, refuse_secret
from callstream.cli.output import Printer, clean, misused
from callstream.cli.serve import app_of, quiet_adk, serve_made
from callstream.cli.sources import JournalSource
from callstream.cli.watch import follow

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
        "--folder",
        metavar="FOLDER",
        help="where documents, journal and google-adk's sessions are kept (default: a temporary folder)",
    )
    parser.add_argument("--model", metavar="NAME", help="another model of the provider whose key is in the environment")
    parser.add_argument("--scripted", action="store_true", help="use the script even if there is a key")
    add_journal(parser)


def demo(options: argparse.Namespace, out: Printer) -> int:
    quiet_adk()
    try:
        from callstream.adk import serving as adk
        from callstream.cli.demo import agent as agents
    except ImportError as error:
        raise misused(f"the demo needs google-adk: pip install 'callstream[adk,server,cli]' ({error})") from error
    from callstream.callstream import Callstream
    from callstream.cli.demo.play import play
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
        # The tools are as fast as the script.
        workshop = agents.Workshop(folder, pause=0.12 * min(1.0, _PACE / options.pace))
        # Beside the documents, wherever the journal is, so that an answer finds its conversation after a restart.
        sessions = adk.open_sessions(f"sqlite:///{folder.resolve()}/sessions.db")
        agent = agents.demo_agent(cast, workshop, Callstream(url), sessions)
        _introduce(cast, url, folder, out)
        if options.terminal:
            return asyncio.run(_in_terminal(agent, options, out))
        app = app_of(agent, options, out, name="demo", label=cast.label, shutdown_seconds=1.0)
        return asyncio.run(serve_made(app, options, out, _built_pages()))


def _built_pages() -> dict[str, str]:
    """Pages that exist only in a checkout after ``make js``."""
    from callstream.server.app import PAGE

    path = "page/react/index.html"
    return {path: "the same in a page of React"} if (PAGE.parent / path).is_file() else {}


async def _in_terminal(agent: ADKAgent, options: argparse.Namespace, out: Printer) -> int:
    try:
        await _TerminalChat(agent, out, yes=options.yes).hold(options.message or QUESTION)
        await _show_calls(agent, out)
    finally:
        await agent.close()
        await agent.callstream.aclose()
    return 0


def _journal(options: argparse.Namespace, folder: Path) -> str:
    """The journal named on the command line, else its own: a demo should not write into an application's journal."""
    if options.journal is not None:
        return refuse_secret(options.journal, "PGPASSWORD")
    return f"sqlite:///{folder.resolve()}/callstream.db"


def _introduce(cast: Cast, url: str, folder: Path, out: Printer) -> None:
    out.line(f"model      {cast.title}" + (" (no account needed, and no real model)" if cast.label else ""))
    if cast.note:
        out.line(f"           {cast.note}")
    out.line(f"journal    {JournalPlace(url)}")
    out.line(f"documents  {folder}")
    out.write("\n")


# ``callstream demo --terminal``: the same agent, its journal watched in the terminal it was started in.

QUESTION = "Write down how tides work."


class _TerminalChat:
    """One thread with the agent. ``yes``: its questions are answered with yes, without a person."""

    def __init__(self, agent: ADKAgent, out: Printer, *, yes: bool) -> None:
        self._agent = agent
        self._out = out
        self._yes = yes
        self._journal = agent.callstream.journal
        self._thread_id = f"demo-{uuid.uuid4().hex[:8]}"

    async def hold(self, said: str) -> None:
        """Sends a message, and answers the agent's questions until it has no more."""
        run_id = await self._run({"role": "user", "content": said})
        while waiting := await self._journal.calls(run_id=run_id, states=[CallState.AWAITING]):
            answer = await self._answer(waiting[0])
            if answer is None:
                self._out.note(f"call {waiting[0].call_id} still awaits its answer")
                return
            run_id = await self._run({"role": "tool", "toolCallId": waiting[0].call_id, "content": answer})

    async def _run(self, message: dict[str, Any]) -> str:
        from ag_ui.core import RunAgentInput

        run_id = f"run_{uuid.uuid4().hex[:12]}"
        run_input = RunAgentInput.model_validate(
            {"threadId": self._thread_id, "runId": run_id, "messages": [{"id": uuid.uuid4().hex, **message}]}
        )
        async with aclosing(self._agent.run(run_input)) as events, asyncio.TaskGroup() as tasks:
            await anext(events)  # it is in the journal, so the run exists and can be watched
            tasks.create_task(follow(JournalSource(self._journal, ""), run_id, self._out))
            async for _ in events:
                pass
        return run_id

    async def _answer(self, call: Call) -> str | None:
        whole = await self._journal.call(call.call_id)
        asked = whole.args if whole is not None and isinstance(whole.args, dict) else {}
        question = f"Publish “{clean(str(asked.get('title', '')))}”? [y/n] "
        if self._yes:
            self._out.line(f"{question}y")
            return '{"approved":true}'
        self._out.write(question)
        said = await asyncio.to_thread(sys.stdin.readline)
        if not said:
            self._out.line()
            return None
        return '{"approved":true}' if said.strip().lower() in ("y", "yes") else '{"approved":false}'


async def _show_calls(agent: ADKAgent, out: Printer) -> None:
    """Shows what the journal has stored."""
    calls = await agent.callstream.journal.calls()
    stats = await agent.callstream.journal.stats()
    out.line()
    out.line(f"The journal has {stats['records']} records of {stats['runs']} runs. Its calls:")
    rows = [(call.name, str(call.state), call.call_id) for call in calls]
    out.table(("tool", "state", "call"), rows)
