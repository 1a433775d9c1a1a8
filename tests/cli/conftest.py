from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from callstream.cli import main
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallProgressed,
    CallReturned,
    CallStarted,
    MessageEnded,
    MessageReceived,
    MessageStarted,
    ReasoningAppended,
    RunEnded,
    RunEvent,
    RunStarted,
    TextAppended,
)
from callstream.journal import open_journal

from .commands import Ran

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            # google-adk warns of features of its own that it uses itself.
            item.add_marker(pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]"))


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("CALLSTREAM_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """The command in this process."""

    def call(*arguments: str) -> Ran:
        code = main(arguments)
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return call


WRITING: list[RunEvent] = [
    RunStarted("t1", "ada"),
    MessageReceived("user", "Write it down."),
    MessageStarted("m1"),
    ReasoningAppended("m1", "Hm. "),
    ReasoningAppended("m1", "Yes."),
    TextAppended("m1", "I will "),
    TextAppended("m1", "write."),
    CallStarted("c1", "write_document", provider_id="toolu_1", message_id="m1"),
    ArgsAppended("c1", '{"title":"Ti'),
    ArgsAppended("c1", 'des","content":"# Tides\\nThe moon'),
    ArgsAppended("c1", ' pulls."}'),
    CallCompleted("c1"),
    MessageEnded("m1"),
    CallExecuting("c1"),
    CallProgressed("c1", {"done": 1, "total": 4, "message": "writing"}),
    CallProgressed("c1", {"done": 4, "total": 4, "message": "writing"}),
    CallReturned("c1", {"characters": 23}),
    RunEnded("finished"),
]
BROKEN: list[RunEvent] = [
    RunStarted("t2", "bob"),
    CallStarted("c2", "look_up", message_id="m2"),
    CallStarted("c3", "look_up", message_id="m2"),
    ArgsAppended("c2", '{"topic":"the m'),
    ArgsAppended("c3", '{"topic":"the sun"}'),
    ArgsAppended("c2", 'oon"}'),
    CallCompleted("c2"),
    CallCompleted("c3"),
    CallExecuting("c2"),
    CallFailed("c2", "the library is closed"),
    CallStarted("c4", "approve"),
    CallCompleted("c4"),
    CallAwaiting("c4"),
    CallStarted("c5", "write_document"),
    ArgsAppended("c5", '{"title":"Ha'),
    CallDiscarded("c5", "truncated", "the answer was cut off"),
    CallDiscarded("c3", "interrupted"),
    RunEnded("failed", "it broke"),
]


def filled(url: str, **runs: list[RunEvent]) -> str:
    """A journal with these runs in it."""

    async def fill() -> None:
        async with open_journal(url, housekeeping=None) as journal:
            for run_id, events in runs.items():
                await journal.append(run_id, events)

    asyncio.run(fill())
    return url


@pytest.fixture
def journal_url(tmp_path: Path) -> str:
    """A SQLite journal with two ended runs."""
    return filled(f"sqlite:///{tmp_path}/calls.db", run_1=WRITING, run_2=BROKEN)
