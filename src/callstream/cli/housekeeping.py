"""``callstream migrate``, ``compact``, ``sweep``, ``archive``, ``forget`` and ``move``: looking after the journal by hand.

A serving process does all of it by itself, except erasing and moving.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from datetime import datetime

from callstream.cli.options import (
    Commands,
    JournalPlace,
    add_archive,
    add_journal,
    add_json,
    age,
    archive_address,
    check_url,
    place_of,
    refuse_secret,
    some_text,
)
from callstream.cli.output import FAILED, CommandError, Printer, Ticker, clean, count_of, misused, moment, size
from callstream.errors import UsageError

_SESSIONS = (
    "google-adk keeps conversations in sessions of its own, which this does not touch: they are not imported again, but the "
    "model still gets them; delete them through your session service (delete_session)"
)


def add_to(commands: Commands) -> None:
    migrate_parser = commands.add(
        "migrate",
        migrate,
        summary="upgrade a journal's schema, or create a journal",
        description="""Upgrades the journal's schema, under a lock. Running processes of the previous version are not
            interrupted. A journal that does not exist is created.""",
        examples="""
            callstream migrate --journal sqlite:///callstream.db
            CALLSTREAM_JOURNAL_FILE=/run/secrets/journal callstream migrate""",
    )
    compact_parser = commands.add(
        "compact",
        compact,
        summary="compact ended runs",
        description="""Merges the pieces of each call and message of ended runs into one record each. The journal gets
            smaller and its contents stay the same. A serving process does this a minute after a run has ended.""",
        examples="""
            callstream compact run_8a1f
            callstream compact --all""",
    )
    which = compact_parser.add_mutually_exclusive_group(required=True)
    which.add_argument("compacted", nargs="?", metavar="RUN", help="the run's id")
    which.add_argument("--all", action="store_true", help="all runs that have ended")
    sweep_parser = commands.add(
        "sweep",
        sweep,
        summary="end runs that dead processes left open",
        description="""Ends the runs of processes that died. Their calls are discarded, or failed if they were
            executing; calls that await an answer keep waiting. Runs of living processes are not touched. A run that
            another process can continue is left alone for an hour after its last record, unless --all is given. A serving
            process does this every ten seconds.""",
        examples="""
            callstream sweep
            callstream sweep --all    # also runs that a server or callstream work would continue
            callstream sweep --json""",
    )
    sweep_parser.add_argument(
        "--all", action="store_true", help="also runs that wait for another process to continue them"
    )
    archive_parser = commands.add(
        "archive",
        archive,
        summary="move runs that ended long ago into the archive",
        description="""Moves ended runs out of the journal into its archive, where everything still reads them. Runs with a
            call that awaits an answer stay. A serving process does this thirty days after a run has ended, if it has an
            archive.""",
        examples="""
            callstream archive --archive s3://bucket/agents   # runs that ended more than thirty days ago
            callstream archive --older-than 7d""",
    )
    archive_parser.add_argument(
        "--older-than",
        type=age,
        metavar="AGE",
        help="runs that ended this long ago: 12h, 8w (default: 30d)",
    )
    archive_parser.add_argument("--all", action="store_true", help="all runs that have ended")
    forget_parser = commands.add(
        "forget",
        forget,
        summary="permanently erase ended runs",
        description="""Erases ended runs with their calls and records: those that match all the given options. It asks
            first, and cannot be undone. Sessions that google-adk keeps itself are not erased.""",
        examples="""
            callstream forget --before 30d             # runs that ended more than thirty days ago
            callstream forget --before 2026-01-01 --yes
            callstream forget --principal ada --yes    # everything of one user""",
    )
    forget_parser.add_argument(
        "--before",
        type=_before,
        metavar="WHEN",
        help="runs that ended before: an age in hours, days or weeks (12h, 30d, 8w) or a date (2026-01-31)",
    )
    forget_parser.add_argument("--thread", type=some_text, metavar="THREAD", help="runs of this thread")
    forget_parser.add_argument("--principal", type=some_text, metavar="WHO", help="runs of this user")
    forget_parser.add_argument("--yes", action="store_true", help="do not ask")
    for parser in (migrate_parser, compact_parser, sweep_parser, archive_parser, forget_parser):
        add_journal(parser)
        add_json(parser, "one JSON document")
    _add_move(commands)


async def migrate(options: argparse.Namespace, out: Printer) -> int:
    place = place_of(options)
    if place.url.startswith("memory:"):
        raise misused("a journal in memory has nothing to migrate")
    async with place.open(must_exist=False, migrate=True) as journal:
        version = await journal.migrate()
    out.result({"journal": str(place), "schema_version": version}, f"{place} has schema {version}")
    return 0


async def compact(options: argparse.Namespace, out: Printer) -> int:
    place = place_of(options)
    async with place.open() as journal:
        if options.all:
            run_ids = [row.run_id for row in await journal.runs(active=False)]
        elif await journal.runs(run_id=options.compacted):
            run_ids = [options.compacted]
        else:
            raise CommandError(f"run {options.compacted!r} not found in {place}")
        before = (await journal.stats())["stored_bytes"]
        gone = 0
        with Ticker("compacting run", len(run_ids)) as ticker:
            for run_id in run_ids:
                try:
                    gone += await journal.compact(run_id)
                except UsageError:
                    if not options.all:
                        raise
                    # Another process has erased it meanwhile.
                ticker.step()
        after = (await journal.stats())["stored_bytes"]
    out.result(
        {"runs": len(run_ids), "folded_records": gone, "stored_bytes": after},
        f"{count_of(gone, 'record')} of {count_of(len(run_ids), 'run')} folded; {size(before)} before, {size(after)} now",
    )
    return 0


async def sweep(options: argparse.Namespace, out: Printer) -> int:
    async with place_of(options).open() as journal:
        swept = await journal.sweep(also_waiting=options.all)
        waiting = await journal.waiting()
    lines = [f"closed {clean(run_id)}" for run_id in swept]
    if waiting:
        lines.append(
            f"{count_of(len(waiting), 'run')} left alone: for an hour after the last record a server or callstream work can "
            "go on with such runs; --all ends them, too"
        )
    out.result({"runs": swept, "waiting": waiting}, *lines or ["no runs of dead processes found"])
    return 0


async def archive(options: argparse.Namespace, out: Printer) -> int:
    from callstream.journal import Housekeeping

    place = place_of(options)
    if place.archive is None:
        raise misused("no archive: give --archive or set CALLSTREAM_ARCHIVE")
    async with place.open() as journal:
        span = 0.0 if options.all else options.older_than or Housekeeping().archive_after
        count = await journal.archive(span or 0.0)
        stats = await journal.stats()
    there = stats["archive"]
    out.result(
        {"runs": count, "stored_bytes": stats["stored_bytes"], "archive": there},
        f"{count_of(count, 'run')} moved into the archive",
        f"{count_of(there['runs'], 'run')} in {count_of(there['packs'], 'object')} there, {size(there['bytes'])}; the "
        f"journal has {size(stats['stored_bytes'])}",
    )
    return 0


async def forget(options: argparse.Namespace, out: Printer) -> int:
    before, thread, principal = options.before, options.thread, options.principal
    if before is None and thread is None and principal is None:
        raise misused("expected --before, --thread or --principal")
    place = place_of(options)
    async with place.open() as journal:
        if not options.yes:
            rows = await journal.runs(thread_id=thread, principal=principal, active=False)
            matching = [row for row in rows if before is None or (row.ended_at or 0) < before]
            when = f" that ended before {moment(before)}" if before is not None else ""
            if not _confirm(f"permanently erase {count_of(len(matching), 'run')}{when} from {place}?"):
                out.note("nothing was erased")
                return 1
        gone = await journal.forget(before=before, thread=thread, principal=principal)
    out.result({"runs": gone}, f"{count_of(gone, 'run')} erased")
    if gone and (thread is not None or principal is not None):
        out.note(_SESSIONS)
    return 0


def _confirm(question: str) -> bool:
    if not sys.stdin.isatty():
        raise misused("erasing cannot be undone; add --yes to confirm it without a terminal")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _before(text: str) -> float:
    """The moment that an age or a date means, in local time unless the text says otherwise."""
    try:
        return time.time() - age(text)
    except argparse.ArgumentTypeError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        hint = " (m could mean minutes or months)" if text.endswith("m") else ""
        raise argparse.ArgumentTypeError(
            "expected an age in hours, days or weeks, such as 12h, 30d or 8w, or a date such as 2026-01-31, "
            f"got {text!r}{hint}"
        ) from None


# -- a journal copied into another store -------------------------------------------------------------------------------


def _add_move(commands: Commands) -> None:
    parser = commands.add(
        "move",
        move,
        summary="copy a journal into another store",
        description="""Copies all runs of the journal FROM into the journal TO, which is created if it does not exist, and
            compares the two by digest. The runs of FROM stay as they are, but its file or database has to be writable,
            for this process's lease. A copy that was interrupted continues when the command is run again; so you can
            copy most of a journal while it is in use, and the rest when its servers have stopped. FROM and TO are URLs,
            or names of environment variables that hold them, which is how a URL with a password must be given. Runs in
            FROM's archive are copied into TO itself.""",
        examples="""
            callstream move sqlite:///callstream.db postgresql://agent@db/agents
            callstream move sqlite:///callstream.db CALLSTREAM_JOURNAL   # the URL in that variable""",
    )
    parser.add_argument("source", metavar="FROM", help="the journal to copy")
    parser.add_argument(
        "target", metavar="TO", help="the journal to copy to: empty, or with an unfinished copy of FROM"
    )
    add_archive(parser)
    add_json(parser, "one JSON document")


async def move(options: argparse.Namespace, out: Printer) -> int:
    source, target = JournalPlace(_url(options.source), archive_address(options)), JournalPlace(_url(options.target))
    if source.url == target.url:
        raise misused("FROM and TO are the same journal")
    if target.url.startswith("memory:"):
        raise misused("expected a TO that outlives this command, got a journal in memory")
    async with (
        source.open() as journal,
        target.open(must_exist=False, migrate=True) as other,
    ):
        total = (await journal.stats())["runs"]
        try:
            with Ticker("copying run", total) as ticker:
                moved = await journal.copy_to(other, ticker.reach)
        except asyncio.CancelledError:
            out.note("interrupted; what was copied stays, and the same command goes on with the rest")
            raise
    out.result(
        {"from": str(source), "to": str(target), **moved._asdict()},
        f"{count_of(moved.copied, 'run')} copied",
        f"{source} and {target} have the same {count_of(moved.runs, 'run')} and {count_of(moved.records, 'record')}: "
        f"sha256 {moved.digest}",
    )
    if not moved.active:
        return 0
    out.note(
        f"{count_of(moved.active, 'run')} in {source} not copied, because a process is working on it: "
        "stop the processes that write to it, and run the command again"
    )
    return FAILED


def _url(named: str) -> str:
    """The URL, or the one in the variable of that name."""
    if ":" not in named:
        url = os.environ.get(named, "").strip()
        if not url:
            raise misused(f"expected a journal's URL or a variable that has one, got {named!r}, which is not set")
        return check_url(url, named)
    return check_url(refuse_secret(named, "a variable to the URL, and give its name,"))
