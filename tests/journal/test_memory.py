"""What is special about the journal in memory: who shares it, and when it is gone."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from callstream.events import ArgsAppended, CallStarted, RunStarted
from callstream.journal import JournalSettings, open_journal
from callstream.journal.follow import Followers
from callstream.journal.journal import Journal
from callstream.journal.memory import MemoryStore, MemoryTables
from callstream.journal.worker import Inline
from callstream.journal.writer import Writer

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


class SlowToOpen(MemoryStore):
    """Opened while another event loop comes."""

    def __init__(self) -> None:
        super().__init__(MemoryTables(is_shared=False))
        self.is_opening = threading.Event()
        self.may_open = threading.Event()

    async def open(self, writer: Writer, followers: Followers) -> None:
        self.is_opening.set()
        self.may_open.wait(20)
        await super().open(writer, followers)


async def test_an_event_loop_that_comes_while_another_opens_the_journal_waits() -> None:
    store = SlowToOpen()
    journal = Journal(store, JournalSettings(), Inline)
    failed: list[BaseException] = []

    def write(run_id: str) -> None:
        try:
            asyncio.run(journal.append(run_id, [RunStarted("t")]))
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    first, second = (threading.Thread(target=write, args=(run_id,)) for run_id in ("r1", "r2"))
    first.start()
    store.is_opening.wait(20)
    second.start()
    second.join(0.2)
    store.may_open.set()
    first.join()
    second.join()
    assert failed == []
    assert {run.run_id for run in await journal.runs()} == {"r1", "r2"}
