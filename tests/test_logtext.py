"""Text from elsewhere cannot forge lines of the log, nor reach a terminal."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import callstream
from callstream import WireError, decoder_for
from callstream.logtext import LOGGERS, ForeignText, guard_loggers, one_line, outline, printable
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


SECRET = "SECRET-4711"


@given(st.text(), st.text(), st.integers(0, 400))
def test_an_outline_has_the_names_and_no_text(before: str, after: str, cut: int) -> None:
    """Wherever the data was cut, and whatever stands around: arguments are JSON within JSON."""
    arguments = json.dumps({"title": f"{before}{SECRET}{after}"})
    data = json.dumps({"type": "content_block_delta", "delta": {"partial_json": arguments}}).encode()[:cut]
    shown = outline(data)
    assert SECRET not in shown
    if cut > 100:
        assert "content_block_delta" in shown
        assert "partial_json" in shown


@pytest.mark.parametrize(
    "broken",
    [
        b'{"type":"content_block_delta","delta":{"partial_json":"%b',
        b'{"type":"content_block_delta","delta":{"x\xff":"%b"}}',
    ],
    ids=["cut", "no UTF-8"],
)
def test_a_frame_that_cannot_be_read_is_described_without_its_text(broken: bytes) -> None:
    decoder = decoder_for("anthropic")
    with pytest.raises(WireError) as raised:
        decoder.feed(b"data: " + broken % SECRET.encode() + b"\n\n")
    assert "content_block_delta" in str(raised.value)
    assert SECRET not in str(raised.value)
