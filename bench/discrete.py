"""A discrete-event model of processes that write streams into a log, and of the log's servers. It measures nothing.

A **process** has one core, which does one thing after the other: it reads a delta, works on what has gathered, commits, and
shows what is committed. When it does which is what ``callstream.journal.queue`` does: a batch gathers for 15 ms, for up
to 40 where the core is busy, at most 100 runs are worked on in one step, and a run whose delta is being written is worked
on again when that is done. A **log** answers a batch after some time; what that time is comes from a model of its
servers (``answers_of_database``, ``answers_of_group``), which get the batches of all their processes.

Times are seconds. What a step costs is given as ``Costs``; everything is deterministic but what ``seed`` decides.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, TypeAlias

from callstream.journal.housekeeping import JournalSettings
from callstream.journal.queue import LONGEST_GATHER, RUNS_AT_ONCE

GATHER = JournalSettings().gather_seconds
TIMER_SECONDS = 0.001
GOLDEN_RATIO = 0.618033988749895

Then: TypeAlias = Callable[[], None]


class Clock:
    """Calls what is due, in the order of time; nothing can be set for a time that has passed."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Then]] = []
        self._numbers = count()

    def at(self, when: float, then: Then) -> None:
        if when < self.now:
            raise ValueError(f"{when} has passed at {self.now}")
        heapq.heappush(self._due, (when, next(self._numbers), then))

    def after(self, seconds: float, then: Then) -> None:
        self.at(self.now + seconds, then)

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, then = heapq.heappop(self._due)
            then()
        self.now = max(self.now, until)


class Station:
    """Does what comes in the order in which it came, so many at once. ``busy``: seconds of work done or begun."""

    def __init__(self, clock: Clock, servers: int = 1) -> None:
        self._clock = clock
        self._free = servers
        self._queue: deque[tuple[float, Then]] = deque()
        self.busy = 0.0

    def do(self, seconds: float, then: Then) -> None:
        if self._free:
            self._begin(seconds, then)
        else:
            self._queue.append((seconds, then))

    def _begin(self, seconds: float, then: Then) -> None:
        self._free -= 1
        self.busy += seconds

        def end() -> None:
            self._free += 1
            then()
            if self._free and self._queue:
                self._begin(*self._queue.popleft())

        self._clock.after(seconds, end)


class Costs(NamedTuple):
    """Seconds of a process's core. ``batch`` is for waking the thread and being woken; ``commit``: in that thread.

    ``further``: which part of working, writing and showing a delta costs that comes together with another of its stream.
    """

    read: float
    work: float
    show: float
    batch: float
    commit: float
    commit_batch: float
    further: float = 1.0

    def steps(self, deltas: int) -> float:
        """What so many deltas of one stream are, that come together, in deltas that come alone."""
        return 1 + self.further * (deltas - 1) if deltas else 0.0

    @property
    def delta(self) -> float:
        """One that comes alone."""
        return self.read + self.work + self.show + self.commit


class Happening(NamedTuple):
    """What goes wrong at ``at``. ``standstill``: the log answers nothing for so long. ``joining`` streams come to this
    process ``later`` seconds after that, each with ``start`` seconds of work.
    """

    at: float
    standstill: float = 0.0
    joining: int = 0
    later: float = 0.0
    start: float = 0.0


class Shown(NamedTuple):
    """A delta that a client has got: when the model wrote it, and how long it took."""

    at: float
    seconds: float


@dataclass
class Process:
    """One process with ``streams`` streams at ``pace``. ``answers``: how long the log takes for a batch, in turn."""

    clock: Clock
    costs: Costs
    streams: int
    pace: float
    answers: Sequence[float] = (0.0,)
    happening: Happening | None = None
    shown: list[Shown] = field(default_factory=list)
    batches: list[tuple[float, int]] = field(default_factory=list)
    written: int = 0
    most_waiting: int = 0

    def __post_init__(self) -> None:
        self.core = Station(self.clock)
        self._answer = 0
        self._unread: dict[int, list[float]] = {}
        self._due_runs: set[int] = set()
        self._recording: dict[int, list[float]] = {}
        self._works: list[int] = []
        self._due = 0
        self._working = 0
        self._is_timed = self._is_paused = self._is_committing = False
        self._waiting: list[int] = []
        self._expected: set[int] = set()
        self._ready_at = self._spent = 0.0
        for number in range(self.streams):
            self.clock.after(number * GOLDEN_RATIO % 1 / self.pace, lambda number=number: self._write(number))  # type: ignore[misc]
        if self.happening is not None and self.happening.joining:
            self.clock.at(self.happening.at + self.happening.later, self._join)

    @property
    def waiting(self) -> int:
        """Deltas that were written and are not shown yet."""
        return self.written - len(self.shown)

    def _join(self) -> None:
        assert self.happening is not None
        for number in range(self.streams, self.streams + self.happening.joining):
            self.core.do(self.happening.start, lambda number=number: self._write(number))  # type: ignore[misc]

    def _write(self, number: int) -> None:
        """The model of that stream writes a delta, and the next one later."""
        at = self.clock.now
        self.written += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        self.clock.after(1 / self.pace, lambda: self._write(number))
        self.core.do(self.costs.read, lambda: self._hold(number, at))

    def _hold(self, number: int, at: float) -> None:
        self._unread.setdefault(number, []).append(at)
        if number not in self._due_runs and number not in self._recording:
            self._schedule(number)

    def _schedule(self, number: int) -> None:
        self._due_runs.add(number)
        self._expected.discard(number)
        self._works.append(number)
        if self._due:
            return
        if self._expected:
            self._set_timer()
            return
        self._due = len(self._works)
        self._do_works()

    def _do_works(self) -> None:
        now, self._works = self._works[:RUNS_AT_ONCE], self._works[RUNS_AT_ONCE:]
        self._working += 1
        seconds = self.costs.work * sum(self.costs.steps(len(self._unread.get(number, ()))) for number in now)

        def end() -> None:
            self._spent += seconds
            for number in now:
                self._submit(number)
            self._working -= 1
            self._due = max(0, self._due - len(now))
            if len(self._works) >= RUNS_AT_ONCE:
                self._due = len(self._works)
            if not self._due:
                if self._works:
                    self._set_timer()
            elif self._waiting or self._is_committing:
                self._is_paused = True
            else:
                self._do_works()
            self._wake_for_waiting()

        self.core.do(seconds, end)

    def _submit(self, number: int) -> None:
        self._due_runs.discard(number)
        self._recording[number] = self._unread.pop(number, [])
        self._waiting.append(number)
        self._expected.discard(number)

    def _set_timer(self) -> None:
        if not self._is_timed:
            self._is_timed = True
            self.clock.after(max(0.0, self._ready_at - self.clock.now), self._look)

    def _look(self) -> None:
        self._is_timed = False
        if self._expected and self._ready_at - self.clock.now > TIMER_SECONDS:
            self._set_timer()
        elif self._works and not self._due:
            self._due = len(self._works)
            self._do_works()
        else:
            self._wake_for_waiting()

    def _wake_for_waiting(self) -> None:
        if self._waiting and not self._working and not self._is_committing:
            self._is_committing = True
            self.core.do(self.costs.batch / 2, self._take)

    def _take(self) -> None:
        batch, self._waiting = self._waiting, []
        steps = sum(self.costs.steps(len(self._recording[number])) for number in batch)
        self._ready_at = self.clock.now + max(GATHER, min(2 * self._spent, LONGEST_GATHER))
        self._spent = 0.0
        self._expected = set(batch)
        self.batches.append((self.clock.now, sum(len(self._recording[number]) for number in batch)))
        seconds = self.costs.commit_batch + self.costs.commit * steps
        self.core.do(seconds, lambda: self.clock.after(self._answer_seconds(), lambda: self._settle(batch, steps)))

    def _answer_seconds(self) -> float:
        self._answer += 1
        seconds = self.answers[self._answer % len(self.answers)]
        wrong = self.happening
        if wrong is not None and wrong.at <= self.clock.now < wrong.at + wrong.standstill:
            seconds += wrong.at + wrong.standstill - self.clock.now
        return seconds

    def _settle(self, batch: list[int], steps: float) -> None:
        seconds = self.costs.show * steps + self.costs.batch / 2

        def end() -> None:
            self._spent += seconds
            self._is_committing = False
            shown = self.clock.now - self.costs.show * steps
            for number in batch:
                deltas = self._recording.pop(number)
                shown += self.costs.show * self.costs.steps(len(deltas))
                self.shown.extend(Shown(at, shown - at) for at in deltas)
                if self._unread.get(number) and number not in self._due_runs:
                    self._schedule(number)
            if self._is_paused:
                self._is_paused = False
                self._do_works()
            self._wake_for_waiting()

        self.core.do(seconds, end)


def quantile(found: Sequence[float], share: float) -> float:
    """Of an empty sequence: infinity, because nothing ever came."""
    ordered = sorted(found)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("inf")


class Ran(NamedTuple):
    """``core``: the share of its core that a process used. ``batches`` a second, and ``deltas`` in each."""

    core: float
    p50: float
    p99: float
    batches: float
    deltas: float
    arrived: float


def run_process(
    costs: Costs, streams: int, pace: float, answers: Sequence[float] = (0.0,), *, seconds: float = 8.0
) -> Ran:
    """What a process does in so many seconds, after two in which it finds its beat."""
    clock = Clock()
    process = Process(clock, costs, streams, pace, answers)
    clock.run(2.0)
    busy, shown, batches = process.core.busy, len(process.shown), len(process.batches)
    clock.run(2.0 + seconds)
    found = [one.seconds for one in process.shown[shown:]]
    taken = [deltas for _, deltas in process.batches[batches:]]
    return Ran(
        (process.core.busy - busy) / seconds,
        quantile(found, 0.5),
        quantile(found, 0.99),
        len(taken) / seconds,
        sum(taken) / max(1, len(taken)),
        len(found) / (streams * pace * seconds),
    )


class After(NamedTuple):
    """What a happening did: the longest that a delta took, how many waited at most, and seconds until all was as before."""

    longest: float
    most_waiting: int
    recovered: float | None


def run_happening(
    costs: Costs,
    streams: int,
    pace: float,
    happening: Happening,
    answers: Sequence[float] = (0.0,),
    *,
    bound: float,
    seconds: float = 60.0,
) -> After:
    """``bound``: what a delta may take again at the end. Counted from when the standstill, or the wait for it, is over."""
    clock = Clock()
    process = Process(clock, costs, streams, pace, answers, happening)
    over = happening.at + max(happening.standstill, happening.later)
    end = over + seconds
    clock.run(end)
    affected = [one for one in process.shown if one.at + one.seconds >= happening.at]
    late = max((one.at + one.seconds for one in affected if one.seconds > bound), default=over)
    is_behind = process.waiting > 2 * bound * pace * (streams + happening.joining) or late > end - 1
    longest = max((one.seconds for one in affected), default=0.0)
    return After(longest, process.most_waiting, None if is_behind else max(0.0, late - over))


class Beats(NamedTuple):
    """The batches that so many processes bring to a log: each ``every`` seconds, give or take a fifth, of ``deltas``."""

    processes: int
    every: float
    deltas: float

    def begin(self, clock: Clock, chance: random.Random, bring: Then) -> None:
        def beat() -> None:
            bring()
            clock.after(self.every * chance.uniform(0.8, 1.2), beat)

        for _ in range(self.processes):
            clock.after(chance.uniform(0, self.every), beat)


class Answers(NamedTuple):
    """``seconds`` of each batch; ``core``: how busy the servers' cores are (a database) or the leader is (a group)."""

    seconds: list[float]
    core: float


def answers_of_database(
    beats: Beats, cores: int, cpu: float, flush: float, *, seconds: float = 8.0, seed: int = 1
) -> Answers:
    """One server: a batch takes ``cpu`` seconds of one of its cores and then a flush, which it shares with all that wait.

    ``flush`` of 0 and one core is a lock that every batch takes, as SQLite's is.
    """
    clock, chance = Clock(), random.Random(seed)
    station = Station(clock, cores)
    found: list[float] = []
    at_disk: list[float] = []
    is_flushing = False

    def bring() -> None:
        began = clock.now
        station.do(cpu, lambda: written(began))

    def written(began: float) -> None:
        at_disk.append(began)
        if not is_flushing:
            begin_flush()

    def begin_flush() -> None:
        nonlocal is_flushing, at_disk
        is_flushing = True
        now, at_disk = at_disk, []
        clock.after(flush, lambda: end_flush(now))

    def end_flush(now: list[float]) -> None:
        nonlocal is_flushing
        is_flushing = False
        found.extend(clock.now - began for began in now)
        if at_disk:
            begin_flush()

    beats.begin(clock, chance, bring)
    clock.run(seconds)
    return Answers(found, station.busy / cores / seconds)


def answers_of_group(beats: Beats, serial: float, network: float, *, seconds: float = 8.0, seed: int = 1) -> Answers:
    """One stream on three nodes: its leader takes ``serial`` seconds for each batch, on disk, and so does each follower;
    a batch is answered when one of them has it, too.
    """
    clock, chance = Clock(), random.Random(seed)
    leader = Station(clock)
    followers = [Station(clock), Station(clock)]
    found: list[float] = []

    def bring() -> None:
        began, votes = clock.now, 0

        def vote() -> None:
            nonlocal votes
            votes += 1
            if votes == 1:
                clock.after(network, lambda: found.append(clock.now - began))

        def pass_on() -> None:
            for follower in followers:
                clock.after(
                    network * chance.uniform(0.5, 1.5),
                    lambda follower=follower: follower.do(serial * chance.uniform(0.7, 1.3), vote),  # type: ignore[misc]
                )

        leader.do(serial, pass_on)

    beats.begin(clock, chance, bring)
    clock.run(seconds)
    return Answers(found, leader.busy / seconds)
