"""Where the journal and its archive are, according to the environment. The journal's URL may contain a password, so the only
other place that it is read from is a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from callstream.errors import UsageError

JOURNAL: Final = "CALLSTREAM_JOURNAL"
JOURNAL_FILE: Final = "CALLSTREAM_JOURNAL_FILE"
ARCHIVE: Final = "CALLSTREAM_ARCHIVE"


def journal_url(environment: Mapping[str, str] = os.environ) -> str | None:
    """The journal's URL, which may contain a password: from CALLSTREAM_JOURNAL, or the file that CALLSTREAM_JOURNAL_FILE
    names (a mounted secret). None if neither is set; an empty file name counts as not set.
    Errors do not repeat the URL.
    """
    url, path = environment.get(JOURNAL), environment.get(JOURNAL_FILE, "").strip()
    if url and url.strip() and path:
        raise UsageError(f"expected {JOURNAL} or {JOURNAL_FILE}, not both")
    name = JOURNAL
    if path:
        name = f"the file that {JOURNAL_FILE} names"
        try:
            url = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UsageError(f"{JOURNAL_FILE}={path!r} cannot be read: {type(error).__name__}") from None
    if url is None:
        return None
    url = url.strip()
    if not url or len(url.splitlines()) > 1:
        raise UsageError(
            f"expected a journal's URL on one line in {name}, got {'nothing' if not url else 'several lines'}"
        )
    return url


def archive_address(environment: Mapping[str, str] = os.environ) -> str | None:
    """Where the journal's archive is, from CALLSTREAM_ARCHIVE; None if that is not set."""
    return environment.get(ARCHIVE, "").strip() or None
