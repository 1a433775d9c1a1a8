"""A store knows which log lies beside it: whoever opens it without that log would take runs for whole that are not."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from callstream.errors import JournalError, UsageError
from callstream.events import ArgsAppended, CallCompleted, CallStarted, RunEvent
from callstream.journal import Journal, open_journal

from .conftest import PAIRED, WITH_LOG, Place
from .logs import Engine, EngineLog, paired
from .runs import DONE, START, records

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.parametrize(
        "place_url", [pytest.param(f"{name}{WITH_LOG}", marks=marks) for name, marks in PAIRED], indirect=True
    ),
]

BEGINNING: list[RunEvent] = [START, CallStarted("c", "t"), ArgsAppended("c", "[")]


def without_log(place: Place) -> Journal:
    return open_journal(place.url, housekeeping=None)


def log_of(journal: Journal) -> EngineLog:
    return journal._store._log  # type: ignore[attr-defined, no-any-return]


async def test_a_journal_with_a_log_is_not_opened_without_it(place: Place, journal: Journal) -> None:
    await journal.append("r", BEGINNING)
    await journal.append("r", [ArgsAppended("c", "1]")])
    await journal.append("r", [CallCompleted("c"), DONE])
    for _ in range(2):
        plain = without_log(place)
        for asked in (plain.compact("r"), plain.migrate(), plain.runs(), plain.stats(), plain.open()):
            with pytest.raises(UsageError, match=r"has a log beside it.*and was opened without it: add log= with.*"
                                                 r"log_stream=tests to the journal's URL, or.*callstream move"):  # fmt: skip
                await asked
        await plain.aclose()
    again = place.journal()
    await again.compact("r")
    call = await again.call("c")
    assert call is not None
    assert call.args_json == "[1]"
    assert [record.seq for record in await records(again)][-1] == 6


async def test_a_journal_with_a_log_is_not_opened_with_another(place: Place, journal: Journal) -> None:
    await journal.open()
    engine = Engine()
    other = paired(place.url, engine, {"housekeeping": None})
    log_of(other).name = "log_stream=other"
    with pytest.raises(UsageError, match=r"with another one \(log_stream=other\): add log= .*log_stream=tests to"):
        await other.open()
    assert engine.logs == set()
    await other.aclose()


async def test_of_two_that_begin_with_different_logs_at_once_one_is_refused(place: Place) -> None:
    first, second = place.journal(), paired(place.url, Engine(), {"housekeeping": None})
    log_of(second).name = "log_stream=other"
    log: Any = log_of(first)
    open_log = log.open

    async def meanwhile(*args: Any) -> None:
        await open_log(*args)
        await second.open()

    log.open = meanwhile
    with pytest.raises(UsageError, match="log_stream=other to the journal's URL"):
        await first.open()
    assert await second.append("r", [START]) == 1
    await second.aclose()


async def test_a_log_that_could_not_be_opened_is_not_noted(place: Place, journal: Journal) -> None:
    async def failing(*_: Any) -> None:
        raise JournalError("no such log")

    log: Any = log_of(journal)
    log.open = failing
    with pytest.raises(JournalError, match="no such log"):
        await journal.open()
    plain = without_log(place)
    assert await plain.append("r", [START]) == 1
    await plain.aclose()


async def test_who_uses_a_journal_without_the_log_that_it_gets_is_named(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "callstream.journal")
    plain = open_journal(place.url, housekeeping=None, writer_id="older")
    await plain.append("r", BEGINNING)
    journal = place.journal(writer_id="newer")
    await journal.open()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "has a log from now on" in warning
    assert "older" in warning
    assert "newer" not in warning
    await plain.append("r", [DONE])
    await plain.aclose()
    caplog.clear()
    await place.journal().open()
    assert [record.seq for record in await records(journal)] == [1, 2, 3, 4]
    assert caplog.records == []
