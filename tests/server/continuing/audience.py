"""What clients show of runs whose process is killed while they look: each published client, in each way, at each moment.

"watching": the client is connected to the replica that lives, and stays. "reconnecting": it has sent its message to the one that
is killed, and comes back by its own means. Every client has a run of its own, and all of these die in the same moment. What a client
shows at the end has to equal what it shows of a run that nobody killed, and the tools of its page must not have run for calls
that are void.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from callstream import results_in
from callstream.events import ResultReceived, RunEnded, RunResumed
from callstream.journal import Journal
from callstream.testing import Delay, Finish, ReceivedRequest, Script, Text, Thought, ToolCall
from tests import npm
from tests.agui.judge import NodeProgram
from tests.server.published import FOLDERS

from .script import BODY
from .stage import LONGEST, Server, Stage

CLIENTS = [name for name in FOLDERS if name != "ai7-read"]
WAYS = ("watching", "reconnecting")
PAINT = {
    "name": "paint",
    "description": "Paints in the page.",
    "parameters": {"type": "object", "properties": {"colour": {"type": "string"}}},
}
"""A tool of the page."""
FOR_EVER = Delay(3600)


def answers(label: str) -> list[Script]:
    """What the model says in its three turns. The last one has a call of the page, and ends the run."""
    look = ToolCall("first_look", {"label": label})
    writes = [ToolCall("first_write", {"label": f"{label}{each}", "body": BODY}) for each in "ab"]
    paint = ToolCall("paint", {"colour": "blue"}, size=4)
    return [
        [Thought("Let me see. ", size=4), Text("First I look. ", size=4), look, Finish()],
        [Text("Now I write. ", size=4), writes[0], Finish()],
        [Thought("Both. ", size=4), Text("I paint and write. ", size=4), paint, writes[1], Finish()],
    ]


def moments(label: str) -> dict[str, tuple[int, Script]]:
    """Where a model falls silent the first time that it is asked: in which turn, and after what."""
    thought, text = Thought("I wonder. ", size=4), Text("It is void. ", size=4)
    half = ToolCall("first_write", {"label": label, "body": BODY}, stop_after=2)
    paint = ToolCall("paint", {"colour": "red"}, size=4)
    half_paint = ToolCall("paint", {"colour": "red"}, size=4, stop_after=2)
    return {
        "half a thought": (0, [thought, FOR_EVER]),
        "half a text": (0, [thought, text, FOR_EVER]),
        "half a call": (0, [thought, text, half, FOR_EVER]),
        "asked": (1, [FOR_EVER]),
        "second text": (1, [text, FOR_EVER]),
        "second call": (1, [half, FOR_EVER]),
        "half a page's call": (2, [thought, text, half_paint, FOR_EVER]),
        "a page's call": (2, [thought, text, paint, half, FOR_EVER]),
    }


TOOLS_RUN = ("look runs", "write runs")
"""Moments in which a tool hangs, in the place of the model."""
MOMENTS = (*moments(""), *TOOLS_RUN)


class Hanging:
    """Models, each of which falls silent once, in the moment that its thread's name says."""

    def __init__(self, wire: str) -> None:
        self._wire = wire
        self._asked: Counter[tuple[str, int]] = Counter()
        self.silent: set[str] = set()
        """The threads whose model has fallen silent."""

    def script(self, request: ReceivedRequest) -> Script:
        label, place = re.search(r"run-\d+-(\d+)", request.body.decode()).group(0, 1)  # type: ignore[union-attr]
        results = [event for event in results_in(self._wire, request.body) if isinstance(event, ResultReceived)]
        turn = min(len(results), 2)
        self._asked[label, turn] += 1
        hangs_in, half = moments(label).get([*MOMENTS, ""][int(place)], (None, ()))
        if turn != hangs_in or self._asked[label, turn] > 1:
            return answers(label)[turn]
        self.silent.add(label)
        return half


class Doorbell:
    """An address for each name, and who has asked for it."""

    def __init__(self) -> None:
        self._rung: dict[str, asyncio.Event] = {}
        self.address = ""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Doorbell]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode()
        self._event(line.split()[1].strip("/")).set()
        writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    def _event(self, name: str) -> asyncio.Event:
        return self._rung.setdefault(name, asyncio.Event())

    async def rung(self, name: str) -> None:
        """Waits until somebody asks for it from now on."""
        self._event(name).clear()
        async with asyncio.timeout(LONGEST):
            await self._event(name).wait()


class Audience(Stage):
    """``verdicts``: for each client, way and moment, whether it shows what it should, and how many calls ran that are void."""

    def __init__(self, journal: str, clients: Sequence[str], places: Sequence[str] = MOMENTS) -> None:
        super().__init__(journal, "audience", "anthropic", 0, 1, replicas=2)
        self._clients = clients
        self._moments = places
        self._models = Hanging("anthropic")
        self._settings = {"CALLSTREAM_OLDER_CLIENTS": "true"}  # for those before AG-UI 1.0
        self._number = 0
        self._whole: dict[str, Any] = {}
        self.verdicts: dict[tuple[str, str, str], tuple[bool, int]] = {}

    async def play(self) -> None:
        async with AsyncExitStack() as stack:
            self._bell = await stack.enter_async_context(Doorbell().opened())
            servers, journal, log = await stack.enter_async_context(self.opened())
            self._threads = stack.enter_context(ThreadPoolExecutor(len(self._clients)))  # all of them wait at once
            self._nodes = {name: _node(name) for name in self._clients}
            try:
                await self._scene(servers, journal, log, "reconnecting", "")
                for way in WAYS:
                    for moment in self._moments:
                        await self._scene(servers, journal, log, way, moment)
            finally:
                for node in self._nodes.values():
                    node.__exit__(None, None, None)

    async def _scene(self, servers: list[Server], journal: Journal, log: Path, way: str, moment: str) -> None:
        """A run for each client, and a kill in that moment; none without a moment."""
        owner, other = servers
        self._number += 1
        place = [*MOMENTS, ""].index(moment)
        threads = {name: f"run-{self._number}{number:02}-{place}" for number, name in enumerate(self._clients)}
        if way == "watching":
            for thread in threads.values():
                await owner.begin(thread, f"{thread}-r", tools=[PAINT])
        told = [asyncio.create_task(self._live(owner, other, way, name, thread)) for name, thread in threads.items()]
        if moment:
            for thread in threads.values():
                await self._hangs(journal, log, thread)
            await asyncio.gather(*(self._bell.rung(thread) for thread in threads.values()))
            await owner.end()
            self.kills += 1
            servers.reverse()
            await owner.start()
        for (name, thread), each in zip(threads.items(), await asyncio.gather(*told), strict=True):
            await self._judge_client(journal, name, way, moment, thread, each)

    async def _hangs(self, journal: Journal, log: Path, thread: str) -> None:
        """Waits until the thread's model or tool is where it stays, and the journal has all of that."""
        async with asyncio.timeout(LONGEST):
            while thread not in self._models.silent and not Path(f"{log}.{thread}").exists():  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.05)
            (row,), last = await journal.runs(thread_id=thread), -1
            while row.last_seq != last:
                last = row.last_seq
                await asyncio.sleep(0.3)
                (row,) = await journal.runs(thread_id=thread)

    async def _live(self, owner: Server, other: Server, way: str, name: str, thread: str) -> dict[str, Any]:
        url, how = (owner.address, "whole") if way == "reconnecting" else (other.address, "join")
        ready = f"{self._bell.address}/{thread}"
        question: dict[str, Any] = {
            "client": name,
            "url": url,
            "again": other.address,
            "threadId": thread,
            "how": how,
            "ready": ready,
        }
        question |= {"tools": [PAINT], "text": f"Do it for {thread}."}
        asking = asyncio.get_running_loop().run_in_executor(self._threads, self._nodes[name].ask, question)
        told: dict[str, Any] = await asking
        return told

    async def _judge_client(
        self, journal: Journal, name: str, way: str, moment: str, thread: str, told: dict[str, Any]
    ) -> None:
        self.runs += 1
        what = f"{name}, {way}, {moment or 'not killed'}"
        if "failed" in told:
            self.said.append(f"{what}: {told['failed']}")
            self.verdicts[name, way, moment] = (False, 0)
            return
        (row,) = await journal.runs(thread_id=thread)
        records = await journal.read_whole([row.run_id])
        if records[-1].event != RunEnded("finished"):
            self._fault("unfinished", f"{what}: {records[-1].event}")
        if moment and not any(isinstance(record.event, RunResumed) for record in records):
            self._fault("not taken", what)
        shown = json.loads(json.dumps(plain(told)).replace(thread, "THREAD"))
        calls = calls_in(told["messages"])
        if not moment:
            self._whole[name] = shown
            if told["ran"] and set(told["ran"]) != {calls[-2]}:
                self.said.append(f"{what}: the page's tool ran for {told['ran']}, and the calls are {calls}")
            return
        void = len(set(told["ran"]) - set(calls))
        self.verdicts[name, way, moment] = (shown == self._whole[name], void)
        if shown != self._whole[name]:
            self.said.append(f"{what}: shows\n  {json.dumps(shown)}\nand should\n  {json.dumps(self._whole[name])}")
        if told.get("errors"):
            self.said.append(f"{what}: {told['errors']}")

    @property
    def is_well(self) -> bool:
        return not self.faults and all(is_equal and not void for is_equal, void in self.verdicts.values())

    def line(self) -> str:
        """A table, and what it says in one line."""
        rows = [["client", "", *self._moments]]
        for name in self._clients:
            for way in WAYS:
                found = [self.verdicts[name, way, moment] for moment in self._moments]
                cells = [("equal" if equal else "DIFFERS") + (f", {void} RAN" if void else "") for equal, void in found]
                rows.append([name, way, *cells])
        widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        equal = sum(each for each, _ in self.verdicts.values())
        void = sum(count for _, count in self.verdicts.values())
        said = f"{self.kills} kills, {len(self.verdicts)} clients looked on: equal {equal}, tools run for void calls {void}"
        return "\n".join([*table, said])


def _node(name: str) -> NodeProgram:
    npm.install(FOLDERS[name])
    return NodeProgram("cuts.mjs", FOLDERS[name])


_UNSAID = ("metadata", "rawInput", "preliminary", "createdAt", "providerMetadata", "stepId")
"""How something came, and the numbers of its records, where what is void is counted too."""


def plain(told: dict[str, Any]) -> Any:
    """What a client shows. Ids are numbered as they come: those of another attempt are others."""
    messages = told["messages"]
    if messages and "content" not in messages[-1] and not any("id" in message for message in messages):
        # TanStack AI makes more messages of a snapshot than of the events, with the same parts in the same order. Of a
        # snapshot its results have the ids of their messages.
        parts = [part for message in messages for part in message["parts"]]
        messages = [{**part, "id": None} if part["type"] == "tool-result" else part for part in parts]
    names: dict[str, str] = {}
    for key, value in _ids([messages, told.get("state")]):
        if key != "toolName":
            names.setdefault(value, f"#{len(names)}")
    return _named([messages, told.get("state")], names)


_IDS = ("id", "toolCallId", "messageId", "parentMessageId")


def _ids(value: Any) -> list[tuple[str, str]]:
    if isinstance(value, list):
        return [found for each in value for found in _ids(each)]
    if not isinstance(value, dict):
        return []
    own = [(key, value[key]) for key in _IDS if isinstance(value.get(key), str)]
    return own + [found for key, each in value.items() if key not in _UNSAID for found in _ids(each)]


def _named(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: names[each] if key in _IDS and each in names else _named(each, names)
        for key, each in sorted(value.items())
        if key not in _UNSAID
    }


def calls_in(value: Any) -> list[str]:
    """The ids of all calls that a client shows, in order."""
    if isinstance(value, list):
        return [found for each in value for found in calls_in(each)]
    if not isinstance(value, dict):
        return []
    own = [value[key] for key in ("toolCallId",) if "role" not in value and isinstance(value.get(key), str)]
    own += [value["id"] for _ in (1,) if value.get("type") in ("function", "tool-call") and "id" in value]
    return own + [found for key, each in value.items() if key not in _UNSAID for found in calls_in(each)]
