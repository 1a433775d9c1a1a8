"""No append is left behind, however event loops and the journal's thread take turns.

The loops, the thread and the clock are played: each choice of who goes next is one of hypothesis's. A wake-up of the thread
may arrive at any time after it was sent, and what the thread does between two uses of the queue's lock is a step of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from callstream.events import RunStarted, TextAppended
from callstream.journal import queue as module
from callstream.journal.queue import ROW_OVERHEAD, AppendQueue, Waiting
from callstream.journal.rows import prepare
from tests.examples import examples

GATHER, PATIENCE = 0.015, 1000.0
PIECE, EVENT = prepare(TextAppended("m", "x")), prepare(RunStarted("t"))
RUNS = ("a", "b", "c")
Step = Callable[[], object]


class Timer(msgspec.Struct, eq=False):
    at: float
    step: Step
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """What the queue uses of an event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ready: deque[Step] = deque()
        self.timers: list[Timer] = []

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.ready.append(partial(callback, *args))

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        timer = Timer(self._clock.now + delay, partial(callback, *args))
        if delay < PATIENCE:  # nobody's patience ends: what would need that is left behind
            self.timers.append(timer)
        return timer

    def is_closed(self) -> bool:
        return False


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class World:
    """``steps`` are what can happen next. The application's are not among them."""

    def __init__(self, max_bytes: int, gather: float) -> None:
        self.clock = Clock()
        self.loops = [Loop(self.clock), Loop(self.clock)]
        self.running: Loop | None = None
        self.queue = AppendQueue(max_bytes, PATIENCE, self._wake, gather=gather)
        self._sent = 0  # wake-ups on their way
        self._has_news = False
        self._thread: Step | None = self._look
        self.asked = 0
        self.outcomes: list[int | Exception] = []
        self.scheduled = 0
        self.done = 0

    # -- the application --

    def submit(self, run_id: str, row: Any) -> None:
        self.asked += 1
        self.queue.submit(run_id, [row], None, self.outcomes.append)

    def schedule(self, run_id: str, appends: int) -> None:
        def work() -> None:
            self.done += 1
            for _ in range(appends):
                self.submit(run_id, PIECE)

        self.scheduled += 1
        self.queue.schedule(run_id, work)

    def get_running_loop(self) -> Loop | None:
        return self.running

    def in_loop(self, loop: Loop, step: Step) -> None:
        self.running = loop
        step()
        self.running = None

    # -- the journal's thread, as GroupCommit.run has it --

    def _wake(self) -> None:
        self._sent += 1

    def _arrive(self) -> None:
        self._sent -= 1
        self._has_news = True
        if self._thread is None:
            self._thread = self._clear

    def _look(self) -> None:
        sleeps = self.queue.may_sleep() and not self._has_news
        self._thread = None if sleeps else self._clear

    def _clear(self) -> None:
        self._has_news = False
        self._thread = self._take

    def _take(self) -> None:
        batch = self.queue.pop()
        self._thread = partial(self._settle, batch) if batch else self._look

    def _settle(self, batch: Sequence[Waiting]) -> None:
        self.queue.acknowledge(batch, [1] * len(batch))
        self._thread = self._look

    # -- what can happen --

    def steps(self) -> Iterator[Step]:
        if self._thread is not None:
            yield self._thread
        if self._sent:
            yield self._arrive
        for loop in self.loops:
            if loop.ready:
                yield partial(self._next_of, loop)
        if any(not timer.is_cancelled for loop in self.loops for timer in loop.timers):
            yield self._let_time_pass

    def _next_of(self, loop: Loop) -> None:
        self.in_loop(loop, loop.ready.popleft())

    def _let_time_pass(self) -> None:
        waiting = [timer for loop in self.loops for timer in loop.timers if not timer.is_cancelled]
        self.clock.now = max(self.clock.now, min(timer.at for timer in waiting))
        for loop in self.loops:
            loop.ready += [t.step for t in loop.timers if not t.is_cancelled and t.at <= self.clock.now]
            loop.timers = [t for t in loop.timers if not t.is_cancelled and t.at > self.clock.now]


def play(world: World, choices: Sequence[int]) -> None:
    acts = [
        *(partial(world.submit, run_id, row) for run_id in RUNS for row in (PIECE, EVENT)),
        *(partial(world.schedule, run_id, appends) for run_id in RUNS for appends in (0, 1, 2)),
    ]
    application = [partial(world.in_loop, loop, act) for loop in world.loops for act in acts]
    for choice in choices:
        # The application and all others have half of the choices each.
        possible = application if choice % 2 else list(world.steps()) or application
        possible[choice // 2 % len(possible)]()
    while possible := list(world.steps()):
        possible[0]()


@examples(300)
@given(st.binary(min_size=100, max_size=600), st.sampled_from([2, 5, 1000]), st.sampled_from([0.0, GATHER]))
def test_whoever_goes_next_everything_is_written_and_everybody_hears_of_it(
    choices: bytes, room: int, gather: float
) -> None:
    world = World(room * (ROW_OVERHEAD + 1), gather)
    with (
        mock.patch.object(module, "time", SimpleNamespace(monotonic=world.clock.monotonic)),
        mock.patch("asyncio.get_running_loop", world.get_running_loop),
        mock.patch.object(module, "RUNS_AT_ONCE", 2),
        mock.patch.object(module, "MAX_BATCH", 3),
    ):
        play(world, choices)
    assert world.outcomes == [1] * world.asked
    assert world.done == world.scheduled
    assert world.queue.pending_bytes == 0
