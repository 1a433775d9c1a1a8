"""The model of ``bench.discrete``: what must be true of it whatever the service times are."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.discrete import (
    GATHER,
    Beats,
    Clock,
    Costs,
    Happening,
    Process,
    Station,
    answers_of_database,
    answers_of_group,
    run_happening,
    run_process,
)
from bench.services import line

US = 1e-6
COSTS = Costs(read=30 * US, work=25 * US, show=45 * US, batch=400 * US, commit=10 * US, commit_batch=80 * US)


def test_the_clock_does_not_go_back() -> None:
    clock = Clock()
    seen: list[float] = []
    for when in (3.0, 1.0, 2.0):
        clock.at(when, lambda: seen.append(clock.now))
    clock.run(2.5)
    assert seen == [1.0, 2.0]
    with pytest.raises(ValueError, match="has passed"):
        clock.at(2.0, lambda: None)


def test_a_queue_is_as_long_as_the_formula_says() -> None:
    """M/D/1: arrivals at random, one server, the same time for each. The mean wait is rho / (2 (1 - rho)) services."""
    clock, chance = Clock(), random.Random(1)
    station = Station(clock)
    waits: list[float] = []
    rho = 0.7

    def come() -> None:
        began = clock.now
        station.do(1.0, lambda: waits.append(clock.now - began - 1.0))
        clock.after(chance.expovariate(rho), come)

    come()
    clock.run(100_000)
    assert sum(waits) / len(waits) == pytest.approx(rho / (2 * (1 - rho)), rel=0.05)
    assert station.busy / clock.now == pytest.approx(rho, rel=0.02)


@settings(max_examples=20, deadline=None)
@given(
    streams=st.integers(1, 40),
    pace=st.sampled_from([1.0, 20.0, 50.0]),
    answer=st.sampled_from([0.0, 0.002, 0.2]),
    standstill=st.sampled_from([0.0, 0.7]),
)
def test_no_delta_is_lost_or_shown_twice(streams: int, pace: float, answer: float, standstill: float) -> None:
    clock = Clock()
    process = Process(clock, COSTS, streams, pace, [answer], Happening(0.5, standstill=standstill))
    clock.run(2.0)
    assert len(process.shown) + process.waiting == process.written
    assert sum(deltas for _, deltas in process.batches) >= len(process.shown)
    assert all(one.seconds >= COSTS.delta for one in process.shown)
    every = 1.0 / pace
    assert max(one.at for one in process.shown) >= 2.0 - every - standstill - 3 * answer - 0.1


def test_the_core_is_as_busy_as_what_it_does() -> None:
    ran = run_process(COSTS, 100, 20, seconds=4.0)
    expected = 2000 * COSTS.delta + ran.batches * (COSTS.batch + COSTS.commit_batch)
    assert ran.core == pytest.approx(expected, rel=0.02)
    assert ran.arrived == pytest.approx(1.0, abs=0.02)
    assert ran.batches * ran.deltas == pytest.approx(2000, rel=0.02)


def test_runs_that_have_more_when_they_are_settled_are_not_waited_for() -> None:
    """As in the queue: all runs of the last batch are heard of then, and the next one need not gather."""
    ran = run_process(COSTS, 2, 400, [0.005], seconds=1.0)
    assert ran.batches > 1.5 / GATHER


def test_a_log_that_is_slow_now_and_then_shows_in_the_last_of_a_hundred() -> None:
    even = run_process(COSTS, 100, 20, seconds=4.0)
    uneven = run_process(COSTS, 100, 20, [0.03, *[0.0] * 30], seconds=4.0)
    assert uneven.p50 == pytest.approx(even.p50, rel=0.2)
    assert uneven.p99 > even.p99 + 0.01


def test_what_waits_in_a_standstill_is_worked_off() -> None:
    after = run_happening(COSTS, 100, 20, Happening(1.0, standstill=2.0), bound=0.1, seconds=4)
    assert after.longest >= 2.0
    assert after.most_waiting >= 100 * 20 * 2
    assert after.recovered is not None
    assert 0 < after.recovered < 5


def test_what_comes_together_is_cheaper() -> None:
    wrong = Happening(1.0, standstill=2.0)
    alone = run_happening(COSTS, 100, 20, wrong, bound=0.1, seconds=4).recovered
    together = run_happening(COSTS._replace(further=0.2), 100, 20, wrong, bound=0.1, seconds=4).recovered
    assert alone is not None
    assert together is not None
    assert together < alone


def test_too_many_streams_never_catch_up() -> None:
    joining = Happening(1.0, joining=400, later=0.5, start=0.001)
    assert run_happening(COSTS, 200, 20, joining, bound=0.1, seconds=2).recovered is None


def test_a_database_shares_its_flushes_and_a_group_waits_for_one_follower() -> None:
    beats = Beats(processes=50, every=0.015, deltas=30)
    database = answers_of_database(beats, 8, 0.0005, 0.002, seconds=2.0)
    assert 0.0025 <= min(database.seconds) < max(database.seconds) < 0.01  # one at a time would take 100 ms
    assert database.core == pytest.approx(50 / 0.015 * 0.0005 / 8, rel=0.05)
    group = answers_of_group(Beats(5, 0.015, 30), 0.001, 0.0005, seconds=2.0)
    assert min(group.seconds) >= 0.001 + 0.0007 + 0.00075
    assert group.core == pytest.approx(5 / 0.015 * 0.001, rel=0.05)


def test_a_line_has_no_negative_parts() -> None:
    assert line([(10, 30.0), (20, 50.0)]) == pytest.approx((10.0, 2.0))
    assert line([(10, 10.0), (20, 40.0)]).batch == 0.0
    assert line([(10, 40.0), (20, 30.0)]).delta == 0.0
