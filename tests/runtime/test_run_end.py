"""How runs start, end and are stopped, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from callstream import AbortSignal, CallState, Callstream, Reject, Run, Settings, current_run, tool
from callstream.calls import Call
from callstream.errors import JournalError, RunOver, UsageError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallProgressed,
    CallReturned,
    CallStarted,
    MessageReceived,
    RunEnded,
    RunStarted,
)
from callstream.testing import ToolCall, encode
from callstream.tools import ErrorPolicy
from tests.submitting import replace_append

from .reading import ARGS, WRITE, events, read, records


async def test_current_run_counts_until_it_ends(cs: Callstream) -> None:
    assert current_run() is None
    async with cs.run("outer") as outer:
        assert current_run() is outer
        async with cs.run("inner") as inner:
            assert current_run() is inner
        assert current_run() is outer
    assert current_run() is None
    run = await cs.start("thread")
    assert current_run() is run
    await run.finish()
    assert current_run() is None


async def test_a_run_left_in_another_context_ends_there(cs: Callstream) -> None:
    """As a server does that takes a generator's items in one task and closes it in another."""

    async def items() -> AsyncIterator[Run]:
        async with cs.run("thread") as run:
            yield run

    generator = items()
    run = await asyncio.create_task(anext(generator))  # type: ignore[arg-type]
    await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]
    assert (run.outcome, current_run()) == ("cancelled", None)


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="on_hook_error"):
        Settings(on_hook_error="fail-run")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="hook_timeout"):
        Settings(hook_timeout=0)


async def test_stop_while_a_call_is_being_started(cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record is on its way when the end begins, and the hooks of another call take their time to end."""
    held = asyncio.Event()
    aborted: list[str] = []

    async def delta(delta: Any, signal: Any) -> None:
        held.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            raise

    async def abort(call: Call, reason: str) -> None:
        await asyncio.sleep(0.05)
        aborted.append(call.call_id)

    cs.on_args_delta("t", delta)
    cs.on_args_abort("t", abort)
    run = await cs.start("thread")
    await run.record([CallStarted("a", "t"), ArgsAppended("a", "{")])
    await held.wait()
    append = cs.journal.append

    async def slow(*args: Any, **options: Any) -> int:
        await asyncio.sleep(0.02)
        return await append(*args, **options)

    replace_append(monkeypatch, cs.journal, slow)
    starting = asyncio.create_task(run.record([CallStarted("b", "t"), ArgsAppended("b", "{")]))
    await asyncio.sleep(0)
    await run.stop("user")
    await starting
    assert run.outcome == "cancelled"
    assert sorted(aborted) == ["a", "b"]
    assert [(call.state, call.reason) for call in run.calls] == [(CallState.DISCARDED, "aborted")] * 2
    assert [row.outcome for row in await cs.journal.runs()] == ["cancelled"]


async def test_a_refusal_that_could_not_be_recorded_does_not_keep_the_run_from_ending(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(delta: Any, signal: Any) -> None:
        raise Reject("no")

    cs.on_args_delta("t", refuse)
    append = cs.journal.append
    refused = asyncio.Event()

    async def full(run_id: str, entries: Sequence[Any], **options: Any) -> int:
        if any(isinstance(getattr(entry, "event", entry), CallDiscarded) for entry in entries) and not refused.is_set():
            refused.set()
            raise JournalError("the disk is full")
        return await append(run_id, entries, **options)

    run = await cs.start("thread")
    replace_append(monkeypatch, cs.journal, full)
    await run.record([CallStarted("c", "t"), ArgsAppended("c", "{")])
    await refused.wait()
    with pytest.raises(JournalError, match="disk is full"):
        await run.finish()
    assert (run.outcome, run.reason) == ("failed", "JournalError: the disk is full")
    (row,) = await cs.journal.runs()
    (call,) = await cs.journal.calls()
    assert (row.outcome, call.state) == ("failed", CallState.DISCARDED)


async def test_a_callback_that_raises_does_not_keep_the_run_from_ending(
    cs: Callstream, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    run = await cs.start("thread")
    run.on_stop(lambda reason: heard.append(reason[99:] or reason[99]))
    run.on_stop(heard.append)
    await run.stop("user")
    assert (run.outcome, heard) == ("cancelled", ["user"])
    assert "a callback raised" in caplog.text
    assert [row.outcome for row in await cs.journal.runs()] == ["cancelled"]


async def test_progress_that_the_journal_does_not_take_is_not_recorded(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    append = cs.journal.append

    async def full(run_id: str, entries: Sequence[Any], **options: Any) -> int:
        if [entry.event for entry in entries] == [CallProgressed("c", {"at": 1})]:
            raise JournalError("the disk is full")
        return await append(run_id, entries, **options)

    async with cs.run("thread") as run:
        await run.record([CallStarted("c", "t"), CallCompleted("c", "{}")])
        await run.execute("c")
        replace_append(monkeypatch, cs.journal, full)
        progress = run.progress_of("c")
        progress({"at": 1})
        async with asyncio.timeout(10):
            while "disk is full" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        progress({"at": 2})
        await run.complete("c", "done")
    kept = [record.event async for record in cs.journal.read(run.run_id)]
    assert CallProgressed("c", {"at": 2}) in kept
    assert CallReturned("c", "done") in kept


async def test_a_run_whose_start_is_cancelled_ends(cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
    append = cs.journal.append
    writing = asyncio.Event()

    async def slow(*args: Any, **kwargs: Any) -> int:
        writing.set()
        await asyncio.sleep(0.01)
        return await append(*args, **kwargs)

    replace_append(monkeypatch, cs.journal, slow)
    starting = asyncio.create_task(cs.start("thread", "r", exclusive=True))
    await writing.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    (row,) = await cs.journal.runs()
    assert (row.outcome, cs.active_run("r")) == ("cancelled", None)
    await (await cs.start("thread", exclusive=True)).finish()


async def test_a_start_that_fails_long_after_it_was_cancelled_leaves_nothing_to_the_loop(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, failing = asyncio.Event(), asyncio.Event()
    told: list[Any] = []

    async def fails(*args: Any, **kwargs: Any) -> int:
        writing.set()
        await failing.wait()
        raise JournalError("the disk is full")

    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    replace_append(monkeypatch, cs.journal, fails)
    before = asyncio.all_tasks()
    starting = asyncio.create_task(cs.start("thread", "r"))
    await writing.wait()
    (beginning,) = (task for task in asyncio.all_tasks() - before if "_begin" in repr(task.get_coro()))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    failing.set()
    await asyncio.wait({beginning})
    del starting, beginning  # with the frames of their exceptions
    await asyncio.sleep(0.01)
    gc.collect()
    assert told == []


async def test_a_run_id_that_comes_always_again_is_not_counted_up(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    runs = cs.journal.runs

    async def counted(**given: Any) -> Any:
        asked.append(given)
        return await runs(**given)

    monkeypatch.setattr(cs.journal, "runs", counted)
    found = []
    for _ in range(100):
        asked.clear()
        found.append(await cs.free_run_id("run"))
        async with cs.run("thread", found[-1]):
            pass
        assert len(asked) <= 8
    assert len(set(found)) == 100
    assert found[:8] == ["run", *(f"run~{number}" for number in range(2, 9))]
    at_once = await asyncio.gather(*(cs.free_run_id("run") for _ in range(5)))
    assert len({*found, *at_once}) == 105


async def test_a_run_id_is_used_once(cs: Callstream) -> None:
    first = await cs.start("thread", "r")
    with pytest.raises(UsageError, match="'r'"):
        await cs.start("thread", "r")
    assert cs.active_run("r") is first
    await first.finish()
    with pytest.raises(UsageError, match="'r' has ended"):
        async with cs.run("thread", "r"):
            pass
    assert [type(event) for event in await events(cs, first)] == [RunStarted, RunEnded]


async def test_a_run_that_cannot_be_ended_keeps_nothing_else_open() -> None:
    cs = Callstream()
    lost, other = await cs.start("thread"), await cs.start("thread")
    await cs.journal.append(lost.run_id, [RunEnded("finished")])  # behind the run's back
    with pytest.raises(UsageError, match="has ended"):
        await cs.aclose()
    assert other.outcome == "cancelled"
    with pytest.raises(UsageError, match="closed"):
        await cs.journal.runs()


async def test_a_run_that_is_over_takes_nothing_more(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE])
    with pytest.raises(RunOver):
        await run.execute("c1")
    with pytest.raises(RunOver):
        await run.receive([MessageReceived("user", "late")])
    await run.finish()
    await run.stop()
    assert run.outcome == "finished"


async def test_a_cancelled_writer_loses_nothing(cs: Callstream) -> None:
    """Whoever is cancelled in the middle of a write finds journal and ledger in step."""
    run = await cs.start("thread")
    chunks = list(encode("anthropic", [WRITE]))

    async def feed() -> None:
        async with run.response("anthropic") as response:
            for chunk in chunks:
                await response.feed(chunk)

    for delay in range(1, 6):
        task = asyncio.create_task(feed())
        for _ in range(delay * 3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await run.finish()
    found = await records(cs, run)
    assert [record.seq for record in found] == list(range(1, len(found) + 1))
    assert run.seq == len(found)
    for call in run.calls:
        kept = await cs.journal.call(call.call_id)
        assert kept is not None
        assert kept.is_final


def test_two_event_loops(journal_url: str) -> None:
    """One Callstream, used from two loops at once and from a third one after them."""
    cs = Callstream(journal_url)
    seen: list[tuple[int, str]] = []

    async def hook(delta: Any, signal: Any) -> None:
        seen.append((threading.get_ident(), delta.text))

    cs.on_args_delta("write", hook)
    failures: list[BaseException] = []

    async def program(number: int) -> None:
        for turn in range(5):
            async with cs.run(f"thread-{number}") as run:
                await read(run, "anthropic", [ToolCall("write", ARGS, call_id=f"{number}-{turn}")])
                call: Call = await run.execute(f"{number}-{turn}")
                await run.complete(call.call_id, call.args)

    def loop(number: int) -> None:
        try:
            asyncio.run(program(number))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=loop, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loop(3)
    asyncio.run(cs.aclose())
    assert failures == []
    assert {thread for thread, _ in seen} >= {threading.get_ident()}
    assert len({thread for thread, _ in seen}) == 3


async def test_result_on_its_way_when_the_run_is_stopped(cs: Callstream) -> None:
    """What is open is closed after that was written, so the call has one outcome and the run an end."""
    run = await cs.start("thread")
    await run.record([CallStarted("c", "f"), ArgsAppended("c", "{}"), CallCompleted("c", "{}")])
    await run.execute("c")
    await asyncio.gather(run.fail("c", "out of paper"), run.stop())
    call = await cs.journal.call("c")
    assert call is not None
    assert (call.state, call.error) == (CallState.FAILED, "out of paper")
    assert run.outcome == "cancelled"


class Mute(Exception):
    def __str__(self) -> str:
        raise LookupError("it has no words")


async def test_an_exception_that_cannot_be_shown_ends_the_run_as_any_other(cs: Callstream) -> None:
    with pytest.raises(Mute):
        async with cs.run("thread") as run:
            raise Mute
    assert (run.outcome, run.reason) == ("failed", "Mute: <exception str() failed>")


@pytest.mark.parametrize("on_hook_error", ["fail_call", "isolate"])
async def test_an_exception_that_cannot_be_shown_fails_its_tool_or_hook_alone(on_hook_error: ErrorPolicy) -> None:
    aborted: list[str] = []

    @tool
    async def broken() -> None:
        raise Mute

    @tool(on_hook_error=on_hook_error)
    async def watched() -> None: ...

    @watched.on_args_complete
    async def fails(call: Call, signal: AbortSignal) -> None:
        raise Mute

    @watched.on_args_abort
    async def undo(call: Call, reason: str) -> None:
        aborted.append(reason)

    async with Callstream(tools=[broken, watched]) as cs, cs.run("thread") as run:
        for made in (broken, watched):
            await run.record([CallStarted(made.__name__, made.__name__), CallCompleted(made.__name__, "{}")])
        [failed, other] = await run.run_tools()
        await run.settled("watched")
    assert failed.text == "Mute: <exception str() failed>"
    assert other.is_error == (on_hook_error == "fail_call") == (aborted == ["interrupted"])
    assert run.outcome == "finished"
