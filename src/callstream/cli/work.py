"""``callstream work``: goes on with runs whose process has died, and serves nobody."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from callstream.cli.options import Commands
from callstream.cli.output import CommandError, Printer
from callstream.cli.serve import add_application, made_app, set_up_logs


def add_to(commands: Commands) -> None:
    parser = commands.add(
        "work",
        work,
        summary="go on with runs whose process has died, without a server",
        description="""Takes over runs of an application whose process has died or has handed them over, and goes on with
            them, until it is stopped. It listens nowhere: clients follow such a run through any server on the same journal.
            On SIGTERM it takes no more runs, lets those that it works on finish for CALLSTREAM_SHUTDOWN_SECONDS, and hands
            over what is left. The application is named as for callstream serve.""",
        examples="""
            callstream work agent.py:root_agent --journal postgresql://db/shop
            callstream work shop.web:app                 # an app of create_app, with the journal that it names""",
    )
    add_application(parser)


async def work(options: argparse.Namespace, out: Printer) -> int:
    out = set_up_logs(options, out)
    async with made_app(options, out) as app:
        if not app.state.continues():
            raise CommandError(
                f"runs of {options.target} cannot go on in another process: its journal or its sessions are in memory, the "
                "journal has a redact, CALLSTREAM_CONTINUE_RUNS is off, or it is a function that was not served with "
                "create_app(…, continues=True)"
            )
        with _stopped_by_sigterm(app) as stopped:
            async with app.router.lifespan_context(app):
                out.note("going on with runs whose process has died; press Ctrl-C to stop")
                await stopped.wait()
    return 0


@contextmanager
def _stopped_by_sigterm(app: Any) -> Iterator[asyncio.Event]:
    """The first one stops, the second one gives the active runs no more time."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop(*_: Any) -> None:
        loop.call_soon_threadsafe(app.state.driver.hurry if stopped.is_set() else stopped.set)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGTERM, before)
