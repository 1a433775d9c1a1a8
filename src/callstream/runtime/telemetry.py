"""OpenTelemetry spans and metrics for runs and calls, following the conventions for generative AI.

One span per run (``invoke_agent``) and one per call (``execute_tool``). A run's span is a child of the span that was
current when the run started, and is itself current while the run works (``async with run``), so that spans of other
libraries land in the same trace. A run that goes on in another process has a new span, with links to the earlier ones.
A call's span starts with the call, so it covers what happens before the tool runs; its attributes tell the phases apart.
When a call awaits an answer its span ends; if it executes later, it gets another one.

Some hosts trace agents and tools themselves; google-adk does. For them (``run.host_traces``) the run's span is just
``run``, and a call's span is ``tool_arguments``: the part that the host cannot see, from the first argument to the moment
when the tool may run. The host's own span of the tool gets the call's id. So no agent and no tool appears twice.

Arguments and results are never recorded unless that was asked for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final

import msgspec
from opentelemetry import context, metrics, propagate, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from callstream import codec
from callstream.calls import AT_REST, HAS_OUTCOME, Call, CallState
from callstream.events import ResponseEnded
from callstream.journal import Journal
from callstream.runtime.run import Run

SCOPE: Final = "callstream"
_CONTEXT: Final = TraceContextTextMapPropagator()
_TOKENS: Final = {
    "input": (
        *("input_tokens", "prompt_tokens", "promptTokenCount", "inputTokens", "total_input_tokens"),
        *("prompt_eval_count", "toolUsePromptTokenCount"),
    ),
    "output": (
        *("output_tokens", "completion_tokens", "candidatesTokenCount", "outputTokens", "total_output_tokens"),
        *("eval_count", "thoughtsTokenCount"),
    ),
}
"""The names of token counts in the usage figures of all wires. Those of one wire count different tokens: they are added."""


class _Observed(msgspec.Struct, eq=False):
    """``turn_at``: when the model's turn began: with the run, or with the last result before it."""

    span: Span
    started_at: float
    turn_at: float
    calls: dict[str, _ObservedCall] = {}


class _ObservedCall(msgspec.Struct, eq=False):
    span: Span
    first_argument: float | None = None
    executing_at: float | None = None


@contextmanager
def continue_trace(headers: Mapping[str, str]) -> Iterator[None]:
    """Makes the remote span of a request's headers current, unless an instrumentation has made one current already."""
    if trace.get_current_span().get_span_context().is_valid:
        yield
        return
    remote = propagate.extract(headers)
    token = context.attach(remote)
    try:
        yield
    finally:
        if context.get_current() is remote:  # a generator may be closed in another context than it began in
            context.detach(token)


class Telemetry:
    """An ``Observer``. Tracer and meter are those of the global providers, unless others are given."""

    def __init__(
        self,
        *,
        show_arguments: bool = False,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._show_arguments = show_arguments
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(SCOPE, meter_provider=meter_provider)
        self._run_duration = meter.create_histogram("callstream.run.duration", "s", "How long runs took.")
        self._first_argument = meter.create_histogram(
            "callstream.call.time_to_first_argument",
            "s",
            "From the beginning of the model's turn to its first argument.",
        )
        self._calls = meter.create_counter("callstream.calls", "{call}", "Calls by the state that they came to.")
        self._args = meter.create_counter("callstream.call.argument_bytes", "By", "Argument text that models wrote.")
        self._asked_again = meter.create_counter(
            "callstream.model.asked_again",
            "{request}",
            "Requests of the tap's own, because no call of an answer could run.",
        )
        self._tokens = meter.create_counter("callstream.model.tokens", "{token}", "Tokens, as providers count them.")
        self._first_byte = meter.create_histogram(
            "callstream.gateway.time_to_first_byte", "s", "From a request to the first byte of its answer."
        )
        self._attached = meter.create_counter(
            "callstream.gateway.attached", "{answer}", "Answers that a client came back for."
        )
        self._taken_over = meter.create_counter(
            "callstream.runs.taken_over", "{run}", "Runs of other processes that went on here."
        )
        self._turns_given = meter.create_counter(
            "callstream.turns.given",
            "{turn}",
            "Requests of runs that went on which the journal answered, and no model.",
        )
        self._interrupted = meter.create_counter(
            "callstream.tools.interrupted", "{call}", "Tools of which the model was told that their outcome is unknown."
        )
        self._active_runs = meter.create_up_down_counter("callstream.runs.active", "{run}", "Active runs.")
        self._streams = meter.create_up_down_counter("callstream.streams.active", "{stream}", "Streams that are read.")
        self._runs: dict[str, _Observed] = {}
        self._journals: weakref.WeakSet[Journal] = weakref.WeakSet()
        meter.create_observable_gauge(
            "callstream.log.lag", [self._figure("lag_seconds")], "s", "Age of the oldest piece in the journal's log."
        )
        for name, unit, what in (
            ("batches", "{batch}", "Batches written to the journal's log."),
            ("records", "{record}", "Records in these batches."),
            ("refused", "{batch}", "Batches that the log refused, because others had taken the runs."),
        ):
            meter.create_observable_counter(f"callstream.log.{name}", [self._figure(name)], unit, what)

    def _figure(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def look(options: CallbackOptions) -> Iterable[Observation]:
            found = [journal.log_figures() for journal in list(self._journals)]
            return [Observation(figures[name]) for figures in found if figures is not None]

        return look

    def run_started(self, run: Run) -> None:
        self._journals.add(run.engine.journal)
        now = perf_counter()
        name = "run" if run.host_traces else "invoke_agent"
        attributes: dict[str, Any] = {"gen_ai.conversation.id": run.thread_id, "callstream.run.id": run.run_id}
        if not run.host_traces:
            attributes["gen_ai.operation.name"] = name
        links: list[Link] = []
        if run.keeping is not None and run.keeping.attempt > 1:
            attributes["callstream.run.attempt"] = run.keeping.attempt
            links = [_link(traced) for traced in run.keeping.earlier_traces]
            self._taken_over.add(1)
        span = self._tracer.start_span(name, kind=SpanKind.INTERNAL, attributes=attributes, links=links)
        if run.keeping is not None and span.get_span_context().is_valid:
            carrier: dict[str, str] = {}
            _CONTEXT.inject(carrier, trace.set_span_in_context(span))
            run.keeping.trace = carrier.get("traceparent")
        self._runs[run.run_id] = _Observed(span, now, now)
        self._active_runs.add(1)

    def run_entered(self, run: Run) -> Callable[[], None]:
        observed = self._runs.get(run.run_id)
        if observed is None or not observed.span.get_span_context().is_valid:  # nothing traces
            return lambda: None
        token = context.attach(trace.set_span_in_context(observed.span))
        return lambda: context.detach(token)

    def call_changed(self, run: Run, call: Call) -> None:
        observed = self._runs.get(run.run_id)
        if observed is None:
            return
        now = perf_counter()
        known = observed.calls.get(call.call_id)
        executes = call.state is CallState.EXECUTING
        if known is None and (call.state is CallState.STARTED or (executes and not run.host_traces)):
            known = observed.calls[call.call_id] = _ObservedCall(self._begin(run, call, observed.span))
        if executes and run.host_traces:
            _mark(trace.get_current_span(), call, observed.span)
            if known is not None:
                del observed.calls[call.call_id]
                self._end(run, call, known, now)
        elif (executes or call.state is CallState.RUNNING_EARLY) and known is not None:
            known.executing_at = now
        elif call.state in (CallState.ARGS_STREAMING, CallState.ARGS_COMPLETE) and known is not None:
            if known.first_argument is None:
                known.first_argument = now - observed.turn_at
                self._first_argument.record(known.first_argument, {"gen_ai.tool.name": call.name})
        elif call.state in AT_REST:
            if call.state in HAS_OUTCOME:
                observed.turn_at = now
            attributes = {"gen_ai.tool.name": call.name, "callstream.call.state": call.state.value}
            if call.reason is not None:
                attributes["callstream.call.discard_reason"] = call.reason
            self._calls.add(1, attributes)
            if known is not None:
                del observed.calls[call.call_id]
                self._end(run, call, known, now)

    def run_ended(self, run: Run) -> None:
        observed = self._runs.pop(run.run_id, None)
        if observed is None:
            return
        outcome = "handed_over" if run.is_left else run.outcome or "failed"
        observed.span.set_attribute("callstream.run.outcome", outcome)
        if outcome == "failed":
            # The reason may be an exception's text, which can be anything; its first word is the exception's type.
            observed.span.set_attribute("error.type", (run.reason or "failed").partition(":")[0])
            observed.span.set_status(Status(StatusCode.ERROR))
        observed.span.end()
        self._active_runs.add(-1)
        attributes = {"gen_ai.operation.name": "invoke_agent", "callstream.run.outcome": outcome}
        self._run_duration.record(perf_counter() - observed.started_at, attributes)

    def response_ended(self, run: Run, event: ResponseEnded) -> None:
        for kind, count in _tokens(event.usage or {}).items():
            self._tokens.add(count, {"gen_ai.token.type": kind})

    def turn_given(self, run: Run) -> None:
        self._turns_given.add(1)

    def tool_interrupted(self, run: Run, call: Call) -> None:
        self._interrupted.add(1, {"gen_ai.tool.name": call.name})

    def answer_began(self, upstream: str, status: int, seconds: float) -> None:
        self._first_byte.record(seconds, {"callstream.upstream": upstream, "http.response.status_code": status})

    def answer_attached(self, upstream: str) -> None:
        self._attached.add(1, {"callstream.upstream": upstream})

    def asked_again(self, run: Run, wire: str) -> None:
        self._asked_again.add(1, {"callstream.wire": wire})

    def streams_changed(self, change: int) -> None:
        self._streams.add(change)

    def _begin(self, run: Run, call: Call, parent: Span) -> Span:
        name = "tool_arguments" if run.host_traces else "execute_tool"
        attributes: dict[str, Any] = {
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.wire_id,
            "callstream.call.id": call.call_id,
        }
        if not run.host_traces:
            attributes["gen_ai.operation.name"] = name
        within = trace.set_span_in_context(parent)
        return self._tracer.start_span(f"{name} {call.name}", context=within, attributes=attributes)

    def _end(self, run: Run, call: Call, known: _ObservedCall, now: float) -> None:
        size = run.args_bytes(call.call_id)
        self._args.add(size, {"gen_ai.tool.name": call.name})
        attributes: dict[str, Any] = {
            "callstream.call.state": call.state.value,
            "callstream.call.argument_bytes": size,
            "callstream.call.time_to_first_argument": known.first_argument,
            "callstream.call.hook_seconds": run.hook_seconds(call.call_id),
            "callstream.call.execution_seconds": None if known.executing_at is None else now - known.executing_at,
            "callstream.call.discard_reason": call.reason,
        }
        if self._show_arguments:
            attributes["gen_ai.tool.call.arguments"] = call.args_json
            if call.state is CallState.COMPLETED:
                attributes["gen_ai.tool.call.result"] = codec.encode(call.result).decode()
        known.span.set_attributes({name: value for name, value in attributes.items() if value is not None})
        if call.state in (CallState.FAILED, CallState.DISCARDED):
            known.span.set_attribute("error.type", call.reason or "tool_error")
            known.span.set_status(Status(StatusCode.ERROR))
        known.span.end()


def _link(traced: str) -> Link:
    """A link to the span of an earlier attempt."""
    return Link(trace.get_current_span(_CONTEXT.extract({"traceparent": traced})).get_span_context())


def _mark(span: Span, call: Call, own: Span) -> None:
    """Makes the host's span of a tool findable by the call's id."""
    if span is not own:
        span.set_attribute("callstream.call.id", call.call_id)


def _tokens(usage: Mapping[str, Any]) -> dict[str, int]:
    figures = usage["tokens"] if isinstance(usage.get("tokens"), dict) else usage  # Cohere has several kinds of figures
    counts = {kind: [figures.get(name) for name in names] for kind, names in _TOKENS.items()}
    return {kind: sum(count for count in found if isinstance(count, int)) for kind, found in counts.items()}
