"""``callstream doctor``: what is installed, where models are read, and the state of the journal."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata
from typing import Any

import msgspec

from callstream import __version__
from callstream.cli.options import Commands, add_env_file, add_journal, add_json, find_place
from callstream.cli.output import CommandError, Printer, clean, count_of, size
from callstream.cli.serve import obstacles_of
from callstream.cli.target import HELP, Target, load_target
from callstream.errors import CallstreamError, JournalError

_EXTRAS = {
    "adk": ("google-adk", "google-genai", "ag-ui-protocol"),
    "server": ("starlette", "uvicorn", "ag-ui-protocol"),
    "postgres": ("asyncpg",),
    "nats": ("nats-py",),
    "archive": ("obstore",),
    "cli": ("rich", "httpx"),
    "sessions": ("sqlalchemy",),
    "telemetry": ("opentelemetry-api",),
    "guards": ("pyyaml", "regex"),
    "cedar": ("cedarpy",),
}
_OTHERS = ("msgspec", "httpx2", "anthropic", "openai", "boto3", "cohere", "ollama", "litellm")
_GOES_ON = "served with callstream serve, a run goes on in another process if its own dies"
_STAYS = "served with callstream serve, a run does not go on in another process if its own dies"


def add_to(commands: Commands) -> None:
    parser = commands.add(
        "doctor",
        doctor,
        summary="check versions, how an agent's models are read, and the journal",
        description="""Shows what is installed, how the models of an agent are read (at the wire, or from google-adk's
            partial events, which is slower), whether its runs go on in another process if their own dies, and if not,
            why, and the state of the journal: schema, counts, size, processes that use it, runs that dead processes
            left open, and which of them wait for a process to continue them. Exits with 1 if something needs
            attention.""",
        examples="""
            callstream doctor
            callstream doctor agent.py:root_agent
            callstream doctor --journal sqlite:///callstream.db --json""",
    )
    parser.add_argument("target", nargs="?", metavar="MODULE:APP", help=HELP)
    add_env_file(parser)
    add_journal(parser)
    add_json(parser, "one JSON document")


async def doctor(options: argparse.Namespace, out: Printer) -> int:
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "callstream": __version__,
        "packages": {name: _version(name) for name in sorted({*_OTHERS, *(n for e in _EXTRAS.values() for n in e)})},
        "extras": {extra: all(_version(name) is not None for name in names) for extra, names in _EXTRAS.items()},
        "models": None,
        "obstacles": None,
        "journal": None,
        "problems": [],
    }
    problems: list[str] = found["problems"]
    if options.target is not None:
        target = load_target(options.target, env_file=options.env_file)
        found["models"] = _models(target, problems)
        found["obstacles"] = obstacles_of(options, target)
    found["journal"] = await _journal(options, problems)
    if options.json:
        out.json(found)
    else:
        _tell(found, out)
    return 1 if problems else 0


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _models(target: Target, problems: list[str]) -> list[dict[str, Any]]:
    try:
        from callstream.adk.serving import is_adk, model_paths
    except ImportError as error:
        problems.append(str(error))
        return []
    if not is_adk(target.found):
        problems.append(f"{target.text} is of type {type(target.found).__name__}, not a google-adk app or agent")
        return []
    found = model_paths(target.found)
    problems += [f"the model of agent {each.agent} cannot be created: {each.detail}" for each in found if each.detail]
    return [msgspec.structs.asdict(each) for each in found]


async def _journal(options: argparse.Namespace, problems: list[str]) -> dict[str, Any] | None:
    if (place := find_place(options)) is None:
        return None
    try:
        async with place.open() as journal:
            stats = await journal.stats()
            waiting = len(await journal.waiting())
            try:
                await journal.check_archive()
            except JournalError as error:
                problems.append(str(error))
    except (CommandError, CallstreamError) as error:
        problems.append(str(error) if isinstance(error, CommandError | JournalError) else f"the journal: {error}")
        return {"url": str(place)}
    stats["live_writers"] -= 1  # this command itself
    stats["waiting_runs"] = waiting
    if lost := stats["orphaned_runs"] - waiting:
        problems.append(f"{count_of(lost, 'run')} left open by a dead process; run callstream sweep")
    if waiting:
        problems.append(
            f"{count_of(waiting, 'run')} left open by a dead process, to be continued within an hour of the last record; "
            "start the server or callstream work, or run callstream sweep --all"
        )
    return {"url": str(place), **stats}


def _tell(found: dict[str, Any], out: Printer) -> None:
    out.line(f"callstream {found['callstream']}, Python {found['python']}")
    out.line()
    rows = [(name, known or "not installed") for name, known in found["packages"].items()]
    out.table(("package", "version"), rows)
    missing = [extra for extra, is_there in found["extras"].items() if not is_there]
    out.line()
    out.line(f"incomplete extras: {', '.join(missing)}" if missing else "all extras are installed")
    if found["models"]:
        out.line()
        models = [(clean(m["agent"]), clean(m["model"]), m["kind"], m["path"]) for m in found["models"]]
        out.table(("agent", "model", "class", "read from"), models)
    if (obstacles := found["obstacles"]) is not None:
        out.line()
        out.line(f"{_STAYS}: {'; '.join(obstacles)}" if obstacles else _GOES_ON)
    out.line()
    journal = found["journal"]
    if journal is None:
        out.line("no journal given, so none was checked (--journal URL)")
    elif "schema_version" in journal:
        out.line(f"journal {journal['url']}, schema {journal['schema_version']}, {size(journal['stored_bytes'])}")
        out.line(
            f"  {count_of(journal['runs'], 'run')} ({journal['active_runs']} active), {count_of(journal['calls'], 'call')}, "
            f"{count_of(journal['records'], 'record')}"
        )
        if "archive" in journal:
            there = journal["archive"]
            out.line(
                f"  {count_of(there['runs'], 'run')} in the archive, in {count_of(there['packs'], 'object')} of "
                f"{size(there['bytes'])} in all"
            )
        out.line(
            f"  {count_of(journal['live_writers'], 'process', 'processes')} using it, "
            f"{count_of(journal['orphaned_runs'], 'run')} left open by dead ones"
        )
    for problem in found["problems"]:
        out.line(f"! {clean(problem)}")
    if not found["problems"]:
        out.line("no problems found")
