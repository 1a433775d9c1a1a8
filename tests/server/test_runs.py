"""Run, leave, come back, stop: what a client gets of runs that are the server's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest

from callstream import Callstream, open_journal
from callstream.agui import Translator
from callstream.agui.events import MessagesSnapshot
from callstream.agui.messages import Metadata
from callstream.events import MessageStarted, RunResumed, TextAppended
from callstream.server import ServerSettings
from callstream.server.agent import FunctionHost
from callstream.server.streams import Client, Joins, live
from tests.agui.model import StrictClient, as_json
from tests.agui.translating import records
from tests.clock import skip, skipping
from tests.journal.zombie import zombie

from .agents import Scripted, Stepping
from .serving import run_input, served, tool_message

WHOLE = {"content": "one two three four"}
ARGS = '{"content":"one two three four"}'


def folded(events: list[dict[str, Any]], client: StrictClient | None = None) -> StrictClient:
    client = client or StrictClient()
    for event in events:
        client.take(event)
    assert not client.is_running
    return client


def arguments(client: StrictClient) -> list[str]:
    return [call["function"]["arguments"] for message in client.messages for call in message.get("toolCalls", ())]


async def test_run_streams_what_the_agent_does(cs: Callstream) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs) as server, server.run("Write") as stream:
        assert stream.status == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["x-accel-buffering"] == "no"
        events = await stream.all()
        client = folded(events)
        assert arguments(client) == [ARGS]
        assert agent.executed == [WHOLE]
        assert events[-1]["outcome"] == {"type": "success"}
        assert stream.id == str(events[-1]["metadata"]["seq"])
        assert agent.inputs[0].messages[0].content == "Write"
        row = (await server.get(f"/api/runs/{stream.run_id}")).json()
        assert (row["outcome"], row["thread_id"]) == ("finished", "thread")


async def test_leaving_is_not_stopping(cs: Callstream) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs) as server:
        async with server.run() as stream:
            agent.step(2)
            await stream.until("TOOL_CALL_ARGS")
            run_id = stream.run_id
        agent.step(3)
        assert (await server.finished(run_id))["outcome"] == "finished"
        assert agent.executed == [WHOLE]
        async with server.connect() as joined:
            assert arguments(folded(await joined.all())) == [ARGS]


@pytest.mark.parametrize("seen", range(5))
async def test_join_mid_arguments_gets_what_was_and_what_comes(cs: Callstream, seen: int) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs) as server, server.run() as first:
        await first.until("TOOL_CALL_START")
        for _ in range(seen):
            agent.step()
            await first.until("TOOL_CALL_ARGS")
        async with server.connect() as joined:
            assert joined.run_id == first.run_id
            before = await joined.until("TOOL_CALL_START")
            agent.step(5 - seen)
            client = folded([*before, *await joined.all()])
        assert arguments(client) == [ARGS]
        assert [event["type"] for event in before[:2]] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]


async def test_stop_ends_it_and_says_cancelled(cs: Callstream) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs) as server, server.run() as stream:
        await stream.until("TOOL_CALL_START")
        answer = await server.post(f"/runs/{stream.run_id}/stop", json={"reason": "enough"})
        assert (answer.status_code, answer.json()["outcome"]) == (200, "cancelled")
        events = await stream.all()
        assert events[-1]["outcome"] == {"type": "cancelled"}
        assert (agent.executed, agent.cancelled) == ([], 1)
        row = (await server.get(f"/api/runs/{stream.run_id}")).json()
        assert (row["outcome"], row["reason"]) == ("cancelled", "enough")
        assert row["calls"][0]["state"] == "discarded"
        again = await server.post(f"/runs/{stream.run_id}/stop")
        assert (again.status_code, again.json()["outcome"]) == (200, "cancelled")


async def test_stop_reaches_a_run_of_another_process(cs: Callstream, url: str) -> None:
    agent, other = Stepping(), Callstream(url)
    async with served(agent, callstream=cs) as server, served(Stepping(), callstream=other) as beside:
        async with server.run() as stream:
            await stream.until("TOOL_CALL_START")
            async with beside.connect() as joined:
                await joined.until("TOOL_CALL_START")
                answer = await beside.post(f"/runs/{stream.run_id}/stop")
                assert (answer.status_code, answer.json()["outcome"]) == (202, None)
                assert (await joined.all())[-1]["outcome"] == {"type": "cancelled"}
            assert (await stream.all())[-1]["outcome"] == {"type": "cancelled"}


@skipping
async def test_on_disconnect_stop_ends_it_after_the_grace_time(url: str) -> None:
    agent = Stepping()
    settings = ServerSettings(on_disconnect="stop", disconnect_grace=3)
    async with Callstream(url) as cs, served(agent, callstream=cs, settings=settings) as server:
        async with server.run() as stream:
            await stream.until("TOOL_CALL_START")
            run_id = stream.run_id
        await server.is_left()
        skip(2)
        assert (await server.get(f"/api/runs/{run_id}")).json()["outcome"] is None
        skip(2)
        row = await server.finished(run_id)
        assert (row["outcome"], row["reason"]) == ("cancelled", "the client left")


@skipping
async def test_on_disconnect_stop_spares_a_run_that_somebody_joins(url: str) -> None:
    agent = Stepping()
    settings = ServerSettings(on_disconnect="stop", disconnect_grace=3)
    async with Callstream(url) as cs, served(agent, callstream=cs, settings=settings) as server:
        async with server.run() as stream:
            await stream.until("TOOL_CALL_START")
            run_id = stream.run_id
        await server.is_left()
        async with server.connect() as joined:
            await joined.until("TOOL_CALL_START")
            skip(4)
            agent.step(5)
            assert (await joined.all())[-1]["outcome"] == {"type": "success"}
        assert (await server.finished(run_id))["outcome"] == "finished"


async def test_second_run_of_a_thread_waits_for_the_first(cs: Callstream) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs) as server, server.run() as first:
        await first.until("TOOL_CALL_START")
        async with asyncio.TaskGroup() as group:
            second = group.create_task(_all(server))
            await asyncio.sleep(0.3)
            assert len(agent.inputs) == 1
            agent.step(10)
            assert (await first.all())[-1]["outcome"] == {"type": "success"}
        assert second.result()[-1]["outcome"] == {"type": "success"}
        assert len(agent.inputs) == 2


async def test_second_run_of_a_thread_is_refused_where_that_is_wanted(cs: Callstream) -> None:
    agent = Stepping()
    settings = ServerSettings(when_busy="refuse")
    async with served(agent, callstream=cs, settings=settings) as server, server.run() as first:
        await first.until("TOOL_CALL_START")
        answer = await server.post("/agui", json=run_input())
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "thread_busy"
        assert first.run_id in answer.json()["error"]["message"]
        async with server.run(thread="another") as other:
            await other.until("TOOL_CALL_START")
            agent.step(10)
            assert (await other.all())[-1]["outcome"] == {"type": "success"}
        assert (await first.all())[-1]["outcome"] == {"type": "success"}


async def test_a_run_that_takes_too_long_fails(cs: Callstream) -> None:
    settings = ServerSettings(run_seconds=0.3)
    async with served(Stepping(), callstream=cs, settings=settings) as server, server.run() as stream:
        events = await stream.all()
        assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "failed")
        assert "0.3 s" in (await server.finished(stream.run_id))["reason"]


async def test_raw_records_from_any_place(cs: Callstream) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs) as server:
        async with server.run() as stream:
            await stream.all()
            run_id = stream.run_id
        whole = [record async for record in cs.journal.read(run_id)]
        for after in range(len(whole) + 1):
            async with server.stream("GET", f"/runs/{run_id}/events", headers={"last-event-id": str(after)}) as raw:
                *records, end = await raw.all()
            assert (raw.event, end) == ("end", {})
            assert [record["seq"] for record in records] == list(range(after + 1, len(whole) + 1))
        async with server.stream("GET", f"/runs/{run_id}/events?after=3") as raw:
            assert (await raw.all())[0]["seq"] == 4
        await cs.journal.compact(run_id)
        async with server.stream("GET", f"/runs/{run_id}/events?after=7") as raw:
            told, *records, _ = await raw.all()
        assert told["first"] <= 7 < told["last"]
        text = "".join(record["event"]["text"] for record in records if record["event"]["type"] == "args_appended")
        assert text == ARGS


@pytest.mark.parametrize("place", ["2147483648", "999999999999999999", "9" * 40, "-1", "x", "1.5"])
async def test_a_place_that_no_record_can_have(cs: Callstream, place: str) -> None:
    async with served(Stepping(free=True), callstream=cs) as server, server.run() as stream:
        for answer in (
            await server.get(f"/runs/{stream.run_id}/events?after={place}"),
            await server.client.get(f"/runs/{stream.run_id}/events", headers={"last-event-id": place}),
            await server.get(f"/api/runs?limit={place}"),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "wrong_number")


async def test_heartbeats_keep_a_silent_stream_open(cs: Callstream) -> None:
    agent = Stepping()
    settings = ServerSettings(heartbeat_seconds=0.1)
    async with served(agent, callstream=cs, settings=settings) as server, server.run() as stream:
        await stream.until("TOOL_CALL_START")
        reading = asyncio.create_task(stream.all())
        while len(stream.comments) < 3:
            assert not reading.done()
            await asyncio.sleep(0.02)
        agent.step(5)
        assert (await reading)[-1]["outcome"] == {"type": "success"}


async def test_every_event_has_an_id_and_the_last_of_a_record_its_number(cs: Callstream) -> None:
    agent = Stepping(free=True)
    async with served(agent, callstream=cs) as server:
        async with server.run() as stream:
            await stream.all()
        host = FunctionHost(agent.run, cs)
        snapshot = partial(Joins(cs.journal, host.view).snapshot, [])
        told = live(cs.journal, stream.run_id, host.view, Client(host.presentation(None), snapshot))
        frames = [frame async for frame in told]
        told = []
        for frame in b"".join(frames).decode().removesuffix("\n\n").split("\n\n"):
            *number, data = frame.split("\n")
            event = json.loads(data.removeprefix("data: "))
            told.append((event["type"], event["metadata"]["seq"], number))
    assert len(frames) == 1
    assert [kind for kind, _, _ in told].count("TOOL_CALL_ARGS") == 1  # deltas of one call are one
    following = [seq for _, seq, _ in told[1:]] + [None]
    place = 0
    for (kind, seq, number), after in zip(told, following, strict=True):
        place = place + 1 if after == seq else 0
        assert number == [f"id: {seq}.{place}" if place else f"id: {seq}"], kind


async def test_text_that_is_void_is_taken_back_though_the_thread_has_no_other() -> None:
    async def snapshot(seq: int, doubted: Collection[str]) -> MessagesSnapshot:
        assert not doubted
        return MessagesSnapshot(messages=(), metadata=Metadata(1))

    client = Client(None, snapshot)
    client.begin(Translator())
    half = records(MessageStarted("m"), TextAppended("m", "Half"), RunResumed(2, ("m",)))
    *_, (_, events) = await client.tell(half)
    assert [as_json(event)["type"] for event in events] == ["MESSAGES_SNAPSHOT", "TEXT_MESSAGE_END"]


@pytest.mark.parametrize("name", ["a/b", "a%2Fb", "a b", "ä", "Ā", "a/connect", "?#&;", "events/stop"])
async def test_whatever_a_thread_and_a_run_are_called_they_are_found_again(cs: Callstream, name: str) -> None:
    call_id = f"call-{name}"
    asked = quote(name, safe="")
    async with served(Stepping(free=True), callstream=cs) as server:
        async with server.run(thread=name, runId=name) as stream:
            await stream.all()
        async with server.connect(asked) as joined:
            assert (await joined.all())[-1]["threadId"] == name
        async with server.stream("GET", f"/runs/{asked}/events") as records:
            assert (await records.all())[0]["run_id"] == name
        assert (await server.post(f"/runs/{asked}/stop")).json() == {"run_id": name, "outcome": "finished"}
        assert (await server.get(f"/api/runs/{asked}")).json()["run_id"] == name
        assert (await server.get(f"/api/calls/{quote(call_id, safe='')}")).json()["call_id"] == call_id


@pytest.mark.parametrize(
    ("name", "told"),
    [("plain~2 %/x", "plain~2 %/x"), ("ä", "%C3%A4"), ("Ā💥", "%C4%80%F0%9F%92%A5"), (" x ", "%20x%20")],
)
async def test_a_run_of_any_name_is_told_in_a_header_that_can_be_sent(cs: Callstream, name: str, told: str) -> None:
    async with served(Stepping(free=True), callstream=cs) as server:
        async with server.run(runId=name) as stream:
            assert stream.status == 200
            assert (await stream.all())[0]["runId"] == name
        assert stream.run_id == told
        async with server.connect() as joined:
            assert joined.run_id == told


async def test_an_agent_that_yields_agui_events_gets_a_journal(cs: Callstream) -> None:
    told = [
        {"type": "RUN_STARTED", "threadId": "thread", "runId": "theirs"},
        {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "Hello"},
        {"type": "TEXT_MESSAGE_END", "messageId": "m"},
        {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "ask", "parentMessageId": "m"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": '{"q":'},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "1}"},
        {"type": "TOOL_CALL_END", "toolCallId": "c"},
        {"type": "RUN_FINISHED", "threadId": "thread", "runId": "theirs"},
    ]
    agent = Scripted(told, [{"type": "TEXT_MESSAGE_CHUNK", "messageId": "m2", "delta": "Thanks"}])
    tools = [{"name": "ask", "description": "", "parameters": {"type": "object"}}]
    async with served(agent, callstream=cs) as server:
        async with server.run(tools=tools) as stream:
            first = await stream.all()
        assert first[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c"]}
        async with server.run(None, messages=[tool_message("c", {"yes": True})]) as stream:
            second = await stream.all()
        assert [event["delta"] for event in second if event["type"] == "TEXT_MESSAGE_CONTENT"] == ["Thanks"]
        call = (await server.get("/api/calls/c")).json()
        assert (call["state"], call["result"]) == ("completed", {"yes": True})
        async with server.connect() as joined:
            client = folded(await joined.all())
        assert [message["role"] for message in client.messages] == ["user", "assistant", "tool", "assistant"]


async def test_an_agent_that_fails_fails_its_run_and_tells_strangers_nothing(
    cs: Callstream, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(given: Any) -> None:
        raise RuntimeError("the password is secret")

    async with served(broken, callstream=cs) as server, server.run() as stream:
        events = await stream.all()
        assert events[-1]["type"] == "RUN_ERROR"
        assert "secret" not in str(events)
        assert "secret" in (await server.finished(stream.run_id))["reason"]
    assert "the password is secret" in caplog.text


async def _all(server: Any) -> list[dict[str, Any]]:
    async with server.run() as stream:
        return list(await stream.all())


async def test_client_older_than_ag_ui_1_is_spared_what_it_refuses(cs: Callstream) -> None:
    """It declares no protocol version; CopilotKit's runtime is one."""
    call = [
        {"type": "TOOL_CALL_START", "toolCallId": "c1", "toolCallName": "paint", "parentMessageId": "m"},
        {"type": "TOOL_CALL_END", "toolCallId": "c1"},
    ]
    tools = [{"name": "paint", "description": "", "parameters": {}}]
    settings = ServerSettings(older_clients=True)
    async with served(Scripted(call), callstream=cs, settings=settings) as server:
        async with server.run("Go", tools=tools, protocolVersion=None) as stream:
            assert (await stream.all())[-1]["outcome"] == {"type": "success"}
        for body, outcome in (
            (run_input(None, protocolVersion=None), {"type": "success"}),
            (run_input(None), {"type": "success", "pendingToolCallIds": ["c1"]}),
            (None, {"type": "success", "pendingToolCallIds": ["c1"]}),
        ):
            async with server.stream("POST", "/threads/thread/connect", json=body) as stream:
                assert (await stream.all())[-1]["outcome"] == outcome


async def test_client_older_than_ag_ui_1_sees_a_stopped_run_end(cs: Callstream) -> None:
    agent, settings = Stepping(), ServerSettings(older_clients=True)
    async with served(agent, callstream=cs, settings=settings) as server, server.run(protocolVersion=None) as stream:
        await stream.until("TOOL_CALL_START")
        await server.post(f"/runs/{stream.run_id}/stop")
        last = (await stream.all())[-1]
    assert last["type"] == "RUN_FINISHED"
    assert "outcome" not in last


async def test_client_that_declares_no_version_is_told_all_unless_the_server_was_told_otherwise(cs: Callstream) -> None:
    agent = Stepping()
    async with served(agent, callstream=cs) as server, server.run(protocolVersion=None) as stream:
        await stream.until("TOOL_CALL_START")
        await server.post(f"/runs/{stream.run_id}/stop")
        assert (await stream.all())[-1]["outcome"] == {"type": "cancelled"}


async def test_zombie_fenced_and_its_agent_stopped(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was taken for dead finds its run ended by another: its agent must not go on."""
    monkeypatch.setattr("callstream.runtime.driver.STOP_POLL_SECONDS", 0.02)
    agent = Stepping()
    async with served(agent, callstream=Callstream(zombie(url))) as server, server.run() as stream:
        await stream.until("TOOL_CALL_START")
        async with open_journal(url, housekeeping=None) as living:
            async with asyncio.timeout(20):
                while await living.sweep() != [stream.run_id]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        assert (await stream.all())[-1]["code"] == "interrupted"
        async with asyncio.timeout(20):
            while not agent.cancelled:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    assert agent.executed == []
