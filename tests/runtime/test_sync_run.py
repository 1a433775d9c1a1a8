"""``with cs.run()``: what is awaited of a Run blocks in a SyncRun, and means the same."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from callstream import (
    CallRejected,
    CallState,
    Callstream,
    Progress,
    Reject,
    Run,
    SyncRun,
    UsageError,
    current_run,
    no_progress,
    tool,
)
from callstream.errors import RunOver
from callstream.events import ArgsAppended, CallCompleted, CallStarted, Question, RunEvent
from callstream.runtime.ownloop import run_in

ARGS = '{"title":"Notes"}'


@tool
def write(title: str, progress: Progress = no_progress) -> str:
    progress(1, 2, "half")
    progress({"page": 1})
    return f"{title} by {threading.current_thread().name}"


@tool
async def publish(title: str) -> str:
    await asyncio.sleep(0)
    return f"{title} by {threading.current_thread().name}"


@tool
def count(upto: int) -> Iterator[int]:
    yield from range(upto)


@tool
def fail(title: str) -> None:
    raise LookupError(title)


@pytest.fixture
def cs() -> Iterator[Callstream]:
    with Callstream(tools=[write, publish, count, fail]) as callstream:
        yield callstream


def call(run: SyncRun, name: str, args: str = ARGS, call_id: str = "c1") -> str:
    """The model has called a tool."""
    events: list[RunEvent] = [CallStarted(call_id, name), ArgsAppended(call_id, args), CallCompleted(call_id, args)]
    run_in(run.run.loop, partial(run.run.record, events))
    return call_id


def test_a_sync_run_has_what_a_run_has() -> None:
    """All that a program calls; the rest is for hosts, on the run's loop: ``SyncRun.run`` has it."""
    for name in ("settled", "execute", "complete", "fail", "invoke", "run_tools", "await_answer", "answer", "resume"):
        assert inspect.signature(getattr(SyncRun, name)) == inspect.signature(getattr(Run, name)), name
        assert not inspect.iscoroutinefunction(getattr(SyncRun, name))
    for name in ("progress", "progress_of", "finish", "stop", "hand_over", "call", "refusals"):
        assert inspect.signature(getattr(SyncRun, name)) == inspect.signature(getattr(Run, name)), name


def test_a_sync_tool_runs_in_the_calling_thread_and_an_async_one_on_the_loop(cs: Callstream) -> None:
    with cs.run("t") as run:
        assert run.invoke(call(run, "write")) == f"Notes by {threading.current_thread().name}"
        assert run.invoke(call(run, "publish", call_id="c2")) == "Notes by callstream-loop"
        assert run.invoke(call(run, "count", '{"upto":3}', call_id="c3")) == [0, 1, 2]
    assert [each.state for each in run.calls] == [CallState.COMPLETED] * 3
    assert (run.outcome, run.thread_id, run.principal, run.reason, run.error) == ("finished", "t", None, None, None)


def test_a_sync_tool_sees_the_context_and_the_run_of_its_caller(cs: Callstream) -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")
    seen: list[Any] = []

    @tool
    def look() -> None:
        seen.append((user.get(), current_run()))

    cs.add_tool(look)
    user.set("ann")
    with cs.run("t") as run:
        run.invoke(call(run, "look", "{}"))
    assert seen == [("ann", run.run)]


def test_a_tool_may_use_the_run_itself(cs: Callstream) -> None:
    @tool
    def delegate() -> str:
        inner = current_run()
        assert inner is not None
        return str(SyncRun(inner).invoke("c2"))

    cs.add_tool(delegate)
    with cs.run("t") as run:
        call(run, "write", call_id="c2")
        assert run.invoke(call(run, "delegate", "{}")) == f"Notes by {threading.current_thread().name}"


def test_progress_is_told_and_recorded(cs: Callstream) -> None:
    told: list[Any] = []
    cs.on_tool_progress = lambda name, call_id, data: told.append((name, call_id, data))
    with cs.run("t") as run:
        run.invoke(call(run, "write"))
        run.execute(call(run, "write", call_id="c2"))
        run.progress("c2", {"page": 2})
        run.progress_of("c2")(3, 4)
        run.complete("c2", "done")
    assert told == [
        ("write", "c1", {"done": 1, "total": 2, "message": "half"}),
        ("write", "c1", {"page": 1}),
        ("write", "c2", {"page": 2}),
        ("write", "c2", {"done": 3, "total": 4, "message": None}),
    ]


def test_what_a_tool_raises_rises_and_is_recorded(cs: Callstream) -> None:
    with cs.run("t") as run:
        with pytest.raises(LookupError, match="Notes"):
            run.invoke(call(run, "fail"))
        run.execute(call(run, "write", call_id="c2"))
        run.fail("c2", "no ink")
        (first, second) = run.run_tools() or run.calls
    assert (first.error, second.error) == ("LookupError: Notes", "no ink")


def test_a_cancellation_that_a_tool_raises_is_not_taken_for_the_end_of_the_callstream(cs: Callstream) -> None:
    async def wait() -> None:
        waiting = asyncio.get_running_loop().create_future()
        waiting.cancel()
        await waiting

    cs.add_tool(wait)
    with cs.run("t") as run:
        with pytest.raises(asyncio.CancelledError):
            run.invoke(call(run, "wait", "{}"))
        assert run.call("c1").state is CallState.FAILED
    assert run.outcome == "finished"


def test_a_rejected_call_does_not_run(cs: Callstream) -> None:
    def refuse(call: Any, signal: Any) -> None:
        raise Reject("not today")

    cs.on_args_complete("write", refuse)
    with cs.run("t") as run:
        with pytest.raises(CallRejected, match="not today"):
            run.invoke(call(run, "write"))
        assert run.settled("c1").state is CallState.DISCARDED
        assert [(refusal.wire_id, refusal.text) for refusal in run.refusals()] == [("c1", "not today")]
        assert [(result.text, result.is_error) for result in run.run_tools()] == [("not today", True)]


def test_approval_across_runs(cs: Callstream) -> None:
    with cs.run("t") as run:
        run.await_answer(call(run, "write"), Question("May I?"))
        run.await_answer(call(run, "publish", call_id="c2"))
    assert [each.state for each in run.calls] == [CallState.AWAITING] * 2
    with cs.run("t") as later:
        resumed = later.resume("c1")
        assert resumed is not None
        assert later.invoke(resumed.call_id) == f"Notes by {threading.current_thread().name}"
        assert later.answer("c2", error="the user said no")
        assert not later.answer("c2", "yes")
    assert {each.call_id: each.state for each in asyncio.run(cs.journal.calls())} == {"c1": "completed", "c2": "failed"}


@pytest.mark.parametrize(
    ("raised", "outcome", "reason"),
    [(ValueError("odd"), "failed", "ValueError: odd"), (KeyboardInterrupt(), "cancelled", "cancelled")],
)
def test_leaving_with_an_exception(cs: Callstream, raised: BaseException, outcome: str, reason: str) -> None:
    with pytest.raises(type(raised)), cs.run("t") as run:
        raise raised
    assert (run.outcome, run.reason) == (outcome, reason)
    with pytest.raises(RunOver):
        run.complete("c1")


def test_a_tool_that_is_interrupted_fails_its_call(cs: Callstream) -> None:
    @tool
    def interrupt() -> None:
        raise KeyboardInterrupt

    cs.add_tool(interrupt)
    with pytest.raises(KeyboardInterrupt), cs.run("t") as run:
        run.invoke(call(run, "interrupt", "{}"))
    assert [each.state for each in run.calls] == [CallState.FAILED]
    assert run.outcome == "cancelled"


def test_stopping_in_another_thread_while_a_tool_runs(cs: Callstream) -> None:
    @tool
    def work() -> str:
        stopper = threading.Thread(target=run.stop, args=("enough",))
        stopper.start()
        stopper.join()
        return "too late"

    cs.add_tool(work)
    with pytest.raises(RunOver), cs.run("t") as run:
        run.invoke(call(run, "work", "{}"))
    assert (run.outcome, run.reason) == ("cancelled", "enough")
    assert [each.state for each in run.calls] == [CallState.FAILED]


def test_the_error_of_a_hook_that_fails_the_run_rises_when_it_is_left() -> None:
    @tool(on_hook_error="fail_run")
    def strict(title: str) -> None: ...

    @strict.on_args_complete
    def check(call: Any, signal: Any) -> None:
        raise ValueError("wrong title")

    with Callstream(tools=[strict]) as cs, pytest.raises(ValueError, match="wrong title"), cs.run("t") as run:
        call(run, "strict")
    assert run.outcome == "failed"


def test_the_own_loop_must_not_be_blocked(cs: Callstream) -> None:
    @tool
    async def block() -> None:
        run.complete("c1")

    cs.add_tool(block)
    with cs.run("t") as run, pytest.raises(UsageError, match="plain function"):
        run.invoke(call(run, "block", "{}"))


async def test_a_run_of_another_loop_in_blocking_form() -> None:
    """A sync tool of an async program, which runs in a thread, may use its run."""

    @tool
    def stop() -> None:
        run = current_run()
        assert run is not None
        SyncRun(run).stop("by the tool")

    async with Callstream(tools=[stop]) as cs:
        async with cs.run("t") as run:
            await run.record([CallStarted("c1", "stop"), CallCompleted("c1", "{}")])
            with pytest.raises(RunOver):
                await run.invoke("c1")
        assert run.reason == "by the tool"
        with pytest.raises(UsageError, match="a thread that may block"):
            SyncRun(run).stop()


async def test_inside_a_running_loop(cs: Callstream) -> None:
    with cs.run("t") as run:
        assert run.invoke(call(run, "publish")) == "Notes by callstream-loop"
    assert run.outcome == "finished"


def test_after_closing() -> None:
    with Callstream(tools=[write]) as other, other.run("t") as run:
        call(run, "write")
        other.close()
        other.close()
        assert (run.outcome, run.reason) == ("cancelled", "closed")
        assert [each.reason for each in run.calls] == ["aborted"]
        with pytest.raises(UsageError, match="closed"):
            other.run("t").__enter__()
        with pytest.raises(UsageError, match="closed"):
            run.invoke("c1")
