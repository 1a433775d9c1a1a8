"""Session services that give sessions ids of their own."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from google.adk.sessions import InMemorySessionService

from callstream import Callstream
from callstream.testing import Finish, Text
from tests.adk.hosting import Models, agent_of, scripted

from .agents import adk_agent, gemini
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
