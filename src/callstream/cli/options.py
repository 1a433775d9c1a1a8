"""Options that several commands have, and how a command is added."""

from __future__ import annotations

import argparse
import os
import re
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

from callstream.cli.output import CommandError, Printer, misused
from callstream.journal import Journal, environment, open_journal

_T = TypeVar("_T")

if TYPE_CHECKING:
    from callstream.journal import Housekeeping


# -- where the journal is ----------------------------------------------------------------------------------------------


_DEFAULT_FILE = Path("callstream.db")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_SCHEMES = ("memory", "sqlite", "postgresql", "postgres")


def address(url: str) -> SplitResult:
    """The parts of a URL with valid hosts: PostgreSQL's may have several. Errors do not quote it: it may hold a secret."""
    try:
        parts = urlsplit(url)
        for host in parts.netloc.rpartition("@")[2].split(","):
            urlsplit(f"//{host}").port  # noqa: B018  # to be checked, it has to be asked for
    except ValueError:
        scheme = url.partition("://")[0]
        raise misused(
            f"{scheme}://… is not a valid address: expected host or host:port with a port up to 65535; a password's "
            "/, #, ? and @ are written %2F, %23, %3F and %40"
        ) from None
    return parts


def refuse_secret(url: str, variable: str) -> str:
    """The URL, unless it has a password: every process of a machine can read a command line."""
    parts = address(url)
    options = dict(parse_qsl(parts.query))
    if parts.password is not None or "password" in options or "@" in options.get("log", ""):
        raise misused(
            f"passwords are not accepted on the command line, where other users can read them: set {variable} instead"
        )
    return url


_IDENTIFYING = ("service", "host", "port", "user", "dbname", "database", "schema", "log", "log_stream", "log_streams")
"""Options of a URL that say which database it means. No others are shown: passwords are among them."""
_CREDENTIALS = re.compile(r"^(\w+://)?.*@", re.DOTALL)


def hide_password(url: str) -> str:
    """The URL without passwords, for people: two that mean different journals look different."""
    parts = address(url)
    place = url.partition("?")[0]
    if parts.password is not None:
        host = parts.netloc.rpartition("@")[2]
        place = f"{parts.scheme}://{parts.username or ''}:…@{host}{parts.path}"
    options = dict(parse_qsl(parts.query))
    shown = [f"{name}={_shown(name, options[name])}" for name in _IDENTIFYING if name in options]
    return f"{place}?{'&'.join(shown)}" if shown else place


def _shown(name: str, value: str) -> str:
    return quote(value if name == "user" else _CREDENTIALS.sub(r"\1", value), safe="/:,@[]")


class JournalPlace(NamedTuple):
    """Where a journal is. Its text names the log beside it, and hides passwords. The archive's address is not secret."""

    url: str
    archive: str | None = None

    def __str__(self) -> str:
        return hide_password(self.url)

    @asynccontextmanager
    async def open(self, *, must_exist: bool = True, **settings: Any) -> AsyncIterator[Journal]:
        """The journal, open. It does no housekeeping and changes no schema by itself, unless the settings say so.

        With ``must_exist``, a SQLite file that does not exist is an error: reading must not create one.
        """
        if must_exist:
            _check_exists(self.url)
        usual: dict[str, Any] = {"housekeeping": None, "migrate": False, "retry_seconds": 5.0}
        async with open_journal(self.url, archive=self.archive, **{**usual, **settings}) as journal:
            yield journal


def archive_address(options: argparse.Namespace) -> str | None:
    address: str | None = options.archive
    return address if address is not None else environment.archive_address()


def find_place(options: argparse.Namespace, *, may_be_new: bool = False) -> JournalPlace | None:
    """The journal of a command: from the command line, the environment, a file, or ./callstream.db, which may be new."""
    archive = archive_address(options)
    if options.journal is not None:
        return JournalPlace(check_url(refuse_secret(options.journal, environment.JOURNAL)), archive)
    if (found := environment.journal_url()) is not None:
        return JournalPlace(check_url(found, environment.JOURNAL), archive)
    if may_be_new or _DEFAULT_FILE.exists():
        return JournalPlace(f"sqlite:///{_DEFAULT_FILE}", archive)
    return None


def place_of(options: argparse.Namespace, *, may_be_new: bool = False) -> JournalPlace:
    if (place := find_place(options, may_be_new=may_be_new)) is None:
        raise misused("no journal: give --journal URL or set CALLSTREAM_JOURNAL; this folder has no callstream.db")
    return place


def served_journal(options: argparse.Namespace, out: Printer, **settings: Any) -> Journal:
    """The journal of a process that serves. It is printed for the user, opened when it is first used, and may be new."""
    place = place_of(options, may_be_new=True)
    out.note(f"journal: {place}")
    for name in ("retry_seconds", "lease_ttl"):
        if (patience := from_environment(f"CALLSTREAM_{name.upper()}", seconds)) is not None:
            settings[name] = patience
    return open_journal(place.url, archive=place.archive, **settings)


def _check_exists(url: str) -> None:
    if url.startswith("memory:"):
        raise misused(
            "a memory: journal exists only inside its own process; name the journal that your agent writes to"
        )
    if url.startswith("sqlite:"):
        from callstream.journal.sqlite import sqlite_path

        path, _ = sqlite_path(url)
        if not Path(path).is_file():
            raise CommandError(f"no journal found at {path}")


def check_url(url: str, variable: str | None = None) -> str:
    """The URL, if it may be a journal's. A variable may hold any secret instead of one, so its value is not repeated."""
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in _SCHEMES:
        is_shown = variable is None or "://" in url
        got = repr(hide_password(url)) if is_shown else f"something else in {variable}"
        raise misused(f"expected memory:, sqlite:///file.db or postgresql://…, got {got}")
    if scheme.startswith("postgres"):
        address(url)
    return url


_AGE = re.compile(r"([1-9]\d{0,5})([hdw])", re.ASCII)
_SECONDS = {"h": 3600, "d": 86400, "w": 604800}
_ORIGIN = re.compile(r"https?://[^\s/?#@]+", re.IGNORECASE)

Running: TypeAlias = Callable[[argparse.Namespace, Printer], int | Coroutine[Any, Any, int]]


class Commands:
    """The commands of the program. ``add`` gives each the options that all of them have."""

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
        general.add_argument("--debug", action="store_true", help="show the traceback of an error")
        general.add_argument("--plain", action="store_true", help="plain output, without colors and live drawing")
        return made


def add_address(parser: argparse.ArgumentParser, *, default_port: int = 8000) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port",
        type=port,
        default=default_port,
        metavar="N",
        help=f"the port; 0 picks a free one (default: {default_port})",
    )


def add_log_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log-format", type=log_format, metavar="FORMAT", help="text or json (default: text)")


def add_env_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--env-file", metavar="FILE", help="variables for the application (default: the .env next to it)"
    )


def add_journal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--journal", metavar="URL", help="the journal (default: see callstream --help)")
    add_archive(parser)


def add_housekeeping(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--archive-after",
        type=age,
        metavar="AGE",
        help="move runs into the archive when they ended this long ago: 12h, 30d, 8w (default: 30d, with an archive)",
    )
    parser.add_argument(
        "--forget-after",
        type=age,
        metavar="AGE",
        help="erase runs from the journal when they ended this long ago: 12h, 30d, 8w (default: never)",
    )


def housekeeping_of(options: argparse.Namespace, **others: Any) -> Housekeeping:
    """What happens to runs that have ended, according to the options or the environment."""
    from callstream.journal import Housekeeping

    option = getattr(options, "archive_after", None)
    if option is not None and archive_address(options) is None:
        raise misused("--archive-after needs an archive: give --archive, or set CALLSTREAM_ARCHIVE")
    after = option or from_environment("CALLSTREAM_ARCHIVE_AFTER", age)
    if after is not None:
        others["archive_after"] = after
    retain = getattr(options, "forget_after", None) or from_environment("CALLSTREAM_FORGET_AFTER", age)
    return Housekeeping(retain=retain, **others)


def add_archive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--archive",
        metavar="ADDRESS",
        help="the journal's archive, s3://bucket/prefix or file:///folder (default: CALLSTREAM_ARCHIVE)",
    )


def add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        metavar="URL",
        help="ask a running server instead of a journal (CALLSTREAM_TOKEN, if set, is sent as its bearer token)",
    )


def add_source(parser: argparse.ArgumentParser) -> None:
    """Adds the options for ``source_of``: a journal, or a server."""
    add_journal(parser)
    add_server(parser)


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what}")


def some_text(text: str) -> str:
    """A name. It must not be empty, as it is when a shell variable is not set."""
    if not text:
        raise argparse.ArgumentTypeError("expected a name, got an empty text")
    return text


def positive(text: str) -> int:
    """An argument that has to be a number of 1 or more."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of 1 or more, got {text!r}")
    return int(text)


def port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port, 0 to 65535, got {text!r}")
    return int(text)


def age(text: str) -> float:
    """A span of time as a number and a unit, in seconds. ``m`` is refused: a minute and a month look alike."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(
            f"expected an age in hours, days or weeks, such as 12h, 30d or 8w, got {text!r}"
        )
    return int(found[1]) * _SECONDS[found[2]]


def amount(expected: str, *, may_be_0: bool = False) -> Callable[[str], float]:
    """An option's type: a number of more than 0, or of 0 or more."""

    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = -1.0
        if not (0 < found < float("inf") or (may_be_0 and found == 0)):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return found

    return read


seconds = amount("more than 0 seconds")
seconds_or_none = amount("seconds, 0 or more", may_be_0=True)
pace = amount("more than 0 deltas per second")


def origin(text: str) -> str:
    """A web origin as browsers send it: scheme, host and port, without a slash at the end. ``*`` is any."""
    made = text.strip().rstrip("/")
    if made != "*" and _ORIGIN.fullmatch(made) is None:
        raise argparse.ArgumentTypeError(f"expected an origin such as https://app.example.com, got {text!r}")
    return made.lower()


def from_environment(variable: str, kind: Callable[[str], _T]) -> _T | None:
    """An option's value from the environment. A variable that is empty counts as not set."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    try:
        return kind(text)
    except argparse.ArgumentTypeError as error:
        raise misused(f"invalid value for {variable}: {error}") from None


def boolean(text: str) -> bool:
    """A variable's type: on or off."""
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    found = words.get(text.lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"expected true or false, got {text!r}")
    return found


def one_of(*choices: str) -> Callable[[str], str]:
    """An option's type: one of these words."""

    def chosen(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"expected {' or '.join(choices)}, got {text!r}")
        return text

    return chosen


log_format = one_of("text", "json")
