"""Gemini's checkpoints: a run that goes on asks for the rest of a response, and not for all of it again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callstream import Callstream, open_journal
from callstream.events import ResponseKept, RunEnded
from callstream.runtime.continuing import KeptBody, KeptTurn, unpack
from callstream.testing import Finish, HttpError, ReceivedRequest, Script, Text
from callstream.testing.httpserver import HttpAnswer
from callstream.testing.provider import Route
from callstream.view import Passage, RunView
from callstream.wire import provider_of
from tests.gated import GatedProvider

pytestmark = pytest.mark.asyncio
FIRST, LOST, REST = "A leaf that you put ", "somewhere, I think", "into hot water."
TOKENS = ("dG9r+2Vu", "dG9rZW4=")


class Provider(GatedProvider):
    """Puts two tokens into its first answer, the last one at the end of ``FIRST``."""

    async def answer(self, request: ReceivedRequest, route: Route) -> HttpAnswer:
        answer = await super().answer(request, route)
        return answer if answer.relayed is None else msgspec.structs.replace(answer, relayed=_marked(answer.relayed))


async def _marked(frames: AsyncIterator[Any]) -> AsyncIterator[Any]:
    after = {b"A le": TOKENS[0], b"put ": TOKENS[1]}
    async for frame in frames:
        for text, token in after.items():
            if isinstance(frame, bytes) and b'"' + text in frame:
                frame = frame.replace(b'"content":', b'"continuationToken": "%b", "content":' % token.encode(), 1)
        yield frame


class Stage:
    """A program that asks one thing. Its first process ends when it has read what is lost."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_refused = False
        self.provider = Provider("gemini", self._script, held=2)

    def _script(self, request: ReceivedRequest) -> Script:
        if "continuationToken" not in request.json:
            is_first = len(self.provider.requests) <= 1
            return [Text(FIRST + (LOST if is_first else REST), size=4), Finish()]
        return [HttpError(400, "the token is too old")] if self.is_refused else [Text(REST, size=5), Finish()]

    async def start(self, *, ends_early: bool) -> str:
        cs = Callstream(open_journal(self.url, housekeeping=None))
        address = f"{self.provider.base_url.rstrip('/')}/v1beta/models/gemini-4-argon:streamGenerateContent?alt=sse"
        body = {"contents": [{"role": "user", "parts": [{"text": "What is tea?"}]}]}
        async with cs, cs.http_client() as client:
            async with cs.run("thread", "tea", continues=True) as run:
                async with client.stream("POST", address, json=body) as answer:
                    read = ""
                    async for line in answer.aiter_lines():
                        read += _text(line)
                        if ends_early and "some" in read:
                            assert await run.hand_over()  # as a process leaves it that is killed
                            break
        self.provider.open()
        return read


def _text(line: str) -> str:
    chunk = json.loads(line[6:]) if line.startswith("data: ") else {}
    parts = [part for each in chunk.get("candidates", ()) for part in (each.get("content") or {}).get("parts", ())]
    return "".join(part.get("text", "") for part in parts)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(f"sqlite:///{tmp_path / 'calls.db'}")
    async with made.provider:
        yield made


async def shown(stage: Stage) -> list[str]:
    async with open_journal(stage.url, housekeeping=None) as journal:
        records = await journal.read_whole(["tea"])
    assert records[-1].event == RunEnded("finished")
    return [item.text for item in RunView.of(records).items if isinstance(item, Passage)]


async def test_the_rest_is_asked_for_with_the_last_token(stage: Stage) -> None:
    assert (await stage.start(ends_early=True)).startswith(f"{FIRST}some")
    async with open_journal(stage.url, housekeeping=None) as journal:
        kept = [record.event for record in await journal.read_whole(["tea"])]
    assert [event.checkpoint for event in kept if isinstance(event, ResponseKept)][-1] == TOKENS[1]
    assert await stage.start(ends_early=False) == FIRST + REST
    first, second = [request.json for request in stage.provider.requests]
    assert second == {**first, "continuationToken": TOKENS[1]}
    assert await shown(stage) == [FIRST + REST]


async def test_all_of_it_is_asked_for_where_the_token_is_refused(stage: Stage) -> None:
    await stage.start(ends_early=True)
    stage.is_refused = True
    assert await stage.start(ends_early=False) == FIRST + REST
    assert ["continuationToken" in request.json for request in stage.provider.requests] == [False, True, False]
    assert await shown(stage) == [FIRST + REST]


async def test_what_was_answered_in_two_parts_is_kept_whole(stage: Stage) -> None:
    await stage.start(ends_early=True)
    assert await stage.start(ends_early=False) == FIRST + REST
    async with open_journal(stage.url, housekeeping=None) as journal:
        kept = [record.event for record in await journal.read_whole(["tea"])]
    whole = [event for event in kept if isinstance(event, ResponseKept) and event.checkpoint is None]
    assert ["".join(map(_text, unpack(event.body).decode().splitlines())) for event in whole] == [FIRST + REST]


async def test_each_checkpoint_keeps_what_came_since_the_one_before() -> None:
    body = KeptBody("digest", 200, {}, checkpoint=provider_of("gemini").checkpoint)
    frames = [b'data: {"continuationToken": "%b"}\r\n\r\n' % token.encode() for token in TOKENS]
    half = KeptTurn()
    for frame, token in zip(frames, TOKENS, strict=True):
        body.read(frame + b"data: {}\r\n\r\n")
        for kept in body.checked(token):
            half.keep(kept)
        assert body.checked(token) == []
    assert (half.checkpoint, half.body) == (TOKENS[1], frames[0] + b"data: {}\r\n\r\n" + frames[1])
