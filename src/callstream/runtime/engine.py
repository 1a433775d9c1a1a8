"""What the runs of a process share: the journal, the tools with their hooks, settings, ids, and which runs are active.

Runs, the tap and the driver stand on the engine, and ``Callstream`` on them. The engine keeps runs without looking into
them, so that nothing here points up: ``RunT`` is ``Run``.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from callstream.calls import Call, number_id
from callstream.journal import Journal
from callstream.runtime.ending import EndInJournal, Unended
from callstream.runtime.limits import Settings, TextLimits
from callstream.runtime.progress import ProgressHandler
from callstream.runtime.toolbox import Toolbox

logger = logging.getLogger("callstream")

RunT = TypeVar("RunT")
_Observed_contra = TypeVar("_Observed_contra", contravariant=True)


class RunObserver(Protocol[_Observed_contra]):
    """Is notified of runs and calls after the fact, in the run's own loop: for telemetry and logs.

    Pieces of text are left out: a call that gets ten thousand of them changes its state once. What an observer raises is
    logged, and changes nothing. It must not wait. If it has a method ``run_entered(run)``, that is called in the context
    of the run's work when it begins (``async with run``), and what it returns when the work ends there. If it has a method
    ``asked_again(run, wire)``, that is called when the tap asks the model again because none of its calls can run.
    """

    def run_started(self, run: _Observed_contra) -> None: ...

    def call_changed(self, run: _Observed_contra, call: Call) -> None:
        """The call has a new state. ``run`` is the one that recorded it, for an answer not the call's own."""

    def run_ended(self, run: _Observed_contra) -> None:
        """``run.outcome`` and ``run.reason`` say how."""

    def streams_changed(self, change: int) -> None:
        """A server has more streams that are read, or less."""


class Observers(Generic[RunT]):
    """All observers as one."""

    def __init__(self, observers: Iterable[RunObserver[RunT]] = ()) -> None:
        self._observers = tuple(observers)

    def __bool__(self) -> bool:
        return bool(self._observers)

    def add(self, observer: RunObserver[RunT]) -> None:
        self._observers += (observer,)

    def run_started(self, run: RunT) -> None:
        self._notify(lambda observer: observer.run_started(run))

    def run_entered(self, run: RunT) -> Callable[[], None]:
        """Enters the run with the observers that surround it. Returns what leaves it again."""
        leaves: list[Callable[[], None]] = []

        def enter(observer: Any) -> None:
            if hasattr(observer, "run_entered"):
                leaves.append(observer.run_entered(run))

        def leave() -> None:
            for undo in reversed(leaves):
                undo()

        self._notify(enter)
        return leave

    def call_changed(self, run: RunT, call: Call) -> None:
        self._notify(lambda observer: observer.call_changed(run, call))

    def run_ended(self, run: RunT) -> None:
        self._notify(lambda observer: observer.run_ended(run))

    def asked_again(self, run: RunT, wire: str) -> None:
        def notify(observer: Any) -> None:
            if hasattr(observer, "asked_again"):
                observer.asked_again(run, wire)

        self._notify(notify)

    def streams_changed(self, change: int) -> None:
        self._notify(lambda observer: observer.streams_changed(change))

    def _notify(self, notify: Callable[[RunObserver[RunT]], None]) -> None:
        for observer in self._observers:
            try:
                notify(observer)
            except Exception:  # an observer's errors are its own, never a run's
                logger.exception("observer %s failed", type(observer).__name__)


class Engine(Toolbox, Generic[RunT]):
    """``make_observers`` is called when the first observer is needed, so that telemetry can be configured before."""

    def __init__(
        self,
        journal: Journal,
        tools: Iterable[Callable[..., Any]] = (),
        *,
        on_tool_progress: ProgressHandler | None = None,
        settings: Settings | None = None,
        make_observers: Callable[[Settings], Iterable[RunObserver[RunT]]] = lambda settings: (),
    ) -> None:
        super().__init__(tools, on_tool_progress=on_tool_progress, settings=settings)
        self.journal = journal
        self.unended = Unended()
        """Runs whose end the journal did not accept yet."""
        self.has_host = False
        """Whether a host (a framework's plugin) says which requests are those of its agents."""
        self._make_observers = make_observers
        self._observers: Observers[RunT] | None = None
        self._active: dict[str, RunT] = {}
        self._reserved: set[str] = set()

    @property
    def text_limits(self) -> TextLimits:
        """What a run may write, unless it is allowed less."""
        return TextLimits(max_args_bytes=self.settings.max_args_bytes, max_run_bytes=self.settings.max_run_bytes)

    @property
    def observers(self) -> Observers[RunT]:
        """Who is notified when runs and calls change their state."""
        if self._observers is None:
            self._observers = Observers(self._make_observers(self.settings))
        return self._observers

    @observers.setter
    def observers(self, observers: Observers[RunT]) -> None:
        self._observers = observers

    # -- active runs --

    @property
    def active_runs(self) -> list[RunT]:
        """The runs of this process that have not ended."""
        return list(self._active.values())

    def active_run(self, run_id: str) -> RunT | None:
        return self._active.get(run_id)

    def add_run(self, run_id: str, run: RunT) -> None:
        """The run's first record is in the journal."""
        self._active[run_id] = run

    def remove_run(self, run_id: str) -> None:
        """The run has ended."""
        self._active.pop(run_id, None)

    def end_later(self, run_id: str, end: EndInJournal) -> None:
        """Ends a run whose end could not be written, as soon as the journal accepts it: every run ends."""
        self.unended.add(run_id, end)

    # -- ids --

    def new_id(self, kind: str) -> str:
        return f"{kind}_{uuid.uuid4().hex}"

    def new_call_id(self) -> str:
        """The id of a call for which the provider sent none."""
        return self.new_id("call")

    async def free_run_id(self, wanted: str) -> str:
        """The wanted id if no run in the journal has it, else that with a number: a run ends once, and its id with it.

        It is reserved in this process until a run was started with it, or could not be, so nothing may be awaited between
        this and ``Run.start``: what fails there would leave the id reserved, with no run that has it. Some clients
        give every run the same id: from the ninth on it gets a number that need not be looked for.
        """
        for number in range(1, 9):
            run_id = number_id(wanted, number)
            if not await self._is_taken(run_id):
                return run_id
        return f"{wanted}~{uuid.uuid4().hex}"

    def release_run_id(self, run_id: str) -> None:
        """A run was started with the id, or could not be."""
        self._reserved.discard(run_id)

    async def _is_taken(self, run_id: str) -> bool:
        if run_id in self._reserved:
            return True
        self._reserved.add(run_id)  # before waiting: of two that ask at once, one gets it
        try:
            taken = bool(await self.journal.runs(run_id=run_id, limit=1))
        except BaseException:
            self._reserved.discard(run_id)
            raise
        if taken:
            self._reserved.discard(run_id)
        return taken
