"""Clients that fold events in other ways join as well: TanStack AI, and the official client before 1.0."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callstream.agui import Conversation, encode_sse, for_older_client
from callstream.events import CallCompleted
from tests import npm
from tests.agui.judge import NodeProgram
from tests.agui.scenes import SCENES, Scene, events_of, kill_last, play

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent / "others"
NAMES = (
    "one_call",
    "reasoning_then_text",
    "reasoning_between_calls",
    "text_between_calls",
    "parallel_calls",
    "parallel_agents",
    "progress",
)


def install_others() -> None:
    try:
        npm.install(FOLDER)
    except npm.Unavailable as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have the clients: {reason}")
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def others() -> Iterator[NodeProgram]:
    install_others()
    with NodeProgram("fold.mjs", FOLDER) as program:
        yield program


def joined(scene: Scene, seen: int) -> str:
    """What a client gets that joins the scene's only run after so many of its records."""
    records = scene.runs[0].records
    conversation = Conversation.of(records[:seen], scene.view)
    events = [conversation.prelude(), *(conversation.feed(record) for record in records[seen:])]
    return encode_sse(for_older_client(event for each in events for event in each)).decode()


def told(scene: Scene, seen: int) -> str:
    """What a client has read that saw the run's first records from its beginning."""
    groups = events_of(scene.runs[0].records[:seen], scene.view)
    return encode_sse(for_older_client(event for events in groups for event in events)).decode()


@pytest.mark.parametrize("client", ["tanstack", "ag-ui"])
@pytest.mark.parametrize("name", NAMES)
def test_join_after_every_record_by_other_clients(others: NodeProgram, name: str, client: str) -> None:
    scene = play(*SCENES[name])
    count = len(scene.runs[0].records)

    def fold(*bodies: str) -> Any:
        state = others.ask({"client": client, "bodies": bodies})
        del state["handled"]
        return state

    whole = fold(told(scene, count))
    for seen in range(1, count + 1):
        assert fold(joined(scene, seen)) == whole, seen
        if seen % 2 == 0:  # the connection breaks, and the same client comes back
            kept = fold(told(scene, seen), joined(scene, min(seen + 5, count)))
            assert kept == whole, seen


@pytest.mark.parametrize("client", ["tanstack", "ag-ui"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_void_is_gone_from_other_clients(others: NodeProgram, name: str, client: str) -> None:
    """Whatever record the run's process died after: for one that watched, one that joins, and one that comes back."""
    scene = play(*SCENES[name])

    def fold(*bodies: str) -> Any:
        state = others.ask({"client": client, "bodies": bodies})
        assert {call_id for call_id in state.pop("handled") if "-void-" in call_id} <= whole_calls
        return state

    for cut in range(1, len(scene.runs[0].records)):
        killed, valid = kill_last(scene, cut)
        events = [record.event for record in killed.runs[0].records]
        whole_calls = {event.call_id for event in events if isinstance(event, CallCompleted)}
        count = len(events)
        whole = fold(told(valid, count))
        assert fold(told(killed, count)) == whole, cut
        assert fold(joined(killed, cut)) == whole, cut
        assert fold(joined(killed, cut + 1)) == whole, cut
        kept = fold(told(killed, cut), joined(killed, min(cut + 5, count)))
        if client == "ag-ui":  # it keeps reasoning until it is sent other
            assert {**kept, "reasoning": ""} == {**whole, "reasoning": ""}, cut
        else:
            assert kept == whole, cut
