from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from callstream.cli.output import Printer
from callstream.cli.sources import JournalSource
from callstream.cli.watch import follow, next_run
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallReturned,
    CallStarted,
    MessageReceived,
    Record,
    RunEnded,
    RunStarted,
    TextAppended,
)
from callstream.journal import open_journal

from .commands import Ran, command, environment, in_terminal, screen
from .conftest import BROKEN, filled

Run = Callable[..., Ran]


def test_a_run_is_shown_as_lines_where_nobody_can_draw(run: Run, journal_url: str) -> None:
    assert run("watch", "run_1", "--journal", journal_url) == Ran(
        0,
        "run run_1 of thread t1\n"
        "user: Write it down.\n"
        "reasoning: Hm. Yes.\n"
        "model: I will write.\n"
        "write_document #1 (c1)\n"
        "  title: Tides\n"
        "  content: # Tides\n"
        "    The moon pulls.\n"
        "write_document #1 [########......................] 1/4 writing\n"
        "write_document #1 [##############################] 4/4 writing\n"
        'write_document #1 returned {"characters": 23}\n'
        "run run_1 finished\n",
        "",
    )


async def test_who_watches_a_run_that_says_nothing_is_told_what_that_may_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("callstream.cli.watch._QUIET_SECONDS", 0.01)
    async with open_journal("memory:") as journal:
        await journal.append("r1", [RunStarted("t")])
        watching = asyncio.create_task(follow(JournalSource(journal, "here"), "r1", Printer(plain=True)))
        said = ""
        while not said:
            await asyncio.sleep(0.001)
            said = capsys.readouterr().err
        await journal.append("r1", [TextAppended("m", "Hello.")])
        await journal.append("r1", [RunEnded("failed", "interrupted")])
        await watching
    assert said.startswith("run r1 has been silent for")
    assert "callstream sweep" in said
    assert capsys.readouterr().err == ""  # once


async def test_who_waits_for_a_run_is_told_of_the_last_one(capsys: pytest.CaptureFixture[str]) -> None:
    async with open_journal("memory:") as journal:
        await journal.append("r1", [RunStarted("t"), RunEnded("finished")])
        seen: set[str] = set()
        waiting = asyncio.create_task(next_run(JournalSource(journal, "here"), "t", seen, Printer(plain=True)))
        said = ""
        while "callstream watch r1" not in said:
            await asyncio.sleep(0.001)
            said += capsys.readouterr().err
        await journal.append("r2", [RunStarted("t")])
        assert await waiting == "r2"
    assert said.startswith("waiting for a run of thread t to start in here")


def test_calls_that_are_written_at_once_are_told_apart(run: Run, journal_url: str) -> None:
    assert run("watch", "run_2", "--journal", journal_url).out == (
        "run run_2 of thread t2\n"
        "look_up #1 (c2)\n"
        "look_up #2 (c3)\n"
        "look_up #1 …\n"
        "  topic: the m\n"
        "look_up #2 …\n"
        "  topic: the sun\n"
        "look_up #1 …\n"
        "  topic: oon\n"
        "look_up #1 failed: the library is closed\n"
        "approve #3 (c4)\n"
        "approve #3 awaits an answer\n"
        "write_document #4 (c5)\n"
        "  title: Ha\n"
        "write_document #4 discarded: truncated, the answer was cut off\n"
        "look_up #2 discarded: interrupted\n"
        "run run_2 failed: it broke\n"
    )


WHOLE = [
    RunStarted("t"),
    CallStarted("c", "look_up"),
    CallCompleted("c", '{"topic":"tides","pages":[1,2]}'),
    CallStarted("d", "now"),
    CallCompleted("d", "{}"),
    CallStarted("e", "python", encoding="text"),
    CallCompleted("e", '"print(1)"'),
    CallReturned("c", 1),
    CallReturned("d", 2),
    CallReturned("e", 3),
    RunEnded("finished"),
]


def test_arguments_that_came_whole_are_shown(run: Run, tmp_path: Path) -> None:
    url = filled(f"sqlite:///{tmp_path}/whole.db", r=WHOLE)
    assert run("watch", "r", "--journal", url).out == (
        "run r of thread t\n"
        "look_up #1 (c)\n"
        "  topic: tides\n"
        "  pages[0]: 1\n"
        "  pages[1]: 2\n"
        "now #2 (d)\n"
        "python #3 (e)\n"
        "  print(1)\n"
        "look_up #1 returned 1\n"
        "now #2 returned 2\n"
        "python #3 returned 3\n"
        "run r finished\n"
    )
    drawn = screen(in_terminal("watch", "r", "--journal", url).out)
    assert "topic: tides" in drawn
    assert "print(1)" in drawn


def test_arguments_that_are_no_json_are_shown_as_they_came(run: Run, journal_url: str) -> None:
    texts = [ArgsAppended("c7", "{'a': 1"), ArgsAppended("c7", ", 'b'}")]
    free = [CallStarted("c8", "patch", encoding="text"), ArgsAppended("c8", "*** one\n"), ArgsAppended("c8", "+two")]
    filled(journal_url, run_7=[RunStarted("t"), CallStarted("c7", "f"), *texts, *free])
    shown = _shown(journal_url, "run_7", 6)
    assert shown[2:] == ["  {'a': 1, 'b'}", "patch #2 (c8)", "  *** one", "  +two"]


def _shown(url: str, run_id: str, lines: int) -> list[str]:
    """The first lines that watching a run prints that goes on."""
    process = subprocess.Popen(
        command("watch", run_id, "--journal", url), env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    text = ""
    while text.count("\n") < lines - 1 or not text.endswith("+two"):
        piece = process.stdout.read(1)
        assert piece
        text += piece
    process.terminate()
    process.wait(30)
    process.stdout.close()
    return text.split("\n")


def test_json_lines_are_the_records(run: Run, journal_url: str) -> None:
    done = run("watch", "run_2", "--journal", journal_url, "--json")
    records = [msgspec.json.decode(line, type=Record) for line in done.out.splitlines()]
    assert [record.event for record in records] == BROKEN
    assert [record.seq for record in records] == list(range(1, len(BROKEN) + 1))


def test_a_run_that_is_not_there_is_one_sentence(run: Run, journal_url: str) -> None:
    done = run("watch", "run_99", "--journal", journal_url)
    assert (done.code, done.err) == (1, f"callstream watch: run 'run_99' not found in {journal_url}\n")


@pytest.mark.subprocess
async def test_without_a_run_the_next_one_is_watched_while_it_happens(journal_url: str) -> None:
    watching = await asyncio.create_subprocess_exec(
        *command("watch", "--thread", "t9", "--journal", journal_url),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert watching.stdout is not None
    assert watching.stderr is not None

    async def seen(text: bytes) -> None:
        found = b""
        while text not in found:
            piece = await watching.stdout.read(4096)  # type: ignore[union-attr]
            assert piece, found
            found += piece

    async with asyncio.timeout(60), open_journal(journal_url) as journal:
        assert b"waiting for a run of thread t9" in await watching.stderr.readline()
        await journal.append("other", [RunStarted("t8"), TextAppended("m", "not this one")])
        await journal.append("run_9", [RunStarted("t9"), CallStarted("c9", "write"), ArgsAppended("c9", '{"a":"Once ')])
        await seen(b"a: Once ")  # the model is not done, and this is there
        await journal.append("run_9", [ArgsAppended("c9", "upon")])
        await seen(b"upon")
        await journal.append("run_9", [RunEnded("cancelled", "enough")])
        rest = await watching.stdout.read()
        assert rest.endswith(b"run run_9 cancelled: enough\n")
        assert await watching.wait() == 0


@pytest.mark.subprocess
async def test_all_goes_on_with_the_next_run(journal_url: str) -> None:
    watching = await asyncio.create_subprocess_exec(
        *command("watch", "--all", "--json", "--journal", journal_url),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert watching.stdout is not None
    try:
        async with asyncio.timeout(60), open_journal(journal_url) as journal:
            for run_id in ("a", "b"):
                await journal.append(run_id, [RunStarted("t9")])
                found = [json.loads(await watching.stdout.readline())]
                await journal.append(run_id, [RunEnded("finished")])
                found.append(json.loads(await watching.stdout.readline()))
                assert [(each["run_id"], each["seq"]) for each in found] == [(run_id, 1), (run_id, 2)]
            watching.send_signal(2)
            assert await watching.wait() == 130
    finally:
        if watching.returncode is None:
            watching.kill()
            await watching.wait()


@pytest.mark.subprocess
def test_in_a_terminal_the_run_is_drawn_with_cards(journal_url: str) -> None:
    done = in_terminal("watch", "run_1", "--journal", journal_url)
    assert done.code == 0
    drawn = screen(done.out)
    for text in ("> Write it down.", "Hm. Yes.", "I will write.", "✓ write_document  completed", "title: Tides"):
        assert drawn.count(text) == 1, drawn
    assert "      # Tides\n      The moon pulls.\n" in drawn
    assert '    → {"characters": 23}' in drawn
    assert drawn.rstrip().endswith("run finished")
    broken = screen(in_terminal("watch", "run_2", "--journal", journal_url).out)
    for text in ("failed: the library is closed", "awaits an answer", "discarded: truncated: the answer was cut off"):
        assert broken.count(text) == 1, broken
    assert "run failed: it broke" in broken


@pytest.mark.subprocess
async def test_in_a_terminal_arguments_grow(journal_url: str) -> None:
    """What the terminal shows while the model writes, before any end."""
    async with open_journal(journal_url) as journal:
        await journal.append("run_9", [RunStarted("t9"), MessageReceived("user", "Go."), CallStarted("c9", "write")])

        async def write() -> None:
            while (await journal.stats())["live_writers"] < 2:  # until the other process is there  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            for number in range(1, 60):
                await journal.append("run_9", [ArgsAppended("c9", '{"a":"' if number == 1 else f"line {number}\\n")])
                await asyncio.sleep(0.05)
            await journal.append("run_9", [RunEnded("failed", "enough")])

        writing = asyncio.create_task(write())
        done = await asyncio.to_thread(in_terminal, "watch", "run_9", "--journal", journal_url)
        await writing
    frames = done.out.count("args_streaming")
    assert frames > 5
    assert "lines above" in done.out  # the pane shows the end of what grows
    assert "deltas/s" in done.out
    assert screen(done.out).count("write  ") == 1


def test_a_terminal_without_rich_gets_lines(tmp_path: Path, journal_url: str) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError('not here')")
    shadowed = {"PYTHONPATH": f"{tmp_path}:{environment()['PYTHONPATH']}"}
    done = in_terminal("watch", "run_1", "--journal", journal_url, env=shadowed)
    assert (done.code, "write_document #1 (c1)" in done.out, "\x1b[" in done.out) == (0, True, False)
