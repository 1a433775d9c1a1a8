"""Every client joins after every record and is cut after every event, and ends as one that was never interrupted.

The clients are the published packages, over real HTTP; each goes through all of its cases in one process of node.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from ag_ui.core import RunAgentInput
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callstream import Callstream, current_run
from callstream.events import (
    ArgsAppended,
    CallDiscarded,
    CallStarted,
    MessageStarted,
    ReasoningAppended,
    RunEvent,
    RunResumed,
    TextAppended,
)
from tests import npm
from tests.agui.judge import NodeProgram

from .published import FOLDERS
from .serving import Server, served

CLIENTS = [name for name in FOLDERS if not name.endswith("-callstream")]
WAIT_SECONDS = 0.5
"""How long an agent waits for a client that is cut later than it would have to be."""


def script(run_id: str) -> list[dict[str, Any]]:
    """Reasoning, text, two calls that are written in turns, progress, results, state, and a second response."""
    thought, first, second = (f"{run_id}-{name}" for name in ("thought", "first", "second"))
    a, b = f"{run_id}-a", f"{run_id}-b"

    def called(call_id: str, *pieces: str) -> list[dict[str, Any]]:
        start = {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": "write", "parentMessageId": first}
        return [start, *({"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": piece} for piece in pieces)]

    def result(call_id: str) -> dict[str, Any]:
        text = json.dumps({"written": call_id})
        return {"type": "TOOL_CALL_RESULT", "toolCallId": call_id, "messageId": f"{call_id}-result", "content": text}

    def said(message_id: str, *pieces: str) -> list[dict[str, Any]]:
        return [
            {"type": "TEXT_MESSAGE_CHUNK", "messageId": message_id, "role": "assistant", "delta": p} for p in pieces
        ]

    one, two = called(a, '{"title":"A \\"wave\\"', ' 🌊","rows":[1,', "2]}"), called(b, '{"body":"\\u00e9', 't\\n"}')
    return [
        {"type": "REASONING_MESSAGE_CHUNK", "messageId": thought, "delta": "Hm, "},
        {"type": "REASONING_MESSAGE_CHUNK", "messageId": thought, "delta": "two."},
        *said(first, "I ", "write.\n"),
        *one[:2],
        *two[:2],
        *one[2:],
        {"type": "TOOL_CALL_END", "toolCallId": a},
        *two[2:],
        {"type": "TOOL_CALL_END", "toolCallId": b},
        result(b),
        result(a),
        {"type": "STATE_SNAPSHOT", "snapshot": {"rows": [1, 2]}},
        *said(second, "Done ", "🌊."),
    ]


UNTOUCHED = "untouched"
"""The thread whose run never loses its process."""


def half(run_id: str) -> list[RunEvent]:
    """A response that was cut when its process died, and what the next process says of it."""
    void, call_id = f"{run_id}-void", f"{run_id}-void-call"
    return [
        MessageStarted(void),
        ReasoningAppended(void, "Hm, I "),
        TextAppended(void, "I wr"),
        CallStarted(call_id, "write", call_id, message_id=void),
        ArgsAppended(call_id, '{"title":"A'),
        RunResumed(2, (void,)),
        CallDiscarded(call_id, "interrupted"),
    ]


class Held:
    """Yields the script. ``hold``: in that thread it waits, before that event, until it is released.

    ``dies``: the script comes from a second process, after half a response of the first.
    """

    name = "held"

    def __init__(self, *, dies: bool) -> None:
        self.dies = dies
        self.length = len(script("")) + (len(half("")) if dies else 0)
        self._holds: dict[str, int] = {}
        self._released: dict[str, asyncio.Event] = {}
        self._reached: dict[str, asyncio.Event] = {}

    def hold(self, thread_id: str, place: int) -> asyncio.Event:
        """Returns what is set when the agent has come there."""
        self._holds[thread_id] = place
        self._released[thread_id] = asyncio.Event()
        self._reached[thread_id] = asyncio.Event()
        return self._reached[thread_id]

    async def release(self, request: Request) -> Response:
        released = self._released.get(request.path_params["thread_id"])
        if released is not None:
            released.set()
        return Response()

    async def run(self, input: RunAgentInput) -> AsyncIterator[Any]:  # noqa: A002  the name that callers use
        run = current_run()
        assert run is not None
        before = half(run.run_id) if self.dies and input.thread_id != UNTOUCHED else []
        for place, event in enumerate([*before, *script(run.run_id), None]):
            if self._holds.get(input.thread_id) == place:
                self._reached[input.thread_id].set()
                try:
                    await asyncio.wait_for(self._released[input.thread_id].wait(), WAIT_SECONDS)
                except TimeoutError:
                    pass
            await asyncio.sleep(0.001)  # so that readers need not take two at once
            if place < len(before):
                await run.record([before[place]])
            else:
                yield event


class Stage:
    def __init__(self, cs: Callstream, server: Server, agent: Held, node: NodeProgram, client: str) -> None:
        self.server = server
        self.agent = agent
        self._cs = cs
        self._node = node
        self._client = client

    async def live(
        self, thread_id: str, how: str, cut: int | None = None, *, may_complain: bool = False
    ) -> tuple[dict[str, Any], Any]:
        """What the client tells, and what it shows, with the names that differ from case to case replaced."""
        question = {"client": self._client, "url": self.server.url, "threadId": thread_id, "how": how, "cut": cut}
        told: dict[str, Any] = await asyncio.to_thread(self._node.ask, question)
        assert "failed" not in told, told["failed"]
        if not may_complain:
            assert told.get("errors", []) == [], (how, cut)
        [row] = await self._cs.journal.runs(thread_id=thread_id)
        assert row.outcome == "finished"
        messages = told["messages"]
        shown = _flatten(messages) if self._client == "tanstack" else [_plain(each) for each in messages]
        text = json.dumps([[each["role"] for each in messages[:1]], shown, told.get("state")])
        plain = json.loads(text.replace(row.run_id, "RUN").replace(thread_id, "THREAD"))
        return told, _unnumbered(plain) if self.agent.dies else plain


def _unnumbered(value: Any) -> Any:
    """Without the numbers of records, since what is void is numbered too."""
    if isinstance(value, dict):
        return {key: _unnumbered(each) for key, each in value.items() if key != "metadata"}
    return [_unnumbered(each) for each in value] if isinstance(value, list) else value


def _flatten(messages: list[dict[str, Any]]) -> list[Any]:
    """TanStack AI makes more messages of a snapshot than of the events, with the same parts in the same order."""
    said = ("type", "content", "arguments", "input", "output", "state", "toolCallId", "name")
    parts = [part for message in messages if message["role"] == "assistant" for part in message["parts"]]
    return [{key: part[key] for key in said if key in part} for part in parts]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Without ids that a client makes up, and without how a text came."""
    left_out = {"id"} if message["role"] == "user" else set[str]()
    parts = message.get("parts")
    shown = {key: value for key, value in message.items() if key not in left_out | {"parts"}}
    if parts is not None:
        how = ("rawInput", "preliminary", "createdAt")
        numbered = ("id",)  # of reasoning, in the order of a stream, where what is void is numbered too
        shown["parts"] = [
            {
                key: value
                for key, value in part.items()
                if key not in how and (key not in numbered or part["type"] != "reasoning")
            }
            for part in parts
        ]
    return shown


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[Path, NodeProgram]]:
    started: dict[Path, NodeProgram] = {}
    yield started
    for program in started.values():
        program.__exit__(None, None, None)


@asynccontextmanager
async def staged(cs: Callstream, nodes: dict[Path, NodeProgram], client: str, *, dies: bool) -> AsyncIterator[Stage]:
    folder = FOLDERS[client]
    try:
        npm.install(folder)
    except npm.Unavailable as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have the clients: {reason}")
        pytest.skip(str(reason))
    if folder not in nodes:
        nodes[folder] = NodeProgram("cuts.mjs", folder)
    agent = Held(dies=dies)
    async with served(agent, callstream=cs) as server:
        server.app.routes.append(Route("/release/{thread_id}", agent.release, methods=["POST"]))
        yield Stage(cs, server, agent, nodes[folder], client)


@pytest.mark.parametrize("sdk", [5, 6, 7])
async def test_a_chat_that_cannot_take_back_what_is_void_is_sent_away(cs: Callstream, sdk: int) -> None:
    said = [{"id": "u", "role": "user", "parts": [{"type": "text", "text": "Go"}]}]
    sent = {"id": "chat", "trigger": "submit-message", "messages": said}
    told: list[str] = []
    is_whole = True
    async with served(Held(dies=True), callstream=cs) as server:
        try:
            async with server.client.stream("POST", f"/ui?sdk={sdk}", json=sent) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        told.append(json.loads(line[6:])["type"])
        except httpx.RemoteProtocolError:
            is_whole = False
        assert (told[-1], is_whole) == (("finish", True) if sdk == 7 else ("data-void", False))
        assert ("reset-step" in told) == (sdk == 7)
        again = await server.client.get(f"/ui/chat/stream?sdk={sdk}")
        if again.status_code == 204:  # the run has ended meanwhile
            again = await server.client.get(f"/ui/chat/messages?sdk={sdk}")
        assert "I wr" not in again.text.replace("I write", "")
        assert "Done" in again.text


@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_joined_after_every_record(
    cs: Callstream, nodes: dict[Path, NodeProgram], client: str, *, dies: bool
) -> None:
    async with staged(cs, nodes, client, dies=dies) as stage:
        _, whole = await stage.live(UNTOUCHED, "whole")
        for place in range(stage.agent.length + 1):
            thread_id = f"join-{place}"
            reached = stage.agent.hold(thread_id, place)
            given = {"messages": [{"id": "user", "role": "user", "content": "Go"}]}
            async with stage.server.run(thread=thread_id, **given) as stream:
                await reached.wait()
                _, joined = await stage.live(thread_id, "join")
                assert joined == whole, place
                await stream.all()
    print(f"{client}: joined at {stage.agent.length + 1} places")


@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_cut_after_every_event(
    cs: Callstream, nodes: dict[Path, NodeProgram], client: str, *, dies: bool
) -> None:
    """Where the client has come back before the agent's last word, and, of the last events, where the run has ended."""
    async with staged(cs, nodes, client, dies=dies) as stage:
        _, valid = await stage.live(UNTOUCHED, "whole")
        told, whole = await stage.live("whole", "whole")
        assert whole == valid
        cuts = []
        for cut in range(1, told["events"] + 1):
            thread_id = f"cut-{cut}"
            if cut < told["events"] - 5:
                stage.agent.hold(thread_id, stage.agent.length)
            # TanStack AI asks for more even if it has read the last event, and complains that there is nothing.
            is_behind_all = client == "tanstack" and cut == told["events"]
            again, shown = await stage.live(thread_id, "cut", cut, may_complain=is_behind_all)
            assert shown == whole, cut
            cuts.append(again["cuts"])
    print(f"{client}: {told['events']} events, cut {sum(cuts)} times")
    assert any(cuts)
