"""How the tap reads an exchange with a provider, whichever way the bytes come: what a request says, and its answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from callstream.calls import CallState, Refusal
from callstream.errors import CallRejected, UsageError, WireError
from callstream.events import CallCompleted, DiscardReason, RequestEvent
from callstream.runtime import ModelCall, Run, RunEngine
from callstream.runtime.limits import check_silence
from callstream.tap.body import Limits, OnEnd, TappedBody
from callstream.tap.encoding import Decoding
from callstream.tap.errors import raised_once
from callstream.tap.implicit import ImplicitRuns
from callstream.tap.place import Place
from callstream.tools import Tool, describe
from callstream.tools.check import argument_names, outline_faults
from callstream.wire import WIRES
from callstream.wire.provider import Provider
from callstream.wire.requests import Asks, Request
from callstream.wire.whole import discard_invalid

logger = logging.getLogger("callstream")

Collapse: TypeAlias = Literal["known", "all", "none"]


class TapSettings(msgspec.Struct, frozen=True):
    """``stream_arguments`` asks providers for streamed arguments that they send only on request. ``bedrock_beta`` asks
    Claude on Bedrock, too: there it takes a beta for the whole request, which some models refuse.

    ``first_byte`` and ``idle`` are seconds after which a streamed answer that has not begun, or does not continue, ends
    with the HTTP library's ReadTimeout; None leaves it to the settings of the Callstream.
    ``hosted``: the client is that of a model whose host says which requests are those of its agents; all others are the
    host's own, such as a summary of its history: they are nobody's words, and never shown.
    ``repair_gemini_signatures`` puts thought signatures back into a history that lost them; hosts do that themselves.
    """

    wire: str | None = None
    collapse: Collapse = "known"
    stream_arguments: bool = True
    bedrock_beta: bool = False
    first_byte: float | None = None
    idle: float | None = None
    hosted: bool = False
    repair_gemini_signatures: bool = False
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        check_silence(self.first_byte, self.idle)


class Exchange(NamedTuple):
    """A request of the SDK: what it asked of which provider, and what it said."""

    provider: Provider
    asked: Request
    said: list[RequestEvent]


class Tapping:
    """Reads exchanges by the settings of one client, into the runs that they belong to."""

    def __init__(self, engine: RunEngine, implicit: ImplicitRuns, settings: TapSettings) -> None:
        if settings.wire is not None and settings.wire not in WIRES:
            raise UsageError(f"expected one of the wires {', '.join(WIRES)}, got {settings.wire!r}")
        if settings.collapse not in ("known", "all", "none"):
            raise UsageError(f"expected collapse to be 'known', 'all' or 'none', got {settings.collapse!r}")
        self._engine = engine
        self._implicit = implicit
        self._settings = settings

    async def receive(self, provider: Provider, asked: Request, place: Place) -> Exchange:
        """Records what a request says, before it is sent."""
        said = _said(provider, asked)
        run, model_call = place.run, place.model_call
        if run is not None and (model_call is None or not model_call.reports):
            with raised_once(provider):
                await run.receive(said, author=model_call.author if model_call is not None else None)
        return Exchange(provider, asked, said)

    async def begin(self, exchange: Exchange, place: Place, decoding: Decoding | None = None) -> Reading:
        """The reading of the answer, in a run of its own where there is none."""
        run, model_call = place.run, place.model_call
        on_end = None
        if run is None:
            with raised_once(exchange.provider):
                run = await self._implicit.begin(exchange.said, place.beside)
            on_end = partial(self._implicit.response_ended, run)
        if model_call is not None:
            model_call.read_by_tap = True
        return Reading(self, exchange, run, model_call=model_call, decoding=decoding, on_end=on_end)

    def collapses(self, model_call: ModelCall | None) -> Callable[[str], bool]:
        match self._settings.collapse:
            case "all":
                return lambda name: True
            case "none":
                return lambda name: False
            case _ if model_call is not None and model_call.collapses is not None:
                return model_call.collapses
            case _:
                return self._engine.knows

    def asks(self, model_call: ModelCall | None) -> Asks:
        """Of which tools the provider is asked to stream the arguments: only where their calls reach the SDK whole."""
        collapses = self.collapses(model_call)
        may_stream: Asks = self._engine.streams
        if model_call is not None and model_call.streams is not None:
            may_stream = model_call.streams
        return lambda name: collapses(name) and may_stream(name)

    def tool(self, name: str) -> Tool[Any] | None:
        """The tool of that name, if Callstream knows it."""
        return self._engine.find_tool(name)

    @property
    def may_collapse(self) -> bool:
        return self._settings.collapse != "none"

    @property
    def limits(self) -> Limits:
        return self._settings.limits


class Reading:
    """How one answer is read: into which run, for whom, and under which names."""

    def __init__(
        self,
        tapping: Tapping,
        exchange: Exchange,
        run: Run,
        *,
        model_call: ModelCall | None,
        decoding: Decoding | None,
        on_end: OnEnd | None,
    ) -> None:
        self._tapping = tapping
        self._provider = exchange.provider
        self._stored = exchange.provider.is_stored(exchange.asked)
        self._decoding = decoding
        self._on_end = on_end
        collapses = tapping.collapses(model_call)
        self._tools = exchange.provider.declared_tools(exchange.asked)
        offered = exchange.provider.offered_names(exchange.asked)
        names = offered or tuple(self._tools)
        # Where no tool of the request is collapsed, nothing needs to be held either.
        self._touches = tapping.may_collapse and (not names or any(map(collapses, names)))
        # A call of a tool that the request never declared is nobody's: it must not reach the SDK in pieces.
        self._offered = offered if self._touches else ()
        self._collapses: Callable[[str], bool] = lambda name: collapses(name) or self._is_invented(name)
        self._refuses = model_call is not None and model_call.refuses
        self._forwards_rejected = self._refuses or run.rejected == "forward"
        self._own_tools = model_call.tools if model_call is not None else {}
        self._response = run.response(
            exchange.provider.wire,
            tools=self._tools,
            offered=self._offered,
            author=model_call.author if model_call is not None else None,
            new_call_id=model_call.new_call_id if model_call is not None else None,
            early="report" if model_call is not None and model_call.reports else "record",
            withheld=model_call is not None and model_call.withholds,
            own_tools=self._own_tools,
        )
        if model_call is not None:
            model_call.responses.append(self._response)

    def _is_invented(self, name: str) -> bool:
        return bool(self._offered) and name not in self._offered

    def _check(self, name: str, args_json: str) -> tuple[DiscardReason, str] | None:
        """Why a call must not reach the SDK, though it is whole."""
        schema, tool = self._tools.get(name), self._own_tools.get(name) or self._tapping.tool(name)
        if not schema and tool is None and not self._is_invented(name):
            return None
        if tool is not None and tool.check == "stream":
            check = tool.arguments.stream_check()
            if check.feed(args_json):
                return check.refusal  # as the run has found by itself
        args = json.loads(args_json)
        if not isinstance(args, dict | None):
            return "malformed", "the arguments are not an object"
        args = {} if args is None else args  # some models write null for no arguments
        wrong = outline_faults(schema, args)
        if tool is not None:
            named = {fault.path[0] for fault in wrong if fault.path}
            wrong += [fault for fault in tool.arguments.convert_values(args)[1] if fault.path[0] not in named]
        return ("invalid", describe(wrong, argument_names(schema))) if wrong else None

    def streamed(self, source: Any, close_source: Callable[[], Awaitable[None]]) -> TappedBody:
        """A streamed answer, read by a task of its own from now on."""
        collapser = self._provider.collapser(
            self._response.decoder,
            collapse=self._collapses if self._touches else None,
            stored=self._stored,
            check=self._check,
            forwards_invalid=self._forwards_rejected,
        )
        return TappedBody(
            source,
            close_source,
            self._response,
            collapser,
            decoding=self._decoding,
            forwards_rejected=self._forwards_rejected,
            waits_for_hooks=not self._refuses,
            limits=self._tapping.limits,
            on_end=self._on_end,
        )

    async def whole(self, source: Any, close_source: Callable[[], Awaitable[None]]) -> bytes:
        """An answer that was not streamed. It is forwarded when its calls are recorded and their hooks have settled."""
        error: BaseException | None = None
        try:
            return await self._whole(source, close_source)
        except CallRejected:
            raise  # the answer is whole
        except BaseException as broken:
            error = broken
            raise
        finally:
            if self._on_end is not None:
                await self._on_end(error or self._response.decoder.error)

    async def _whole(self, source: Any, close_source: Callable[[], Awaitable[None]]) -> bytes:
        body = await self._read_whole(source)
        await close_source()
        with raised_once(self._provider):
            return await self._recorded(body)

    async def _recorded(self, body: bytes) -> bytes:
        try:
            events = self._response.decoder.whole(body)
        except WireError as error:
            logger.warning("could not read a response: %s", error)
            events = []
        if self._tapping.may_collapse:
            events = discard_invalid(events, self._collapses, self._check)
        await self._response.record(events)
        if self._tapping.may_collapse and not self._refuses:
            body = self._provider.without_unfinished(
                body, self._response.decoder, events, collapse=self._collapses, stored=self._stored
            )
        for event in events if not self._refuses else ():
            if isinstance(event, CallCompleted):
                call = await self._response.run.settled(self._response.call_ids[event.call_id])
                if call.state is CallState.DISCARDED and not self._forwards_rejected:
                    raise self._response.run.rejection(call.call_id)
        return body

    async def _read_whole(self, stream: Any) -> bytes:
        limit = self._tapping.limits.max_whole
        body = bytearray()
        async for data in stream:
            for piece in (data,) if self._decoding is None else self._decoding.feed(data):
                body += piece
                if len(body) > limit:
                    raise WireError(f"expected an answer of at most {limit} bytes from the provider, got more")
        return bytes(body)


def untold_refusals(provider: Provider, request: Request, place: Place) -> list[Refusal]:
    """What nobody else tells the model: why calls that never reached the program did not run.

    Hosts tell the model themselves, and so do programs that have rejected calls forwarded.
    """
    run = place.run
    if run is None or place.model_call is not None or run.rejected == "forward":
        return []
    return run.tool_use.untold(provider.declared_tools(request))


def add_notes(provider: Provider, request: Request, refusals: Sequence[Refusal]) -> Request | None:
    """The request with these refusals; None if there are none, or no place for them."""
    return provider.add_notes(request, {each.wire_id: each.text for each in refusals}) if refusals else None


def _said(provider: Provider, asked: Request) -> list[RequestEvent]:
    if not asked.body:
        return []  # a stream that is taken up again
    try:
        return provider.results_in(asked.body)
    except WireError as error:
        # A request that cannot be read is the provider's to refuse.
        logger.warning("could not read a request: %s", error)
        return []
