"""Ended runs in an archive: everything reads them as before, and what is forgotten is nowhere any more. Every store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from callstream.errors import Compacted, JournalError, UsageError
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallReturned,
    CallStarted,
    RunStarted,
    TextAppended,
)
from callstream.journal import Housekeeping, Journal, open_journal
from callstream.journal.archive import archive as archiving
from callstream.journal.archive.objects import Folder, ObjectMissing

from .conftest import Place, sqlite_url
from .runs import DONE, START, fold, followed, long_run, records, whole_run

pytestmark = pytest.mark.asyncio
SECRET = "a text that nobody else has"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def journal(place: Place, folder: Path) -> Journal:
    return place.journal(archive=folder.as_uri())


def packs(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


async def write(journal: Journal, run_id: str, thread: str = "t", who: str | None = None, text: str = "text") -> None:
    call = f"call of {run_id}"
    await journal.append(run_id, [RunStarted(thread, who), TextAppended("m", text), CallStarted(call, "tool")])
    await journal.append(run_id, [ArgsAppended(call, '"'), ArgsAppended(call, f'{text}"'), CallCompleted(call)])
    await journal.append(run_id, [CallReturned(call, text), DONE])


async def everything(journal: Journal, run_ids: Iterable[str]) -> list[Any]:
    folds = [await fold(journal, run_id) for run_id in run_ids]
    return [await journal.runs(), folds, await journal.calls(), await journal.read_whole(list(run_ids))]


async def test_what_is_archived_is_read_as_before(journal: Journal, folder: Path) -> None:
    await journal.append("r", whole_run())
    await write(journal, "s", who="bob")
    for run_id in ("r", "s"):
        await journal.compact(run_id)
    before = await everything(journal, ("r", "s"))
    assert await journal.archive() == 2
    assert len(packs(folder)) == 1
    assert await everything(journal, ("r", "s")) == before
    assert await followed(journal, "r") == await records(journal, "r")
    assert await records(journal, "r", after=27) == []
    with pytest.raises(Compacted):
        await records(journal, "r", after=9)
    stats = await journal.stats()
    assert (stats["runs"], stats["calls"], stats["records"]) == (2, 3, 0)
    assert stats["archive"] == {"packs": 1, "runs": 2, "bytes": packs(folder)[0].stat().st_size}
    assert await journal.archive() == 0
    assert await journal.free_call_id("a") == "a~2"
    with pytest.raises(UsageError, match="has ended"):
        await journal.append("r", [TextAppended("m", "more")])


async def test_a_long_run_is_read_by_the_page(journal: Journal) -> None:
    await journal.append("r", long_run())
    await journal.compact("r")
    before = await records(journal, "r")
    assert await journal.archive() == 1
    assert await records(journal, "r") == before


async def test_what_may_change_stays(journal: Journal, folder: Path) -> None:
    await journal.append("active", [START, TextAppended("m", "a")])
    await journal.append("asked", [START, CallStarted("c", "t"), CallCompleted("c"), CallAwaiting("c"), DONE])
    assert await journal.archive() == 0
    await journal.append("answer", [START, CallReturned("c", 1), DONE])
    assert await journal.archive(older_than=3600) == 0
    assert await journal.archive() == 2
    call = await journal.call("c")
    assert call is not None
    assert call.result == 1
    assert len(packs(folder)) == 1


async def test_what_another_run_says_later_of_a_call_counts(journal: Journal, tmp_path: Path) -> None:
    await journal.append(
        "r", [START, CallStarted("c", "t", signature="sig"), ArgsAppended("c", "1"), ArgsAppended("c", "2")]
    )
    await journal.append("r", [CallCompleted("c"), DONE])
    assert await journal.archive() == 1
    await journal.append("answer", [START, CallReturned("c", {"yes": 1}), DONE])
    [listed] = await journal.calls()
    call = await journal.call("c")
    assert call is not None
    assert (call.state, call.args_json, call.signature, call.result) == ("completed", "12", "sig", {"yes": 1})
    assert (listed.signature, listed.result) == (call.signature, call.result)
    async with open_journal(sqlite_url(tmp_path / "other.db"), housekeeping=None) as other:
        await journal.copy_to(other)
        assert await other.call("c") == call


async def test_what_is_forgotten_is_in_no_object_any_more(
    journal: Journal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callstream.journal.whole.zlib.compress", lambda data, level: data)
    monkeypatch.setattr("callstream.journal.whole.zlib.decompress", bytes)
    await write(journal, "r", who="alice", text=SECRET)
    await write(journal, "s", who="bob")
    await write(journal, "t", who="carol")
    assert await journal.archive() == 3
    [pack] = packs(folder)
    assert SECRET.encode() in pack.read_bytes()
    bob = await fold(journal, "s")
    assert await journal.forget(principal="alice") == 1
    [anew] = packs(folder)
    assert anew != pack
    assert SECRET.encode() not in anew.read_bytes()
    assert await fold(journal, "s") == bob
    assert await journal.read_whole(["r"]) == []
    with pytest.raises(UsageError):
        await records(journal, "r")
    assert await journal.call("call of r") is None
    assert (await journal.stats())["archive"]["runs"] == 2
    assert await journal.forget(before=2e9) == 2
    assert packs(folder) == []
    assert (await journal.stats())["archive"]["packs"] == 0


async def test_packs_are_filled_with_neighbours(
    journal: Journal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "PACK_RUNS", 3)
    for number in range(6):
        await write(journal, f"r{number}", who=("alice", "bob")[number % 2])
    assert await journal.archive() == 6
    assert len(packs(folder)) == 2
    assert await journal.forget(principal="bob") == 3
    assert len(packs(folder)) == 1
    assert len(await journal.read_whole([f"r{number}" for number in range(6)])) == 3 * 7


async def test_a_journal_archives_by_itself_and_waits_for_more(place: Place, folder: Path, eventually: Any) -> None:
    duties = Housekeeping(compact_after=0.0, sweep_every=0.05, archive_after=0.0)
    journal = place.journal(archive=folder.as_uri(), housekeeping=duties)
    await write(journal, "r")

    async def is_there() -> bool:
        return bool((await journal.stats())["archive"]["runs"])

    await eventually(is_there)
    await journal.aclose()
    waiting = place.journal(archive=folder.as_uri())
    await write(waiting, "s")
    await waiting.compact("s")
    assert await on_worker(waiting, waiting._housekeeper._archive.pack, 3600.0) == 0  # type: ignore[attr-defined]


async def on_worker(journal: Journal, work: Any, age: float) -> Any:
    async def pack() -> Any:
        return await work(age, waits=True)

    return await journal._worker.do(pack)


class Dying(Folder):
    """Dies before or after one of its doings."""

    def __init__(self, path: str, what: str, *, is_done: bool) -> None:
        super().__init__(path)
        self.dies = what
        self._is_done = is_done

    async def _do(self, what: str, *args: Any) -> Any:
        if what != self.dies:
            return await getattr(Folder, what)(self, *args)
        if self._is_done:
            await getattr(Folder, what)(self, *args)
        raise JournalError("died")

    async def put(self, name: str, data: bytes) -> None:
        await self._do("put", name, data)

    async def get(self, name: str) -> bytes:
        return await self._do("get", name)  # type: ignore[no-any-return]

    async def delete(self, name: str) -> None:
        await self._do("delete", name)


def with_objects(journal: Journal, objects: Any) -> Journal:
    archive: Any = journal._housekeeper._archive
    archive._objects = objects
    return journal


@pytest.mark.parametrize("what", ["put", "get", "delete"])
@pytest.mark.parametrize("is_done", [False, True])
async def test_a_process_may_die_anywhere(
    place: Place, folder: Path, what: str, is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = place.journal(archive=folder.as_uri())
    for run_id, who in (("r", "alice"), ("s", "bob"), ("t", "bob")):
        await write(journal, run_id, who=who)
        await journal.compact(run_id)
    expected = [await fold(journal, run_id) for run_id in ("s", "t")]
    dying = with_objects(place.journal(archive=folder.as_uri()), Dying(str(folder), what, is_done=is_done))
    if what == "delete":
        assert await dying.archive() == 3
    else:
        with pytest.raises(JournalError, match="died"):
            await dying.archive()
    assert [await fold(journal, run_id) for run_id in ("s", "t")] == expected
    await journal.archive()
    with pytest.raises(JournalError, match="died"):
        await dying.forget(principal="alice")
    assert [await fold(journal, run_id) for run_id in ("s", "t")] == expected
    monkeypatch.setattr(archiving, "_STALE_SECONDS", -1.0)
    assert await journal.forget(principal="alice") == 0  # which cleans
    assert len(packs(folder)) == 1
    assert [await fold(journal, run_id) for run_id in ("s", "t")] == expected
    assert await journal.read_whole(["r"]) == []


async def test_what_was_given_up_is_not_used_by_one_that_comes_back(
    place: Place, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "_STALE_SECONDS", -1.0)
    journal, other = place.journal(archive=folder.as_uri()), place.journal(archive=folder.as_uri())
    await write(journal, "r")
    await journal.compact("r")
    expected = await fold(journal, "r")

    class Stopped(Folder):
        async def get(self, name: str) -> bytes:
            found = await super().get(name)
            assert await other.forget(thread="another") == 0  # cleans: the other one is taken for dead
            return found

    assert await with_objects(journal, Stopped(str(folder))).archive() == 0
    assert packs(folder) == []
    assert await fold(other, "r") == expected
    assert await other.archive() == 1
    assert await fold(other, "r") == expected


async def test_a_run_that_is_forgotten_while_it_is_packed_is_not_kept(place: Place, folder: Path) -> None:
    journal, other = place.journal(archive=folder.as_uri()), place.journal(archive=folder.as_uri())
    await write(journal, "r", who="alice", text=SECRET)
    await write(journal, "s", who="bob")

    class Slow(Folder):
        async def get(self, name: str) -> bytes:
            found = await super().get(name)
            await other.forget(principal="alice")
            return found

    await with_objects(journal, Slow(str(folder))).archive()
    assert packs(folder) == []
    assert await other.archive() == 1
    assert [run.run_id for run in await other.runs()] == ["s"]


async def test_readers_find_runs_that_are_written_anew_meanwhile(place: Place, folder: Path) -> None:
    journal, other = place.journal(archive=folder.as_uri()), place.journal(archive=folder.as_uri())
    for run_id, who in (("r", "alice"), ("s", "bob")):
        await write(journal, run_id, who=who)
    await journal.archive()
    expected = await fold(other, "s")

    class Late(Folder):
        async def get_spans(self, name: str, spans: Any) -> Any:
            await other.forget(principal="alice")
            return await super().get_spans(name, spans)

    assert await fold(with_objects(journal, Late(str(folder))), "s") == expected


async def test_an_object_that_is_not_deleted_is_an_error(place: Place, folder: Path) -> None:
    class Sticky(Folder):
        async def delete(self, name: str) -> None: ...

    journal = with_objects(place.journal(archive=folder.as_uri()), Sticky(str(folder)))
    await write(journal, "r", who="alice")
    await journal.archive()
    with pytest.raises(JournalError, match="still has pack"):
        await journal.forget(principal="alice")
    assert await with_objects(journal, Folder(str(folder))).forget(principal="alice") == 0
    assert packs(folder) == []


async def test_an_object_that_is_lost_or_damaged_is_an_error(journal: Journal, folder: Path) -> None:
    await write(journal, "r")
    await write(journal, "s", who="bob")
    await journal.archive()
    [pack] = packs(folder)
    data = pack.read_bytes()
    pack.write_bytes(data[:-20] + bytes(20))
    with pytest.raises(JournalError, match="is damaged"):
        await journal.read_whole(["r", "s"])
    with pytest.raises(JournalError, match="another object"):
        await journal.forget(principal="bob")
    pack.unlink()
    with pytest.raises(JournalError, match="is missing where the index says it is"):
        await records(journal, "r")
    assert issubclass(ObjectMissing, JournalError)


async def test_a_journal_with_an_archive_is_not_opened_without(place: Place, folder: Path) -> None:
    journal = place.journal(archive=folder.as_uri())
    await write(journal, "r")
    await journal.archive()
    with pytest.raises(JournalError, match="has runs in an archive"):
        await place.journal().runs()
    await journal.forget(thread="t")
    assert await place.journal().runs() == []
    with pytest.raises(UsageError, match="no archive"):
        await place.journal().archive()


async def test_a_process_that_was_opened_before_there_was_an_archive(place: Place, folder: Path) -> None:
    """It says so, in place of runs without records and of promises that it cannot keep."""
    async with place.journal() as older, place.journal(archive=folder.as_uri()) as journal:
        await write(journal, "r")
        assert len(await records(older, "r")) > 1
        assert await journal.archive() == 1
        for work in (partial(records, older, "r"), partial(older.read_whole, ["r"]), partial(older.forget, thread="t")):
            with pytest.raises(JournalError, match="has runs in an archive: name it where you open"):
                await work()
        assert [row.run_id for row in await older.runs()] == ["r"]
        await write(older, "s")
        assert len(await older.read_whole(["s"])) > 1


async def test_another_archive_is_refused(place: Place, folder: Path, tmp_path: Path) -> None:
    async with place.journal(archive=folder.as_uri()) as journal:
        await write(journal, "r")
        assert await journal.archive() == 1
        await write(journal, "s")
    async with place.journal(archive=(tmp_path / "second").as_uri()) as other:
        with pytest.raises(JournalError, match=r"are not in the folder .*second.*: name the archive that they are in"):
            await other.archive()
    async with place.journal(archive=folder.as_uri()) as journal:
        assert await journal.archive() == 1
        assert len(await journal.read_whole(["r", "s"])) > 2


async def test_a_copy_has_what_lies_in_the_archive(place: Place, folder: Path, tmp_path: Path) -> None:
    journal = place.journal(archive=folder.as_uri())
    await write(journal, "r")
    await write(journal, "s")
    await journal.compact("r")
    async with open_journal(sqlite_url(tmp_path / "first.db"), housekeeping=None) as first:
        moved = await journal.copy_to(first)
    await journal.compact("s")
    await journal.archive()
    async with open_journal(sqlite_url(tmp_path / "other.db"), housekeeping=None) as other:
        copied = await journal.copy_to(other)
        assert (copied.runs, copied.copied) == (moved.runs, 2)
        assert await everything(other, ("r", "s")) == await everything(journal, ("r", "s"))
        back = place.journal(archive=folder.as_uri())
        assert await other.copy_to(back) == copied._replace(copied=0)


@pytest.mark.parametrize("address", ["", "folder", "file://host/path", "file:///", "s3://", "s3://key:secret@bucket"])
async def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(UsageError, match="expected file:///folder or s3://bucket/prefix") as caught:
        open_journal("memory:", archive=address)
    assert "secret" not in str(caught.value)
    assert "''" not in str(caught.value)


async def test_nothing_waits_for_one_reader(place: Place, folder: Path) -> None:
    """Many runs of one thread are read at once."""
    journal = place.journal(archive=folder.as_uri())
    names = [f"r{number}" for number in range(40)]
    for name in names:
        await write(journal, name)
    await journal.archive()
    read = await asyncio.gather(*(journal.read_whole(names) for _ in range(3)))
    assert [len(found) for found in read] == [40 * 7] * 3
