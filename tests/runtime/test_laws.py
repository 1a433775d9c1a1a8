"""Random programs against a model of what must hold: laws 6 to 9, with the whole runtime in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream import CallState, Callstream, Reject, Settings
from callstream.errors import CallstreamError
from callstream.events import ArgsAppended, CallCompleted, CallDiscarded, CallExecuting, RunEnded
from callstream.testing import Failure, Finish, Step, ToolCall, Truncated, encode
from callstream.testing.encoders import ENCODERS
from callstream.wire import WIRES

BEHAVIOURS = ("none", "fine", "slow", "raises", "rejects", "hangs", "refuses_to_end")
ENDINGS: dict[str, Step] = {
    "finish": Finish(),
    "length": Finish("length"),
    "truncated": Truncated(),
    "failure": Failure("overloaded"),
}

programs = st.fixed_dictionaries(
    {
        "wire": st.sampled_from([wire for wire in WIRES if ENCODERS[wire].streams_arguments]),
        "calls": st.lists(
            st.tuples(st.sampled_from(BEHAVIOURS), st.text(max_size=30), st.booleans()), min_size=1, max_size=4
        ),
        "ending": st.sampled_from(sorted(ENDINGS)),
        "cut_last": st.booleans(),
        "stop_at": st.one_of(st.none(), st.integers(0, 40)),
        "how": st.sampled_from(["stop", "cancel", "raise"]),
        "size": st.integers(1, 12),
    }
)


class Watch:
    """What the hooks of one call saw, and what was known then."""

    def __init__(self) -> None:
        self.text = ""
        self.busy = False
        self.completed = False
        self.aborted: list[str] = []
        self.wrong: list[str] = []

    def note(self, problem: str, holds: bool) -> None:
        if not holds:
            self.wrong.append(problem)


def register(cs: Callstream, name: str, behaviour: str, watch: Watch, journaled: Any) -> None:
    """Hooks that behave in the given way and watch the laws while they do."""

    async def delta(delta: Any, signal: Any) -> None:
        watch.note("two hooks of a call at once", not watch.busy)
        watch.note("a delta after the abort", not watch.aborted)
        watch.note("a delta after the completion", not watch.completed)
        watch.busy = True
        try:
            watch.text += delta.text
            kept = "".join(event.text for event in await journaled(delta.call_id, ArgsAppended))
            watch.note("a delta that the journal does not have", kept.startswith(watch.text))
            if behaviour == "slow":
                await asyncio.sleep(0.001)
            elif behaviour == "raises" and len(watch.text) > 10:
                raise RuntimeError("a hook's own error")
            elif behaviour == "hangs" and len(watch.text) > 10:
                await asyncio.Event().wait()
            elif behaviour == "refuses_to_end" and len(watch.text) > 10:
                while not signal.aborted:
                    try:
                        await asyncio.sleep(0.001)
                    except asyncio.CancelledError:
                        pass
        finally:
            watch.busy = False

    async def complete(call: Any, signal: Any) -> None:
        watch.note("the completion during a delta", not watch.busy)
        watch.note("a completion after the abort", not watch.aborted)
        watch.note("a completion with other arguments", watch.text == call.args_json)
        watch.completed = True
        if behaviour == "rejects":
            raise Reject("no")

    async def abort(call: Any, reason: str) -> None:
        watch.note("an abort that the journal does not have", bool(await journaled(call.call_id, CallDiscarded)))
        watch.aborted.append(reason)

    if behaviour != "none":
        cs.on_args_delta(name, delta)
        cs.on_args_complete(name, complete)
        cs.on_args_abort(name, abort)


async def run_program(url: str, program: dict[str, Any]) -> None:
    watches: dict[str, Watch] = {}
    executed: dict[str, str | None] = {}
    settings = Settings(hook_timeout=0.3)
    async with Callstream(url, settings=settings) as cs:
        run = await cs.start("thread")

        async def journaled(call_id: str, kind: type) -> list[Any]:
            found = [record.event async for record in cs.journal.read(run.run_id)]
            return [event for event in found if isinstance(event, kind) and event.call_id == call_id]

        script: list[Step] = []
        for number, (behaviour, text, streamed) in enumerate(program["calls"]):
            name = f"tool{number}"
            watches[name] = Watch()
            register(cs, name, behaviour, watches[name], journaled)
            cut = program["cut_last"] and number == len(program["calls"]) - 1 and program["ending"] != "finish"
            script.append(
                ToolCall(
                    name,
                    {"text": text + "." * 20},
                    size=program["size"],
                    streamed=streamed or cut,
                    stop_after=2 if cut else None,
                )
            )
        script.append(ENDINGS[program["ending"]])

        async def body() -> None:
            async with run:
                async with run.response(program["wire"]) as response:
                    for number, chunk in enumerate(encode(program["wire"], script)):
                        await response.feed(chunk)
                        if number == program["stop_at"]:
                            await give_up()
                for call in run.calls:
                    try:
                        ready = await run.execute(call.call_id)
                    except CallstreamError:
                        continue
                    watch = watches[call.name]
                    watch.note("the tool ran during a hook", not watch.busy)
                    watch.note("the tool ran after an abort", not watch.aborted)
                    executed[call.name] = ready.args_json
                    await run.complete(call.call_id, "done")

        async def give_up() -> None:
            if program["how"] == "stop":
                await run.stop("stopped")
            elif program["how"] == "cancel":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(1)
            else:
                raise LookupError("upstream broke")

        await asyncio.gather(asyncio.create_task(body()), return_exceptions=True)

        # Law 9: the run has ended, and so has each of its calls.
        records = [record.event async for record in cs.journal.read(run.run_id)]
        assert [isinstance(event, RunEnded) for event in records].count(True) == 1
        assert isinstance(records[-1], RunEnded)
        for call in await cs.journal.calls(run_id=run.run_id):
            assert call.state in (CallState.COMPLETED, CallState.DISCARDED, CallState.RELEASED, CallState.FAILED)
            watch = watches[call.name]
            assert watch.wrong == [], (call.name, watch.wrong)
            # Law 7: once, if the tool will not run; never, if it did.
            hooked = dict(zip(watches, program["calls"], strict=False))[call.name][0] != "none"
            assert len(watch.aborted) == (1 if hooked and call.state is CallState.DISCARDED else 0)
            # Law 6 and 4: what ran was finished by the wire, and is what the pieces say.
            own = [event for event in records if getattr(event, "call_id", None) == call.call_id]
            kinds = [type(event) for event in own]
            if CallExecuting in kinds:
                assert kinds.index(CallCompleted) < kinds.index(CallExecuting)
                pieces = "".join(event.text for event in own if isinstance(event, ArgsAppended))
                assert pieces == executed[call.name]
        if any(behaviour == "refuses_to_end" for behaviour, *_ in program["calls"]):
            # Such a hook is abandoned, and looks at its signal once a millisecond.
            async with asyncio.timeout(10):
                while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        assert asyncio.all_tasks() == {asyncio.current_task()}


@given(programs)
def test_laws_6_to_9_hold_for_any_program(program: dict[str, Any]) -> None:
    asyncio.run(run_program("memory:", program))


def each_behaviour_and_end() -> Iterator[Any]:
    """Every behaviour with one end quickly, and with the others in ``make slow``."""
    ends = ("stop", "cancel", "raise")
    for number, behaviour in enumerate(BEHAVIOURS):
        for end in ends:
            yield pytest.param(behaviour, end, marks=[] if end == ends[number % 3] else pytest.mark.slow)


@pytest.mark.parametrize(("behaviour", "how"), list(each_behaviour_and_end()))
def test_laws_6_to_9_hold_on_disk(tmp_path: Any, behaviour: str, how: str) -> None:
    calls = [(behaviour, "one", True), ("fine", "two", True), (behaviour, "three", False)]
    common = {"wire": "anthropic", "calls": calls, "cut_last": False, "size": 3, "how": how}
    for number, stop_at in enumerate((None, 5, 9, 14)):
        program = {**common, "ending": "finish", "stop_at": stop_at}
        asyncio.run(run_program(f"sqlite:///{tmp_path}/calls{number}.db", program))
