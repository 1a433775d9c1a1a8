"""``callstream runs``, ``calls`` and ``show``: the content of the journal."""

from __future__ import annotations

import argparse
import json
from contextlib import aclosing
from typing import Any

import msgspec

from callstream.calls import DECLINED, Call, CallState
from callstream.cli.options import Commands, add_json, add_source, positive
from callstream.cli.output import CommandError, Printer, clean, duration, moment, one_line
from callstream.cli.sources import RecordSource, source_of
from callstream.errors import CallstreamError
from callstream.events import CallStarted, Record, RunResumed
from callstream.journal import RunRow
from callstream.view import CallView, RunView


def add_to(commands: Commands) -> None:
    runs_parser = commands.add(
        "runs",
        runs,
        summary="list runs",
        description="Lists runs, the newest last.",
        examples="""
            callstream runs --active               # active runs
            callstream runs --thread t1 --limit 5
            callstream runs --json | jq -r .run_id""",
    )
    which = runs_parser.add_mutually_exclusive_group()
    which.add_argument("--active", action="store_const", const=True, default=None, help="only active runs")
    which.add_argument("--ended", dest="active", action="store_const", const=False, help="only runs that have ended")
    _add_choice(runs_parser, "run")

    calls_parser = commands.add(
        "calls",
        calls,
        summary="list tool calls",
        description="Lists tool calls, the newest last, without their arguments.",
        examples="""
            callstream calls                       # the last fifty
            callstream calls --state awaiting      # calls that need an answer
            callstream calls --state failed --state discarded --limit 10
            callstream calls --run run_8a1f --json""",
    )
    calls_parser.add_argument("--run", dest="of_run", metavar="RUN", help="only calls of this run")
    calls_parser.add_argument(
        "--state",
        action="append",
        choices=[str(state) for state in CallState],
        metavar="STATE",
        help=f"only calls in this state; may be repeated: {', '.join(CallState)}",
    )
    _add_choice(calls_parser, "call")

    show_parser = commands.add(
        "show",
        show,
        summary="show one tool call with its arguments and its result",
        description="Shows everything about one call: its state, its arguments as far as they arrived, and its result or "
        "why it has none.",
        examples="""
            callstream show call_3
            callstream show call_3 --json | jq -r .args_json""",
    )
    show_parser.add_argument("call_id", metavar="CALL", help="the call's id")
    add_source(show_parser)
    add_json(show_parser, "one JSON document")


def _add_choice(parser: argparse.ArgumentParser, noun: str) -> None:
    parser.add_argument("--thread", metavar="THREAD", help=f"only {noun}s of this thread")
    parser.add_argument("--limit", type=positive, default=50, metavar="N", help=f"at most N {noun}s (default: 50)")
    add_source(parser)
    add_json(parser, f"JSON lines, one per {noun}")


async def runs(options: argparse.Namespace, out: Printer) -> int:
    async with source_of(options) as source:
        found = await source.runs(thread_id=options.thread, active=options.active, limit=options.limit)
    found.reverse()
    if options.json:
        for row in found:
            out.json(msgspec.structs.asdict(row))
    elif not found:
        out.note(f"no such runs in {source.where}")
    else:
        out.table(("run", "thread", "outcome", "started", "took", "records"), [_run(row) for row in found])
    return 0


async def calls(options: argparse.Namespace, out: Printer) -> int:
    states = [CallState(state) for state in options.state] if options.state else None
    async with source_of(options) as source:
        found = await source.calls(run_id=options.of_run, thread_id=options.thread, states=states, limit=options.limit)
    if options.json:
        for call in found:
            listed = msgspec.structs.asdict(call)
            del listed["args_json"]  # ``show`` has it
            out.json(listed)
    elif not found:
        out.note(f"no such calls in {source.where}")
    else:
        out.table(("call", "tool", "state", "thread", "started", "outcome"), [_call(call) for call in found])
    return 0


async def show(options: argparse.Namespace, out: Printer) -> int:
    async with source_of(options) as source:
        call = await source.call(options.call_id)
        if call is None:
            raise CommandError(f"call {options.call_id!r} not found in {source.where}")
        made = None if options.json else await _made_in(call, source)
    if options.json:
        out.json(msgspec.structs.asdict(call))
        return 0
    for name, value in _facts(call, made):
        out.line(f"{name:10} {clean(value)}")
    out.line()
    out.line("arguments" if call.args_json else "no arguments")
    if call.args_json:
        out.line(_indent(_readable(call)))
    if call.result is not None:
        out.line("\nresult")
        out.line(_indent(json.dumps(call.result, ensure_ascii=False, indent=2)))
    return 0


def _run(row: RunRow) -> tuple[str, ...]:
    outcome: str = row.outcome or "running"
    if row.attempt > 1:
        outcome += f", attempt {row.attempt}"
    took = duration(row.ended_at - row.started_at) if row.ended_at is not None else ""
    if row.reason:
        outcome += f" ({one_line(row.reason, 40)})"
    return clean(row.run_id), clean(row.thread_id), outcome, moment(row.started_at), took, str(row.last_seq)


def _call(call: Call) -> tuple[str, ...]:
    return (
        clean(call.call_id),
        clean(call.name),
        str(call.state),
        clean(call.thread_id or ""),
        moment(call.started_at),
        _outcome(call),
    )


def _outcome(call: Call) -> str:
    if call.error is not None:
        return one_line(f"declined: {call.error}" if call.error in DECLINED else call.error)
    if call.reason is not None:
        return one_line(f"{call.reason}: {call.detail}" if call.detail else call.reason)
    return "" if call.result is None else one_line(call.result)


async def _made_in(call: Call, source: RecordSource) -> tuple[CallView, RunView] | None:
    """The call in its run's records, which say who made it and whether it is void."""
    for row in await source.runs(run_id=call.run_id or ""):
        records: list[Record] = []
        attempt, has_begun = 1, False
        async with aclosing(source.follow(row.run_id)) as followed:
            async for record in followed:
                if record is None:
                    records.clear()  # all of it follows again
                    continue
                records.append(record)
                if isinstance(record.event, RunResumed):
                    attempt = record.event.attempt
                has_begun |= isinstance(record.event, CallStarted) and record.event.call_id == call.call_id
                if has_begun and attempt >= row.attempt:
                    break  # the run may last long
        view = RunView.of(records)
        void = [made for message in view.void.values() for made in message.calls]
        for made in (*view.calls.values(), *void):
            if made.call_id == call.call_id:
                return made, view
    return None


def _attempt(made: CallView, view: RunView) -> str | None:
    """Which of the run's processes read the call, if there were several."""
    if view.attempt == 1:
        return None
    void = view.void.get(made.message_id)
    message = void or view.messages[made.message_id]
    what = "; void: the response was cut, and the model was asked again" if void is not None else ""
    return f"{message.attempt} of {view.attempt}{what}"


def _facts(call: Call, made: tuple[CallView, RunView] | None) -> list[tuple[str, str]]:
    found: list[tuple[str, Any]] = [
        ("call", call.call_id),
        ("tool", call.name),
        ("agent", None if made is None else made[0].author),
        ("state", str(call.state)),
        ("attempt", None if made is None else _attempt(*made)),
        ("reason", call.reason),
        ("detail", call.detail),
        ("declined" if call.error in DECLINED else "error", call.error),
        ("run", call.run_id),
        ("thread", call.thread_id),
        ("wire id", call.provider_id if call.provider_id != call.call_id else None),
        ("started", moment(call.started_at)),
        ("changed", moment(call.updated_at)),
    ]
    return [(name, str(value)) for name, value in found if value]


def _readable(call: Call) -> str:
    """Arguments as indented JSON; as they came if they are incomplete, or are text anyway."""
    try:
        args = call.args
    except (ValueError, CallstreamError):
        args = None
    if args is None:
        return call.args_json or ""
    return args if isinstance(args, str) else json.dumps(args, ensure_ascii=False, indent=2)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in clean(text).splitlines())
