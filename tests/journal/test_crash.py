"""A process that is killed while it writes: the short version of ``python -m bench.crash``."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path

import pytest

import callstream
from bench.crash import Tally, check_file, check_prefix, crash, script
from callstream.journal import open_journal

from .conftest import drop_schema, schema_url, sqlite_url

KILLS = 6


@pytest.fixture(autouse=True)
def _children_find_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    paths = [str(Path(callstream.__file__).parents[1]), str(root)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.mark.slow
@pytest.mark.subprocess
def test_kill_at_every_record_in_sqlite(tmp_path: Path) -> None:
    tally = asyncio.run(crash(sqlite_url(tmp_path / "journal.db"), KILLS, seed=2))
    check_file(tmp_path / "journal.db", tally)
    assert (tally.kills, tally.lost, tally.wrong) == (KILLS, 0, [])
    assert tally.acknowledged > KILLS


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.postgres
def test_kill_at_every_record_in_postgres(postgres_url: str) -> None:
    schema = f"test_{uuid.uuid4().hex[:12]}"
    tally = asyncio.run(crash(schema_url(postgres_url, schema), KILLS, seed=3))
    asyncio.run(drop_schema(postgres_url, schema))
    assert (tally.kills, tally.lost, tally.wrong) == (KILLS, 0, [])
    assert tally.acknowledged > KILLS


async def test_kill_at_every_record_would_notice_a_loss() -> None:
    """The harness itself: records that are missing, not there at all, or others than were written."""
    journal = open_journal("memory:", housekeeping=None)
    events = [event for events in script("r") for event in events]
    await journal.append("r", events[:10])
    tally = Tally()
    await check_prefix(journal, "r", 10, tally)
    assert (tally.lost, tally.wrong) == (0, [])
    await check_prefix(journal, "r", 12, tally)
    assert (tally.lost, len(tally.wrong)) == (2, 1)
    await check_prefix(journal, "nobody", 3, tally)
    assert (tally.lost, len(tally.wrong)) == (5, 2)
    await journal.append("s", [events[1], events[1]])
    await check_prefix(journal, "s", 2, tally)
    assert (tally.lost, len(tally.wrong)) == (5, 3)
    await journal.aclose()
