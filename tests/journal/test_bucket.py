"""An archive in a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from callstream.errors import JournalError, UsageError
from callstream.events import RunStarted, TextAppended
from callstream.journal import Housekeeping, open_journal
from callstream.journal.store import StoreUnavailable

from .bucket import FakeBucket, fake_bucket
from .conftest import opened, sqlite_url
from .runs import DONE, fold, whole_run

pytest.importorskip("obstore", reason="the extra archive is not installed")
pytestmark = pytest.mark.asyncio


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBucket]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with fake_bucket() as server:
        yield server


def address(bucket: FakeBucket) -> str:
    return f"s3://agents/old/runs?endpoint={bucket.url}&region=local"


async def test_runs_in_a_bucket_are_read_and_forgotten(bucket: FakeBucket, tmp_path: Path) -> None:
    async with opened(sqlite_url(tmp_path / "j.db"), archive=address(bucket)) as journal:
        await journal.append("r", whole_run())
        for number in range(3):
            await journal.append(f"s{number}", [RunStarted("t", "bob"), TextAppended("m", f"text {number}"), DONE])
        for run_id in ("r", "s1"):
            await journal.compact(run_id)
        before = [await fold(journal, run_id) for run_id in ("r", "s1")]
        assert await journal.archive() == 4
        [path] = bucket.objects
        assert path.startswith("/agents/old/runs/")
        assert [await fold(journal, run_id) for run_id in ("r", "s1")] == before
        assert len(await journal.read_whole(["s0", "s1", "s2", "r"])) == 30
        assert await journal.forget(principal="alice") == 1
        [anew] = bucket.objects
        assert anew != path
        assert await fold(journal, "s1") == before[1]
        assert await journal.forget(principal="bob") == 3
        assert bucket.objects == {}


async def test_a_bucket_that_is_away_or_refuses_is_said(bucket: FakeBucket, tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "j.db")
    async with opened(url, archive=address(bucket), retry_seconds=0.1) as journal:
        await journal.append("r", [RunStarted("t", "bob"), DONE])
        bucket.is_away = True
        with pytest.raises(JournalError, match="the bucket 'agents' cannot be reached"):
            await journal.archive()
        await journal.append("s", [RunStarted("t", "bob"), DONE])
        bucket.is_away = False
        bucket.refuses = True
        with pytest.raises(JournalError, match="the bucket 'agents' refuses this process"):
            await journal.archive()
        bucket.refuses = False
        assert await journal.archive() == 2


async def test_an_object_that_is_lost_is_said(bucket: FakeBucket, tmp_path: Path) -> None:
    async with opened(sqlite_url(tmp_path / "j.db"), archive=address(bucket)) as journal:
        await journal.append("r", [RunStarted("t", "bob"), DONE])
        await journal.archive()
        bucket.objects.clear()
        with pytest.raises(
            JournalError, match="a run is missing where the index says it is: the bucket 'agents' has no"
        ):
            await journal.read_whole(["r"])
        assert await journal.forget(principal="bob") == 1


async def test_housekeeping_goes_on_when_the_bucket_is_away(
    bucket: FakeBucket,
) -> None:
    bucket.is_away = True
    duties = Housekeeping(compact_after=0.0, archive_after=0.0)
    async with open_journal("memory:", archive=address(bucket), housekeeping=None) as journal:
        await journal.append("r", [RunStarted("t"), DONE])
        await journal.compact("r")
        housekeeper = journal._housekeeper
        housekeeper._duties = duties
        with pytest.raises(JournalError, match="cannot be reached"):
            await housekeeper.do_duties()
        bucket.is_away = False
        await housekeeper.do_duties()
        assert (await journal.stats())["archive"]["runs"] == 1


async def test_housekeeping_says_that_it_cannot_erase_what_lies_in_a_bucket_that_is_away(bucket: FakeBucket) -> None:
    """It is no outage of the journal, which would be over with the next row that is written."""
    async with open_journal("memory:", archive=address(bucket), housekeeping=None, retry_seconds=0.1) as journal:
        for run_id in ("r", "s"):
            await journal.append(run_id, [RunStarted(run_id), DONE])
        assert await journal.archive() == 2
        bucket.is_away = True
        housekeeper = journal._housekeeper
        housekeeper._duties = Housekeeping(retain=0.0)
        with pytest.raises(JournalError, match="cannot be reached") as refused:
            await housekeeper.do_duties()
        assert not isinstance(refused.value, StoreUnavailable)
        bucket.is_away = False
        await housekeeper.do_duties()
        assert bucket.objects == {}


async def test_whether_the_archive_answers_can_be_asked(bucket: FakeBucket) -> None:
    async with open_journal("memory:", archive=address(bucket), housekeeping=None, retry_seconds=0.1) as journal:
        await journal.check_archive()  # nothing lies there
        await journal.append("r", [RunStarted("t"), DONE])
        assert await journal.archive() == 1
        await journal.check_archive()
        bucket.is_away = True
        with pytest.raises(JournalError, match="cannot be reached"):
            await journal.check_archive()


async def test_options_of_a_bucket_are_checked() -> None:
    with pytest.raises(UsageError, match="knows the options endpoint and region, got secret"):
        open_journal("memory:", archive="s3://bucket?secret=1")
