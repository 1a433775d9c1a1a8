"""One thread and those who watch it: whoever talks, a reader that comes and goes, and one that is never disturbed."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import httpx

from callstream.agui import Conversation
from callstream.agui.events import encode
from callstream.errors import Compacted
from callstream.journal import Journal
from tests.agui.model import StrictClient

from .fleet import Fleet
from .plan import PAINT

BUSY = (409, 429, 503)


class Tally:
    def __init__(self) -> None:
        self.joins = 0
        self.wrong: list[str] = []
        self.interrupted = 0
        self.finished = 0

    def complain(self, what: str) -> None:
        self.wrong.append(what)
        print(f"WRONG: {what}", flush=True)


class Watcher:
    """A client that may lose its stream at any moment, keeps what it has, and joins again."""

    def __init__(
        self, thread_id: str, fleet: Fleet, http: httpx.AsyncClient, tally: Tally, chance: random.Random
    ) -> None:
        self.thread_id = thread_id
        self.client = StrictClient()
        self.fleet = fleet
        self.http = http
        self.tally = tally
        self.chance = chance
        self.moved_at = asyncio.get_running_loop().time()
        """When it last got something."""
        self.glimpses: list[list[dict[str, Any]]] = []
        """What it had when it lost a stream."""

    async def join(self, *, drops: float) -> bool:
        """Joins once and reads. True if the run's end was seen, or if there is no such thread."""
        try:
            async with self.http.stream("POST", f"{self.fleet.any_url()}/threads/{self.thread_id}/connect") as response:
                if response.status_code == 404:
                    return True
                if response.status_code in BUSY:
                    return False
                assert response.status_code == 200, response.status_code
                self.tally.joins += 1
                return await self.read(response, drops=drops)
        except httpx.TransportError:
            return False

    async def join_until_ended(self, *, drops: float) -> None:
        while not await self.join(drops=drops):  # noqa: ASYNC110  # a replica that is gone sets no event
            await asyncio.sleep(self.chance.uniform(0, 0.3))

    async def read(self, response: httpx.Response, *, drops: float) -> bool:
        """Reads until the run ends; true if it did. ``drops``: how likely it is to leave before that."""
        left = self.chance.randrange(1, 60) if self.chance.random() < drops else None
        self.client.is_running, self.client.open = False, {}
        try:
            async for event in _events(response):
                self.client.take(event)
                self.moved_at = asyncio.get_running_loop().time()
                if left is not None:
                    left -= 1
                    if left <= 0 and self.client.is_running:
                        break
        finally:
            if self.client.is_running:
                self.glimpses.append([json.loads(json.dumps(message)) for message in self.client.messages])
        ended = self.client.ended
        return not (self.client.is_running or ended is None or ended.get("code") == "incomplete")


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


class Talker(Watcher):
    """Says something each turn, answers what it is asked, and says it again when a run was interrupted."""

    async def talk(self, turns: int) -> None:
        """So many turns, and more while replicas are being killed."""
        for turn in count():
            if turn >= turns and self.fleet.is_spared:
                return
            await self._turn(f"{self.thread_id} turn {turn}")

    async def _turn(self, name: str) -> None:
        attempt = 0
        await self._say(f"{name} attempt {attempt}")
        while True:
            ended = self.client.ended
            assert ended is not None
            if ended["type"] == "RUN_ERROR":
                if ended["code"] != "interrupted":
                    self.tally.complain(f"{name}: a run failed: {ended}")
                self.tally.interrupted += 1
                attempt += 1
                open_calls = self._unanswered()
                if open_calls and self.chance.random() < 0.5:
                    await self._answer(open_calls)
                else:
                    await self._say(f"{name} attempt {attempt}")
            elif pending := ended["outcome"].get("pendingToolCallIds"):
                await self._answer(pending)
            elif self._is_done(f"{name} attempt {attempt}"):
                self.tally.finished += 1
                return
            else:
                attempt += 1
                await self._say(f"{name} attempt {attempt}")

    def _is_done(self, name: str) -> bool:
        return any(message.get("content") == f"Done with {name}." for message in self.client.messages)

    def _unanswered(self) -> list[str]:
        answered = {message.get("toolCallId") for message in self.client.messages}
        calls = [call["id"] for message in self.client.messages for call in message.get("toolCalls", ())]
        return [call_id for call_id in calls if call_id not in answered]

    async def _say(self, text: str) -> None:
        await self._send([{"id": f"u-{uuid.uuid4().hex}", "role": "user", "content": text}])

    async def _answer(self, call_ids: list[str]) -> None:
        answers = [_answer(call_id, "first") for call_id in self.chance.sample(call_ids, len(call_ids))]
        await self._send(answers)
        if self.chance.random() < 0.2:
            await self._answer_again(call_ids)

    async def _answer_again(self, call_ids: list[str]) -> None:
        """Another window has the same question open. Its answer is too late."""
        body = self._input([_answer(call_id, "again") for call_id in call_ids])
        try:
            await self.http.post(f"{self.fleet.any_url()}/agui", json=body)
        except httpx.TransportError:
            pass
        await self.join_until_ended(drops=0.0)

    async def _send(self, messages: list[dict[str, Any]]) -> None:
        """Sends messages to any replica until one has taken them, and reads until the run has ended."""
        while True:
            self._bring(messages)
            try:
                async with self.http.stream("POST", f"{self.fleet.any_url()}/agui", json=self._input()) as response:
                    if response.status_code == 200:
                        if await self.read(response, drops=0.4):
                            return
                    elif response.status_code not in BUSY:
                        await response.aread()
                        self.tally.complain(f"{self.thread_id}: {response.status_code} {response.text}")
            except httpx.TransportError:
                pass  # it is gone; what it did can be seen in the thread
            await self.join_until_ended(drops=0.2)
            if self._has(messages):
                return
            await asyncio.sleep(self.chance.uniform(0.05, 0.3))

    def _bring(self, messages: list[dict[str, Any]]) -> None:
        known = {message["id"] for message in self.client.messages}
        for message in messages:
            if message["id"] in known or self._is_answered(message):
                continue
            if message["role"] == "tool":
                self.client.put_result(dict(message))
            else:
                self.client.messages.append(dict(message))

    def _has(self, messages: list[dict[str, Any]]) -> bool:
        known = {message["id"] for message in self.client.messages}
        return all(message["id"] in known or self._is_answered(message) for message in messages)

    def _is_answered(self, message: dict[str, Any]) -> bool:
        return message["role"] == "tool" and any(
            known.get("toolCallId") == message["toolCallId"] for known in self.client.messages
        )

    def _input(self, messages: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        known = self.client.messages if messages is None else messages
        return {
            "threadId": self.thread_id,
            "runId": f"run-{uuid.uuid4().hex}",
            "protocolVersion": "1.0",
            "messages": [message for message in known if message["role"] != "activity"],
            "tools": [PAINT],
            "context": [],
            "state": {},
            "forwardedProps": {},
        }


def _answer(call_id: str, said: str) -> dict[str, Any]:
    content = json.dumps({"said": said})
    return {"id": f"t-{uuid.uuid4().hex}", "role": "tool", "toolCallId": call_id, "content": content}


class Reader(Watcher):
    """Does nothing but come and go."""

    async def come_and_go(self) -> None:
        while True:
            await self.join(drops=0.7)
            await asyncio.sleep(self.chance.uniform(0.05, 1.0))


class Undisturbed:
    """Reads the journal itself, record by record, as they come."""

    def __init__(self, journal: Journal, thread_id: str) -> None:
        self._journal = journal
        self._thread_id = thread_id
        self._conversation = Conversation()
        self._read: dict[str, int] = {}  # the last number of each run

    async def read(self) -> None:
        while True:
            await self.read_more()
            await asyncio.sleep(0.2)

    async def read_more(self) -> None:
        try:
            await self._read_runs()
        except Compacted:  # it stood in a run for longer than its records are kept one by one
            self._conversation, self._read = Conversation(), {}
            await self._read_runs()

    async def _read_runs(self) -> None:
        for row in reversed(await self._journal.runs(thread_id=self._thread_id)):
            after = self._read.get(row.run_id, 0)
            if row.outcome is None or after < row.last_seq:
                async for record in self._journal.follow(row.run_id, after):
                    self._conversation.feed(record)
                    self._read[row.run_id] = record.seq

    @property
    def messages(self) -> list[dict[str, Any]]:
        return messages_of(self._conversation)


def messages_of(conversation: Conversation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(encode(conversation.snapshot()))["messages"]
    return found


def plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the numbers of records, which compaction may change."""
    made = []
    for message in messages:
        kept = {key: value for key, value in message.items() if key != "metadata"}
        if "toolCalls" in kept:
            kept["toolCalls"] = [
                {key: value for key, value in call.items() if key != "metadata"} for call in kept["toolCalls"]
            ]
        made.append(kept)
    return made
