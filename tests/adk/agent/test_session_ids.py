"""Session services that give sessions ids of their own."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from google.adk.events.event import Event
from google.adk.sessions import InMemorySessionService
from google.genai import types

from callstream import Callstream
from callstream.testing import Finish, Text
from tests.adk.hosting import Models, agent_of, scripted

from .agents import adk_agent, gemini, texts_in
from .clients import Client, kinds


class IdRefused(Exception):
    pass


class OwnIds(InMemorySessionService):
    """Like Agent Engine's older service: ids are its own, and it says so to nobody before."""

    def __init__(self, refusal: Exception, *, knows_strangers: bool = False) -> None:
        super().__init__()
        self._knows_strangers = knows_strangers
        self._refusal = refusal
        self.refused = 0

    async def create_session(self, *, session_id: str | None = None, **kwargs: Any) -> Any:
        if session_id is not None:
            self.refused += 1
            raise self._refusal
        return await super().create_session(**kwargs)

    async def get_session(self, *, session_id: str, **kwargs: Any) -> Any:
        found = await super().get_session(session_id=session_id, **kwargs)
        if found is None and not self._knows_strangers:
            raise ValueError(f"Invalid session_id {session_id!r}")
        return found


class Full(OwnIds):
    async def create_session(self, *, session_id: str | None = None, **kwargs: Any) -> Any:
        raise self._refusal


@pytest.mark.parametrize("refusal", [ValueError("no ids"), NotImplementedError(), IdRefused("no ids")], ids=repr)
async def test_a_service_that_refuses_ids_gives_its_own(refusal: Exception, cs: Callstream, models: Models) -> None:
    sessions = OwnIds(refusal)
    async with scripted("gemini", [[Text("Done."), Finish()]] * 4) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)), session_service=sessions)
        for thread in ("one", "two"):
            client = Client(agent, thread)
            for text in ("first", "second"):
                assert kinds(await client.send(text))[-1] == "RUN_FINISHED"
        # Another process knows nothing but what is in the sessions.
        again = adk_agent(cs, agent_of(gemini(models, provider)), session_service=sessions)
        assert (await again.thread_state("one")) is not None
        assert (await again.thread_state("three")) is None
    listed = (await sessions.list_sessions(app_name="app", user_id="user")).sessions
    assert len(listed) == 2
    assert sessions.refused == 1


async def test_an_id_that_has_to_be_the_threads_is_refused_clearly(
    cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted("gemini", [[Text("Done."), Finish()]]) as provider:
        root = agent_of(gemini(models, provider))
        service = OwnIds(ValueError("no ids"), knows_strangers=True)
        agent = adk_agent(cs, root, session_service=service, use_thread_id_as_session_id=True)
        client = Client(agent, "one")
        with caplog.at_level(logging.ERROR, "callstream"):
            assert kinds(await client.send())[-1] == "RUN_ERROR"
    assert "OwnIds was to use the thread's id, 'one': use_thread_id_as_session_id=True" in caplog.text


async def test_a_service_that_makes_no_session_at_all_is_named_in_the_log(
    cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted("gemini", [[Text("Done."), Finish()]]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider)), session_service=Full(ValueError("full")))
        with caplog.at_level(logging.ERROR, "callstream"):
            assert kinds(await Client(agent, "one").send())[-1] == "RUN_ERROR"
    assert "Full made no session for thread 'one', neither with that id nor without one" in caplog.text


async def native(sessions: InMemorySessionService, session_id: str, **state: Any) -> None:
    """A session that another program has made, and a person's question in it."""
    session = await sessions.create_session(app_name="app", user_id="user", session_id=session_id, state=state)
    said = types.Content(role="user", parts=[types.Part(text=f"asked in {session_id}")])
    await sessions.append_event(session, Event(author="user", invocation_id="i", content=said))


@pytest.mark.parametrize("is_thread_id", [True, False, None])
async def test_a_session_that_has_the_threads_id_is_found(
    is_thread_id: bool | None, cs: Callstream, models: Models
) -> None:
    sessions = InMemorySessionService()
    await native(sessions, "one")
    async with scripted("gemini", [[Text("Done."), Finish()]]) as provider:
        root = agent_of(gemini(models, provider))
        agent = adk_agent(cs, root, session_service=sessions, use_thread_id_as_session_id=is_thread_id)
        assert kinds(await Client(agent, "one").send("More"))[-1] == "RUN_FINISHED"
        assert texts_in(json.loads(provider.requests[0].body)) == ["asked in one", "More"]
    assert len((await sessions.list_sessions(app_name="app", user_id="user")).sessions) == 1


@pytest.mark.parametrize("is_thread_id", [True, False, None])
async def test_a_session_marked_with_a_thread_is_its_session_before_all_others(
    is_thread_id: bool | None, cs: Callstream, models: Models
) -> None:
    """One that only has the thread's id may be of a program that knows no threads."""
    sessions = InMemorySessionService()
    await native(sessions, "one")
    await native(sessions, "other app's", _ag_ui_thread_id="one", _ag_ui_app_name="other")
    await native(sessions, "its own", _ag_ui_thread_id="one")
    async with scripted("gemini", [[Text("Done."), Finish()]] * 2) as provider:
        root = agent_of(gemini(models, provider))
        agent = adk_agent(cs, root, session_service=sessions, use_thread_id_as_session_id=is_thread_id)
        client = Client(agent, "one")
        for text in ("More", "Again"):
            assert kinds(await client.send(text))[-1] == "RUN_FINISHED"
        assert texts_in(json.loads(provider.requests[0].body)) == ["asked in its own", "More"]


async def test_sessions_are_listed_once_for_a_thread_that_another_program_began(cs: Callstream, models: Models) -> None:
    class Counted(InMemorySessionService):
        listed = 0

        async def list_sessions(self, **kwargs: Any) -> Any:
            self.listed += 1
            return await super().list_sessions(**kwargs)

    sessions = Counted()
    await native(sessions, "one")
    async with scripted("gemini", [[Text("Done."), Finish()]] * 2) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider)), session_service=sessions), "one")
        for text in ("More", "Again"):
            await client.send(text)
    assert sessions.listed == 1


async def test_two_processes_may_begin_a_thread_at_once(cs: Callstream, models: Models) -> None:
    """Both have found no session, and one of them comes too late to make it."""

    class Shared(InMemorySessionService):
        both_have_looked = asyncio.Barrier(2)

        async def create_session(self, **kwargs: Any) -> Any:
            await self.both_have_looked.wait()
            return await super().create_session(**kwargs)

    sessions = Shared()
    async with scripted("gemini", [[Text("Done."), Finish()]] * 2) as provider, Callstream() as other:
        root = agent_of(gemini(models, provider))
        clients = [Client(adk_agent(each, root, session_service=sessions), "one") for each in (cs, other)]
        for events in await asyncio.gather(*(client.send() for client in clients)):
            assert kinds(events)[-1] == "RUN_FINISHED"
    assert len((await sessions.list_sessions(app_name="app", user_id="user")).sessions) == 1


class Unlisted(InMemorySessionService):
    async def list_sessions(self, **wanted: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize("thread_is_session", [None, True])
async def test_a_service_that_cannot_list_is_asked_by_the_threads_id(
    thread_is_session: bool | None, cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with scripted("gemini", [[Text("Done."), Finish()]] * 2) as provider:
        agent = adk_agent(
            cs,
            agent_of(gemini(models, provider)),
            session_service=Unlisted(),
            use_thread_id_as_session_id=thread_is_session,
        )
        client = Client(agent)
        for text in ("one", "two"):
            assert kinds(await client.send(text))[-1] == "RUN_FINISHED"
    assert texts_in(json.loads(provider.requests[1].body)) == ["one", "Done.", "two"]
    assert [record.message for record in caplog.records if "cannot list" in record.message] == [
        "Unlisted cannot list sessions: those with ids of its own are not found again"
    ]


async def test_several_sessions_of_one_thread_are_told(
    cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    sessions = InMemorySessionService()
    for name in ("first", "second"):
        state = {"_ag_ui_thread_id": "thread"}
        await sessions.create_session(app_name="app", user_id="user", session_id=name, state=state)
    async with scripted("gemini", [[Text("Done."), Finish()]]) as provider:
        await Client(adk_agent(cs, agent_of(gemini(models, provider)), session_service=sessions)).send()
    told = [record.message for record in caplog.records if "several sessions" in record.message]
    assert told == ["thread thread has several sessions, of which the first is used: ['first', 'second']"]
