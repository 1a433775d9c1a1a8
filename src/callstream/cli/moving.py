"""``callstream move``: a journal copied into another store."""

from __future__ import annotations

import argparse
import os

from callstream.cli.options import Commands, add_archive, add_json
from callstream.cli.output import FAILED, Printer, Ticker, count_of, misused
from callstream.cli.place import archive_address, check_url, hide_password, open_place, refuse_secret


def add_to(commands: Commands) -> None:
    parser = commands.add(
        "move",
        move,
        summary="copy a journal into another store",
        description="""Copies all runs of the journal FROM into the journal TO, which is created if it does not exist, and
            compares the two by digest. FROM is only read, and stays as it is. A copy that was interrupted goes on when the
            command is run again; so you can copy most of a journal while it is in use, and what is new when its servers have
            stopped. FROM and TO are URLs, or names of environment variables that hold them, as a URL with a password must
            be given. What FROM has in its archive is copied into TO itself.""",
        examples="""
            callstream move sqlite:///callstream.db postgresql://agent@db/agents
            callstream move sqlite:///callstream.db CALLSTREAM_JOURNAL   # the URL in that variable""",
    )
    parser.add_argument("source", metavar="FROM", help="the journal to copy")
    parser.add_argument("target", metavar="TO", help="where to: empty, or begun by such a copy of the same journal")
    add_archive(parser)
    add_json(parser, "one JSON document")


async def move(options: argparse.Namespace, out: Printer) -> int:
    source, target = _url(options.source), _url(options.target)
    if source == target:
        raise misused("FROM and TO are the same journal")
    if target.startswith("memory:"):
        raise misused("expected a TO that outlives this command, got a journal in memory")
    async with (
        open_place(source, archive=archive_address(options)) as journal,
        open_place(target, must_exist=False, migrate=True) as other,
    ):
        total = (await journal.stats())["runs"]
        with Ticker("copying run", total) as ticker:
            moved = await journal.copy_to(other, ticker.reach)
    if options.json:
        out.json({"from": hide_password(source), "to": hide_password(target), **moved._asdict()})
    else:
        out.line(f"{count_of(moved.copied, 'run')} copied")
        out.line(
            f"{hide_password(source)} and {hide_password(target)} have the same {count_of(moved.runs, 'run')} and "
            f"{count_of(moved.records, 'record')}: sha256 {moved.digest}"
        )
    if not moved.active:
        return 0
    out.note(
        f"{count_of(moved.active, 'run')} in {hide_password(source)} not copied, because a process is working on it: "
        "stop the processes that write to it, and run the command again"
    )
    return FAILED


def _url(given: str) -> str:
    """The URL, or the one in the variable of that name."""
    if ":" not in given:
        url = os.environ.get(given, "").strip()
        if not url:
            raise misused(f"expected a journal's URL or a variable that has one, got {given!r}, which is not set")
        return check_url(url)
    return check_url(refuse_secret(given, "a variable to the URL, and give its name,"))
