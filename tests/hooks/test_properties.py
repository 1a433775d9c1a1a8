"""Random programs of deltas, hooks of every temper, aborts and completions, against what must have been seen of them.

Each program runs on a loop whose clock jumps, so nothing waits and a failing program fails again. The model is what a
call's hooks must have seen in which order; how long they took is left to them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from callstream.calls import CallState
from callstream.errors import Reject
from callstream.hooks import CallHooks, HookSettings, Outcome
from callstream.hooks.deltas import ArgsDelta, FieldDelta
from callstream.tools import AbortSignal, Hooks
from tests.clock import run
from tests.examples import examples
from tests.hooks.watching import a_call, whole

TIMEOUT, GRACE, NOTICE = 4.0, 2.0, 0.5
ARGS = {"title": "Täa 🫖", "content": "one\ntwo \\ three", "items": [1, {"deep": "x" * 9}], "empty": ""}
TEXT = json.dumps(ARGS)
STAGES = {"delta": 0, "field": 1, "complete": 2, "abort": 3}


@dataclass(frozen=True)
class Temper:
    """What a hook does at its ``at``-th time; else it takes ``pause`` seconds."""

    does: str
    at: int
    pause: float


@dataclass(frozen=True)
class Plan:
    """One call: its hooks by kind, how its text is cut, the pauses between the pieces, and how it ends."""

    hooks: tuple[tuple[str, Temper], ...]
    cuts: tuple[int, ...]
    pauses: tuple[float, ...]
    ending: str
    policy: Any
    queue_deltas: int


@dataclass
class Seen:
    """One time that a hook ran."""

    hook: int
    kind: str
    subject: Any
    was_aborted: bool
    ended: str = ""


@dataclass
class Story:
    """What happened to one call."""

    plan: Plan
    seen: list[Seen] = field(default_factory=list)
    running: list[Seen] = field(default_factory=list)
    pushed: str = ""
    completed_at: float | None = None
    aborted: bool = False
    settled_at: float = 0.0
    outcome: Outcome | None = None
    running_at_barrier: int = 0
    executed: bool = False


tempers = st.builds(
    Temper,
    st.sampled_from(["nothing"] * 5 + ["raise", "reject", "hang", "ignore", "await signal", "swallow"]),
    st.integers(1, 6),
    st.sampled_from([0, 0, 0.1, 1.0, 3.0]),
)
plans = st.builds(
    Plan,
    st.lists(st.tuples(st.sampled_from(list(STAGES)), tempers), max_size=5).map(tuple),
    st.lists(st.integers(1, len(TEXT) - 1), max_size=12).map(lambda cuts: tuple(sorted(set(cuts)))),
    st.lists(st.sampled_from([0, 0, 0.1, 2.0]), min_size=1, max_size=13).map(tuple),
    st.sampled_from(["complete", "complete", "complete", "abort", "abort at once", "complete, abort", "close"]),
    st.sampled_from(["fail_call", "fail_call", "isolate", "fail_run"]),
    st.sampled_from([1, 2, 64]),
)


def make_hook(story: Story, number: int, kind: str, temper: Temper) -> Callable[..., Any]:
    times = 0

    async def hook(subject: Any, signal: AbortSignal | str) -> None:
        nonlocal times
        times += 1
        was_aborted = isinstance(signal, AbortSignal) and signal.aborted
        seen = Seen(number, kind, subject, was_aborted)
        story.seen.append(seen)
        assert all(other.ended == "ignores" for other in story.running), "two hooks of a call at once"
        story.running.append(seen)
        try:
            await asyncio.sleep(temper.pause)
            if times == temper.at:
                await misbehave(temper.does, seen, signal)
            seen.ended = "returned"
        except asyncio.CancelledError:
            seen.ended = "cancelled"
            raise
        except (ValueError, Reject):
            seen.ended = temper.does
            raise
        finally:
            story.running.remove(seen)

    return hook


async def misbehave(does: str, seen: Seen, signal: AbortSignal | str) -> None:
    match does:
        case "raise":
            raise ValueError("raised")
        case "reject":
            raise Reject("rejected")
        case "hang":
            await asyncio.sleep(10_000)
        case "swallow":
            try:
                await asyncio.sleep(10_000)
            except asyncio.CancelledError:
                seen.ended = "swallowed"
        case "ignore":
            until = asyncio.get_running_loop().time() + 300
            while asyncio.get_running_loop().time() < until:
                try:
                    await asyncio.sleep(until - asyncio.get_running_loop().time())
                except asyncio.CancelledError:
                    seen.ended = "ignores"
        case "await signal":
            if isinstance(signal, AbortSignal):
                await signal.wait()


async def play(story: Story, call_id: str) -> None:
    plan, hooks = story.plan, Hooks()
    for number, (kind, temper) in enumerate(plan.hooks):
        hook = make_hook(story, number, kind, temper)
        register: Any = hooks.on_field("content") if kind == "field" else getattr(hooks, f"on_args_{kind}")
        register(hook)
    limits = HookSettings(TIMEOUT, GRACE, NOTICE, plan.policy, plan.queue_deltas)
    calls = CallHooks(a_call(call_id), hooks, limits)
    barrier = asyncio.create_task(calls.settled())
    loop = asyncio.get_running_loop()
    bounds = (0, *plan.cuts, len(TEXT))
    pieces = [TEXT[start:end] for start, end in pairwise(bounds)]
    if plan.ending == "abort":
        pieces = pieces[: len(pieces) // 2]
    for index, piece in enumerate(pieces):
        if plan.ending != "abort at once":
            calls.push(piece)
            story.pushed += piece
        await asyncio.sleep(plan.pauses[index % len(plan.pauses)])
    if plan.ending.startswith("complete"):
        story.completed_at = loop.time()
        calls.complete(whole(call_id, TEXT))
    if plan.ending == "complete, abort":
        await asyncio.sleep(plan.pauses[0])
    if plan.ending not in ("complete", "close"):
        story.aborted = True
        calls.abort(a_call(call_id, state=CallState.DISCARDED), "aborted")
    if plan.ending == "close":
        story.aborted = True
        await calls.aclose()
    await barrier
    story.outcome = await calls.settled()
    story.settled_at = loop.time()
    story.running_at_barrier = sum(seen.ended != "ignores" for seen in story.running)
    story.executed = calls.claim()


async def play_all(stories: list[Story]) -> None:
    async with asyncio.TaskGroup() as group:
        for number, story in enumerate(stories):
            group.create_task(play(story, f"c{number}"))
    await asyncio.sleep(1000)  # Abandoned hooks end for themselves by then; nothing may follow them.


def check(story: Story) -> None:
    plan, outcome = story.plan, story.outcome
    assert outcome is not None
    event(outcome.kind)
    begun_before_abort = [seen for seen in story.seen if seen.kind != "abort"]
    assert not any(seen.was_aborted for seen in begun_before_abort), "a hook began after the abort"
    assert story.running_at_barrier == 0, "the barrier opened while a hook ran"
    assert story.executed == outcome.ready
    places = [place_of(seen) for seen in story.seen]
    assert places == sorted(places), "out of order"
    aborts = [seen.hook for seen in story.seen if seen.kind == "abort"]
    registered = [number for number, (kind, _) in enumerate(plan.hooks) if kind == "abort"]
    assert aborts == ([] if outcome.ready else registered), (
        "abort hooks run once each, and only if the call is given up"
    )
    for number, (kind, temper) in enumerate(plan.hooks):
        check_hook(story, number, kind, is_sound=temper.does == "nothing")
    tempers_met = {temper.does for kind, temper in plan.hooks if kind != "abort"} - {"nothing"}
    if not tempers_met and not story.aborted:
        assert outcome == Outcome("ready")
    assert outcome.kind != "rejected" or "reject" in tempers_met
    assert outcome.kind != "failed" or tempers_met
    assert outcome.kind != "aborted" or story.aborted
    assert not outcome.fails_run or plan.policy == "fail_run"
    quick = all(temper.does == "nothing" and temper.pause == 0 for _, temper in plan.hooks)
    if quick and story.completed_at is not None and not story.aborted:
        assert story.settled_at == story.completed_at, "a call waited for another"


def place_of(seen: Seen) -> tuple[int, int, int]:
    match seen.subject:
        case ArgsDelta(seq=seq):
            return (seq, STAGES["delta"], seen.hook)
        case FieldDelta(seq=seq):
            return (seq, STAGES["field"], seen.hook)
        case _:
            return (1 << 30, STAGES[seen.kind], seen.hook)


def check_hook(story: Story, number: int, kind: str, is_sound: bool) -> None:
    """What one hook saw is the beginning of what there was, without a gap; and all of it if the tool ran."""
    assert story.outcome is not None
    mine = [seen.subject for seen in story.seen if seen.hook == number]
    saw_all = story.outcome.ready and (is_sound or story.plan.policy != "isolate")
    if kind == "delta":
        text = "".join(delta.text for delta in mine)
        assert text == TEXT if saw_all else TEXT.startswith(text)
        for delta in mine:
            assert delta.args is None or list(delta.args) == list(ARGS)[: len(delta.args)]
    elif kind == "field":
        text = "".join(part.text for part in mine)
        content = ARGS["content"]
        assert isinstance(content, str)
        assert text == content if saw_all else content.startswith(text)
        assert [part.complete for part in mine][:-1] == [False] * (len(mine) - 1)
        assert [part.first for part in mine] == [index == 0 for index in range(len(mine))]
        assert not saw_all or mine[-1].complete
    elif kind == "complete":
        assert len(mine) == 1 if saw_all else len(mine) <= 1


@examples(200)
@given(st.lists(plans, min_size=1, max_size=3))
def test_hooks_keep_their_laws(program: list[Plan]) -> None:
    stories = [Story(plan) for plan in program]
    run(play_all(stories))
    for story in stories:
        check(story)
