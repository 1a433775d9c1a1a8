"""How the tap reads an exchange with a provider, whatever transport the bytes take: what a request says, and its answer."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from callstream.calls import LACKS_OUTCOME, Call, CallState, Refusal
from callstream.errors import CallRejected, RunOver, UsageError, WireError
from callstream.events import CallCompleted, CallDiscarded, DiscardReason, RequestEvent, ResultReceived, RunStarted
from callstream.runtime import ModelCall, Run, RunEngine, current_model_call, current_run
from callstream.runtime.barrier import absence
from callstream.runtime.continuing import Coming, Keeping, KeptBody, KeptTurn
from callstream.runtime.engine import check_ask_again, check_silence
from callstream.runtime.ownloop import may_wait_for
from callstream.runtime.response import GivenResponse, TextFilter
from callstream.tap.body import Limits, OnEnd, TappedBody, unjudged
from callstream.tools import current_call, describe
from callstream.tools.check import argument_names, outline_faults
from callstream.wire import WIRES
from callstream.wire.collapsing import Collapser
from callstream.wire.joining import Joint, Saying
from callstream.wire.provider import Provider, discard_invalid
from callstream.wire.requests import Asks, LoneReasoning, Request

logger = logging.getLogger("callstream")

# Where a response belongs: to the run of the task or thread that requests it, and to its host's model call.


class Place(NamedTuple):
    """Where a response belongs. ``beside`` is its run if that cannot be reached from here: then it gets its own run."""

    run: Run | None
    model_call: ModelCall | None = None
    beside: Run | None = None

    @classmethod
    def current(cls) -> Place:
        model_call = current_model_call.get()
        if model_call is not None and model_call.run.outcome is None:
            return cls(model_call.run, model_call)
        return cls(current_run())

    def of_host(self) -> Place | None:
        """The same, for a host's model: a request that no agent makes is guarded like any other, but not shown.

        None outside a run, where there is nothing to guard.
        """
        if self.model_call is not None:
            return self
        return None if self.run is None else Place(self.run, ModelCall(self.run, reports=True, withholds=True))

    def for_blocking_caller(self, own_loop: asyncio.AbstractEventLoop) -> Place:
        """The same, unless the run's event loop is blocked and so would never answer. ``own_loop`` never is."""
        run = self.run
        if run is None or run.loop is own_loop or may_wait_for(run.loop):
            return self
        logger.warning(
            "a sync client blocks the event loop of run %s, so its response is a run of its own, in the same thread: "
            "use 'with cs.run(…)' for the run, or asyncio.to_thread for the call of the client",
            run.run_id,
        )
        return Place(None, beside=run)


# -- runs of programs that know nothing of runs ------------------------------------------------------------------------
# Outside a run each response is a run of its own. It ends with its last call: with the response if it has none, else when
# a later request brings the results; calls that no request answers in time are released. The run has failed if the response
# broke off. A request whose results belong to such a run continues in the same thread.


_UNANSWERED = LACKS_OUTCOME - {CallState.AWAITING}


class ImplicitRuns:
    """The implicit runs of one Callstream that still wait for results. ``patience`` is how long, in seconds."""

    def __init__(self, engine: RunEngine, *, patience: float = 600.0) -> None:
        self._engine = engine
        self._patience = patience
        self._waiting: dict[Run, asyncio.TimerHandle] = {}
        self._errors: dict[Run, BaseException] = {}  # what broke off the responses of these runs
        self._releases: set[asyncio.Task[None]] = set()

    async def begin(self, request: Sequence[RequestEvent], beside: Run | None = None) -> Run:
        """The run of the response to this request. The request's results go to the runs that they belong to.

        ``beside``: the run that the response would belong to if that could be reached. The new run is in its thread.
        """
        thread_id = None if beside is None else beside.thread_id
        for run in self._answered(request):
            thread_id = thread_id or run.thread_id
            await run.receive([event for event in request if isinstance(event, ResultReceived)])
            await self.response_ended(run)
        thread_id = thread_id or self._engine.new_id("thread")
        if beside is None:
            run = await Run.start(self._engine, RunStarted(thread_id), as_current=False)
        else:
            started = RunStarted(thread_id, beside.principal)
            run = await Run.start(self._engine, started, rejected=beside.rejected, as_current=False)
        run.starts_early = False
        return run

    async def response_ended(self, run: Run, error: BaseException | None = None) -> None:
        """Ends the run if nothing in it is open, else lets it wait for its results. ``error``: what broke it off."""
        if error is not None:
            self._errors[run] = error
        if not run.unfinished and not any(call.state in _UNANSWERED for call in run.calls):
            await self._end(run)
        elif run not in self._waiting:
            self._waiting[run] = run.loop.call_later(self._patience, self._give_up, run)

    async def aclose(self) -> None:
        """Gives up waiting, on this event loop: unanswered calls are released."""
        for run in self._waiting_here():
            await self._end(run)

    def _answered(self, request: Sequence[RequestEvent]) -> list[Run]:
        results = [event for event in request if isinstance(event, ResultReceived) and event.latest]
        here = self._waiting_here()
        by_id = {event.provider_id for event in results if event.provider_id is not None}
        found = [run for run in here if any(call.wire_id in by_id for call in run.calls)]
        if found or not results:
            return found
        # Without ids only the names are left, and they are only conclusive if a single run waits for them.
        names = {event.name for event in results}
        fitting = [run for run in here if any(call.name in names and call.state in _UNANSWERED for call in run.calls)]
        return fitting if len(fitting) == 1 else []

    def _waiting_here(self) -> list[Run]:
        return [run for run in list(self._waiting) if run.loop is asyncio.get_running_loop()]

    def _give_up(self, run: Run) -> None:
        release = asyncio.ensure_future(self._end(run))
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)

    async def _end(self, run: Run) -> None:
        timer = self._waiting.pop(run, None)
        if timer is not None:
            timer.cancel()
        await run.end(self._errors.pop(run, None))


# What the tap raises into an SDK, in a form that the SDK neither wraps nor retries.
#
# An SDK reads an answer that is not streamed while it sends the request, and may take any exception there for a broken
# connection: it repeats the request and finally raises a connection error, unless the exception is one of its own. For such
# an SDK (``Provider.sdk_error``) the tap's errors are made instances of the SDK's error class as well; a CallRejected is
# still a CallRejected.


@contextmanager
def raised_once(provider: Provider) -> Iterator[None]:
    """Errors raised in here reach the program that called the SDK, after a single request."""
    try:
        yield
    except Exception as error:
        module, _, name = (provider.sdk_error or "").partition(".")
        root = getattr(sys.modules.get(module), name, None)
        if root is None or isinstance(error, root):
            raise
        raise _also(error, root)  # noqa: B904  this is the error itself, and keeps its cause


def _also(error: Exception, root: type[Exception]) -> Exception:
    """The error as an instance of ``root``, too. Made without ``__init__``, whose arguments are no longer known."""
    of = type(error)
    kind: Any = type(of.__name__, (of, root), {"__module__": of.__module__, "__doc__": of.__doc__})
    made: Any = kind.__new__(kind, *error.args)
    made.__dict__.update(error.__dict__)
    made.__traceback__ = error.__traceback__
    cause: BaseException | None = error.__cause__
    if any(isinstance(link, root) for link in _chain(cause)):
        made.__context__ = cause  # as a cause, an error of the SDK's own would make it retry
    else:
        made.__cause__ = cause
    return made  # type: ignore[no-any-return]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


Collapse: TypeAlias = Literal["known", "all", "none"]

_NAMELESS = "a call did not name its tool, so nothing ran; call the tool again, by its name"


class TapSettings(msgspec.Struct, frozen=True):
    """``stream_arguments`` asks providers for streamed arguments that they send only on request. ``bedrock_beta`` also asks
    Claude on Bedrock: there it takes a beta for the whole request, which some models refuse.

    ``first_byte`` and ``idle`` are seconds after which a streamed answer that has not begun, or does not continue, ends
    with the HTTP library's ReadTimeout; None leaves it to the settings of the Callstream. ``ask_again``: how often the model
    is asked again if it wrote nothing but calls that cannot run; None leaves it to those settings, too.
    ``hosted``: the client belongs to a model whose host says which requests come from its agents; all others are the host's
    own, such as a summary of its history, and their answers are attributed to no one and never shown.
    ``repair_gemini_signatures`` puts thought signatures back into a history that lost them; hosts do that themselves.
    ``joins_text``: text and reasoning reach the SDK passage by passage, for programs that do not read them as they are
    written. ``text_filter`` decides which of that text is journaled and shown; the SDK gets all of it.
    """

    wire: str | None = None
    collapse: Collapse = "known"
    stream_arguments: bool = True
    bedrock_beta: bool = False
    first_byte: float | None = None
    idle: float | None = None
    hosted: bool = False
    ask_again: int | None = None
    repair_gemini_signatures: bool = False
    joins_text: bool = False
    text_filter: TextFilter | None = None
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        check_silence(self.first_byte, self.idle)
        if self.ask_again is not None:
            check_ask_again(self.ask_again)


_REDIRECTS = 300


class Exchange(NamedTuple):
    """A request of the SDK: what it asked which provider, where its answer belongs, and what it said.

    ``noted``: the refusals that notes in it explain to the model. ``rest_of``: the reading that its answer continues.
    ``coming``: its response, where that is kept. ``often``: how often the model may be asked again; None leaves an answer
    with nothing but refused calls to the program.
    """

    provider: Provider
    asked: Request
    place: Place
    said: list[RequestEvent]
    noted: list[Refusal]
    rest_of: Reading | None = None
    coming: Coming | None = None
    often: int | None = None

    def check_unread(self, status: int, what: str) -> None:
        """An answer is about to pass unread. Errors and redirects may: there is no model output in them."""
        run = self.place.run
        if run is not None and run.must_judge and status < _REDIRECTS:
            raise unjudged(f"it has {what}")


class Tapping:
    """Reads exchanges with the settings of one client, into the runs that they belong to."""

    def __init__(self, engine: RunEngine, implicit: ImplicitRuns, settings: TapSettings, lone: LoneReasoning) -> None:
        if settings.wire is not None and settings.wire not in WIRES:
            raise UsageError(f"expected one of the wires {', '.join(WIRES)}, got {settings.wire!r}")
        if settings.collapse not in ("known", "all", "none"):
            raise UsageError(f"expected collapse to be 'known', 'all' or 'none', got {settings.collapse!r}")
        self.engine = engine
        self.settings = settings
        self._implicit = implicit
        self.lone = lone
        """The reasoning that no request may bring back."""
        self._paused: dict[str, Reading] = {}  # by what the request for the rest carries

    async def receive(self, provider: Provider, asked: Request, place: Place) -> Exchange:
        """Records what a request says, before it is sent."""
        run, model_call = place.run, place.model_call
        paused = self._paused.get(provider.continued(asked) or "")
        if paused is not None and paused.goes_on_in(run):
            return Exchange(provider, asked, place, [], paused.noted, paused)
        said = _said(provider, asked)
        if run is not None and model_call is None:
            await run.end_unfinished()
        if run is not None and (model_call is None or not model_call.reports):
            with raised_once(provider):
                await run.receive(said, author=model_call.author if model_call is not None else None)
        return Exchange(provider, asked, place, said, [])

    async def kept(self, provider: Provider, asked: Request, place: Place) -> KeptTurn | Coming | None:
        """The answer that an earlier attempt of the run got, or the one to come; None if the run keeps none."""
        run, model_call = place.run, place.model_call
        if run is None or run.keeping is None:
            return None
        declared = provider.declared_tools(asked)
        if why := self._spoils(declared, run.keeping, model_call):
            await run.keeping.give_up(why)
            return None
        # A request that a tool makes belongs to the tool: it is not made again where the tool does not run again.
        within = current_call()
        author = None if within is None else f"call {within.call_id}"
        author = author if model_call is None else model_call.author
        refusals = _refusals_to_explain(provider, asked, place)
        kept = await run.keeping.ask(asked.digest, author)
        if not isinstance(kept, KeptTurn):
            return kept
        if model_call is not None:
            model_call.read_by_tap = True
            model_call.responses.append(GivenResponse(run, kept.call_ids))
        else:
            run.tool_use.mark_told(refusals)
            run.tool_use.declared.update(declared)
        run.engine.observers.turn_given(run)
        run.give_again(kept, {} if model_call is None else model_call.tools)
        return kept

    def _spoils(self, declared: Collection[str], keeping: Keeping, model_call: ModelCall | None) -> str | None:
        """Why the run cannot go on elsewhere after this request; None if it can."""
        if self.text_filters(model_call) or (model_call is not None and model_call.withholds):
            return "an answer may be changed before it is shown, or is not read for an agent"
        own = [] if model_call is not None else [name for name in declared if self.engine.find_tool(name) is None]
        unknown = [name for name in own if name not in keeping.elsewhere]
        return f"tool {unknown[0]} was not given to Callstream, so whether it has run is unknown" if unknown else None

    def tell(self, exchange: Exchange) -> Told:
        """The request, explaining to the model why calls that never reached the program did not run.

        A call that the program never got is written back beside the calls of the same response, in every request that has
        those; otherwise it gets a note, once. A request for the rest of an answer repeats the notes of the one before.
        """
        provider, request, run = exchange.provider, exchange.asked, exchange.place.run
        is_rest = exchange.rest_of is not None
        refusals = exchange.noted if is_rest else _refusals_to_explain(provider, request, exchange.place)
        if self.lone or (run is not None and any(call.state is CallState.DISCARDED for call in run.calls)):
            request = provider.without_lone_reasoning(request, self.lone)
        if run is None:
            return Told(request, None, [], [])
        written = run.tool_use.written_back(refusals)
        placed = {call.wire_id for call in provider.restore(request, list(written.values()))} if written else set()
        restored = [call_id for call_id, call in written.items() if call.wire_id in placed]
        if restored:
            request = request.rewritten()
        notes = {each.wire_id: each.text for each in refusals if each.call_id not in restored}
        noted = provider.add_notes(request, notes) if notes else None
        in_notes = [each for each in refusals if noted is not None and each.wire_id in notes]
        return Told(noted or request, run, restored, in_notes)

    async def begin(self, exchange: Exchange, answer: Any = None) -> Reading:
        """The reading of the answer, in a run of its own if there is none. ``answer``: its head, where it may be kept."""
        run = exchange.place.run
        if exchange.rest_of is not None and exchange.rest_of.goes_on_in(run):
            if run is not None and run.keeping is not None:
                await run.keeping.give_up("a response came in several answers")
            exchange.rest_of.resume(exchange)
            return exchange.rest_of
        on_end = None
        if run is None:
            with raised_once(exchange.provider):
                run = await self._implicit.begin(exchange.said, exchange.place.beside)
            on_end = partial(self._implicit.response_ended, run)
        reading = Reading(self, exchange, run, on_end=on_end)
        if exchange.coming is not None and answer is not None:
            reading.keep_as(exchange.coming.response_id, answer)
        return reading

    def keep(self, paused: Reading, token: str) -> None:
        """Keeps a paused reading: it continues with the answer to a request that carries this token."""
        self._paused = {each: reading for each, reading in self._paused.items() if reading.is_paused}
        self._paused[token] = paused

    def collapses(self, model_call: ModelCall | None) -> Callable[[str], bool]:
        match self.settings.collapse:
            case "all":
                return lambda name: True
            case "none":
                return lambda name: False
            case _ if model_call is not None and model_call.collapses is not None:
                return model_call.collapses
            case _:
                return self.engine.knows

    def asks(self, model_call: ModelCall | None) -> Asks:
        """For which tools the provider is asked to stream arguments: only those whose calls reach the SDK whole."""
        collapses = self.collapses(model_call)
        may_stream: Asks = self.engine.streams
        if model_call is not None and model_call.streams is not None:
            may_stream = model_call.streams
        return lambda name: collapses(name) and may_stream(name)

    def text_filters(self, model_call: ModelCall | None) -> Sequence[TextFilter]:
        own = self.settings.text_filter
        theirs = model_call.text_filters if model_call is not None else ()
        return theirs if own is None else (*theirs, own)


class Reading:
    """How one answer is read: into which run, for whom, and under which names."""

    def __init__(self, tapping: Tapping, exchange: Exchange, run: Run, *, on_end: OnEnd | None) -> None:
        model_call = exchange.place.model_call or ModelCall(run)
        self._tapping = tapping
        self._on_end = on_end
        self._collapser: Collapser[Any] | None = None
        self._kept: KeptBody | None = None
        self.provider = exchange.provider
        self.asked = exchange.asked
        self.noted = exchange.noted
        self.often = exchange.often
        self.run = run
        collapses = tapping.collapses(model_call)
        self._tools = exchange.provider.declared_tools(exchange.asked)
        offered = exchange.provider.offered_names(exchange.asked)
        names = offered or tuple(self._tools)
        # Where no tool of the request is collapsed, nothing needs to be held either.
        self._may_collapse = tapping.settings.collapse != "none"
        self._touches = self._may_collapse and (not names or any(map(collapses, names)))
        # A call of a tool that the request never declared belongs to no tool: it must not reach the SDK in pieces.
        self._offered = offered if self._touches else ()
        self._collapses: Callable[[str], bool] = lambda name: collapses(name) or self._is_invented(name)
        self._refuses = model_call.refuses
        # Text that the program does not read while it is written reaches the SDK passage by passage.
        own, common = model_call.joins_text, tapping.settings.joins_text
        self._joins_text = common if own is None else own
        self._forwards_rejected = self._refuses or run.rejected == "forward"
        self._own_tools = model_call.tools
        self.says = run.rejected == "say" and not self._refuses and exchange.provider.joint is not None
        """Whether the SDK gets a sentence instead of calls that are withheld from it."""
        self.drops_rejected = self.says or (run.rejected == "ask" and not self._refuses)
        """Whether calls that hooks reject are kept from the SDK."""
        is_hosted = exchange.place.model_call is not None
        self.may_ask = self._touches and not is_hosted and run.rejected not in ("forward", "say")
        """Whether the tap has to tell the model about refused calls. Hosts, and programs that get them forwarded, do so."""
        self._response = run.response(
            exchange.provider.wire,
            tools=self._tools,
            offered=self._offered,
            author=model_call.author,
            new_call_id=model_call.new_call_id,
            early="report" if model_call.reports else "record",
            withheld=model_call.withholds,
            own_tools=self._own_tools,
            text_filters=tapping.text_filters(model_call),
        )
        self._response.decoder.may_pause = True
        model_call.read_by_tap = True
        model_call.responses.append(self._response)
        self.asked.drop_fields()

    def keep_as(self, response_id: str, answer: Any) -> None:
        """Keeps the answer under that id, as the SDK gets it."""
        self._response.response_id = response_id
        is_kept_there = self.provider.kept_at(self.asked, "") is not None
        is_events = answer.headers.get("content-type", "").startswith("text/event-stream")
        self._kept = KeptBody(
            self.asked.digest.whole,
            answer.status_code,
            answer.headers,
            is_nameless=is_kept_there,
            checkpoint=self.provider.checkpoint if is_events else None,
        )

    def _is_invented(self, name: str) -> bool:
        return bool(self._offered) and name not in self._offered

    def _check(self, name: str, args_json: str) -> tuple[DiscardReason, str] | None:
        """Why a call must not reach the SDK, although it is whole."""
        if self.says:
            return None  # whether arguments fit is for the program to judge: it gets allowed calls as they came
        if self.drops_rejected and self._is_invented(name):
            return "rejected", absence(name, self._offered)
        schema, tool = self._tools.get(name), self._own_tools.get(name) or self._tapping.engine.find_tool(name)
        if not schema and tool is None and not self._is_invented(name):
            return None
        if tool is not None and tool.check == "stream":
            check = tool.arguments.stream_check()
            if check.feed(args_json):
                return check.refusal  # the run has come to the same result by itself
        args = json.loads(args_json)
        if not isinstance(args, dict | None):
            return "malformed", "the arguments are not an object"
        args = {} if args is None else args  # some models write null for no arguments
        wrong = outline_faults(schema, args)
        if tool is not None:
            named = {fault.path[0] for fault in wrong if fault.path}
            wrong += [fault for fault in tool.arguments.convert_values(args)[1] if fault.path[0] not in named]
        return ("invalid", describe(wrong, argument_names(schema))) if wrong else None

    # -- an answer in several --

    @property
    def is_paused(self) -> bool:
        """Whether the rest of the answer may come as the answer to another request."""
        return self._response.is_paused and self.run.outcome is None

    def goes_on_in(self, run: Run | None) -> bool:
        """Whether reading continues for a request of that run (None: outside any)."""
        is_its_own = run is self.run or (run is None and self._on_end is not None)
        return self.is_paused and is_its_own and self.run.loop is asyncio.get_running_loop()

    def resume(self, exchange: Exchange) -> None:
        self.often = exchange.often
        decoder = self._response.decoder
        self.run.unfinished.pop(decoder.continuation or "", None)
        decoder.resume()

    # -- what the program does not get --

    @property
    def response_id(self) -> str:
        return self._response.response_id

    @property
    def has_refused(self) -> bool:
        """Whether a call of the answer was refused, as far as the answer has been read."""
        if not self._response.call_ids or self._response.nameless:
            return bool(self._response.nameless)
        return any(call.state is CallState.DISCARDED and self._collapses(call.name) for call in self._calls())

    def refused(self) -> list[Refusal]:
        """Why the program gets none of the answer's calls; empty if it gets one, if there are none, or if others tell it."""
        if not self.may_ask or self.is_paused or self._response.finish_reason in self.provider.goes_on:
            return []
        if not all(self._collapses(call.name) for call in self._calls()):
            return []
        nameless = [
            Refusal(discarded.call_id, "", None, discarded.reason, _NAMELESS) for discarded in self._response.nameless
        ]
        mine = self._response.call_ids.values()
        refusals = self.run.tool_use.to_ask_again(mine)
        return [*refusals, *nameless] if len(refusals) == len(mine) else []

    @property
    def wants_another(self) -> bool:
        """Whether the program gets nothing to act on, as far as the answer has been read, and the model is asked again."""
        return self.often is not None and bool(self.refused())

    def _calls(self) -> list[Call]:
        """The calls of the answer, as far as it has been read."""
        mine = set(self._response.call_ids.values())
        return [call for call in self.run.calls if call.call_id in mine]

    def is_lost(self) -> bool:
        """Whether none of the answer's calls can run, and the rest of the answer is not wanted in that case.

        Where the program gets a sentence instead of calls, it still has the calls that were whole before.
        """
        run = self.run
        refused = [] if self._response.is_over else self._withheld() if self.says else self.refused()
        return any(run.engine.settings.cut_refused or run.is_cut(each.call_id) for each in refused)

    def _withheld(self) -> list[Refusal]:
        """The refused calls; none while another is being written."""
        if any(call.is_being_written for call in self._calls()):
            return []
        return self.run.tool_use.withheld(self._response.call_ids.values())

    def said(self) -> Saying | None:
        """What is said instead of calls that were withheld; None if there are none, or if it is not wanted."""
        mine = self._response.call_ids.values()
        withheld = self.run.tool_use.withheld(mine) if self.says and not self.is_paused else []
        if not withheld:
            return None
        text = "\n".join(f"{refused.name} was refused: {refused.text}" for refused in withheld)
        return Saying(text, is_last_word=len(withheld) == len(mine), follows=self._response.has_text)

    def rejection(self, refused: Refusal) -> CallRejected | RunOver:
        """The error for the program."""
        if refused.name:
            return self.run.rejection(refused.call_id)
        return CallRejected(refused.call_id, "", refused.text, reason=refused.reason)

    def joint(self, content_type: str) -> Joint | None:
        """Joins this streamed answer and another; None if the wire has no joint, or the answer is not a stream of events."""
        kind = self.provider.joint
        return None if kind is None or not content_type.lower().startswith("text/event-stream") else kind()

    def mark_delivered(self) -> None:
        """The program has the answer."""
        if self._response.is_over:
            self.run.claims.mark_delivered(self._response.call_ids.values())

    async def tell_end(self, error: BaseException | None) -> None:
        """Everything that belongs to the answer has been read. May be called twice."""
        token = self._response.decoder.continuation
        if self.is_paused and token is not None:
            self.run.unfinished[token] = self._response
            self._tapping.keep(self, token)
        if self._on_end is not None:
            await self._on_end(error or self._response.decoder.error)

    # -- the answer --

    def streamed(
        self, source: Any, close_source: Callable[[], Awaitable[None]], *, on_end: OnEnd | None = None
    ) -> TappedBody:
        """A streamed answer, read by a task of its own from now on.

        ``on_end`` is called at the end instead of ``tell_end``.
        """
        if self._collapser is None:
            self._collapser = self.provider.collapser(
                self._response.decoder,
                collapse=self._collapses if self._touches else (lambda name: False) if self._joins_text else None,
                lone=self._tapping.lone,
                check=self._check,
                forwards_invalid=self._forwards_rejected,
                joins_text=self._joins_text,
            )
        return TappedBody(
            source,
            close_source,
            self._response,
            self._collapser,
            forwards_rejected=self._forwards_rejected,
            waits_for_hooks=not self._refuses,
            limits=self._tapping.settings.limits,
            on_end=on_end or self.tell_end,
            kept=self._kept,
        )

    async def whole(self, source: Any, close_source: Callable[[], Awaitable[None]]) -> bytes:
        """An answer that was not streamed. It is forwarded when its calls are recorded and their hooks have settled.

        ``tell_end`` is not called if another answer follows.
        """
        error: BaseException | None = None
        try:
            body = await self._read_whole(source)
            await close_source()
            with raised_once(self.provider):
                return await self._recorded(body)
        except CallRejected:
            raise  # the answer is whole
        except BaseException as broken:
            error = broken
            raise
        finally:
            if self.may_ask and error is None:
                self.mark_delivered()
            if error is not None or not self.wants_another:
                await self.tell_end(error)

    async def _recorded(self, body: bytes) -> bytes:
        try:
            events = self._response.decoder.whole(body)
        except WireError as error:
            if self.run.must_judge:
                raise unjudged(str(error)) from error
            logger.warning("could not read a response: %s", error)
            events = []
        if self._may_collapse:
            events = discard_invalid(events, self._collapses, self._check)
        # A host gets the answer as it is.
        await self._response.record(events if self._kept is None else [*events, self._kept.whole(body)])
        for place, event in enumerate(events) if not self._refuses else ():
            if isinstance(event, CallCompleted):
                call = await self.run.settled(self._response.call_ids[event.call_id])
                if call.state is CallState.DISCARDED and self.drops_rejected:
                    events[place] = CallDiscarded(event.call_id, call.reason or "rejected", call.detail)
                elif call.state is CallState.DISCARDED and not self._forwards_rejected:
                    raise self.run.rejection(call.call_id)
        if not self._may_collapse or self._refuses:
            return body
        stored = self.provider.is_stored(self.asked)
        left = self.provider.without_unfinished(
            body, self._response.decoder, events, collapse=self._collapses, stored=stored
        )
        saying, joint = self.said(), self.provider.joint
        return left if saying is None or joint is None else joint.say_whole(left, saying)

    async def _read_whole(self, stream: Any) -> bytes:
        limit = self._tapping.settings.limits.max_whole
        body = bytearray()
        async for data in stream:
            body += data
            if len(body) > limit:
                raise WireError(f"expected an answer of at most {limit} bytes from the provider, got more")
        return bytes(body)


def _refusals_to_explain(provider: Provider, request: Request, place: Place) -> list[Refusal]:
    """Why calls that never reached the program did not run, as far as the model has not been told yet.

    Hosts tell the model themselves, and so do programs that have rejected calls forwarded.
    """
    run = place.run
    if run is None or place.model_call is not None or run.rejected in ("forward", "say"):
        return []
    return run.tool_use.untold(provider.declared_tools(request))


class Told(NamedTuple):
    """A request that explains the refusals of a run, in calls that were written back into it and in notes."""

    request: Request
    run: Run | None
    restored: Sequence[str]
    noted: Sequence[Refusal]

    def mark(self) -> None:
        """The provider has accepted the request."""
        if self.run is not None:
            self.run.tool_use.mark_written_back(self.restored)
            self.run.tool_use.mark_told(self.noted)


def _said(provider: Provider, asked: Request) -> list[RequestEvent]:
    if not asked.body:
        return []  # a stream that is resumed
    try:
        return provider.results_in(asked.body)
    except WireError as error:
        # A request that cannot be read is for the provider to refuse.
        logger.warning("could not read a request: %s", error)
        return []
