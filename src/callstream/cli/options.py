"""Options that several commands have, and how a command is added."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from callstream.cli.output import Output

Running: TypeAlias = Callable[[argparse.Namespace, Output], int | Awaitable[int]]


class Commands:
    """The commands of the program. ``add`` gives each what all of them have."""

    def __init__(self, parsers: argparse._SubParsersAction[Any]) -> None:
        self._parsers = parsers

    def add(self, name: str, run: Running, *, summary: str, description: str, examples: str) -> argparse.ArgumentParser:
        """A command. ``summary`` is its line in the list of all; ``examples`` are lines of ``command  # reason``."""
        made: argparse.ArgumentParser = self._parsers.add_parser(
            name,
            help=summary,
            description=textwrap.fill(" ".join(description.split()), 100),
            epilog="examples:\n" + textwrap.indent(textwrap.dedent(examples).strip("\n"), "  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        made.set_defaults(run=run)
        general = made.add_argument_group("general")
        general.add_argument("--debug", action="store_true", help="show where an error comes from")
        general.add_argument("--plain", action="store_true", help="plain lines, without colours and live drawing")
        return made


def add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=port, default=8000, metavar="N", help="the port; 0 takes a free one (default: 8000)"
    )


def add_env_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--env-file", metavar="FILE", help="variables for the application (default: the .env beside it)"
    )


def add_journal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--journal", metavar="URL", help="the journal (default: see callstream --help)")


def add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        metavar="URL",
        help="ask a running server instead of a journal (CALLSTREAM_TOKEN, if set, is sent as its bearer token)",
    )


def add_source(parser: argparse.ArgumentParser) -> None:
    """What ``source_of`` reads: a journal, or a server."""
    add_journal(parser)
    add_server(parser)


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what}")


def positive(text: str) -> int:
    """An argument that has to be a number of 1 or more."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of 1 or more, got {text!r}")
    return int(text)


def port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port, 0 to 65535, got {text!r}")
    return int(text)


def pace(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"expected more than 0 deltas a second, got {text!r}")
    return found
