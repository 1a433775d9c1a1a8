"""Text from elsewhere cannot forge lines of the log, nor reach a terminal."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path

import pytest

import callstream
from callstream import WireError
from callstream.logtext import LOGGERS, ForeignText, guard_loggers, one_line, printable
from callstream.server.logs import JsonFormatter

FORGED = "overloaded\n2026-01-01 INFO callstream: all is well\x1b[2J\r\x9b31m\u2028end\u202e"
SOURCES = Path(callstream.__file__).parent


class Log(io.StringIO):
    """What a program's handler writes of Callstream's records."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.handler = logging.StreamHandler(self)
        self.handler.setFormatter(formatter)

    def __enter__(self) -> Log:
        logging.getLogger("callstream").addHandler(self.handler)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("callstream").removeHandler(self.handler)

    @property
    def text(self) -> str:
        return self.getvalue()


@pytest.mark.parametrize("name", LOGGERS)
def test_an_argument_stays_on_its_line(name: str) -> None:
    with Log(logging.Formatter("%(levelname)s %(message)s")) as log:
        logging.getLogger(name).warning("it said: %s (%d, %s)", WireError(FORGED), 7, FORGED)
    assert log.text.count("\n") == 1
    assert log.text.startswith(
        "WARNING it said: overloaded\\n2026-01-01 INFO callstream: all is well\\x1b[2J\\r\\x9b31m"
    )
    assert log.text.strip().isprintable()


def test_an_argument_that_cannot_be_shown_is_logged_all_the_same() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise LookupError("it has no words")

    with Log(logging.Formatter("%(message)s")) as log:
        logging.getLogger("callstream").warning("it said: %s", Mute())
    assert log.text == "it said: <exception str() failed>\n"


def test_no_line_of_an_exception_begins_like_a_record() -> None:
    with Log(logging.Formatter("%(asctime)s %(levelname)s %(message)s")) as log:
        try:
            raise WireError(FORGED)
        except WireError:
            logging.getLogger("callstream").exception("failed")
    first, *traceback = log.text.rstrip("\n").split("\n")
    assert first.endswith("ERROR failed")
    assert traceback[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") and line.isprintable() for line in traceback)
    assert "all is well" in log.text


def test_machines_get_one_line_a_record() -> None:
    with Log(JsonFormatter()) as log:
        try:
            raise WireError(FORGED)
        except WireError:
            logging.getLogger("callstream").exception("failed: %s", FORGED, extra={"run_id": "r\u2028"})
    (line,) = log.text.splitlines()
    assert "\x9b" not in line
    told = json.loads(line)
    assert told["exception"].startswith("Traceback")
    assert "all is well\\x1b[2J" in told["exception"]


def test_text_that_is_printable_stays_as_it_is() -> None:
    assert one_line("Größe: 名前 🙂") == "Größe: 名前 🙂"
    assert printable("a\n\tb") == "a\n\\tb"


def test_the_filter_is_there_once_for_every_logger() -> None:
    guard_loggers()
    for name in LOGGERS:
        assert [type(each) for each in logging.getLogger(name).filters].count(ForeignText) == 1
    sources = "\n".join(file.read_text(encoding="utf-8") for file in SOURCES.rglob("*.py"))
    named = set(re.findall(r'getLogger\("(callstream[\w.]*)"\)', sources))
    assert named == set(LOGGERS)


def test_records_with_a_mapping_pass() -> None:
    with Log(logging.Formatter("%(message)s")) as log:
        logging.getLogger("callstream").warning("%(a)s", {"a": 1})
    assert log.text == "1\n"
