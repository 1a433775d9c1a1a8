"""The official AG-UI client, from npm, against the real server over real HTTP, with a real agent behind it.

It takes every stream without an error or a warning, has nothing left open, has built the arguments that were executed,
and ends with the messages that the journal folds to; dropped anywhere and joined again, it ends with the same.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from callstream import Callstream
from callstream.agui import Conversation, View
from callstream.calls import CallState
from callstream.server import ServerSettings
from tests.adk.agent.agents import adk_agent, gemini
from tests.adk.hosting import Models, agent_of, scripted
from tests.agui.judge import LiveJudge
from tests.server.chaos.thread import messages_of
from tests.server.serving import Server, served

from .scenes import PAINT, SCENES, SCHEMA, Scene, random_scene, says, tools_of

PACE = 400.0

ANSWERED_BY_CLIENTS = ("paint", "adk_request_confirmation")
"""What no tool is executed for."""


class Stage:
    """A server whose agent plays one scene, again and again, in a thread each."""

    def __init__(self, cs: Callstream, server: Server, scene: Scene, judge: LiveJudge, view: View) -> None:
        self._cs = cs
        self._server = server
        self._scene = scene
        self._judge = judge
        self._view = view
        self.ran: list[tuple[str, dict[str, Any]]] = []

    async def play(self, thread_id: str, *steps: dict[str, Any]) -> list[dict[str, Any]]:
        return await self._judge(self._server.url, thread_id, *steps, tools=[PAINT])

    def steps(self) -> list[dict[str, Any]]:
        first, *others = self._scene.steps
        return [{"add": says("Go"), **first}, *others]

    async def conversation(self, thread_id: str) -> Conversation:
        rows = reversed(await self._cs.journal.runs(thread_id=thread_id))
        records = [record for row in rows for record in [each async for each in self._cs.journal.read(row.run_id)]]
        return Conversation.of(records, self._view)

    async def check_calls(self, thread_id: str, messages: list[dict[str, Any]]) -> None:
        """What the client has built is what the journal has, and what ran."""
        built = [call for message in messages for call in message.get("toolCalls", ())]
        kept = await self._cs.journal.calls(thread_id=thread_id)
        assert [call["id"] for call in built] == [call.call_id for call in kept]
        for call, listed in zip(built, kept, strict=True):
            whole = await self._cs.journal.call(listed.call_id)
            assert whole is not None
            assert call["function"]["arguments"] == whole.args_json
        ran = [
            (call.name, json.loads(shown["function"]["arguments"]))
            for shown, call in zip(built, kept, strict=True)
            if call.state not in (CallState.DISCARDED, CallState.AWAITING) and call.name not in ANSWERED_BY_CLIENTS
        ]
        executed = [each for each in self.ran if each[0] != "ask" or each in ran]
        assert sorted(map(str, ran)) == sorted(map(str, executed))


@asynccontextmanager
async def staged(
    scene: Scene, cs: Callstream, models: Models, judge: LiveJudge, times: int = 1, pace: float = PACE
) -> AsyncIterator[Stage]:
    view = View(emit_interrupt_outcome=scene.interrupts, response_schemas={"ask": SCHEMA})
    script = [each for _ in range(times) for each in scene.scripts]
    provider: Any = scripted(scene.wire, script, deltas_per_second=pace)
    async with provider:
        ran: list[tuple[str, dict[str, Any]]] = []
        agent = adk_agent(
            cs, agent_of(gemini(models, provider), *tools_of(cs, ran)), emit_interrupt_outcome=scene.interrupts
        )
        async with served(agent, view=view, settings=ServerSettings(inspector=False)) as server:
            stage = Stage(cs, server, scene, judge, view)
            stage.ran = ran
            yield stage


def accepted(verdict: dict[str, Any]) -> dict[str, Any]:
    assert verdict["error"] is None, verdict["error"]
    assert verdict["warnings"] == []
    assert verdict["ended"] is not None
    return verdict


def plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return json.loads(json.dumps(messages))  # type: ignore[no-any-return]


async def judged(stage: Stage, scene: Scene, thread_id: str = "thread") -> list[dict[str, Any]]:
    verdicts = [accepted(each) for each in await stage.play(thread_id, *stage.steps())]
    assert [each["ended"]["outcome"] for each in verdicts] == list(scene.ends)
    conversation = await stage.conversation(thread_id)
    assert verdicts[-1]["messages"] == messages_of(conversation)
    assert verdicts[-1]["state"] == (conversation.state or {})
    await stage.check_calls(thread_id, verdicts[-1]["messages"])
    return verdicts


@pytest.mark.parametrize("name", SCENES)
async def test_official_client_accepts_every_scene(
    name: str, cs: Callstream, models: Models, live_judge: LiveJudge
) -> None:
    scene = SCENES[name]
    async with staged(scene, cs, models, live_judge) as stage:
        verdicts = await judged(stage, scene)
        # closed_before_finished: the client refuses an end while anything is open; a reload shows the same.
        (reloaded,) = await stage.play("thread", {"how": "connect"})
        assert accepted(reloaded)["messages"] == verdicts[-1]["messages"]
        assert reloaded["state"] == verdicts[-1]["state"]


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 24))])
async def test_official_client_accepts_random_scenes(
    seed: int, cs: Callstream, models: Models, live_judge: LiveJudge
) -> None:
    scene = random_scene(seed)
    async with staged(scene, cs, models, live_judge) as stage:
        await judged(stage, scene)


async def test_official_client_gets_the_schema_of_an_answer(
    cs: Callstream, models: Models, live_judge: LiveJudge
) -> None:
    scene = SCENES["interrupt_resumed"]
    async with staged(scene, cs, models, live_judge) as stage:
        first, _ = await judged(stage, scene)
    (interrupt,) = first["ended"]["interrupts"]
    assert interrupt["responseSchema"] == SCHEMA


JOINED = {"one_call": 40, "parallel_calls_of_another_wire": 8, "reasoning": 6, "progress": 8, "truncated_call": 6}
"""At how many places the connection drops."""


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize("reload", [False, True], ids=["back", "reload"])
async def test_join_mid_arguments_after_every_record(
    name: str, reload: bool, cs: Callstream, models: Models, live_judge: LiveJudge
) -> None:
    """The connection drops after each event in turn; the run goes on, and who joins ends with the same."""
    scene = SCENES[name]
    async with staged(scene, cs, models, live_judge, times=60, pace=200.0) as stage:
        (whole,) = await judged(stage, scene, "whole")
        count = len(whole["events"])
        most = JOINED[name] if not reload else 6
        dropped = 0
        for place in range(1, count, max(1, count // most)):
            thread_id = f"dropped after {place}"
            first, second = await stage.play(
                thread_id, {"how": "run", "add": says("Go"), "drop": place}, {"how": "connect", "reload": reload}
            )
            dropped += first["isDropped"]  # a reader that is behind gets fewer events, and may have come to the end
            accepted(second)
            assert second["ended"]["outcome"] == scene.ends[0]
            conversation = await stage.conversation(thread_id)
            assert second["messages"] == messages_of(conversation)
            assert contents(second["messages"]) == contents(whole["messages"])
        assert dropped >= 2


def contents(messages: list[dict[str, Any]]) -> list[Any]:
    """Messages without their ids."""
    read: Callable[[dict[str, Any]], Any] = lambda message: (  # noqa: E731
        message["role"],
        message["content"] if message["role"] != "activity" else message["activityType"],
    )
    return [
        [(call["function"]["name"], call["function"]["arguments"]) for call in message["toolCalls"]]
        if "toolCalls" in message
        else read(message)
        for message in messages
    ]
