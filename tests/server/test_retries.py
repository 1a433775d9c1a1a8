"""A request that is sent again, as clients do whose connection broke: it never runs the agent a second time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import groupby
from typing import Any

import pytest
from ag_ui.core import RunAgentInput

from callstream import Callstream, current_run
from callstream.events import ArgsAppended, CallCompleted, CallStarted, MessageEnded, MessageStarted, TextAppended
from callstream.journal import open_journal
from callstream.server import ServerSettings
from tests.agui.model import StrictClient

from .agents import Stepping
from .serving import Server, Stream, run_input, served


async def read(stream: Stream) -> list[tuple[str | None, dict[str, Any]]]:
    return [(stream.id, event) async for event in stream]


async def post(server: Server, given: dict[str, Any], last: str | None = None) -> list[tuple[str | None, Any]]:
    headers = {} if last is None else {"last-event-id": last}
    async with server.stream("POST", "/agui", json=given, headers=headers) as stream:
        assert stream.status == 200, stream.response.text
        return await read(stream)


def folded(events: list[dict[str, Any]]) -> StrictClient:
    client = StrictClient()
    for event in events:
        client.take(event)
    assert not client.is_running
    return client


class Parallel:
    """Writes two calls whose pieces alternate, each in a record of its own."""

    def __init__(self) -> None:
        self.ran = 0

    async def run(self, input: RunAgentInput) -> AsyncIterator[Any]:  # noqa: A002
        self.ran += 1
        run = current_run()
        assert run is not None
        await run.record([MessageStarted("m"), TextAppended("m", "I write.")])
        for call_id in ("a", "b"):
            await run.record([CallStarted(call_id, "write", call_id, message_id="m")])
        for piece in ('{"n":"', "one", "two", '"}'):
            for call_id in ("a", "b"):
                await run.record([ArgsAppended(call_id, piece)])
        text = '{"n":"onetwo"}'
        await run.record([CallCompleted("a", text), CallCompleted("b", text), MessageEnded("m")])
        yield None


async def test_retry_never_doubles_cut_at_every_event(cs: Callstream) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs) as server:
        given = run_input()
        whole = await post(server, given)
        assert [name for name, _ in whole] == list(dict.fromkeys(name for name, _ in whole))
        want = folded([event for _, event in whole]).messages
        for place, (name, _) in enumerate(whole, start=1):
            rest = await post(server, given, name)
            assert folded([event for _, event in [*whole[:place], *rest]]).messages == want
            assert not {name for name, _ in rest} & {name for name, _ in whole[:place]}
        assert len(agent.inputs) == 1
        assert [row.run_id for row in await cs.journal.runs()] == [given["runId"]]


async def test_retry_never_doubles_what_was_merged(cs: Callstream) -> None:
    agent = Parallel()
    async with served(agent, callstream=cs) as server:
        given = run_input()
        want = folded([event for _, event in await post(server, given)]).messages
        whole = await post(server, given)  # a late reader: deltas of the two calls are merged
        assert [event["type"] for _, event in whole].count("TOOL_CALL_ARGS") == 2
        for place, (name, _) in enumerate(whole, start=1):
            rest = await post(server, given, name)
            assert rest == whole[place:]
            assert folded([event for _, event in [*whole[:place], *rest]]).messages == want
    assert agent.ran == 1


async def test_retry_never_doubles_a_run_in_flight(cs: Callstream) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs) as server:
        given = run_input()
        async with server.stream("POST", "/agui", json=given) as stream:
            agent.step(2)
            seen = await stream.until("TOOL_CALL_ARGS")
            last = stream.id
        async with server.stream("POST", "/agui", json=given, headers={"last-event-id": last or ""}) as again:
            assert again.run_id == given["runId"]
            agent.step(3)
            rest = await again.all()
        assert folded([*seen, *rest]).messages[-1]["role"] == "tool"
        assert rest[-1]["outcome"] == {"type": "success"}
        assert (len(agent.inputs), agent.executed) == (1, [{"content": "one two three four"}])


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Their types in order. Neighbours of one type count once, because a reader that is behind gets them merged."""
    return [kind for kind, _ in groupby(event["type"] for event in events)]


async def test_retry_never_doubles_without_last_event_id(cs: Callstream) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs) as server:
        given = run_input()
        async with (
            server.stream("POST", "/agui", json=given) as first,
            server.stream("POST", "/agui", json=given) as again,
        ):
            agent.step(5)
            assert kinds(await first.all()) == kinds(await again.all())
            assert first.run_id == again.run_id == given["runId"]
        assert len(agent.inputs) == 1


async def test_retry_never_doubles_requests_that_come_together(cs: Callstream) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs) as server:
        given = run_input()
        answers = await asyncio.gather(*[post(server, given) for _ in range(8)])
        assert len({str(folded([event for _, event in answer]).messages) for answer in answers}) == 1
        assert len(agent.inputs) == 1
        assert len(await cs.journal.runs()) == 1


async def test_retry_never_doubles_after_a_restart(url: str) -> None:
    given = run_input()
    agent = Stepping(free=True)
    async with Callstream(url) as cs, served(agent, callstream=cs) as server:
        whole = await post(server, given)
    async with Callstream(url) as cs, served(agent, callstream=cs) as server:
        assert folded([event for _, event in await post(server, given)]).messages
        assert (await post(server, given, whole[-2][0]))[-1] == whole[-1]
    assert len(agent.inputs) == 1


async def test_another_input_under_a_used_run_id_is_another_run(cs: Callstream) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs) as server:
        given = run_input(runId="run")
        other = {**given, "messages": [{"id": "u2", "role": "user", "content": "Something else"}]}
        for number, each in enumerate(
            [given, other, {**given, "state": {"a": 1}}, {**given, "threadId": "b"}], start=1
        ):
            for _ in range(2):
                async with server.stream("POST", "/agui", json=each) as stream:
                    assert stream.run_id == ("run" if number == 1 else f"run~{number}")
                    await stream.all()
        async with server.stream("POST", "/agui", json=other, headers={"last-event-id": "1"}) as stream:
            assert stream.run_id == "run~2"
        newest = {**given, "messages": []}
        async with server.stream("POST", "/agui", json=newest, headers={"last-event-id": "1"}) as stream:
            assert stream.run_id == "run~3"  # the newest of its thread
        assert len(agent.inputs) == 4


async def test_a_run_of_somebody_else_is_not_continued(cs: Callstream) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs, auth=lambda request: request.headers.get("x-user")) as server:
        given = run_input(thread="ann's", runId="run")
        server.headers = {"x-user": "ann"}
        await post(server, given)
        server.headers = {"x-user": "bob"}
        own = {**given, "threadId": "bob's"}
        for asked in (given, own):
            async with server.stream("POST", "/agui", json=asked, headers={"last-event-id": "1"}) as stream:
                assert stream.status == 404
        async with server.stream("POST", "/agui", json=own) as stream:
            assert stream.run_id == "run~2"
            await stream.all()
    assert len(agent.inputs) == 2


async def test_a_place_that_the_run_does_not_have(cs: Callstream) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs) as server:
        given = run_input()
        async with server.stream("POST", "/agui", json=given, headers={"last-event-id": "1"}) as stream:
            assert stream.status == 404
        await post(server, given)
        for last in ("999", "x", "1.0", "9" * 30):
            async with server.stream("POST", "/agui", json=given, headers={"last-event-id": last}) as stream:
                assert stream.status == 400, last
        # How many events a record has is not checked: the last one comes again, and nothing is missing.
        assert await post(server, given, "1.99") == await post(server, given)
    assert len(agent.inputs) == 1


async def test_a_place_that_compaction_has_folded_gets_the_thread_whole(cs: Callstream) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs) as server:
        await post(server, run_input("Before"))
        given = run_input()
        whole = await post(server, given)
        want = folded([event for _, event in whole]).messages
        await post(server, run_input("Later"))
        await cs.journal.compact(given["runId"])
        for place, (name, _) in enumerate(whole, start=1):
            client = StrictClient()
            rest = [event for _, event in await post(server, given, name)]
            if rest and rest[0]["type"] == "RUN_STARTED":
                for event in rest:
                    client.take(event)
                assert client.messages[-len(want) :] == want
            else:
                assert folded([*[event for _, event in whole[:place]], *rest]).messages == want
    assert len(agent.inputs) == 3


async def test_another_process_began_it_in_the_same_moment(url: str) -> None:
    given = run_input()
    agents = [Stepping(free=True), Stepping(free=True)]
    async with Callstream(url) as one, Callstream(open_journal(url)) as two:
        async with served(agents[0], callstream=one) as first, served(agents[1], callstream=two) as second:
            answers = await asyncio.gather(*[post(server, given) for server in (first, second) * 3])
        assert len({str(folded([event for _, event in answer]).messages) for answer in answers}) == 1
    assert sum(len(agent.inputs) for agent in agents) == 1


@pytest.mark.parametrize("limit", ["max_runs", "max_runs_per_principal"])
async def test_a_retry_needs_no_room_of_its_own(cs: Callstream, limit: str) -> None:
    agent = Stepping()
    settings = ServerSettings(**{limit: 1})
    async with served(agent, callstream=cs, settings=settings, auth=lambda request: "ann") as server:
        given = run_input()
        async with (
            server.stream("POST", "/agui", json=given) as first,
            server.stream("POST", "/agui", json=given) as again,
        ):
            assert (first.status, again.status) == (200, 200)
            agent.step(5)
            assert (await again.all())[-1]["outcome"] == {"type": "success"}
