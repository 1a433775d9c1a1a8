"""What running tools report: to the application's handler, all of it; into the journal, merged."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator
from fractions import Fraction
from typing import Any

import pytest

from callstream import CallState, Callstream, Progress, Run, Settings, UsageError, no_progress, tool
from callstream.events import CallCompleted, CallProgressed, CallStarted
from callstream.runtime import progress as feeds

Heard = list[tuple[str, str, Any]]


async def called(run: Run, name: str = "work", call_id: str = "c1") -> None:
    await run.record([CallStarted(call_id, name), CallCompleted(call_id, "{}")])


async def recorded(cs: Callstream, run: Run) -> list[Any]:
    return [
        record.event.data async for record in cs.journal.read(run.run_id) if isinstance(record.event, CallProgressed)
    ]


@tool
async def work(progress: Progress = no_progress) -> str:
    for done in range(10):
        await progress(done, 10, "loading" if done < 5 else "writing")
    return "done"


@tool
def work_in_thread(progress: Progress = no_progress) -> str:
    for done in range(10):
        progress(done, 10, "loading" if done < 5 else "writing")
    return "done"


@tool
async def work_in_steps(progress_callback: Any) -> AsyncIterator[int]:
    for done in range(10):
        progress_callback(done, 10, "loading" if done < 5 else "writing")
        yield done


@pytest.mark.parametrize("interval", [0, 0.1, 60])
@pytest.mark.parametrize("made", [work, work_in_thread, work_in_steps], ids=lambda made: made.__name__)
async def test_every_report_heard(made: Any, interval: float) -> None:
    """By the handler, in order; of the records the last of each message is there."""
    heard: list[Any] = []
    settings = Settings(progress_interval=interval)
    async with Callstream(tools=[made], on_tool_progress=lambda *report: heard.append(report), settings=settings) as cs:
        async with cs.run("thread") as run:
            await called(run, made.__name__)
            await run.invoke("c1")
            assert [(name, call_id) for name, call_id, _ in heard] == [(made.__name__, "c1")] * 10
            assert [data["done"] for *_, data in heard] == list(range(10))
        kept = [data["done"] for data in await recorded(cs, run)]
    assert kept == sorted(kept)
    assert {4, 9} <= set(kept)


async def test_a_slow_handler_hears_every_report_before_the_result() -> None:
    heard: list[int] = []

    async def handler(tool_name: str, function_call_id: str, data: Any) -> None:
        await asyncio.sleep(0.001)
        heard.append(data["done"])

    async with Callstream(tools=[work], on_tool_progress=handler) as cs, cs.run("thread") as run:
        await called(run)
        await run.invoke("c1")
        assert heard == list(range(10))


async def test_merging_can_be_asked_for() -> None:
    heard: list[Any] = []
    settings = Settings(progress_interval=60, merge_progress=True)
    async with Callstream(tools=[work], on_tool_progress=lambda *args: heard.append(args[2]), settings=settings) as cs:
        async with cs.run("thread") as run:
            await called(run)
            await run.invoke("c1")
        assert heard == await recorded(cs, run)
    assert len(heard) <= 3  # the first that was there, and the last of each message
    assert [data["done"] for data in heard][-2:] == [4, 9]


async def test_what_is_being_recorded_when_the_tool_ends_is_heard_where_merging_was_asked_for() -> None:
    heard: list[Any] = []

    @tool
    async def brief(progress: Progress) -> None:
        progress("only")
        await asyncio.sleep(0)  # it is being recorded
        await asyncio.sleep(0)

    settings = Settings(merge_progress=True)
    async with Callstream(tools=[brief], on_tool_progress=lambda *args: heard.append(args[2]), settings=settings) as cs:
        async with cs.run("thread") as run:
            await called(run, "brief")
            await run.invoke("c1")
            assert heard == await recorded(cs, run) == ["only"]


@pytest.mark.parametrize(
    "kind", ["position", "names", "other order", "keyword only", "some keyword only", "all", "async"]
)
async def test_a_handler_takes_its_report_by_position_or_by_name(kind: str) -> None:
    heard: Heard = []

    def by_position(one: str, two: str, three: Any) -> None:
        heard.append((one, two, three))

    def by_names(tool_name: str, function_call_id: str, data: Any) -> None:
        heard.append((tool_name, function_call_id, data))

    def other_order(data: Any, tool_name: str, function_call_id: str) -> None:
        heard.append((tool_name, function_call_id, data))

    def keyword_only(*, tool_name: str, function_call_id: str, data: Any) -> None:
        heard.append((tool_name, function_call_id, data))

    def some_keyword_only(tool_name: str, *, function_call_id: str, data: Any) -> None:
        heard.append((tool_name, function_call_id, data))

    def everything(**report: Any) -> None:
        heard.append((report["tool_name"], report["function_call_id"], report["data"]))

    async def keyword_only_async(*, tool_name: str, function_call_id: str, data: Any) -> None:
        heard.append((tool_name, function_call_id, data))

    handlers: dict[str, Any] = {
        "position": by_position, "names": by_names, "other order": other_order, "keyword only": keyword_only,
        "some keyword only": some_keyword_only, "all": everything, "async": keyword_only_async,
    }  # fmt: skip
    async with Callstream(on_tool_progress=handlers[kind]) as cs, cs.run("thread") as run:
        await called(run)
        await run.execute("c1")
        run.progress_of("c1")({"at": 1})
        await run.complete("c1")
    assert heard == [("work", "c1", {"at": 1})]


@pytest.mark.parametrize("handler", [lambda data: None, lambda a, b, c, d: None, "print"])
def test_a_handler_that_cannot_take_a_report_is_refused(handler: Any) -> None:
    with pytest.raises(UsageError, match="on_tool_progress"):
        Callstream(on_tool_progress=handler)


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        ({"at": Fraction(1, 2)}, {"at": "Fraction(1, 2)"}),
        ({"at": math.inf, "of": 1j}, "{'at': inf, 'of': 1j}"),
        ({(1, 2): "at"}, "{(1, 2): 'at'}"),
        (1j, "1j"),
    ],
)
async def test_what_json_cannot_express_is_heard_and_recorded_as_far_as_it_goes(data: Any, kept: Any) -> None:
    heard: list[Any] = []
    async with Callstream(on_tool_progress=lambda *report: heard.append(report[2])) as cs:
        async with cs.run("thread") as run:
            await called(run)
            await run.execute("c1")
            run.progress_of("c1")(data)
            await run.complete("c1", "done")
            assert run.call("c1").state is CallState.COMPLETED
        assert heard == [data]
        assert await recorded(cs, run) == [kept]


async def test_an_object_that_is_changed_and_reported_again_is_heard_as_it_was() -> None:
    heard: list[Any] = []
    loop: dict[str, Any] = {}
    loop["itself"] = loop
    async with Callstream(on_tool_progress=lambda *report: heard.append(report[2])) as cs, cs.run("thread") as run:
        await called(run)
        await run.execute("c1")
        progress = run.progress_of("c1")
        state: dict[str, Any] = {"steps": []}
        for step in range(3):
            state["steps"].append(step)
            progress(state)
        progress(loop)
        await run.complete("c1")
    assert heard[:3] == [{"steps": [0]}, {"steps": [0, 1]}, {"steps": [0, 1, 2]}]
    assert len(heard) == 4


@pytest.mark.parametrize("thread", [False, True])
async def test_progress_after_the_run_is_heard_and_warned_of_once(
    thread: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A background job outlives the run of the call that began it."""
    heard: list[Any] = []
    all_heard = asyncio.Event()

    def handler(tool_name: str, function_call_id: str, data: Any) -> None:
        heard.append(data["done"])
        if len(heard) == 4:
            all_heard.set()

    async with Callstream(on_tool_progress=handler) as cs:
        async with cs.run("thread") as run:
            await called(run)
            await run.execute("c1")
            progress = run.progress_of("c1")
            progress(1, 4)
            await run.await_answer("c1")
            progress(2, 4)

        def go_on() -> None:
            progress(3, 4)
            progress(4, 4)

        if thread:
            worker = threading.Thread(target=go_on)
            worker.start()
            worker.join()
        else:
            go_on()
        await asyncio.wait_for(all_heard.wait(), 5)
        assert heard == [1, 2, 3, 4]
        assert [data["done"] for data in await recorded(cs, run)][-1] == 2
    assert caplog.text.count("progress of call 'c1' came after its end, and is not recorded") == 1


async def test_a_handler_may_stop_the_run() -> None:
    async def handler(tool_name: str, function_call_id: str, data: Any) -> None:
        await run.stop("enough")

    async with Callstream(on_tool_progress=handler) as cs:
        run = await cs.start("thread")
        await called(run)
        await run.execute("c1")
        run.progress_of("c1")({"at": 1})
        async with asyncio.timeout(5):
            while run.outcome is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    assert run.outcome == "cancelled"


async def test_a_handler_that_waits_for_what_is_cancelled_hears_the_other_reports(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[Any] = []

    async def handler(tool_name: str, function_call_id: str, data: Any) -> None:
        heard.append(data)
        if len(heard) == 1:
            waiting = asyncio.get_running_loop().create_future()
            waiting.cancel()
            await waiting

    async with Callstream(tools=[work], on_tool_progress=handler) as cs, cs.run("thread") as run:
        await called(run)
        assert await run.invoke("c1") == "done"
    assert [data["done"] for data in heard] == list(range(10))
    assert "on_tool_progress raised for call c1" in caplog.text


async def test_a_handler_that_hangs_does_not_keep_the_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feeds, "_PATIENCE", 0.01)
    forever = asyncio.Event()

    async def handler(tool_name: str, function_call_id: str, data: Any) -> None:
        await forever.wait()

    async with Callstream(tools=[work], on_tool_progress=handler) as cs, cs.run("thread") as run:
        await called(run)
        assert await run.invoke("c1") == "done"
        forever.set()
    assert "the run no longer waits for it" in caplog.text


async def test_what_waits_for_a_handler_has_a_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(feeds, "MAX_WAITING", 5)
    heard: list[Any] = []
    async with Callstream(on_tool_progress=lambda *report: heard.append(report[2]["done"])) as cs:
        async with cs.run("thread") as run:
            await called(run)
            await run.execute("c1")
            progress = run.progress_of("c1")
            for done in range(100):
                progress(done, 100)
            await run.complete("c1")
    assert len(heard) <= 6
    assert heard[-1] == 99
    assert caplog.text.count("faster than on_tool_progress takes it") == 1


async def test_the_last_progress_is_recorded_though_the_run_is_stopped() -> None:
    async with Callstream(settings=Settings(progress_interval=60)) as cs:
        run = await cs.start("thread")
        await called(run)
        await run.execute("c1")
        progress = run.progress_of("c1")
        for done in range(3):
            progress(done, 3)
        await run.stop()
        assert (await recorded(cs, run))[-1]["done"] == 2


@pytest.mark.parametrize("kind", ["beside", "in its place"])
async def test_a_handler_may_take_the_id_that_the_journal_has(kind: str) -> None:
    heard: list[tuple[Any, ...]] = []

    def beside(tool_name: str, function_call_id: str, data: Any, call_id: str) -> None:
        heard.append((function_call_id, call_id))

    def in_its_place(tool_name: str, call_id: str, data: Any) -> None:
        heard.append(("c1", call_id))

    handler: Any = beside if kind == "beside" else in_its_place
    async with Callstream(on_tool_progress=handler) as cs, cs.run("thread") as run:
        for call_id in ("c1", "c1~2"):
            await run.record([CallStarted(call_id, "work", "c1"), CallCompleted(call_id, "{}")])
            await run.execute(call_id)
            await run.progress(call_id, 1)
            await run.complete(call_id)
    assert heard == [("c1", "c1"), ("c1", "c1~2")]
