"""Foreign text in the log: it stays on its line, and cannot affect a terminal.

Text from providers, models and clients gets into the log as the argument of a message, and in the text of an exception. A
line break in it would look like a new record, and an escape sequence could do anything to the screen. So every unprintable
character is escaped (a line break becomes ``\\n``), and the lines of a traceback, the last of which is the text of an
exception, are indented. Every record of Callstream passes here, whichever handlers the program has.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any, Final

from callstream.errors import message_of

LOGGERS: Final = (
    "callstream",
    "callstream.gateway",
    "callstream.guards",
    "callstream.hooks",
    "callstream.journal",
    "callstream.server",
)
"""All loggers of Callstream. A filter only applies to records of its own logger, not to those of loggers below it."""
_INDENT: Final = "  "


def one_line(text: object) -> str:
    """The text with all unprintable characters escaped."""
    said = str(text)
    if said.isprintable():
        return said
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in said)


def printable(text: str) -> str:
    """The same for text with several lines, which stay separate lines."""
    return "\n".join(map(one_line, text.split("\n")))


class ForeignText(logging.Filter):
    """Escapes the arguments of a record and the text of its exception, and lets every record pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_safe, record.args))
        if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
            lines = printable("".join(traceback.format_exception(record.exc_info[1]))).rstrip("\n").split("\n")
            record.exc_text = "\n".join(_INDENT + line for line in lines)
        return True


def guard_loggers() -> None:
    """Adds the filter, once."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(each, ForeignText) for each in logger.filters):
            logger.addFilter(ForeignText())


def _safe(value: Any) -> Any:
    if isinstance(value, BaseException):
        return one_line(message_of(value))
    return one_line(value) if isinstance(value, str) else value
