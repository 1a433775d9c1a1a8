"""The log of one run, as the process that writes it knows it: submitted events are journaled, then applied, in order.

Journal and ledger agree because a run has only one batch under way at a time, and the events of the next one are chosen when
that batch has been applied. So events are applied in the order of their numbers, nothing is applied that the journal has not
acknowledged, and whatever chooses events sees the effect of everything submitted before. Nothing awaits between
``RunLog.submit`` and the acknowledgement, so no cancellation can come in between.

An append that fails may still have been written, if only its acknowledgement was lost. Then the log is doubtful until the
next append succeeds, and the journal has to be asked what it holds.

Submitted events are written whether or not a task waits for them (``wait_for_result``, ``wait_until_done``). Cancelling a
task that waits ends its waiting, at once, and never the write: a store that hangs must not hold a task that its program
wants to end. And an error that the store reports later must not replace the cancellation, because the program would take an
error as a reason to try again.

``_TextMeter`` limits how much a model may write in one run. Text is counted before it is journaled, so text beyond a limit
is neither kept nor shown. A run that exceeds a limit fails.

``Ending`` is how a run ends, and what becomes of the calls that are open then::

    ending       executing     arguments complete      before that
    finished     failed        released                discarded (interrupted)
    failed       failed        discarded (interrupted) discarded (interrupted)
    cancelled    failed        discarded (aborted)     discarded (aborted)
    left         as it is      as it is                discarded (interrupted)

A call whose tool has run anyway, because a framework called it, is released instead of discarded (``handed_over``): its
effects must not be undone.

A call whose tool runs early counts as executing if its arguments are whole, and otherwise as one before that. A call
that awaits an answer is not open.

Every run ends: ``RunCore`` writes the end once, and if the journal does not take it, for whatever reason, the run is left to
``EndRetries``, which tries again until it does. Trying again is safe because ``RunLog.end`` first asks the journal how far
the run has got, and writes nothing to a run that has ended. If the process dies before that, its lease runs out, and the
next sweep ends the run in its stead.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Self, TypeAlias, TypeVar, get_args
from weakref import WeakKeyDictionary

import msgspec

from callstream.calls import AT_REST, Call, CallState, Ledger
from callstream.errors import (
    CallIdTaken,
    CallstreamError,
    JournalError,
    LeaseLost,
    LimitExceeded,
    ThreadBusy,
    UsageError,
    message_of,
)
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallFailed,
    CallReleased,
    CallRunningEarly,
    DiscardReason,
    ReasoningAppended,
    RunEnded,
    RunEvent,
    RunOutcome,
    TextAppended,
)
from callstream.journal import Journal

logger = logging.getLogger("callstream")

_T = TypeVar("_T")

MOMENT = 0.5
"""Seconds that a task which is being cancelled may wait while it cleans up: enough for a healthy store.

Everything that it waits for in one cancellation, from the SDK's stream to the end of the run, shares this time.
"""

_deadlines: WeakKeyDictionary[asyncio.Task[Any], float] = WeakKeyDictionary()


def is_being_cancelled() -> bool:
    """Whether the current task was cancelled and may still be cleaning up."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def wait_for_result(work: asyncio.Future[_T], *, while_: Callable[[], bool] | None = None) -> _T:
    """Waits for the work, and returns its result or raises its error.

    A task that is being cancelled waits for a moment only, and for another one each time that ``while_`` was true at the
    beginning. Unless the work has succeeded by then, it gets CancelledError and never the work's error.
    """
    if not is_being_cancelled():
        return await asyncio.shield(work)
    is_patient = True
    while is_patient:
        is_patient = while_ is not None and while_()
        if is_patient:
            _forget_deadline()
        if await wait_until_done(work):
            break
    if not work.done() or work.cancelled() or work.exception() is not None:
        raise asyncio.CancelledError
    return work.result()


async def wait_until_done(work: asyncio.Future[Any]) -> bool:
    """Waits until the work is done, or for a moment if the current task is being cancelled. Its error is not raised."""
    if work.done():
        _retrieve(work)
        return True
    work.add_done_callback(_retrieve)
    await asyncio.wait({work}, timeout=_time_left())
    return work.done()


async def submitted(submit: Callable[[Callable[[Exception | None], None]], None]) -> None:
    """Calls ``submit`` with a callback, waits until that is called, and raises the error that it was called with."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    submit(partial(_resolve, done))
    await wait_for_result(done)


def _resolve(done: asyncio.Future[None], error: Exception | None) -> None:
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _time_left() -> float | None:
    task = asyncio.current_task()
    if task is None or not is_being_cancelled():
        _forget_deadline()
        return None
    now = asyncio.get_running_loop().time()
    return max(0.0, _deadlines.setdefault(task, now + MOMENT) - now)


def _forget_deadline() -> None:
    task = asyncio.current_task()
    if task is not None:
        _deadlines.pop(task, None)


def _retrieve(work: asyncio.Future[Any]) -> None:
    """Marks the outcome as retrieved, so that asyncio does not report it: the task that stopped waiting does not want it."""
    if not work.cancelled():
        work.exception()


class TextLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of UTF-8; None means no limit. ``max_args_bytes`` is for one call, ``max_run_bytes`` for all text of a run."""

    max_args_bytes: int | None = None
    max_run_bytes: int | None = None

    def tighten(self, other: TextLimits) -> TextLimits:
        """The stricter of the two, limit by limit."""
        return TextLimits(
            max_args_bytes=_stricter(self.max_args_bytes, other.max_args_bytes),
            max_run_bytes=_stricter(self.max_run_bytes, other.max_run_bytes),
        )


_Piece: TypeAlias = ArgsAppended | TextAppended | ReasoningAppended
_PIECES = get_args(_Piece)


class _TextMeter:
    """Counts what a run's model writes: ``add`` before it is journaled, ``take_back`` if it was not."""

    def __init__(self, limits: TextLimits) -> None:
        self.limits = TextLimits()
        self.total = 0
        self._by_call: dict[str, int] = {}
        self.tighten(limits)

    def tighten(self, limits: TextLimits) -> None:
        """Applies these limits as well."""
        self.limits = self.limits.tighten(limits)
        least = _stricter(self.limits.max_args_bytes, self.limits.max_run_bytes)
        self._bound = sys.maxsize if least is None else least  # a run of fewer bytes breaks no limit

    def args_bytes(self, call_id: str) -> int:
        return self._by_call.get(call_id, 0)

    def add(self, events: Sequence[RunEvent]) -> tuple[Sequence[RunEvent], LimitExceeded | None]:
        """Counts the events that fit and returns them, with the limit that the next one would exceed, if there is one."""
        for number, event in enumerate(events):
            if isinstance(event, _PIECES):
                self._count(event, 1)
                if self.total > self._bound and (error := self._excess(event)) is not None:
                    self.take_back([event])
                    return events[:number], error
        return events, None

    def take_back(self, events: Sequence[RunEvent]) -> None:
        """Takes back events that were counted but not kept."""
        for event in events:
            if isinstance(event, _PIECES):
                self._count(event, -1)

    def _count(self, event: _Piece, sign: int) -> None:
        text = event.text
        size = sign * (len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")))
        self.total += size
        if type(event) is ArgsAppended:
            self._by_call[event.call_id] = self._by_call.get(event.call_id, 0) + size

    def _excess(self, event: _Piece) -> LimitExceeded | None:
        most = self.limits.max_args_bytes
        if most is not None and isinstance(event, ArgsAppended) and self._by_call[event.call_id] > most:
            return LimitExceeded(
                f"the model wrote more than {most} bytes of arguments for call {event.call_id!r}", "max_args_bytes"
            )
        most = self.limits.max_run_bytes
        if most is not None and self.total > most:
            return LimitExceeded(f"the model wrote more than {most} bytes in this run", "max_run_bytes")
        return None


def _stricter(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


EndInJournal: TypeAlias = Callable[[], Awaitable[None]]
"""Writes the end of one run. It may be called again."""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0
"""Seconds between two attempts."""


class Ending(msgspec.Struct, frozen=True):
    """``reason`` and ``detail`` are sentences: why the run ends, and the detail of each call that this discards."""

    outcome: RunOutcome
    reason: str | None = None
    discard: DiscardReason | None = None
    """Why no tool may run from now on. None leaves calls whose arguments are complete to the host, which may run them."""
    detail: str | None = None
    error: BaseException | None = None
    handed_over: frozenset[str] = frozenset()
    """The calls whose tools have run, or may have, although no outcome was observed."""

    @classmethod
    def finished(cls) -> Self:
        return cls("finished")

    @classmethod
    def cancelled(cls, reason: str) -> Self:
        return cls("cancelled", reason, "aborted")

    @classmethod
    def left(cls) -> Self:
        """For a run that ends here and goes on in another process."""
        return cls("cancelled", "handed over")

    @classmethod
    def failed(cls, reason: str, detail: str | None = None, error: BaseException | None = None) -> Self:
        return cls("failed", reason, "interrupted", detail, error)

    @classmethod
    def by(cls, error: BaseException | None, detail: str | None = None) -> Self:
        """For a run whose work ended with this exception, or without one."""
        if error is None:
            return cls.finished()
        if isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt):
            return cls.cancelled("cancelled")
        return cls.failed(describe(error), detail, error)

    def after(self, handed_over: frozenset[str]) -> Self:
        """The same, given that the tools of these calls have run."""
        return msgspec.structs.replace(self, handed_over=handed_over)

    def failed_by_hook(self, error: Exception) -> Self:
        """The same for all open calls, since the hook's own call has been discarded already, but the run fails."""
        return msgspec.structs.replace(self, outcome="failed", reason=describe(error), error=error)

    def discards(self, call: Call) -> DiscardReason | None:
        """Why an open call that does not execute yet is discarded; None if its host may still run it."""
        if call.is_being_written:
            return self.discard or "interrupted"
        return None if call.call_id in self.handed_over else self.discard

    def events(self, open_calls: Iterable[Call]) -> list[RunEvent]:
        """The last records of the run."""
        return [*map(self._closing, open_calls), RunEnded(self.outcome, self.reason)]

    def _closing(self, call: Call) -> RunEvent:
        if call.state is CallState.EXECUTING or (call.state is CallState.RUNNING_EARLY and not call.is_being_written):
            return CallFailed(call.call_id, self.discard or "the run ended before the tool did")
        reason = self.discards(call)
        return CallReleased(call.call_id) if reason is None else CallDiscarded(call.call_id, reason, self.detail)


def describe(error: BaseException) -> str:
    """The failure of a run or a call, in one line."""
    text = message_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class _Retry(msgspec.Struct, frozen=True, eq=False):
    end: EndInJournal
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[None]


class EndRetries:
    """Runs that have ended although the journal has not taken their end. Each is retried by a task on its run's loop."""

    def __init__(self) -> None:
        self._retries: set[_Retry] = set()

    def add(self, run_id: str, end: EndInJournal) -> None:
        task = asyncio.create_task(_retry(run_id, end), name=f"callstream end {run_id}")
        retry = _Retry(end, asyncio.get_running_loop(), task)
        self._retries.add(retry)
        task.add_done_callback(lambda _: self._retries.discard(retry))

    async def end_now(self) -> list[CallstreamError]:
        """Tries for the last time to end the runs of this event loop. Returns the errors of those that it could not end."""
        outcomes = await asyncio.gather(*(end() for end in self.give_up()), return_exceptions=True)
        return [outcome for outcome in outcomes if isinstance(outcome, CallstreamError)]

    def give_up(self) -> list[EndInJournal]:
        """Stops retrying for the runs of this event loop, and returns the functions that would end them."""
        loop = asyncio.get_running_loop()
        mine = [retry for retry in self._retries if retry.loop is loop]
        for retry in mine:
            self._retries.discard(retry)
            retry.task.cancel()
        return [retry.end for retry in mine]


async def _retry(run_id: str, end: EndInJournal) -> None:
    pause = _FIRST_PAUSE
    is_logged = False
    while True:
        await asyncio.sleep(pause)
        try:
            await end()
        except (LeaseLost, UsageError) as error:  # another process has the run, or the journal is closed
            logger.warning("the end of run %s is left to the next sweep: %s", run_id, error, extra={"run_id": run_id})
            return
        except JournalError as error:
            pause = min(pause * 2, _LONGEST_PAUSE)
            if not is_logged:
                logger.warning(
                    "could not write the end of run %s, retrying: %s", run_id, error, extra={"run_id": run_id}
                )
            is_logged = True
        else:
            return


_OF_ONE_CALL = frozenset({ArgsAppended, CallCompleted, CallRunningEarly, CallDiscarded})
_NOT_WRITTEN = (LeaseLost, CallIdTaken, ThreadBusy)
"""Errors after which it is certain that the journal has kept nothing of an append."""
EventsThen: TypeAlias = Callable[[], Sequence[RunEvent]]
"""Returns the events to record. It is called when everything that was submitted before has been applied."""
Then: TypeAlias = Callable[[Exception | None], None]
"""Called when a batch has been applied, or with the error; never inside ``submit``. It must not raise."""


class _Batch(msgspec.Struct, eq=False):
    events: Sequence[RunEvent] | EventsThen
    then: Then
    response_id: str | None
    author: str | None
    context: contextvars.Context
    """The batch is applied in this context: hooks and tools that it starts see the submitter's context variables."""


class RunLog:
    """Writes to the journal what happens to the calls in ``ledger``, within the limits.

    When the journal has a batch, ``apply`` is called with it and the number of its first event. ``on_excess`` is called with
    the limit that a batch exceeds.
    """

    def __init__(
        self,
        journal: Journal,
        run_id: str,
        ledger: Ledger,
        limits: TextLimits,
        *,
        apply: Callable[[Sequence[RunEvent], int], None],
        on_excess: Callable[[LimitExceeded], None],
    ) -> None:
        self.text = _TextMeter(limits)
        self.seq = 0
        """The number of the last record that was acknowledged."""
        self.is_doubtful = False
        """Whether the journal may have more of the run than was acknowledged."""
        self.is_lost = False
        """Whether another process has taken the run over."""
        self._journal = journal
        self._run_id = run_id
        self._ledger = ledger
        self._apply = apply
        self._on_excess = on_excess
        self._waiting: list[_Batch] = []
        self._is_writing = False

    def submit(
        self,
        events: Sequence[RunEvent] | EventsThen,
        then: Then,
        *,
        response_id: str | None = None,
        author: str | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        """Has the events journaled, and applied in the context: the caller's, unless another is given.

        Events of a call that was discarded meanwhile are left out. So is everything from the first text beyond a limit on:
        then ``then`` gets the LimitExceeded.
        """
        self._waiting.append(_Batch(events, then, response_id, author, context or contextvars.copy_context()))
        self._write_next()

    def restore(self, events: Sequence[RunEvent], seq: int) -> None:
        """Takes in the events that the journal already has of the run, up to that number."""
        self.text.add(events)
        self.seq = seq

    def _write_next(self) -> None:
        while self._waiting and not self._is_writing:
            batch = self._waiting.pop(0)
            try:
                events = batch.events() if callable(batch.events) else batch.events
            except Exception as error:  # noqa: BLE001  # the submitter's own
                _call_soon(batch.then, error)
                continue
            if self._ledger.any_discarded:
                events = [event for event in events if type(event) not in _OF_ONE_CALL or not self._is_stale(event)]
            fitting, excess = self.text.add(events)
            if fitting:
                self._is_writing = True
                # The first append must not find any record of the run. With ``after`` it could be taken for a repetition
                # of the first append of an earlier run with this id.
                self._journal.submit(
                    self._run_id,
                    fitting,
                    partial(self._acknowledge, batch, fitting, excess),
                    after=self.seq or None,
                    response_id=batch.response_id,
                    author=batch.author,
                )
            else:
                _call_soon(batch.then, excess)
                if excess is not None:
                    self._on_excess(excess)

    def _acknowledge(
        self, batch: _Batch, events: Sequence[RunEvent], excess: LimitExceeded | None, outcome: int | Exception
    ) -> None:
        error: Exception | None = excess
        if isinstance(outcome, int):
            self.seq = outcome
            self.is_doubtful = False
            try:
                batch.context.run(self._apply, events, outcome - len(events) + 1)
            except Exception as raised:  # noqa: BLE001  # the submitter gets it
                error = raised
            if excess is not None:
                batch.context.run(self._on_excess, excess)
        else:
            error = outcome
            self.text.take_back(events)
            self.is_lost |= isinstance(error, LeaseLost)
            self.is_doubtful |= isinstance(error, JournalError) and not isinstance(error, _NOT_WRITTEN)
        self._is_writing = False
        try:
            batch.then(error)
        except Exception:
            logger.exception("a callback raised after a record of run %s", self._run_id)
        if self._waiting:
            self._write_next()

    def _is_stale(self, event: Any) -> bool:
        """Whether the event's call was discarded meanwhile."""
        call = self._ledger.get(event.call_id)
        return call is not None and call.state is CallState.DISCARDED

    async def end(self, ending: Ending) -> None:
        """Ends the run by what the journal has of it, which may be more than was acknowledged. It may be called again."""
        # An empty append comes after any that may still be under way, and returns the number of the run's last record.
        last_seq = await self._journal.append(self._run_id, [])
        rows = await self._journal.runs(run_id=self._run_id, limit=1)
        if rows and rows[0].outcome is None:
            # The journal lists calls of earlier runs, which this run took up, under their own runs.
            adopted = [call.call_id for call in self._ledger if call.run_id != self._run_id]
            taken_up = [await self._journal.call(call_id) for call_id in adopted]
            calls = [*await self._journal.calls(run_id=self._run_id), *(call for call in taken_up if call is not None)]
            open_calls = [call for call in calls if call.state not in AT_REST]
            self.seq = await self._journal.append(self._run_id, ending.events(open_calls), after=last_seq)


def _call_soon(then: Then, error: Exception | None) -> None:
    asyncio.get_running_loop().call_soon(then, error)
