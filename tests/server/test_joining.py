"""Joining a thread: while it is compacted, when it is long, and by many who then read nothing."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import pytest
from ag_ui.core import RunAgentInput

from callstream import Callstream, current_run
from callstream.agui import Conversation
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallProgressed,
    CallReturned,
    CallStarted,
    MessageEnded,
    MessageReceived,
    MessageStarted,
    ReasoningAppended,
    Record,
    RunEnded,
    RunEvent,
    RunResumed,
    RunStarted,
    TextAppended,
)
from callstream.journal import Journal, history, open_journal
from tests.agui.model import StrictClient

from .agents import Stepping
from .serving import run_input, served
from .test_slow_readers import Stalled, events_in, post, stalling, unchunked, until, waiting  # noqa: F401  fixture

ARGS = '{"content":"' + "x" * 1200 + '"}'


def long_run(number: int = 0) -> list[RunEvent]:
    """More than two pages of records, most of which compaction folds."""
    call_id, message_id = f"call-{number}", f"m-{number}"
    return [
        RunStarted("thread"),
        MessageReceived("user", "Write.", f"u-{number}"),
        MessageStarted(message_id),
        TextAppended(message_id, "I "),
        TextAppended(message_id, "write."),
        CallStarted(call_id, "write", call_id, message_id=message_id),
        *(ArgsAppended(call_id, ARGS[place]) for place in range(len(ARGS))),
        CallCompleted(call_id, ARGS),
        MessageEnded(message_id),
        CallExecuting(call_id),
        CallReturned(call_id, {"written": True}),
        RunEnded("finished"),
    ]


def short_run(number: int) -> list[RunEvent]:
    call_id, message_id = f"call-{number}", f"m-{number}"
    return [
        RunStarted("thread"),
        MessageReceived("user", "Write.", f"u-{number}"),
        MessageStarted(message_id),
        TextAppended(message_id, "I write."),
        CallStarted(call_id, "write", call_id, message_id=message_id),
        ArgsAppended(call_id, "{}"),
        CallCompleted(call_id, "{}"),
        MessageEnded(message_id),
        CallExecuting(call_id),
        CallProgressed(call_id, 1),
        CallReturned(call_id, {"written": True}),
        RunEnded("finished"),
    ]


class CompactedMeanwhile:
    """A journal that is compacted whenever a reader has had its first records of a run that has ended."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.compacted = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def read(self, run_id: str, after: int = 0) -> AsyncIterator[Record]:
        is_first = True
        async for record in self._journal.read(run_id, after):
            yield record
            if is_first:
                await self._compact(run_id)
            is_first = False

    async def batches(self, run_id: str, after: int = 0, **given: Any) -> AsyncGenerator[Sequence[Record], None]:
        is_first = True
        async for records in self._journal.batches(run_id, after):
            yield records
            if is_first:
                await self._compact(run_id)
            is_first = False

    async def _compact(self, run_id: str) -> None:
        [row] = await self._journal.runs(run_id=run_id)
        if row.outcome is not None:
            self.compacted += await self._journal.compact(run_id)


def shown(events: list[dict[str, Any]]) -> StrictClient:
    client = StrictClient()
    for event in events:
        client.take(event)
    return client


async def test_join_during_compaction_is_whole(url: str) -> None:
    journal = CompactedMeanwhile(open_journal(url, housekeeping=None))
    async with Callstream(journal) as cs:  # type: ignore[arg-type]
        await journal.append("r", long_run())
        async with served(Stepping(), callstream=cs) as server:
            async with server.connect() as stream:
                while_compacted = await stream.all()
            assert journal.compacted > 1000
            async with server.connect() as stream:
                later = await stream.all()
    assert later[-1]["type"] == "RUN_FINISHED"
    assert while_compacted[-1] == later[-1]
    [call] = [call for message in shown(while_compacted).messages for call in message.get("toolCalls", ())]
    assert call["function"]["arguments"] == ARGS
    assert [message["id"] for message in shown(while_compacted).messages] == ["u-0", "m-0", "result-call-0"]


@pytest.mark.slow
async def test_live_reader_of_a_run_that_is_compacted_meanwhile_sees_its_end(cs: Callstream, stalling: Any) -> None:  # noqa: F811
    """It reads slowly, the run has ended, and the pieces that it has not read yet are gone."""
    piece, count = "x" * 6000, 2000
    agent = Stepping(['{"content":"', *[piece] * count, '"}'])
    async with served(agent, callstream=cs) as server:
        async with server.run() as stream:
            stalled: Stalled = stalling(server.port, post("/threads/thread/connect"))
            await stalled.read(1)
            agent.step(count + 2)
            await stream.all()
        assert await cs.journal.compact(stream.run_id) > 0
        events = events_in(unchunked(b"H" + await stalled.rest()))
    assert events[-1]["outcome"] == {"type": "success"}
    [call] = [call for message in shown(events).messages for call in message.get("toolCalls", ())]
    assert call["function"]["arguments"] == '{"content":"' + piece * count + '"}'


async def thread(journal: Journal, count: int) -> None:
    for number in range(count):
        await journal.append(f"r{number}", short_run(number))


class Counted:
    """A journal, and how often it was asked for what."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return getattr(self._journal, name)


async def calls_made(journal: Journal, count: int) -> int:
    """How many functions are called to put the thread's first runs together, for somebody who joins."""
    rows = (await journal.runs(thread_id="thread"))[::-1][:count]
    batches = [records async for records in history(journal, rows)]
    made = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        conversation = Conversation()
        for records in batches:
            conversation.apply(records)
        conversation.prelude()
    finally:
        sys.setprofile(None)
    assert len(conversation.messages) == 4 * count
    return made


@pytest.mark.slow
async def test_join_is_linear(url: str) -> None:
    async with open_journal(url, housekeeping=None) as journal:
        await thread(journal, 400)
        few, many = await calls_made(journal, 100), await calls_made(journal, 400)
        assert many < 4.2 * few


@pytest.mark.slow
async def test_join_is_linear_and_asks_the_store_for_many_runs_at_once(url: str) -> None:
    journal = Counted(open_journal(url, housekeeping=None))
    async with Callstream(journal) as cs:  # type: ignore[arg-type]
        await thread(journal, 400)  # type: ignore[arg-type]
        async with served(Stepping(), callstream=cs) as server:
            journal.asked.clear()
            async with server.connect() as stream:
                events = await stream.all()
    assert len(shown(events).messages) == 4 * 400
    assert journal.asked["read_whole"] <= 400 * len(short_run(0)) / 500
    assert journal.asked["read"] + journal.asked["batches"] <= 1


@pytest.mark.parametrize("is_long", [True, False])
async def test_joining_lets_others_have_their_turn(is_long: bool) -> None:
    """With a journal in memory nothing waits for anything."""
    async with Callstream("memory:") as cs:
        for number in range(10 if is_long else 1000):
            await cs.journal.append(f"r{number}", long_run(number) if is_long else short_run(number))
        async with served(Stepping(), callstream=cs) as server:
            turns, is_over = 0, False

            async def others() -> None:
                nonlocal turns
                while not is_over:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(others())
            await asyncio.sleep(0)
            async with server.connect() as stream:
                before = turns
                assert (await stream.all())[-1]["type"] == "RUN_FINISHED"
            is_over = True
            await task
    assert turns - before >= 10


async def test_memory_of_stalled_joiners_is_bounded(cs: Callstream, stalling: Any) -> None:  # noqa: F811
    """Each of them has asked for four megabytes, and reads nothing."""
    args = '{"content":"' + "x" * 4_000_000 + '"}'
    await cs.journal.append(
        "r", [RunStarted("thread"), CallStarted("c", "write", message_id="m"), ArgsAppended("c", args)]
    )
    await cs.journal.append(
        "r", [CallCompleted("c", args), CallExecuting("c"), CallReturned("c", 1), RunEnded("finished")]
    )
    async with served(Stepping(), callstream=cs) as server:
        async with server.connect() as stream:
            assert (await stream.all())[-1]["type"] == "RUN_FINISHED"
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            readers = [stalling(server.port, post("/threads/thread/connect")) for _ in range(10)]
            for reader in readers:
                await reader.read(1)
            await until(lambda: sum(size > 0 for size in waiting(server)) >= 10)
            held = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert held < 2 * len(args)
        assert max(waiting(server)) < 500_000
        events = events_in(unchunked(b"H" + await readers[0].rest()))
        assert shown(events).messages[0]["toolCalls"][0]["function"]["arguments"] == args
        for reader in readers:
            reader.socket.close()  # a server that ends waits for those who have not read everything


async def test_a_message_that_comes_after_joining_is_shown(cs: Callstream) -> None:
    """The joiner was there before the message; it is told of it with all that was before it."""
    agent = Stepping()
    async with served(agent, callstream=cs) as server:
        await cs.journal.append("earlier", short_run(1))
        run = await cs.start("thread", "r")
        async with server.connect() as stream:
            await stream.until("MESSAGES_SNAPSHOT")
            await run.record([MessageReceived("user", "And now?", "u-2")])
            await run.record([MessageStarted("m-2"), TextAppended("m-2", "Now."), MessageEnded("m-2")])
            await run.finish()
            events = await stream.all()
        [snapshot] = [event for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
        ids = ["u-1", "m-1", "progress-call-1", "result-call-1", "u-2"]
        assert sorted(message["id"] for message in snapshot["messages"]) == sorted(ids)
        assert snapshot["messages"][-1] == {"role": "user", "id": "u-2", "content": "And now?"}
        assert "m-2" in [event.get("messageId") for event in events]


# -- a run that another process goes on with --


async def go_on(given: RunAgentInput) -> AsyncIterator[Any]:
    """Leaves half a response, as a process that dies does, and then the whole one, as the one that goes on does."""
    run = current_run()
    assert run is not None
    for event in [
        MessageStarted("half"),
        ReasoningAppended("half", "Hm"),
        TextAppended("half", "Half"),
        CallStarted("half-call", "write", "half-call", message_id="half"),
        ArgsAppended("half-call", '{"a'),
        RunResumed(2, ("half",)),
        CallDiscarded("half-call", "interrupted"),
        MessageStarted("whole"),
        ReasoningAppended("whole", "Well."),
        TextAppended("whole", "All of it."),
        MessageEnded("whole"),
    ]:
        await run.record([event])
    yield None


async def test_what_is_void_is_taken_back_from_every_position_and_nothing_else_is(cs: Callstream) -> None:
    greeting = {"id": "greeting", "role": "assistant", "content": "Welcome!"}
    user = {"id": "user", "role": "user", "content": "Go"}
    given = run_input(messages=[greeting, user])
    async with served(go_on, callstream=cs) as server:
        async with server.stream("POST", "/agui", json=given) as stream:
            told = [(stream.id, event) async for event in stream]
        client = StrictClient([greeting, user])
        for _, event in told:
            client.take(event)
        assert [(each["id"], each["content"]) for each in client.messages] == [
            ("greeting", "Welcome!"),
            ("user", "Go"),
            ("reasoning-whole", "Well."),
            ("whole", "All of it."),
        ]
        kinds = [event["type"] for _, event in told]
        assert kinds[kinds.index("MESSAGES_SNAPSHOT") + 1] == "TOOL_CALL_END"
        assert "TOOL_CALL_RESULT" not in kinds
        for place, (position, _) in enumerate(told[:-1], start=1):
            async with server.stream("POST", "/agui", json=given, headers={"last-event-id": position or ""}) as rest:
                assert [event async for event in rest] == [event for _, event in told[place:]], position
        async with server.connect() as joined:
            events = await joined.all()
        [snapshot] = [event for event in events if event["type"] == "MESSAGES_SNAPSHOT"]
        assert [each["id"] for each in snapshot["messages"]] == ["greeting", "user", "reasoning-whole", "whole"]
