"""A response that its provider keeps is read again by the process that goes on with a run: nobody asks for it twice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callstream import Callstream, open_journal
from callstream.events import RequestKept, RunEnded, RunResumed
from callstream.testing import Finish, HttpError, ReceivedRequest, Script, Text
from callstream.view import Passage, RunView
from tests.gated import GatedProvider

pytestmark = pytest.mark.asyncio
PATHS = {"openai_responses": "responses", "gemini_interactions": "v1beta/interactions"}
SAID = "It is a leaf that is put into hot water."


class Stage:
    """A program that asks one thing. Its first process ends when it has read the beginning of the answer."""

    def __init__(self, wire: str, url: str) -> None:
        self.wire = wire
        self.url = url
        self.has_expired = False
        self.fields: dict[str, Any] = {"background": True}
        self.provider = GatedProvider(wire, self._script, held=6)

    def _script(self, request: ReceivedRequest) -> Script:
        if request.method == "GET" and self.has_expired:
            return [HttpError(404, "there is no such response")]
        return [Text(SAID, size=4), Finish()]

    async def start(self, *, ends_early: bool) -> str:
        cs = Callstream(open_journal(self.url, housekeeping=None))
        body = {"model": "m", "input": "What is tea?", "stream": True, **self.fields}
        address = f"{self.provider.base_url.rstrip('/')}/{PATHS[self.wire]}?api-version=1"
        async with cs, cs.http_client() as client:
            async with cs.run("thread", "tea", continues=True) as run:
                headers = {"authorization": "Bearer key"}
                async with client.stream("POST", address, json=body, headers=headers) as answer:
                    read = ""
                    async for line in answer.aiter_lines():
                        read += line
                        if ends_early and "leaf" in "".join(_deltas(read)):
                            assert await run.hand_over()  # as a process leaves it that is killed
                            break
        self.provider.open()
        return "".join(_deltas(read))

    @property
    def requests(self) -> list[tuple[str, str]]:
        return [(request.method, request.path) for request in self.provider.requests]


def _deltas(read: str) -> list[str]:
    """The text of the deltas."""
    found = []
    for part in read.split("data: ")[1:]:
        event = json.loads(part.partition("event: ")[0]) if part.startswith("{") else {}
        delta = event.get("delta")
        if event.get("type") == "response.output_text.delta":
            found.append(delta)
        elif event.get("event_type") == "step.delta" and delta.get("type") == "text":
            found.append(delta["text"])
    return found


@pytest.fixture(params=PATHS)
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(request.param, f"sqlite:///{tmp_path / 'calls.db'}")
    async with made.provider:
        yield made


async def records(stage: Stage) -> list[Any]:
    async with open_journal(stage.url, housekeeping=None) as journal:
        return await journal.read_whole(["tea"])


async def test_a_response_in_the_background_is_taken_up(stage: Stage) -> None:
    await stage.start(ends_early=True)
    assert await stage.start(ends_early=False) == SAID
    (first, _), (second, path) = stage.requests
    assert (first, second) == ("POST", "GET")
    kept = [record.event for record in await records(stage) if isinstance(record.event, RequestKept)]
    assert len({event.request for event in kept}) == 1
    named = [event.answer_id for event in kept if event.answer_id is not None]
    assert path.rpartition("/")[2] == named[0]
    asked = stage.provider.requests[1]
    assert (asked.query["stream"], asked.query["api-version"]) == ("true", "1")
    assert asked.headers["authorization"] == "Bearer key"
    events = [record.event for record in await records(stage)]
    assert [len(event.void) for event in events if isinstance(event, RunResumed)] == [1]
    view = RunView.of(await records(stage))
    assert [item.text for item in view.items if isinstance(item, Passage)] == [SAID]
    assert events[-1] == RunEnded("finished")


async def test_one_that_is_gone_is_asked_for_again(stage: Stage) -> None:
    await stage.start(ends_early=True)
    stage.has_expired = True
    assert await stage.start(ends_early=False) == SAID
    assert [method for method, _ in stage.requests] == ["POST", "GET", "POST"]


@pytest.mark.parametrize("fields", [{}, {"background": True, "store": False}])
async def test_one_that_is_not_kept_is_asked_for_again(stage: Stage, fields: dict[str, Any]) -> None:
    stage.fields = fields
    await stage.start(ends_early=True)
    assert await stage.start(ends_early=False) == SAID
    assert [method for method, _ in stage.requests] == ["POST", "POST"]


async def test_a_process_that_ends_while_it_takes_one_up_leaves_it_to_the_next(stage: Stage) -> None:
    await stage.start(ends_early=True)
    stage.provider.hold()
    await stage.start(ends_early=True)
    assert await stage.start(ends_early=False) == SAID
    assert [method for method, _ in stage.requests] == ["POST", "GET", "GET"]
