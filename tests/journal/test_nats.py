"""The log in NATS: what lies there and how long, who may write, and what happens when it is away or not what it should be."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest

from bench.nats import Cluster, Node, with_log
from callstream.errors import JournalError, LeaseLost, UsageError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallStarted,
    InputKept,
    RunEvent,
    RunResumed,
    TextAppended,
)
from callstream.journal import Journal, open_journal
from callstream.journal.follow import Follower
from callstream.journal.nats import NatsLog, nats_address
from callstream.journal.nats import log as nats_log
from callstream.journal.postgres import address
from callstream.journal.store import StoreUnavailable
from tests.gated import PATIENCE

from .conftest import NATS, Place, drop_schema, opened, sqlite_url
from .runs import DONE, START, records

BEGINNING: list[RunEvent] = [START, CallStarted("c", "t"), ArgsAppended("c", "["), TextAppended("m", "a")]
on_nats = pytest.mark.parametrize("place_url", [NATS], indirect=True)


def engine(journal: Journal) -> NatsLog:
    return journal._store._log  # type: ignore[attr-defined, no-any-return]


async def on_thread(journal: Journal, work: Callable[..., Any], *args: Any) -> Any:
    return await journal._worker.do(work, *args)


async def messages(journal: Journal) -> int:
    """How many there are of all writers."""
    link = engine(journal)._link
    states = [await on_thread(journal, link._state, name) for name in link._address.names]
    return sum(sum((state.subjects or {}).values()) for state in states)


async def trim(journal: Journal) -> None:
    await on_thread(journal, journal._store.trim)  # type: ignore[attr-defined]


def index_reads(journal: Journal) -> list[str]:
    """The runs of which the index is asked for a page from now on."""
    index: Any = journal._store._index.reader  # type: ignore[attr-defined]
    page, asked = index.page, list[str]()

    async def counted(run_id: str, *args: Any) -> Any:
        asked.append(run_id)
        return await page(run_id, *args)

    index.page = counted
    return asked


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("log=a,b", "without a scheme"),
        ("log=http://a", "a URL that begins with 'http://'"),
        ("log=nats://a,,b", "got '' among the hosts"),
        ("log=nats://a:port", "got 'a:port' among the hosts"),
        ("log=nats://a/b", "got 'a/b' among the hosts"),
        ("log=nats://a&log_stream=a.b", "log_stream must be a plain name"),
        ("log=nats://a&log_streams=0", "log_streams is a number from 1 to 1000"),
        ("log=nats://a&log_durability=none", "log_durability is strict or relaxed"),
        ("log=nats://a&log_monitor=a:8222", "expected log_monitor=http"),
        ("log=nats://a&log_sync=on", "got log_sync"),
        ("log_stream=x", "log= names none"),
    ],
)
def test_a_wrong_address_is_refused_with_what_was_expected(query: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint.replace("(", r"\(")):
        open_journal(f"postgresql://db/calls?{query}")


def test_what_is_said_of_the_log_is_nothing_to_postgresql() -> None:
    found = address("postgresql://db/calls?log=nats://a&log_stream=s&schema=y&sslmode=disable")
    assert (found.dsn, found.schema) == ("postgresql://db/calls?sslmode=disable", "y")


def test_an_address_is_read() -> None:
    found = nats_address({"log": "nats://me:secret@a,b:4333", "log_durability": "relaxed", "log_creds": "/run/creds"})
    assert found.servers == ("nats://me:secret@a:4222", "nats://me:secret@b:4333")
    assert found.monitors == ("http://a:8222", "http://b:8222")
    assert not found.is_strict
    assert found.where == "the NATS stream 'callstream' at a:4222, b:4333"
    assert nats_address({"log": "tls://a", "log_monitor": "https://m"}).monitors == ("https://m",)
    spread = nats_address({"log": "nats://a", "log_stream": "s", "log_streams": "3"})
    assert {spread.stream_of(str(number)) for number in range(100)} == set(spread.names) == {"s_0", "s_1", "s_2"}


@pytest.mark.parametrize("url", ["memory:", "sqlite:///calls.db"])
def test_a_log_goes_with_postgresql_only(url: str) -> None:
    with pytest.raises(UsageError, match="log= goes with a journal in PostgreSQL"):
        open_journal(f"{url}?log=nats://a")


def test_a_missing_client_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "callstream.journal.nats", None)
    with pytest.raises(UsageError, match=r"needs nats-py: pip install 'callstream\[nats\]'"):
        open_journal("postgresql://db/calls?log=nats://a")


# -- opening -----------------------------------------------------------------------------------------------------------


@pytest.mark.postgres
@pytest.mark.nats
async def test_a_log_that_may_lose_what_it_acknowledges_is_refused(url: str, nats_server: Node) -> None:
    strict = with_log(url, f"log=nats://127.0.0.1:{nats_server.port}", "strict")
    with pytest.raises(JournalError, match=r"does not have 3 servers.*log_durability=relaxed"):
        await open_journal(strict, housekeeping=None)
    async with opened(f"{strict}&log_durability=relaxed") as journal:
        await journal.append("r", [START])
    with pytest.raises(JournalError, match="is kept by 1 server in file"):
        await open_journal(strict, housekeeping=None)


@pytest.mark.nats
@pytest.mark.parametrize(
    ("answers", "complaint"),
    [((True, True, True), None), ((True, True, None), None), ((True, False, None), "has no `sync_interval"),
     ((True, None, None), "it is not known whether")],
)  # fmt: skip
async def test_servers_say_whether_they_sync(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[bool | None, ...], complaint: str | None
) -> None:
    from callstream.journal.nats import link

    monitors = {f"http://{name}:8222": answer for name, answer in zip("abc", answers, strict=True)}
    monkeypatch.setattr(link, "_syncs_always", monitors.__getitem__)
    checking = link.NatsLink(nats_address({"log": "nats://a,b,c"}), 1.0)._check_disks()
    if complaint is None:
        await checking
    else:
        with pytest.raises(JournalError, match=complaint):
            await checking


@pytest.mark.nats
async def test_monitoring_addresses_that_do_not_answer_are_named_once_each_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two of three servers are unavailable: that is an outage, and no reason to do with less."""
    from callstream.journal.nats import link

    monkeypatch.setattr(link, "_syncs_always", {"http://a:8222": True}.get)
    with pytest.raises(JournalError, match=r"^http://b:8222, http://c:8222 do not answer, so") as raised:
        await link.NatsLink(nats_address({"log": "nats://a,b,c"}), 1.0)._check_disks()
    assert "relaxed" not in str(raised.value)
    assert "http://a:8222" not in str(raised.value)
    with pytest.raises(JournalError, match=r"^http://h:8222 does not answer, so") as raised:
        await link.NatsLink(nats_address({"log": "nats://h:1,h:2,h:3"}), 1.0)._check_disks()
    assert str(raised.value).count("http://h:8222") == 1


@pytest.mark.nats
async def test_of_a_port_that_does_not_speak_nats_it_is_said_that_nothing_came(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes the connection and waits to be spoken to. Meanwhile the log says, once, what the journal waits for."""
    from callstream.journal.nats import link

    monkeypatch.setattr(link, "_CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(link, "_ANSWER_SECONDS", 0.01)
    taken: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        opening = link.NatsLink(nats_address({"log": f"nats://127.0.0.1:{port}"}), 1.0)
        for _ in range(2):
            with pytest.raises(
                StoreUnavailable, match="no server has answered: a NATS server says at once what it is, and nothing"
            ):
                await opening.open("id", lambda: None)
        for writer in taken:
            writer.close()
    waits = [record.getMessage() for record in caplog.records if record.name == "callstream.journal"]
    assert waits == [f"the journal is not open yet, waiting for the NATS stream 'callstream' at 127.0.0.1:{port}"]


@pytest.mark.nats
def test_what_came_from_a_server_is_never_an_empty_text() -> None:
    from callstream.journal.nats.link import _said

    assert _said(ConnectionResetError()) == "ConnectionResetError"
    assert _said(OSError("no route")) == "no route"
    assert _said(TimeoutError()) == _said(None) == "a NATS server says at once what it is, and nothing has arrived"


@pytest.mark.nats
async def test_credentials_that_cannot_be_read_are_refused_though_the_server_asks_for_none(
    nats_server: Node, tmp_path: Path
) -> None:
    from callstream.journal.nats import link

    named = {"log": f"nats://127.0.0.1:{nats_server.port}", "log_creds": str(tmp_path / "nofile")}
    with pytest.raises(JournalError, match=r"expected log_creds= to name a file that can be read: .*nofile"):
        await link.NatsLink(nats_address({**named, "log_durability": "relaxed"}), 1.0).open("id", lambda: None)


@pytest.mark.nats
def test_what_a_server_says_of_its_disk(nats_server: Node) -> None:
    from callstream.journal.nats.link import _syncs_always

    assert _syncs_always(f"http://127.0.0.1:{nats_server.monitor}") is False
    assert _syncs_always("http://127.0.0.1:1") is None


@pytest.mark.postgres
@pytest.mark.nats
async def test_what_is_no_log_of_ours_is_refused(url: str, nats_server: Node, tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no server has answered"):
        await open_journal(with_log(url, "log=nats://127.0.0.1:1", "s"), housekeeping=None, retry_seconds=0.1)
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{nats_server.port}")
    await client.jetstream().add_stream(name="other", subjects=["other.log.*"])
    with pytest.raises(JournalError, match="is another program's"):
        await open_journal(with_log(url, f"log=nats://127.0.0.1:{nats_server.port}", "other", relaxed=True))
    await client.jetstream().delete_stream("other")
    await client.close()
    bare = Node(tmp_path, 0, [0], sync=False, jetstream=False)
    bare.start()
    try:
        bare_url = with_log(url, f"log=nats://127.0.0.1:{bare.port}", "s", relaxed=True)
        with pytest.raises(JournalError, match="has no JetStream"):
            await open_journal(bare_url, housekeeping=None)
    finally:
        bare.kill()


@pytest.mark.postgres
@pytest.mark.nats
async def test_a_server_that_is_too_old_is_refused(
    url: str, nats_server: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    from callstream.journal.nats import link

    monkeypatch.setattr(link, "_OLDEST", (99, 0))
    with pytest.raises(JournalError, match=r"expected NATS 99\.0 or newer, got 2\."):
        await open_journal(with_log(url, f"log=nats://127.0.0.1:{nats_server.port}", "old", relaxed=True))


@pytest.mark.nats
async def test_an_attempt_to_connect_ends_in_time_even_if_it_overhears_that_it_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from callstream.journal.nats import link

    class Stubborn(link.Client):  # type: ignore[misc]
        async def connect(self, **options: Any) -> None:
            for _ in range(3):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue  # as when an attempt has failed in the same moment

        async def close(self) -> None: ...

    monkeypatch.setattr(link, "Client", Stubborn)
    monkeypatch.setattr(link, "_CONNECT_SECONDS", 0.01)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(StoreUnavailable, match="no server has answered"):
            await link.NatsLink(nats_address({"log": "nats://a"}), 1.0).open("id", lambda: None)


@pytest.mark.nats
async def test_what_nobody_answers_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that are about to stop take no questions any more."""
    from callstream.journal.nats import link

    class Deserted(link.Client):  # type: ignore[misc]
        async def request(self, *asked: Any, **options: Any) -> None:
            raise link.nats.errors.NoRespondersError

    asked = link.NatsLink(nats_address({"log": "nats://a"}), 1.0)
    monkeypatch.setattr(asked, "_client", Deserted())
    for question in (asked.last("w"), asked.publish("w", b"", None), asked.stored_bytes()):
        with pytest.raises(StoreUnavailable, match="it has no leader"):
            await question


# -- what lies there ---------------------------------------------------------------------------------------------------


@on_nats
async def test_a_batch_is_one_message_and_an_append_without_room_goes_to_the_index(journal: Journal) -> None:
    await journal.append("r", BEGINNING)
    await journal.append("s", BEGINNING[:1] + [TextAppended("m", "b")])
    before = await messages(journal)
    await asyncio.gather(
        journal.append("r", [TextAppended("m", "1"), ArgsAppended("c", "1")]),
        journal.append("s", [TextAppended("m", "2")]),
    )
    assert 1 <= await messages(journal) - before <= 2
    now = await messages(journal)
    await journal.append("r", [TextAppended("m", "x" * 2_000_000)])
    assert await messages(journal) == now
    await journal.append("r", [CallCompleted("c"), DONE])
    assert [record.seq for record in await records(journal)] == list(range(1, 10))


@on_nats
async def test_messages_are_erased_when_no_run_needs_them(journal: Journal) -> None:
    for run_id in ("r", "s"):
        await journal.append(run_id, [START, TextAppended("m", "a")])
    for number in range(5):
        await journal.append("r", [TextAppended("m", str(number))])
    await journal.append("s", [TextAppended("m", "late")])
    await journal.append("r", [DONE])
    await trim(journal)
    assert await messages(journal) == 6  # the turn was before
    await journal.compact("r")
    await trim(journal)
    assert await messages(journal) == 1
    assert len(await records(journal, "s")) == 3
    await journal.append("s", [TextAppended("m", "later")])
    assert [record.seq for record in await records(journal, "s")] == [1, 2, 3, 4]


@on_nats
async def test_what_has_lain_there_for_long_goes_into_the_index(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, other = place.journal(), place.journal()
    await journal.append("r", BEGINNING)
    for number in range(5):
        await journal.append("r", [TextAppended("m", str(number)), ArgsAppended("c", str(number))])
    before = await records(other)
    monkeypatch.setattr(nats_log, "SETTLE_SECONDS", -1.0)
    await trim(journal)
    assert await messages(journal) == 1
    assert await records(journal) == await records(other) == before
    await journal.append("r", [TextAppended("m", "z")])
    await journal.append("r", [ArgsAppended("c", "]"), CallCompleted("c"), DONE])
    assert await journal.compact("r") > 0
    call = await other.call("c")
    assert call is not None
    assert call.args_json == "[01234]"


@on_nats
async def test_what_dead_writers_left_is_erased_and_what_others_need_is_not(place: Place) -> None:
    gone, alive = place.journal(), place.journal()
    for run_id, journal in (("r", gone), ("s", alive)):
        await journal.append(run_id, [START, TextAppended("m", "a")])
        await journal.append(run_id, [TextAppended("m", "b")])
        await journal.append(run_id, [DONE])
    await gone.aclose()
    kept = alive._store._index.reader.writers  # type: ignore[attr-defined]
    await on_thread(alive, engine(alive).trim_dead, kept)
    assert len(await records(alive, "r")) == len(await records(alive, "s")) == 4
    await alive.compact("r")
    await on_thread(alive, engine(alive).trim_dead, kept)
    assert await messages(alive) == 2  # the turn and the piece of the one that is there
    assert len(await records(alive, "s")) == 4


@pytest.mark.postgres
@pytest.mark.nats
async def test_processes_may_be_spread_over_streams(url: str, nats_server: Node) -> None:
    spread = with_log(url, f"log=nats://127.0.0.1:{nats_server.port}", "spread", relaxed=True)
    three = f"{spread}&log_streams=3"
    journals = [open_journal(three, housekeeping=None) for _ in range(8)]
    for number, journal in enumerate(journals):
        await journal.append(f"r{number}", [START, TextAppended("m", "a")])
        await journal.append(f"r{number}", [TextAppended("m", "b")])
    for journal in journals[:2]:
        assert [len(await records(journal, f"r{number}")) for number in range(8)] == [3] * 8
    assert await messages(journals[0]) == 16
    for journal in journals:
        await journal.aclose()
    with pytest.raises(UsageError, match="&log_streams=3 to the journal's URL"):
        await open_journal(f"{spread}&log_streams=2", housekeeping=None)
    where = address(url)
    admin = await asyncpg.connect(where.dsn)
    await admin.execute(
        f'UPDATE "{where.schema}".journal SET log = NULL'
    )  # as if another journal named the same streams
    await admin.close()
    with pytest.raises(JournalError, match="spread over 3 streams: expected log_streams=3"):
        await open_journal(f"{spread}&log_streams=2", housekeeping=None)


async def streams(node: Node) -> set[str]:
    import nats

    client = await nats.connect(f"nats://127.0.0.1:{node.port}")
    found = {info.config.name for info in await client.jetstream().streams_info()}
    await client.close()
    return found


@pytest.mark.postgres
@pytest.mark.nats
async def test_a_journal_keeps_the_log_that_it_was_first_opened_with(url: str, nats_server: Node) -> None:
    """Its servers may have other addresses. For what is refused nothing is made in NATS."""
    named = with_log(url, f"log=nats://127.0.0.1:{nats_server.port}", "first", relaxed=True)
    async with opened(named) as journal:
        await journal.append("r", BEGINNING)
        await journal.append("r", [TextAppended("m", "b")])
        await journal.append("r", [DONE])
    before = await streams(nats_server)
    for other in (url, f"{named}&log_streams=4", named.replace("log_stream=first", "log_stream=second")):
        with pytest.raises(UsageError, match="add log= with the log's servers and log_stream=first&log_streams=1 to"):
            await open_journal(other, housekeeping=None).compact("r")
    async with opened(named.replace("127.0.0.1", "user:secret@localhost")) as journal:
        assert [getattr(record.event, "text", None) for record in await records(journal)][-2] == "b"
    assert await streams(nats_server) == before


@on_nats
async def test_a_journal_is_copied_from_a_log_and_back(place: Place, tmp_path: Path) -> None:
    """That is how it is backed up: what lies in the log of runs that have ended is in the copy."""
    journal = place.journal()
    for run_id in ("r", "s"):
        await journal.append(run_id, [START, TextAppended("m", "a")])
        for number in range(5):
            await journal.append(run_id, [TextAppended("m", str(number))])
        await journal.append(run_id, [DONE])
    await journal.compact("r")
    await journal.append("t", [START])
    async with opened(sqlite_url(tmp_path / "copy.db")) as copy:
        moved = await journal.copy_to(copy)
        assert (moved.runs, moved.active) == (2, 1)
        assert await records(copy, "s") == await records(journal, "s")
        await journal.append("t", [TextAppended("m", "a"), DONE])
        moved = await journal.copy_to(copy)
        assert (moved.runs, moved.copied) == (3, 1)
        schema = f"back_{address(place.url).schema}"
        async with opened(
            place.url.replace("schema=", "schema=back_", 1).replace("_stream=", "_stream=back_", 1)
        ) as other:
            assert (await copy.copy_to(other)).digest == moved.digest
            assert len(await records(other, "s")) == 8
    await drop_schema(address(place.url).dsn, schema)


@pytest.mark.postgres
@pytest.mark.nats
async def test_two_journals_have_not_one_log(url: str, nats_server: Node) -> None:
    """The processes of one are all dead to the other, which erases what dead ones have left."""
    mine = with_log(url, f"log=nats://127.0.0.1:{nats_server.port}", "both", relaxed=True)
    other = mine.replace("schema=", "schema=other_", 1)
    async with opened(mine) as journal:
        await journal.append("r", BEGINNING)
        await journal.append("r", [TextAppended("m", "b")])
        with pytest.raises(JournalError, match="is another journal's log: name another one with log_stream="):
            await open_journal(other, housekeeping=None)
    async with opened(mine) as journal, opened(other.replace("_stream=both", "_stream=own")) as apart:
        assert len(await records(journal, "r")) == 5
        await apart.append("r", BEGINNING)
    await drop_schema(address(url).dsn, address(other).schema)


# -- followers ---------------------------------------------------------------------------------------------------------


@on_nats
async def test_a_follower_elsewhere_is_given_what_it_hears_without_asking_the_index(place: Place) -> None:
    writer, other = place.journal(), place.journal()
    await writer.append("r", BEGINNING)
    following = other.follow("r")
    assert [(await anext(following)).seq for _ in range(4)] == [1, 2, 3, 4]
    waiting = asyncio.ensure_future(anext(following))
    await writer.append("r", [TextAppended("m", "5")])
    assert (await asyncio.wait_for(waiting, 30)).seq == 5
    asked = index_reads(other)
    for number in range(6, 16):
        waiting = asyncio.ensure_future(anext(following))
        await writer.append("r", [TextAppended("m", str(number))])
        assert (await asyncio.wait_for(waiting, 30)).seq == number
    assert asked == []
    await writer.append("r", [DONE])
    assert [record.seq async for record in following] == [16]
    await trim(other)
    assert engine(other)._feeds == {}


@on_nats
async def test_of_other_writers_what_is_followed_is_kept_and_the_rest_read_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, other = place.journal(), place.journal()
    for run_id in ("r", "s"):
        await writer.append(run_id, [START, TextAppended("m", "a")])
        await writer.append(run_id, [TextAppended("m", "b")])
    following = other.follow("r")
    assert [(await anext(following)).seq for _ in range(3)] == [1, 2, 3]
    monkeypatch.setattr(nats_log, "_UNUSED_SECONDS", -1.0)
    await trim(other)
    [view] = engine(other)._views.values()
    assert [view.has(key) for key in (1, 2)] == [True, False]
    assert len(await records(other, "s")) == 3
    await writer.append("r", [TextAppended("m", "c")])
    assert (await asyncio.wait_for(anext(following), 30)).seq == 4
    await following.aclose()  # type: ignore[attr-defined]
    await trim(other)
    assert engine(other)._views == {}
    assert len(await records(other, "r")) == 4


@on_nats
async def test_a_follower_that_has_missed_a_message_gets_it_with_the_next_turn(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a leader dies between keeping a message and telling of it: its writer hears nothing, and takes a turn."""
    writer, other = place.journal(), place.journal()
    await other.open()
    hear, missed = engine(other)._hear, list[int]()

    def deaf(name: str, number: int, before: int, message: bytes) -> None:
        if message and not missed:
            missed.append(number)
        else:
            hear(name, number, before, message)

    monkeypatch.setattr(engine(other), "_hear", deaf)
    await writer.append("r", BEGINNING)
    following = other.follow("r")
    assert [(await anext(following)).seq for _ in range(4)] == [1, 2, 3, 4]
    waiting = asyncio.ensure_future(anext(following))
    [follower] = other._followers._by_run["r"]
    while not follower._is_waiting:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await writer.append("r", [TextAppended("m", "5")])
    while not missed:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert not waiting.done()
    await on_thread(writer, engine(writer).take_turn)
    assert (await asyncio.wait_for(waiting, 30)).seq == 5


@on_nats
async def test_a_follower_elsewhere_that_was_told_of_the_end_before_it_read_on_gets_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last piece is at hand by then, and nobody will tell of the end again."""
    writer, other = place.journal(), place.journal()
    await writer.append("r", BEGINNING)
    following = other.follow("r")
    assert [(await anext(following)).seq for _ in range(4)] == [1, 2, 3, 4]
    waiting = asyncio.ensure_future(anext(following))
    await writer.append("r", [TextAppended("m", "5")])
    assert (await asyncio.wait_for(waiting, PATIENCE)).seq == 5
    [follower] = other._followers._by_run["r"]
    push, told = Follower.push, asyncio.Queue[None]()

    def counted(self: Follower, *args: Any, **options: Any) -> None:
        push(self, *args, **options)
        if self is follower:
            told.put_nowait(None)

    monkeypatch.setattr(Follower, "push", counted)
    for event in (TextAppended("m", "6"), DONE):
        await writer.append("r", [event])
        await asyncio.wait_for(told.get(), PATIENCE)
    async with asyncio.timeout(PATIENCE):
        assert [record.seq async for record in following] == [6, 7]


@on_nats
async def test_a_follower_hears_of_the_pieces_of_a_run_that_another_process_has_taken_over(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that has looked after the old owner lost its turn, and before the run had the new one."""
    gone, taker, other = place.journal(), place.journal(), place.journal()
    await gone.append("r", [START, InputKept("app", "input"), TextAppended("m", "a")])
    await gone.append("r", [TextAppended("m", "b")])
    following = other.follow("r")
    assert [(await anext(following)).seq for _ in range(4)] == [1, 2, 3, 4]
    waiting = asyncio.ensure_future(anext(following))
    [follower] = other._followers._by_run["r"]
    await gone.aclose()
    await taker.open()
    fence, push, told = engine(taker).fence, Follower.push, threading.Event()

    def counted(self: Follower, *args: Any, **options: Any) -> None:
        push(self, *args, **options)
        if self is follower:
            told.set()

    async def slow(writers: Collection[str]) -> None:
        await fence(writers)
        await asyncio.to_thread(told.wait, PATIENCE)
        while follower.is_behind or not follower._is_waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    monkeypatch.setattr(Follower, "push", counted)
    monkeypatch.setattr(engine(taker), "fence", slow)
    assert await taker.adopt({"app"}) == ["r"]
    for number, event in enumerate((RunResumed(2), TextAppended("m", "c"), TextAppended("m", "d")), 5):
        await taker.append("r", [event], after=number - 1)
        assert (await asyncio.wait_for(waiting, PATIENCE)).seq == number
        waiting = asyncio.ensure_future(anext(following))
    await taker.append("r", [DONE])
    assert (await asyncio.wait_for(waiting, PATIENCE)).seq == 8


# -- who may write -----------------------------------------------------------------------------------------------------


@on_nats
async def test_an_append_whose_answer_was_lost_is_not_written_twice(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    await journal.append("r", BEGINNING)
    link = engine(journal)._link
    publish, lost = link.publish, 0

    async def deaf(writer: str, message: bytes, expected: int | None) -> int:
        nonlocal lost
        place = await publish(writer, message, expected)
        if message and not lost:
            lost += 1
            raise StoreUnavailable("the answer was lost")
        return place

    monkeypatch.setattr(link, "publish", deaf)
    assert await journal.append("r", [TextAppended("m", "b"), TextAppended("m", "c")]) == 6
    assert lost == 1
    assert await journal.append("r", [TextAppended("m", "d")]) == 7
    texts = [getattr(record.event, "text", None) for record in await records(journal)]
    assert texts == [None, None, "[", "a", "b", "c", "d"]


@on_nats
async def test_a_stale_owner_is_refused_by_the_log_after_its_runs_were_taken(
    place: Place, eventually: Callable[..., Any]
) -> None:
    stale, alive = place.zombie(), place.journal()
    await stale.append("r", BEGINNING)
    await stale.append("r", [TextAppended("m", "b")])

    async def swept() -> bool:
        return await alive.sweep() == ["r"]

    await eventually(swept)
    before = await records(alive)
    taken = engine(stale)._own.until
    with pytest.raises(LeaseLost):
        await stale.append("r", [TextAppended("m", "c")])
    assert engine(stale)._own.until > taken  # it had to take its turn anew
    figures = (await stale.stats())["log"]
    assert (figures["batches"], figures["records"], figures["refused"]) == (1, 1, 1)
    assert figures["lag_seconds"] >= 0
    assert await records(alive) == await records(stale) == before


# -- outages -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[Node]:
    """A server of its own, which a test may kill."""
    with tempfile.TemporaryDirectory(prefix="callstream-", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder), 1, sync=False)
        cluster.start()
        yield cluster.nodes[0]
        cluster.stop()


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.nats
async def test_appends_wait_for_a_server_that_is_away_and_nothing_is_lost(url: str, server: Node) -> None:
    log_url = with_log(url, f"log=nats://127.0.0.1:{server.port}", "outage", relaxed=True)
    async with opened(log_url, retry_seconds=30.0) as journal:
        await journal.append("r", BEGINNING)
        await journal.append("r", [TextAppended("m", "b")])
        server.kill()
        waiting = asyncio.ensure_future(journal.append("r", [TextAppended("m", "c")]))
        with pytest.raises(JournalError):
            await journal.check()
        assert not waiting.done()
        server.start()
        assert await waiting == 6
        await journal.append("r", [DONE])
        assert [record.seq for record in await records(journal)] == [1, 2, 3, 4, 5, 6, 7]
        await journal.check()
    async with opened(log_url, retry_seconds=30.0) as journal:
        assert len(await records(journal)) == 7
