"""Schema versions, the views that others may query, and the size of what is stored: SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import random
import re
import sqlite3
import string
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from callstream.errors import JournalError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallStarted,
    MessageEnded,
    RunEnded,
    RunEvent,
    RunStarted,
)
from callstream.journal import Journal, open_journal
from callstream.journal.postgres import address

from .conftest import POSTGRES, Place, drop_schema, schema_url

pytestmark = pytest.mark.asyncio
SIZES = (4 * 1024, 64 * 1024, 256 * 1024)
on_disk = pytest.mark.parametrize("place_url", ["sqlite", POSTGRES], indirect=True)


async def query(place: Place, sql: str) -> list[tuple[Any, ...]]:
    """Runs a statement as somebody else would, beside the journal; in PostgreSQL with the schema in the search path."""
    if place.backend == "sqlite":
        connection = sqlite3.connect(place.url.removeprefix("sqlite:///"), isolation_level=None)
        rows = connection.execute(sql).fetchall()
        connection.close()
        return rows
    where = address(place.url)
    link = await asyncpg.connect(where.dsn)
    try:
        await link.execute(f'SET search_path TO "{where.schema}", public')
        return [tuple(row) for row in await link.fetch(sql)]
    finally:
        await link.close()


@on_disk
async def test_schema_of_the_future_that_still_serves_this_code(place: Place) -> None:
    await place.journal().append("r", [RunStarted("t")])
    await query(place, "UPDATE schema_version SET version = 4, oldest_code = 3")
    for migrate in (True, False):
        journal = place.journal(migrate=migrate)
        assert await journal.append(f"s {migrate}", [RunStarted("t")]) == 1
        assert (await journal.stats())["schema_version"] == 4


@on_disk
async def test_schema_of_the_future_that_does_not_serve_this_code(place: Place) -> None:
    await place.journal().append("r", [RunStarted("t")])
    await query(place, "UPDATE schema_version SET version = 5, oldest_code = 4")
    for migrate in (True, False):
        with pytest.raises(JournalError, match="needs code of schema 4 or newer; this code has schema 3: upgrade"):
            await place.journal(migrate=migrate).append("s", [RunStarted("t")])


@on_disk
async def test_schema_of_the_future_has_events_that_a_sweep_does_not_know(place: Place) -> None:
    newer = place.journal()
    await newer.append("r", [RunStarted("t"), CallStarted("c", "t"), MessageEnded("m")])
    await query(place, """UPDATE record SET body = '{"type":"FromTheFuture"}' WHERE seq = 3""")
    await newer.aclose()
    assert await place.journal().sweep() == ["r"]


@on_disk
async def test_schema_is_made_only_where_that_is_allowed(place: Place) -> None:
    with pytest.raises(JournalError, match=r"has schema 0, this code needs 3: run `callstream migrate`"):
        await place.journal(migrate=False).open()
    assert await place.journal().migrate() == 3
    assert await place.journal(migrate=False).append("r", [RunStarted("t")]) == 1


@on_disk
async def test_schema_1_is_brought_up_to_date_with_what_it_has(place: Place) -> None:
    await place.journal().append("r", [RunStarted("t"), RunEnded("finished")])
    for statement in (
        "DROP INDEX run_unpacked",
        "DROP INDEX run_packed",
        *(f"ALTER TABLE run DROP COLUMN {column}" for column in ("pack", "pack_start", "pack_size")),
        "DROP TABLE pack",
        "DROP TABLE journal",
        "UPDATE schema_version SET version = 1, oldest_code = 1",
    ):
        await query(place, statement)
    with pytest.raises(JournalError, match="has schema 1, this code needs 3"):
        await place.journal(migrate=False).open()
    journal = place.journal()
    assert [run.run_id for run in await journal.runs()] == ["r"]
    assert (await journal.stats())["schema_version"] == 3


@on_disk
async def test_a_duty_is_done_by_one_process_at_a_time(place: Place) -> None:
    journals: list[Any] = [place.journal() for _ in range(2)]

    async def hold(number: int, seconds: float) -> bool:
        held: bool = await journals[number]._worker.do(journals[number]._store.hold, "duty", seconds)
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
    select = "SELECT call_id, seq, text FROM tool_arg_delta ORDER BY seq"
    assert await query(place, select) == [("a", 4, '{"x"'), ("b", 5, "[]"), ("a", 6, ":1}")]
    await journal.append("r", [CallCompleted("a"), CallCompleted("b"), RunEnded("finished")])
    await journal.compact("r")
    assert await query(place, select) == [("b", 5, "[]"), ("a", 6, '{"x":1}')]
    assert await query(place, "SELECT call_id, name, state FROM tool_call ORDER BY number") == [
        ("a", "t", "args_complete"),
        ("b", "t", "args_complete"),
    ]


DOCUMENTED = re.findall(
    r"^SELECT [^;]+ FROM (?:calls|tool_arg_delta)\n?[^;]+",
    (Path(__file__).parents[2] / "docs" / "howto" / "journal.md").read_text("utf-8"),
    re.MULTILINE,
)
"""The queries that the documentation shows."""


@on_disk
async def test_views_tell_which_calls_of_a_thread_failed_on_a_day(place: Place) -> None:
    on_a_day, in_sqlite, in_postgres, arguments = DOCUMENTED
    journal = place.journal()
    for thread, call_id in (("thread-1", "a"), ("thread-2", "b")):
        await journal.append(
            thread, [RunStarted(thread, "ada"), CallStarted(call_id, "sum"), ArgsAppended(call_id, "{}")]
        )
        await journal.append(
            thread, [CallCompleted(call_id), CallExecuting(call_id), CallFailed(call_id, "no numbers")]
        )
    await journal.append("thread-1", [CallStarted("toolu_01", "sum"), ArgsAppended("toolu_01", "{}")])
    assert await query(place, arguments) == [("{}",)]
    assert await query(place, on_a_day) == []
    noon = "1769774400"  # 2026-01-30T12:00:00Z
    await query(place, f"UPDATE tool_call SET updated_at = {noon}")
    (found,) = await query(place, on_a_day)
    assert found[:3] == ("a", "sum", "no numbers")
    assert found[3] == (
        "2026-01-30T12:00:00.000Z" if place.backend == "sqlite" else datetime.fromtimestamp(int(noon), UTC)
    )
    yesterday = in_sqlite if place.backend == "sqlite" else in_postgres
    assert await query(place, yesterday) == []
    a_day_ago = {"sqlite": "unixepoch('now') - 86400", "postgres": "extract(epoch FROM now() - interval '1 day')"}
    await query(place, f"UPDATE tool_call SET updated_at = {a_day_ago[place.backend]}")
    assert await query(place, yesterday) == [("a", "sum", "no numbers")]


@on_disk
async def test_views_show_runs_and_calls_with_their_people_and_times(place: Place) -> None:
    journal = place.journal()
    await journal.append("r", [RunStarted("t", "ada"), CallStarted("c", "sum", "wire-1", message_id="m")])
    await journal.append(
        "r", [ArgsAppended("c", "{"), CallDiscarded("c", "malformed", "no end"), RunEnded("failed", "why")]
    )
    await journal.append("s", [RunStarted("t")])
    (run,) = await journal.runs(run_id="r")
    (call,) = await journal.calls()
    assert run.ended_at is not None
    assert call.started_at is not None
    assert call.updated_at is not None

    def shown(seconds: float) -> str | datetime:
        moment = datetime.fromtimestamp(seconds, UTC)
        if place.backend == "postgres":
            return moment
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    assert await query(place, "SELECT * FROM runs WHERE state <> 'running'") == [
        ("r", "t", "ada", "failed", "why", shown(run.started_at), shown(run.ended_at))
    ]
    assert await query(place, "SELECT run_id, principal, ended_at FROM runs WHERE state = 'running'") == [
        ("s", None, None)
    ]
    assert await query(place, "SELECT * FROM calls") == [
        (
            *("c", "r", "t", "ada", "sum", "discarded", "malformed", "no end", None, None),
            *(shown(call.started_at), shown(call.updated_at), "wire-1", "m", False),
        )
    ]


@pytest.mark.postgres
async def test_views_need_no_schema_where_the_journal_has_the_database_to_itself(postgres_url: str) -> None:
    name = f"test_{uuid.uuid4().hex[:12]}"
    link = await asyncpg.connect(postgres_url)
    await link.execute(f"CREATE DATABASE {name}")
    try:
        own = urlunsplit(urlsplit(postgres_url)._replace(path=f"/{name}"))
        async with open_journal(schema_url(own, "public"), housekeeping=None) as journal:
            await journal.append("r", [RunStarted("t", "ada")])
        other = await asyncpg.connect(own)
        assert await other.fetchval("SELECT principal FROM runs") == "ada"
        await other.close()
    finally:
        await link.execute(f"DROP DATABASE {name}")
        await link.close()


@pytest.mark.postgres
async def test_uniqueness_of_records_is_the_databases_own_promise(postgres_url: str) -> None:
    schema = f"test_{uuid.uuid4().hex[:12]}"
    link = await asyncpg.connect(postgres_url)
    try:
        async with open_journal(schema_url(postgres_url, schema), housekeeping=None) as journal:
            await journal.append("r", [RunStarted("t")])
            with pytest.raises(asyncpg.UniqueViolationError):
                await link.execute(f'INSERT INTO "{schema}".record SELECT * FROM "{schema}".record')
            await journal.append("r", [RunEnded("finished")])
            await journal.compact("r")
            with pytest.raises(asyncpg.UniqueViolationError):
                await link.execute(f'INSERT INTO "{schema}".archive SELECT * FROM "{schema}".archive')
    finally:
        await link.close()
        await drop_schema(postgres_url, schema)


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
    assert dict(await query(place, "SELECT call_id, text FROM tool_arg_delta ORDER BY seq")) == texts
    for name, text in texts.items():
        call = await journal.call(name)
        assert call is not None
        assert call.args_json == text
    pieces = [record.event async for record in journal.read("r") if isinstance(record.event, ArgsAppended)]
    assert pieces == [ArgsAppended(name, text) for name, text in texts.items()]


def noise(size: int, chance: random.Random) -> str:
    """Text that no compression makes much smaller."""
    return "".join(chance.choices(string.ascii_letters + string.digits + "+/", k=size))


def prose(size: int, chance: random.Random) -> str:
    words = "the of and to in a is that for it as was with be by on not he his but at are this have from or".split()  # noqa: SIM905
    return " ".join(chance.choices(words, k=size))[:size]


async def write(journal: Journal, name: str, text: str, piece: int) -> None:
    """A run with one call, its arguments in pieces of that many characters."""
    await journal.append(name, [RunStarted("t"), CallStarted(name, "t")])
    pieces = [ArgsAppended(name, text[place : place + piece]) for place in range(0, len(text), piece)]
    for place in range(0, len(pieces), 512):
        await journal.append(name, pieces[place : place + 512])
    await journal.append(name, [CallCompleted(name), RunEnded("finished")])


async def stored(journal: Journal) -> int:
    return int((await journal.stats())["stored_bytes"])


@pytest.mark.parametrize("place_url", ["memory", "sqlite", POSTGRES], indirect=True)
async def test_journal_linear(place: Place) -> None:
    """Stored bytes grow with the arguments: at most 12 per byte before compaction, in pieces of eight characters.

    Measured is what a run adds to a store that already has a compacted run and one that is not, so that every table has
    its first pages: tables and indexes, the whole file.
    """
    journal, chance = place.journal(), random.Random(1)
    await write(journal, "first", noise(1024, chance), 8)
    await journal.compact("first")
    await write(journal, "second", noise(1024, chance), 8)
    last = await stored(journal)
    before = {}
    for size in SIZES:
        await write(journal, f"run {size}", noise(size, chance), 8)
        before[size], last = await stored(journal) - last, await stored(journal)
        assert before[size] <= 12 * size + 40_000, f"{size}: {before[size] / size:.2f} bytes per byte"
    assert before[SIZES[2]] <= 12 * SIZES[2]
    assert 3 < before[SIZES[2]] / before[SIZES[1]] < 5


@pytest.mark.parametrize(("kind", "limit"), [("prose", 1.3), ("noise", 2.0)])
async def test_journal_linear_after_compaction(place: Place, kind: str, limit: float) -> None:
    """Stored bytes for a byte of arguments: at most 1.3 for prose, 2 for text that cannot be compressed."""
    journal, chance, texts = place.journal(), random.Random(1), {"prose": prose, "noise": noise}
    await write(journal, "first", texts[kind](1024, chance), 512)
    await journal.compact("first")
    for size in SIZES:
        base = await stored(journal)
        for number in range(SIZES[-1] // size):
            await write(journal, f"{size} {number}", texts[kind](size, chance), 512)
            await journal.compact(f"{size} {number}")
        ratio = (await stored(journal) - base) / SIZES[-1]
        assert ratio <= limit, f"{size}: {ratio:.2f} bytes per byte"
