"""A run for programs that have no event loop, or block the one they have: what is awaited of a Run blocks here."""

from __future__ import annotations

import os
from functools import partial
from types import TracebackType
from typing import Any, Literal, TypeVar

from callstream.calls import Call, Refusal, ToolResult
from callstream.errors import UsageError
from callstream.events import Question, RunOutcome
from callstream.runtime.ownloop import Work, run_in
from callstream.runtime.run import Run
from callstream.tools import Progress

_T = TypeVar("_T")


class SyncRun:
    """``with cs.run("thread-1") as run`` gives one. ``SyncRun(run)`` is one for any ``Run``, such as ``current_run()``.

    It may be used in any thread but the one that runs the event loop of the run. Async hooks and tools run on that loop,
    sync hooks in threads of their own, and a sync tool in the thread that has called ``invoke`` or ``run_tools``. The
    methods are those of ``Run``, which says more of each.
    """

    def __init__(self, run: Run) -> None:
        if not isinstance(run, Run):
            raise UsageError(f"expected a run, got {run!r:.100}; current_run() gives None outside of one")
        self.run = run
        """The run itself, for code on its event loop."""

    # -- what is known --

    @property
    def thread_id(self) -> str:
        return self.run.thread_id

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def principal(self) -> str | None:
        return self.run.principal

    @property
    def outcome(self) -> RunOutcome | None:
        """How the run ended; None while it is running."""
        return self.run.outcome

    @property
    def reason(self) -> str | None:
        """Why the run failed or was cancelled."""
        return self.run.reason

    @property
    def error(self) -> BaseException | None:
        """The exception that failed the run, if it was one."""
        return self.run.error

    @property
    def seq(self) -> int:
        """The number of the last record of the run."""
        return self.run.seq

    @property
    def calls(self) -> list[Call]:
        """The run's calls, in the order in which they started."""
        return self.run.calls

    def call(self, call_id: str) -> Call:
        return self.run.call(call_id)

    def refusals(self) -> list[Refusal]:
        """The calls whose tools will not run, each with a sentence for the model, in the order of the calls."""
        return self.run.refusals()

    # -- tools --

    def settled(self, call_id: str) -> Call:
        """The call after all its hooks are done."""
        return self._wait(partial(self.run.settled, call_id))

    def execute(self, call_id: str, *, is_safe: bool = False) -> Call:
        """The barrier before a tool: waits for the call's hooks, records that it executes, returns it with arguments."""
        return self._wait(partial(self.run.execute, call_id, is_safe=is_safe))

    def complete(self, call_id: str, result: Any = None) -> None:
        """The tool has returned."""
        self._wait(partial(self.run.complete, call_id, result))

    def fail(self, call_id: str, error: str | BaseException) -> None:
        """The tool has failed."""
        self._wait(partial(self.run.fail, call_id, error))

    def invoke(self, call_id: str) -> Any:
        """Runs the tool of this call, from barrier to result, and returns the result. A sync tool runs in this thread."""
        return self._wait(partial(self.run.invoke, call_id))

    def run_tools(self) -> list[ToolResult]:
        """Runs the tool of every call whose arguments are complete, and returns what to tell the model, call by call."""
        return self._wait(self.run.run_tools)

    def await_answer(self, call_id: str, question: Question | None = None, *, is_paused: bool = False) -> Call:
        """A client or a person has to answer this call: it outlives the run until ``answer`` finds it."""
        return self._wait(partial(self.run.await_answer, call_id, question, is_paused=is_paused))

    def answer(
        self, call_id: str | Call, result: Any = None, *, error: str | None = None, message_id: str | None = None
    ) -> bool:
        """The answer to a call of this thread that awaits one. False if it has its answer already."""
        return self._wait(partial(self.run.answer, call_id, result, error=error, message_id=message_id))

    def resume(self, call_id: str) -> Call | None:
        """Takes in a call of this thread that awaits an answer, so that it can execute."""
        return self._wait(partial(self.run.resume, call_id))

    def progress(self, call_id: str, data: Any) -> None:
        """What an executing call tells its interface; the model never sees it."""
        self._wait(partial(self.run.progress, call_id, data))

    def progress_of(self, call_id: str) -> Progress:
        """The ``Progress`` to hand to the tool of an executing call."""

        async def open_progress() -> Progress:
            return self.run.progress_of(call_id)

        return self._wait(open_progress)

    # -- the end --

    def finish(self) -> None:
        """Ends the run as finished, after all hooks have settled. Raises the error of a hook that failed the run."""
        self._wait(self.run.finish)

    def stop(self, reason: str = "stopped") -> None:
        """Ends the run as cancelled: hooks are aborted, open calls discarded, upstream streams closed."""
        self._wait(partial(self.run.stop, reason))

    def __enter__(self) -> SyncRun:
        self.run.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        self.run.leave()
        if self.run.outcome is not None and self.run.loop.is_closed():
            return False  # closing the Callstream has ended it
        if error is None:
            self.finish()
        else:
            self._wait(partial(self.run.end, error))
        return False

    def _wait(self, work: Work[_T]) -> _T:
        if self.run.process != os.getpid():
            raise UsageError(f"run {self.run_id!r} belongs to the process that this one was forked from")
        return run_in(self.run.loop, work)
