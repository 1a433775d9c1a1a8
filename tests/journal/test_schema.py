"""Schema versions, the view that others may query, and the size of what is stored: SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import string
from typing import Any

import pytest

from callstream.errors import JournalError
from callstream.events import ArgsAppended, CallCompleted, CallStarted, MessageEnded, RunEnded, RunEvent, RunStarted
from callstream.journal import Journal
from callstream.journal.postgres.link import address

from .conftest import POSTGRES, Place

pytestmark = pytest.mark.asyncio
on_disk = pytest.mark.parametrize("place_url", ["sqlite", POSTGRES], indirect=True)


async def query(place: Place, sql: str) -> list[tuple[Any, ...]]:
    """Runs a statement as somebody else would, beside the journal."""
    if place.backend == "sqlite":
        connection = sqlite3.connect(place.url.removeprefix("sqlite:///"), isolation_level=None)
        rows = connection.execute(sql.replace("{schema}.", "")).fetchall()
        connection.close()
        return rows
    import asyncpg

    where = address(place.url)
    link = await asyncpg.connect(where.dsn)
    try:
        return [tuple(row) for row in await link.fetch(sql.replace("{schema}", f'"{where.schema}"'))]
    finally:
        await link.close()


@on_disk
async def test_schema_of_the_future_that_still_serves_this_code(place: Place) -> None:
    await place.journal().append("r", [RunStarted("t")])
    await query(place, "UPDATE {schema}.schema_version SET version = 2, oldest_code = 1")
    for migrate in (True, False):
        journal = place.journal(migrate=migrate)
        assert await journal.append(f"s {migrate}", [RunStarted("t")]) == 1
        assert (await journal.stats())["schema_version"] == 2


@on_disk
async def test_schema_of_the_future_that_does_not_serve_this_code(place: Place) -> None:
    await place.journal().append("r", [RunStarted("t")])
    await query(place, "UPDATE {schema}.schema_version SET version = 3, oldest_code = 2")
    for migrate in (True, False):
        with pytest.raises(JournalError, match="needs code of schema 2 or newer; this code has schema 1: upgrade"):
            await place.journal(migrate=migrate).append("s", [RunStarted("t")])


@on_disk
async def test_schema_of_the_future_has_events_that_a_sweep_does_not_know(place: Place) -> None:
    newer = place.journal()
    await newer.append("r", [RunStarted("t"), CallStarted("c", "t"), MessageEnded("m")])
    await query(place, """UPDATE {schema}.record SET body = '{"type":"FromTheFuture"}' WHERE seq = 3""")
    await newer.aclose()
    assert await place.journal().sweep() == ["r"]


@on_disk
async def test_schema_is_made_only_where_that_is_allowed(place: Place) -> None:
    with pytest.raises(JournalError, match=r"has schema 0, this code needs 1: run `callstream migrate`"):
        await place.journal(migrate=False).open()
    assert await place.journal().migrate() == 1
    assert await place.journal(migrate=False).append("r", [RunStarted("t")]) == 1


@on_disk
async def test_a_duty_is_done_by_one_process_at_a_time(place: Place) -> None:
    journals: list[Any] = [place.journal() for _ in range(2)]

    async def hold(number: int, seconds: float) -> bool:
        held: bool = await journals[number]._on_thread(journals[number]._store.hold, "duty", seconds)
        return held

    assert await hold(0, 0.2)
    assert await hold(0, 0.2)
    async with asyncio.timeout(10):
        while not await hold(1, 30):  # noqa: ASYNC110  # until the lease of the first has run out
            await asyncio.sleep(0.05)
    assert not await hold(0, 30)
    await journals[1].aclose()
    assert await hold(0, 30)


@on_disk
async def test_tool_arg_delta_is_a_view_of_the_log(place: Place) -> None:
    journal = place.journal()
    await journal.append("r", [RunStarted("t"), CallStarted("a", "t"), CallStarted("b", "t")])
    await journal.append("r", [ArgsAppended("a", '{"x"'), ArgsAppended("b", "[]"), ArgsAppended("a", ":1}")])
    select = "SELECT call_id, seq, text FROM {schema}.tool_arg_delta ORDER BY seq"
    assert await query(place, select) == [("a", 4, '{"x"'), ("b", 5, "[]"), ("a", 6, ":1}")]
    await journal.append("r", [CallCompleted("a"), CallCompleted("b"), RunEnded("finished")])
    await journal.compact("r")
    assert await query(place, select) == [("b", 5, "[]"), ("a", 6, '{"x":1}')]
    assert await query(place, "SELECT call_id, name, state FROM {schema}.tool_call ORDER BY number") == [
        ("a", "t", "args_complete"),
        ("b", "t", "args_complete"),
    ]


@pytest.mark.parametrize("letter", ["x", "é", "€", "\U0001f600"])
@on_disk
async def test_tool_arg_delta_shows_long_texts_whole(place: Place, letter: str) -> None:
    """Sizes around those at which a database begins to cut a value into pieces."""
    journal = place.journal()
    texts = {f"c{size}": letter * (size // len(letter.encode()) + 1) for size in (1990, 1993, 1996, 2000, 4000, 8192)}
    events: list[RunEvent] = [RunStarted("t")]
    for name, text in texts.items():
        events += [CallStarted(name, "t"), ArgsAppended(name, text[:7]), ArgsAppended(name, text[7:])]
        events.append(CallCompleted(name))
    await journal.append("r", [*events, RunEnded("finished")])
    await journal.compact("r")
    assert dict(await query(place, "SELECT call_id, text FROM {schema}.tool_arg_delta ORDER BY seq")) == texts
    for name, text in texts.items():
        call = await journal.call(name)
        assert call is not None
        assert call.args_json == text
    pieces = [record.event async for record in journal.read("r") if isinstance(record.event, ArgsAppended)]
    assert pieces == [ArgsAppended(name, text) for name, text in texts.items()]


async def written(journal: Journal, name: str, size: int) -> None:
    """A run with one call of that many characters in pieces of eight, which no compression makes smaller."""
    chance = random.Random(size)
    text = "".join(chance.choices(string.ascii_letters + string.digits + "+/", k=size))
    await journal.append(name, [RunStarted("t"), CallStarted(name, "t")])
    pieces = [ArgsAppended(name, text[place : place + 8]) for place in range(0, size, 8)]
    for place in range(0, len(pieces), 512):
        await journal.append(name, pieces[place : place + 512])
    await journal.append(name, [CallCompleted(name), RunEnded("finished")])


async def test_journal_linear(place: Place) -> None:
    """Stored bytes grow with the arguments: at most 12 for one before compaction, at most 1.3 after.

    Measured is what a run adds to a store that holds a compacted one and one that is not, so that every table has its
    first pages: tables and indexes, the whole file.
    """
    journal = place.journal()

    async def stored() -> int:
        return int((await journal.stats())["stored_bytes"])

    await written(journal, "first", 1024)
    await journal.compact("first")
    await written(journal, "second", 1024)
    last = await stored()
    sizes = (4 * 1024, 64 * 1024, 256 * 1024)
    before, after = {}, {}
    for size in sizes:
        await written(journal, f"run {size}", size)
        before[size], last = await stored() - last, await stored()
    for size in sizes:
        assert before[size] <= 12 * size + 40_000, f"{size}: {before[size] / size:.2f} bytes for one"
    assert before[sizes[2]] <= 12 * sizes[2]
    assert 3 < before[sizes[2]] / before[sizes[1]] < 5
    for name in ("second", *(f"run {size}" for size in sizes)):
        await journal.compact(name)
    base = await stored()
    await written(journal, "again", sizes[2])
    await journal.compact("again")
    after[sizes[2]] = await stored() - base
    assert after[sizes[2]] <= 1.3 * sizes[2], f"{after[sizes[2]] / sizes[2]:.2f} bytes for one after compaction"
