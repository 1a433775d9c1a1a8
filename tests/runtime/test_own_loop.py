"""The thread behind sync programs, where it is easily left behind: exits, interrupts, forks and crashes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callstream import Callstream, UsageError, open_journal
from callstream.runtime.ownloop import OwnLoop, may_wait_for, run_function, run_in
from callstream.testing import Delay, ScriptedProvider, Text, ToolCall
from tests.captures import ROOT

PROGRAM = """
import asyncio, os, signal, sys, threading
import httpx
from callstream import Callstream, open_journal, tool
from callstream.events import ArgsAppended, CallCompleted, CallStarted

base_url, path = sys.argv[1:3]
cs = Callstream(open_journal(f"sqlite:///{path}", lease_ttl=0.3), tools=[])
client = cs.sync_http_client(base_url=base_url)

def ask():
    with client.stream("POST", "/chat/completions", json={"model": "m", "stream": True, "messages": []}) as response:
        for chunk in response.iter_bytes():
            pass
"""


def start(program: str, provider: ScriptedProvider, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM + textwrap.dedent(program), provider.base_url, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def read(path: Path, *, sweep: bool = False) -> tuple[list[Any], list[Any]]:
    """The outcomes of the runs and the states of the calls in a journal, newest run first."""

    async def look() -> tuple[list[Any], list[Any]]:
        journal = open_journal(f"sqlite:///{path}", housekeeping=None)
        await journal.open()
        try:
            for _ in range(200 if sweep else 0):
                await journal.sweep()
                if all(run.outcome for run in await journal.runs()):
                    break
                await asyncio.sleep(0.02)
            runs = await journal.runs()
            calls = [await journal.call(call.call_id) for call in await journal.calls()]
        finally:
            await journal.aclose()
        return [run.outcome for run in runs], [(call.state, call.reason, call.args_json) for call in calls if call]

    return asyncio.run(look())


WRITE = ToolCall("write", {"title": "x"}, call_id="c1")


@pytest.mark.slow
@pytest.mark.subprocess
def test_a_stream_that_is_left_open_ends_with_the_program_in_silence(tmp_path: Path) -> None:
    """The SDK closes it while Python shuts down."""
    program = """
    import openai
    asked = openai.OpenAI(base_url=base_url, api_key="none", http_client=cs.sync_http_client(), max_retries=0)
    stream = asked.chat.completions.create(model="m", messages=[{"role": "user", "content": "go"}], stream=True)
    next(iter(stream))
    """
    with ScriptedProvider("openai_chat", [Text("one two three", size=2), Delay(30), Text("four")]) as provider:
        assert finish(start(program, provider, tmp_path / "calls.db")) == (0, "")


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize(
    "program",
    [
        "ask()",
        "t = threading.Thread(target=ask); t.start(); t.join()",
        "ask(); sys.exit(0)",
        "import multiprocessing as m; p = m.get_context('fork').Process(target=ask); p.start(); p.join()",
    ],
    ids=["main", "thread", "exit", "child process"],
)
def test_a_program_that_ends_without_closing(program: str, tmp_path: Path) -> None:
    """The call that nobody answered is released, as ``close`` would have done, and the process ends by itself."""
    with ScriptedProvider("openai_chat", [Text("Hello."), WRITE]) as provider:
        assert finish(start(program, provider, tmp_path / "calls.db")) == (0, "")
    assert read(tmp_path / "calls.db") == (["finished"], [("released", None, '{"title":"x"}')])


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("tools", "state"),
    [("", ("released", None)), ("cs.add_tool(tool(name='write')(lambda title: None))\n", ("discarded", "interrupted"))],
    ids=["a tool of the program's own", "a tool that did not run"],
)
def test_a_program_that_fails_without_closing(tools: str, state: tuple[str, str | None], tmp_path: Path) -> None:
    """A tool that Callstream does not know may have run: the program had the call whole. One that it knows has not."""
    with ScriptedProvider("openai_chat", [WRITE]) as provider:
        program = f"{tools}with cs.run('t'): ask(); raise ValueError('odd')"
        code, output = finish(start(program, provider, tmp_path / "calls.db"))
    assert (code, "ValueError: odd" in output) == (1, True)
    assert read(tmp_path / "calls.db") == (["failed"], [(*state, '{"title":"x"}')])


STALLED = [
    Text("Hello."),
    ToolCall("write", {"title": "The moon pulls the sea."}, call_id="c1", stop_after=3),
    Delay(60),
]


def wait_for_call(process: subprocess.Popen[str], provider: ScriptedProvider, path: Path) -> None:
    pause = threading.Event()
    while process.poll() is None and not (path.exists() and provider.requests and read(path)[1]):
        pause.wait(0.02)
    assert process.poll() is None, process.communicate()


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("program", ["with cs.run('t'): ask()", "ask()"], ids=["run", "no run"])
def test_ctrl_c_in_the_middle_of_a_response(program: str, tmp_path: Path) -> None:
    with ScriptedProvider("openai_chat", STALLED) as provider:
        process = start(program, provider, tmp_path / "calls.db")
        wait_for_call(process, provider, tmp_path / "calls.db")
        process.send_signal(signal.SIGINT)
        code, output = finish(process)
    assert (code, output.rstrip().endswith("KeyboardInterrupt")) == (-signal.SIGINT, True), output
    outcomes, ((state, reason, _),) = read(tmp_path / "calls.db")
    assert (state, reason) == ("discarded", "aborted")
    assert outcomes == ["cancelled" if "run" in program else "finished"]


@pytest.mark.slow
@pytest.mark.subprocess
def test_kill_in_the_middle_of_arguments(tmp_path: Path) -> None:
    """What was acknowledged is there; the next process ends the rest."""
    with ScriptedProvider("openai_chat", STALLED) as provider:
        process = start("with cs.run('t'): ask()", provider, tmp_path / "calls.db")
        wait_for_call(process, provider, tmp_path / "calls.db")
        process.kill()
        assert finish(process) == (-signal.SIGKILL, "")
    outcomes, ((state, reason, text),) = read(tmp_path / "calls.db", sweep=True)
    assert (outcomes, state, reason) == (["failed"], "discarded", "interrupted")
    assert '{"title":"The moon pulls the sea."}'.startswith(text or "")


@pytest.mark.slow
@pytest.mark.subprocess
def test_kill_while_a_sync_tool_runs(tmp_path: Path) -> None:
    program = """
    @tool
    def write(title: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    cs.add_tool(write)
    with cs.run('t') as run:
        ask()
        run.run_tools()
    """
    with ScriptedProvider("openai_chat", [WRITE]) as provider:
        assert finish(start(program, provider, tmp_path / "calls.db")) == (-signal.SIGKILL, "")
    assert read(tmp_path / "calls.db", sweep=True) == (["failed"], [("failed", None, '{"title":"x"}')])


@pytest.mark.slow
@pytest.mark.subprocess
def test_fork(tmp_path: Path) -> None:
    """A Callstream that is not used yet works in every child; one whose journal is open says why it cannot."""
    program = """
    def in_child(work):
        pid = os.fork()
        if pid == 0:
            try:
                work()
            except Exception as error:
                print(type(error).__name__, error, flush=True)
            else:
                print("ok", flush=True)
            cs.close()
            os._exit(0)
        os.waitpid(pid, 0)

    in_child(ask)
    with cs.run("t") as run:
        in_child(lambda: run.complete("c1"))
        in_child(ask)
    memory = Callstream()
    with memory.run("t"):
        cs, client = memory, memory.sync_http_client(base_url=base_url)
        in_child(ask)
        with client.stream("POST", "/chat/completions", json={"model": "m", "stream": True, "messages": []}) as response:
            in_child(response.close)
    print("closed", flush=True)
    """
    with ScriptedProvider("openai_chat", [Text("Hello.")]) as provider:
        code, output = finish(start(program, provider, tmp_path / "calls.db"))
    assert code == 0, output
    first, run, used, memory, response, closed = output.splitlines()
    assert first == "ok"
    assert "forked from" in run
    assert used.startswith("UsageError this journal was opened before the process was forked")
    assert (memory, response, closed) == ("ok", "ok", "closed")


# -- the loop itself ---------------------------------------------------------------------------------------------------


async def nothing() -> None: ...


@pytest.fixture
def own() -> Any:
    own = OwnLoop(nothing)
    yield own
    own.end()


def test_the_thread_begins_with_the_first_use_and_ends(own: OwnLoop) -> None:
    assert own.thread is None
    assert own.run(lambda: asyncio.sleep(0, "done")) == "done"
    assert own.thread is not None
    assert not own.thread.daemon
    own.end()
    own.end()
    assert not own.thread.is_alive()
    with pytest.raises(UsageError, match="closed"):
        own.run(nothing)


def test_what_is_under_way_when_the_loop_ends(own: OwnLoop) -> None:
    began = threading.Event()

    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    ender = threading.Thread(target=lambda: began.wait(10) and own.end())
    ender.start()
    with pytest.raises(UsageError, match="while this call was under way"):
        own.run(hang)
    ender.join()


def test_functions_run_in_the_waiting_thread_while_it_waits(own: OwnLoop) -> None:
    name: Callable[[], str] = lambda: threading.current_thread().name  # noqa: E731
    left: list[asyncio.Task[str]] = []

    async def ask_later(after: asyncio.Event) -> str:
        await after.wait()
        return await run_function(name)

    async def work() -> tuple[str, asyncio.Event]:
        gate = asyncio.Event()
        left.append(asyncio.create_task(ask_later(gate)))
        return await run_function(name), gate

    here, gate = own.run(work)
    assert here == threading.current_thread().name

    async def open_gate() -> str:
        gate.set()
        return await left[0]

    assert own.run(open_gate).startswith("asyncio_")  # nobody waits for that task


def test_an_error_of_the_work_rises_with_its_traceback(own: OwnLoop) -> None:
    async def fail() -> None:
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost") as raised:
        own.run(fail)
    assert "fail" in [entry.name for entry in raised.traceback]
    with pytest.raises(TypeError):
        own.run(lambda: 1)  # type: ignore[arg-type, return-value]


async def test_whether_a_loop_can_be_waited_for(own: OwnLoop) -> None:
    here = asyncio.get_running_loop()
    assert not may_wait_for(here)
    assert await asyncio.to_thread(may_wait_for, here)
    assert may_wait_for(own.begin())
    with pytest.raises(UsageError, match="may block"):
        run_in(here, nothing)
    loop = own.begin()
    own.end()
    assert not may_wait_for(loop)
    with pytest.raises(UsageError, match="is closed"):
        run_in(loop, nothing)


def test_a_loop_that_is_closed_without_a_word_is_not_waited_for() -> None:
    loop = asyncio.new_event_loop()  # it never runs
    threading.Timer(0.05, loop.close).start()
    with pytest.raises(UsageError, match="was closed"):
        run_in(loop, nothing)


async def test_closing_on_another_loop_ends_the_runs_of_sync_programs() -> None:
    cs = Callstream()
    run = await asyncio.to_thread(cs.run("t").__enter__)
    await cs.aclose()
    assert (run.outcome, run.reason) == ("cancelled", "closed")
    assert "callstream-loop" not in [thread.name for thread in threading.enumerate()]
