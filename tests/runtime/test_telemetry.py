"""What OpenTelemetry is told of runs and calls, through the SDK's own exporters."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from callstream import Call, Callstream, Settings
from callstream.errors import LimitExceeded
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallReturned,
    CallStarted,
    ResponseEnded,
)
from callstream.runtime import Observers, Run
from callstream.runtime.continuing import INTERRUPTED, KeptBody, KeptTurn
from callstream.runtime.telemetry import Telemetry
from callstream.wire.requests import Digest

TEXT = '{"content":"xyzzy"}'


class Collected:
    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._reader])

    def telemetry(self, **options: Any) -> Telemetry:
        return Telemetry(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    def spans(self, operation: str) -> list[ReadableSpan]:
        finished = self._spans.get_finished_spans()
        return [span for span in finished if (span.attributes or {})["gen_ai.operation.name"] == operation]

    def metric(self, name: str) -> list[Any]:
        """The points of one metric."""
        data = self._reader.get_metrics_data()
        metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
        return [point for metric in metrics if metric.name == name for point in metric.data.data_points]

    def shutdown(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()


@pytest.fixture
def collected() -> Iterator[Collected]:
    made = Collected()
    yield made
    made.shutdown()


def observed(collected: Collected, journal: str = "memory:", **options: Any) -> Callstream:
    cs = Callstream(journal)
    cs.engine.observers = Observers([collected.telemetry(**options)])
    return cs


async def call(run: Run, call_id: str = "c", pieces: tuple[str, ...] = (TEXT[:5], TEXT[5:])) -> None:
    await run.record([CallStarted(call_id, "write", "wire-id")])
    for piece in pieces:
        await run.record([ArgsAppended(call_id, piece)])
    await run.record([CallCompleted(call_id, "".join(pieces))])


async def test_the_log_beside_a_journal_is_measured(collected: Collected, monkeypatch: pytest.MonkeyPatch) -> None:
    async with observed(collected) as cs:
        assert cs.journal.log_figures() is None
        async with cs.run("thread", "run"):
            assert collected.metric("callstream.log.lag") == []
            figures = {"batches": 3, "records": 250, "refused": 1, "lag_seconds": 61.5}
            monkeypatch.setattr(cs.journal, "log_figures", lambda: figures)
            names = {"batches": "batches", "records": "records", "refused": "refused", "lag": "lag_seconds"}
            for name, key in names.items():
                assert [point.value for point in collected.metric(f"callstream.log.{name}")] == [figures[key]]


async def test_one_span_a_run_and_one_a_call(collected: Collected) -> None:
    async def slow(call: Call, signal: Any) -> None:
        await asyncio.sleep(0.05)

    async with observed(collected) as cs:
        cs.on_args_complete("write", slow)
        async with cs.run("thread", "run") as run:
            await asyncio.sleep(0.02)
            await call(run)
            await run.execute("c")
            await asyncio.sleep(0.03)
            await run.complete("c", {"secret": "xyzzy"})
    [of_run], [of_call] = collected.spans("invoke_agent"), collected.spans("execute_tool")
    assert of_run.name == "invoke_agent"
    assert of_run.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": "thread",
        "callstream.run.id": "run",
        "callstream.run.outcome": "finished",
    }
    assert of_call.name == "execute_tool write"
    assert of_call.parent is not None
    assert of_call.parent.span_id == of_run.context.span_id
    told = dict(of_call.attributes or {})
    assert 0.02 <= told.pop("callstream.call.time_to_first_argument") < 5
    assert 0.05 <= told.pop("callstream.call.hook_seconds") < 5
    assert 0.03 <= told.pop("callstream.call.execution_seconds") < 5
    assert told == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "write",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "wire-id",
        "callstream.call.id": "c",
        "callstream.call.state": "completed",
        "callstream.call.argument_bytes": len(TEXT),
    }
    assert of_run.status.status_code is StatusCode.UNSET
    assert of_call.status.status_code is StatusCode.UNSET


async def test_argument_text_is_in_no_span_unless_asked_for(collected: Collected) -> None:
    for shown in (False, True):
        async with observed(collected, show_arguments=shown) as cs, cs.run("thread") as run:
            await call(run)
            await run.execute("c")
            await run.complete("c", {"also": "xyzzy"})
        *_, span = collected.spans("execute_tool")
        assert ("xyzzy" in span.to_json()) is shown
    assert span.attributes is not None
    assert span.attributes["gen_ai.tool.call.arguments"] == TEXT
    assert span.attributes["gen_ai.tool.call.result"] == '{"also":"xyzzy"}'


async def test_a_result_with_half_a_character_is_in_the_span(collected: Collected) -> None:
    async with observed(collected, show_arguments=True) as cs, cs.run("thread") as run:
        await call(run)
        await run.execute("c")
        await run.complete("c", "\ud83d")
    [span] = collected.spans("execute_tool")
    assert span.attributes is not None
    assert span.attributes["gen_ai.tool.call.result"] == '"\\ud83d"'


async def test_what_goes_wrong_is_an_error(collected: Collected) -> None:
    async with observed(collected) as cs:
        with pytest.raises(ValueError, match="xyzzy"):
            await broken(cs)
    [of_run] = collected.spans("invoke_agent")
    assert of_run.status.status_code is StatusCode.ERROR
    assert of_run.attributes is not None
    assert of_run.attributes["error.type"] == "ValueError"
    assert "xyzzy" not in of_run.to_json()
    reasons = {
        span.attributes["callstream.call.state"]: span.attributes["error.type"]
        for span in collected.spans("execute_tool")
        if span.attributes is not None and span.status.status_code is StatusCode.ERROR
    }
    assert reasons == {"discarded": "truncated", "failed": "tool_error"}


async def broken(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await run.record([CallStarted("a", "write"), ArgsAppended("a", "xyzzy"), CallDiscarded("a", "truncated")])
        await call(run, "b")
        await run.execute("b")
        await run.fail("b", "xyzzy")
        raise ValueError("xyzzy")


async def test_metrics(collected: Collected) -> None:
    async with observed(collected) as cs:
        async with cs.run("thread") as run:
            [active] = collected.metric("callstream.runs.active")
            assert active.value == 1
            await call(run, "a")
            await run.execute("a")
            await run.complete("a")
            await call(run, "b")
            await run.record([CallAwaiting("b")])
            await run.record([CallStarted("c", "other"), ArgsAppended("c", "ü"), CallDiscarded("c", "truncated")])
        cs.observers.streams_changed(1)
        cs.observers.streams_changed(1)
        cs.observers.streams_changed(-1)
    assert [point.value for point in collected.metric("callstream.runs.active")] == [0]
    assert [point.value for point in collected.metric("callstream.streams.active")] == [1]
    [duration] = collected.metric("callstream.run.duration")
    assert (duration.count, duration.attributes["callstream.run.outcome"]) == (1, "finished")
    assert sum(point.count for point in collected.metric("callstream.call.time_to_first_argument")) == 3
    states = {
        (point.attributes["gen_ai.tool.name"], point.attributes["callstream.call.state"]): point.value
        for point in collected.metric("callstream.calls")
    }
    assert states == {("write", "completed"): 1, ("write", "awaiting"): 1, ("other", "discarded"): 1}
    reasons = [point.attributes.get("callstream.call.discard_reason") for point in collected.metric("callstream.calls")]
    assert list(filter(None, reasons)) == ["truncated"]
    sizes = {
        point.attributes["gen_ai.tool.name"]: point.value
        for point in collected.metric("callstream.call.argument_bytes")
    }
    assert sizes == {"write": 2 * len(TEXT), "other": 2}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input_tokens": 7, "output_tokens": 5, "cache_read_input_tokens": 2}, (7, 5)),
        ({"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}, (7, 5)),
        ({"promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 2}, (7, 5)),
        ({"inputTokens": 7, "outputTokens": 5}, (7, 5)),
        ({"prompt_eval_count": 7, "eval_count": 5}, (7, 5)),
        ({"billed_units": {"input_tokens": 1}, "tokens": {"input_tokens": 7, "output_tokens": 5}}, (7, 5)),
        ({"input_tokens": None}, (0, 0)),
        (None, (0, 0)),
    ],
)
async def test_tokens_are_counted_as_the_provider_counts_them(
    collected: Collected, usage: Any, expected: tuple[int, int]
) -> None:
    async with observed(collected) as cs, cs.run("thread") as run:
        await run.record([ResponseEnded("stop", usage)])
    counts = {p.attributes["gen_ai.token.type"]: p.value for p in collected.metric("callstream.model.tokens")}
    assert (counts["input"], counts["output"]) == expected


async def test_an_answered_call_is_counted_and_one_that_executes_later_has_a_span(collected: Collected) -> None:
    async with observed(collected) as cs:
        async with cs.run("thread") as run:
            for call_id in ("asked", "approved"):
                await call(run, call_id)
                await run.await_answer(call_id)
        async with cs.run("thread") as run:
            await run.answer("asked", "yes")
            resumed = await run.resume("approved")
            assert resumed is not None
            await run.record([CallExecuting("approved"), CallReturned("approved", 1)])
    ended = [(span.attributes or {})["callstream.call.state"] for span in collected.spans("execute_tool")]
    assert ended == ["awaiting", "awaiting", "completed"]
    states = {p.attributes["callstream.call.state"]: p.value for p in collected.metric("callstream.calls")}
    assert states == {"awaiting": 2, "completed": 2}


async def test_a_turn_begins_with_the_last_result(collected: Collected) -> None:
    async with observed(collected) as cs, cs.run("thread") as run:
        await asyncio.sleep(0.5)
        await call(run, "first")
        await run.execute("first")
        await run.complete("first")
        await call(run, "second")
        await run.execute("second")
        await run.complete("second")
    first, second = [
        (span.attributes or {})["callstream.call.time_to_first_argument"] for span in collected.spans("execute_tool")
    ]
    assert isinstance(first, float)
    assert isinstance(second, float)
    assert first >= 0.5
    assert second < first


async def test_a_run_that_passes_a_limit_says_which(collected: Collected) -> None:
    cs = Callstream(settings=Settings(max_args_bytes=5))
    cs.engine.observers = Observers([collected.telemetry()])
    async with cs:
        run = await cs.start("thread")
        with pytest.raises(LimitExceeded):
            await call(run)
        await run.finish()
    [of_run] = collected.spans("invoke_agent")
    assert of_run.attributes is not None
    assert of_run.attributes["error.type"] == "LimitExceeded"
    [of_call] = collected.spans("execute_tool")
    assert of_call.attributes is not None
    assert of_call.attributes["callstream.call.discard_reason"] == "interrupted"


async def test_a_run_is_a_child_of_the_span_it_began_in(collected: Collected) -> None:
    tracer = trace.get_tracer("test", tracer_provider=collected.tracers)
    async with observed(collected) as cs:
        with tracer.start_as_current_span("request", attributes={"gen_ai.operation.name": "request"}) as request:
            run = await cs.start("thread")
        await run.finish()
    [of_run] = collected.spans("invoke_agent")
    assert of_run.parent is not None
    assert of_run.parent.span_id == request.get_span_context().span_id


async def test_what_happens_inside_a_run_is_a_child_of_its_span(collected: Collected) -> None:
    tracer = trace.get_tracer("test", tracer_provider=collected.tracers)
    async with observed(collected) as cs:
        for _ in range(2):
            async with cs.run("thread"):
                with tracer.start_as_current_span("query", attributes={"gen_ai.operation.name": "query"}):
                    await asyncio.sleep(0)
            assert not trace.get_current_span().get_span_context().is_valid
    runs = [span.context.span_id for span in collected.spans("invoke_agent") if span.parent is None]
    assert [span.parent.span_id for span in collected.spans("query") if span.parent] == runs
    assert len(runs) == 2


async def test_a_run_that_is_left_in_another_context_leaves_nothing_behind(
    collected: Collected, caplog: pytest.LogCaptureFixture
) -> None:
    async with observed(collected) as cs:

        async def working() -> Any:
            async with cs.run("thread"):
                yield

        generator = working()
        await asyncio.create_task(anext(generator))  # type: ignore[arg-type]
        await asyncio.create_task(generator.aclose())
    assert len(collected.spans("invoke_agent")) == 1
    assert [record for record in caplog.records if record.name.startswith(("callstream", "opentelemetry"))] == []


async def test_attempts_are_linked_and_what_they_are_given_is_counted(collected: Collected, tmp_path: Path) -> None:
    journal = f"sqlite:///{tmp_path / 'calls.db'}"

    async def attempt(turns: int, *, is_last: bool = False) -> None:
        async with observed(collected, journal) as cs:
            async with cs.run("thread", "r", continues=True) as run:
                assert run.keeping is not None
                for number in range(turns):
                    kept = await run.keeping.ask(Digest(f"{number}", {}), None)
                    if isinstance(kept, KeptTurn):
                        cs.observers.turn_given(run)
                        assert [(await run.earlier.resolve(each, None)).error for each in kept.call_ids] == [
                            INTERRUPTED
                        ]  # type: ignore[union-attr]
                    else:
                        body = KeptBody(f"{number}", 200, {})
                        await run.record([CallStarted("c", "write"), body.event()], response_id=kept.response_id)
                        await run.record([ArgsAppended("c", "{}"), CallCompleted("c", "{}"), CallExecuting("c")])
                if not is_last:
                    await run.hand_over()

    await attempt(1)
    await attempt(1)
    await attempt(0, is_last=True)
    first, second, third = collected.spans("invoke_agent")
    assert [[link.context.span_id for link in span.links] for span in (first, second, third)] == [
        [],
        [first.context.span_id],
        [first.context.span_id, second.context.span_id],
    ]
    assert [(span.attributes or {}).get("callstream.run.attempt") for span in (first, second, third)] == [None, 2, 3]
    outcomes = [(span.attributes or {}).get("callstream.run.outcome") for span in (first, second, third)]
    assert outcomes == ["handed_over", "handed_over", "finished"]
    assert [point.value for point in collected.metric("callstream.runs.taken_over")] == [2]
    assert [point.value for point in collected.metric("callstream.turns.given")] == [1]
    (interrupted,) = collected.metric("callstream.tools.interrupted")
    assert (interrupted.value, dict(interrupted.attributes)) == (1, {"gen_ai.tool.name": "write"})


async def test_pieces_are_not_told(collected: Collected) -> None:
    told: list[str] = []

    class Counting(Telemetry):
        def call_changed(self, run: Run, call: Call) -> None:
            told.append(call.state)

    async with Callstream() as cs:
        cs.engine.observers = Observers([Counting()])
        async with cs.run("thread") as run:
            await call(run, pieces=('{"a":[', *["1,"] * 500, "1]}"))
            await run.execute("c")
            await run.complete("c")
    assert told == ["started", "args_streaming", "args_complete", "executing", "completed"]


async def test_an_observer_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"no {name}")

    async with Callstream() as cs:
        cs.observe(Broken())
        async with cs.run("thread") as run:
            await call(run)
            await run.execute("c")
            await run.complete("c")
        assert run.outcome == "finished"
    assert "observer Broken failed" in caplog.text


async def test_an_observer_that_raises_when_the_work_ends_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Telemetry):
        def run_entered(self, run: Run) -> Callable[[], None]:
            def leave() -> None:
                raise RuntimeError("no end")

            return leave

    async with Callstream() as cs:
        cs.observe(Broken())
        async with cs.run("thread") as run:
            pass
        assert run.outcome == "finished"
    assert "no end" in caplog.text


def test_it_is_there_by_itself_where_the_api_is_installed() -> None:
    assert bool(Callstream().observers)


@pytest.mark.subprocess
def test_nothing_is_missed_where_it_is_not() -> None:
    program = """
import sys, asyncio
sys.modules["opentelemetry"] = None
from callstream import Callstream
async def main():
    async with Callstream() as cs:
        async with cs.run("thread"):
            pass
        assert not cs.observers
        assert [row.outcome for row in await cs.journal.runs()] == ["finished"]
asyncio.run(main())
print("well")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "well\n", done.stderr


@pytest.mark.subprocess
def test_importing_callstream_does_not_import_it() -> None:
    program = "import sys, callstream, callstream.runtime; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr
