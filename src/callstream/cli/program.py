"""From the command line to an exit code."""

from __future__ import annotations

import argparse
import asyncio
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from callstream import __version__
from callstream.cli import answer, demo, doctor, gateway, housekeeping, listing, recording, serve, watch
from callstream.cli.options import Commands
from callstream.cli.output import FAILED, INTERRUPTED, MISUSED, PIPE_CLOSED, CommandError, Printer, clean
from callstream.errors import CallstreamError, UsageError

_SERVERS = ("serve", "work", "demo", "gateway")
DESCRIPTION = "Live, durable tool calls: serve an agent, watch its runs, read and maintain its journal."
EPILOG = """\
the journal:
  --journal URL, else CALLSTREAM_JOURNAL or the URL in the file named by CALLSTREAM_JOURNAL_FILE, else
  ./callstream.db if it exists.
  A URL is sqlite:///file.db, sqlite:////absolute/file.db or postgresql://user@host/database.

examples:
  callstream demo                        try everything, without an account
  callstream serve agent.py:root_agent   serve a google-adk agent over AG-UI, with the inspector
  callstream watch                       watch the next run in the terminal
  callstream calls --state awaiting      list calls that need an answer

exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code. Errors are one sentence on standard error, unless ``--debug`` is given."""
    _fill_in_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    program: list[str] = []
    if words[:1] in (["record"], ["replay"]) and "--" in words:
        place = words.index("--")
        words, program = words[:place], words[place + 1 :]
    parser = _parser()
    try:
        options = parser.parse_args(words, argparse.Namespace(arguments=words, program=program))
        if not hasattr(options, "run"):
            parser.print_help()
            return 0
        return _run(options)
    except SystemExit as end:  # from argparse: after --help or --version, or if it cannot parse the arguments
        return end.code if isinstance(end.code, int) else FAILED


def _fill_in_closed_streams() -> None:
    """Python has None for a stream that was closed before it started (``>&-``): output to it is discarded."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _run(options: argparse.Namespace) -> int:
    out = Printer(plain=options.plain, as_json=getattr(options, "json", False))
    try:
        code = options.run(options, out)
        if inspect.iscoroutine(code):
            with asyncio.Runner(loop_factory=_loop_factory(options.command)) as runner:
                code = runner.run(code)
        sys.stdout.flush()
        return int(code)
    except KeyboardInterrupt:
        out.note("")
        return INTERRUPTED
    except BrokenPipeError:
        # Buffered output has no reader either, and the interpreter must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except CommandError as error:
        return _say(options, out, error, error.code)
    except UsageError as error:
        return _say(options, out, error, MISUSED)
    except (CallstreamError, OSError) as error:
        return _say(options, out, error, FAILED)
    except Exception as error:  # noqa: BLE001  # a bug, and a person at a terminal gets a sentence as well
        bug = CommandError(
            f"internal error, a bug in callstream (--debug shows the traceback): {type(error).__name__}: {error}"
        )
        bug.__cause__ = error
        return _say(options, out, bug, FAILED)


def _loop_factory(command: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop for servers, if it is installed: it makes deltas considerably cheaper."""
    if command not in _SERVERS:
        return None
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


def _say(options: argparse.Namespace, out: Printer, error: Exception, code: int) -> int:
    sentence = clean(f"callstream {options.command}: {error}")  # part of it may come from a server
    if getattr(options, "log_format", None) == "json" and logging.getLogger().handlers:
        logging.getLogger("callstream").error("%s", sentence, exc_info=error if options.debug else None)
    elif options.debug:
        traceback.print_exception(error)
    else:
        out.note(sentence)
    return code


class _Parser(argparse.ArgumentParser):
    """A parser whose errors name the command and its help, in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(MISUSED, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="callstream",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"callstream {__version__}")
    commands = Commands(parser.add_subparsers(title="commands", metavar="<command>", dest="command"))
    for room in (demo, serve, gateway, watch, listing, answer, recording, housekeeping, doctor):
        room.add_to(commands)
    return parser
