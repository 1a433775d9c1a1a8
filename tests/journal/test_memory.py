"""What is special about the journal in memory: who shares it, and when it is gone."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from callstream.events import ArgsAppended, CallStarted, RunStarted
from callstream.journal import open_journal

pytestmark = pytest.mark.asyncio


async def test_journals_of_one_name_share_what_they_have_and_others_do_not() -> None:
    first, second, alone = open_journal("memory:shared"), open_journal("memory:shared"), open_journal("memory:")
    await first.append("r", [RunStarted("t")])
    assert [run.run_id for run in await second.runs()] == ["r"]
    assert await alone.runs() == []
    assert await open_journal("memory:").runs() == []


async def test_memory_is_given_back_with_the_last_journal_though_nobody_closed_it() -> None:
    """At once: what is in no circle need not wait for the garbage collector."""
    journal: Any = open_journal("memory:gone")
    await journal.append("r", [RunStarted("t"), CallStarted("c", "t"), ArgsAppended("c", "{")])
    assert [record.seq async for record in journal.read("r")] == [1, 2, 3]
    tables = weakref.ref(journal._store._tables)
    gc.disable()
    try:
        del journal
        assert tables() is None
    finally:
        gc.enable()
    assert await open_journal("memory:gone").runs() == []
