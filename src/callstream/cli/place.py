"""Where the journal is."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from callstream.cli.output import CommandError, misused
from callstream.journal import Journal, environment, open_journal

DEFAULT_FILE = Path("callstream.db")
_SCHEMES = ("memory", "sqlite", "postgresql", "postgres")


def journal_url(options: argparse.Namespace, *, default: str | None = None) -> str:
    """The journal's URL: from the command line, the environment, a file, or ./callstream.db; then the default."""
    if options.journal is not None:
        return check_url(refuse_secret(options.journal, environment.JOURNAL))
    if (found := environment.journal_url()) is not None:
        return check_url(found)
    if DEFAULT_FILE.exists():
        return f"sqlite:///{DEFAULT_FILE}"
    if default is not None:
        return default
    raise misused("no journal: give --journal URL or set CALLSTREAM_JOURNAL; this folder has no callstream.db")


def archive_address(options: argparse.Namespace) -> str | None:
    """The archive's address, which holds no secret: from the command line or the environment."""
    given: str | None = getattr(options, "archive", None)
    return given if given is not None else environment.archive_address()


def address(url: str) -> SplitResult:
    """The parts of a URL whose hosts make sense: PostgreSQL's may have several. What is wrong with it may be a secret."""
    try:
        parts = urlsplit(url)
        for host in parts.netloc.rpartition("@")[2].split(","):
            urlsplit(f"//{host}").port  # noqa: B018  # to be checked, it has to be asked for
    except ValueError:
        scheme = url.partition("://")[0]
        raise misused(f"{scheme}://… is not a valid address: expected host or host:port") from None
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


def hide_password(url: str) -> str:
    """The URL without its password, for people."""
    parts = address(url)
    if parts.password is None:
        return url.partition("?")[0]
    user = parts.username or ""
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{user}:…@{host}{parts.path}"


@asynccontextmanager
async def open_place(url: str, *, must_exist: bool = True, **settings: Any) -> AsyncIterator[Journal]:
    """The journal, open. It does no housekeeping and changes no schema by itself, unless the settings say so.

    With ``must_exist`` a SQLite file that is not there is an error: reading must not make one.
    """
    if must_exist:
        _check_exists(url)
    async with open_journal(
        url, **{"housekeeping": None, "migrate": False, "retry_seconds": 5.0, **settings}
    ) as journal:
        yield journal


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


def check_url(url: str) -> str:
    """The URL, if it may be a journal's."""
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in _SCHEMES:
        raise misused(f"expected memory:, sqlite:///file.db or postgresql://…, got {hide_password(url)!r}")
    if scheme.startswith("postgres"):
        address(url)
    return url
