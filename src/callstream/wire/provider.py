"""What Callstream needs to know about a provider. The provider's module answers: whoever reads an answer knows none by name.

A wire is recognised by path and content type, never by host name, so compatible servers and gateways are recognised like the
originals.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from callstream import codec
from callstream.events import CallCompleted, CallDiscarded, CallStarted, RequestEvent, ResultReceived, WireEvent
from callstream.wire.collapsing import Check, Collapser, judge, read_json
from callstream.wire.decoder import Decoder
from callstream.wire.joining import Joint
from callstream.wire.requests import (
    MODEL,
    Asks,
    KnownSignature,
    LoneReasoning,
    Notes,
    RefusedCall,
    Request,
    RequestTurn,
    all_tools,
    content_message,
    content_text,
    functions_in,
    last_turn,
    note_text,
    objects_in,
    read_body,
    schemas,
)

AnswerKind: TypeAlias = Literal["stream", "whole"]
IsLeftOut: TypeAlias = Callable[[], bool]
"""Whether the next call of a whole answer is left out. Asked once for each call, in the order of the bytes."""
T = TypeVar("T")
_WHOLE = "application/json"


class Provider(ABC):
    """One wire: its requests, its answers, and how a call is written back into them. It has no state.

    ``wire`` is its name, ``path`` matches the end of the paths to which its requests are posted, ``resumed_path`` the end
    of those at which a streamed answer is resumed (``GET``, without a body). ``signs_calls``: calls carry signatures that a
    later request has to bring back. ``sdk_error``: where the provider's SDK retries whatever a transport raises, the class
    (``module.Name``) of the errors that it raises as they are. ``pieces_field``: how an error names what
    ``ask_for_pieces`` adds. ``stream_types``: the content types of streamed answers. ``joint`` makes one streamed answer of
    two. ``goes_on``: the finish reasons after which the SDK asks for the rest of the answer by itself. ``checkpoint``
    matches, to the end of its frame, a token with which the rest of a stream can be requested (``Decoder.checkpoint``).
    ``has_background``: answers can be requested in the background, and the provider stores them.
    """

    wire: ClassVar[str]
    path: ClassVar[re.Pattern[str]]
    resumed_path: ClassVar[re.Pattern[str] | None] = None
    decoder: ClassVar[type[Decoder[Any]]]
    collapser: ClassVar[type[Collapser[Any]]]
    signs_calls: ClassVar[bool] = False
    sdk_error: ClassVar[str | None] = None
    pieces_field: ClassVar[re.Pattern[bytes] | None] = None
    stream_types: ClassVar[tuple[str, ...]] = ("text/event-stream",)
    joint: ClassVar[type[Joint] | None] = None
    goes_on: ClassVar[tuple[str, ...]] = ()
    checkpoint: ClassVar[re.Pattern[bytes] | None] = None
    has_background: ClassVar[bool] = False

    # -- requests --

    def is_at(self, path: str, method: str = "POST") -> bool:
        """Whether requests to this path belong to the wire."""
        if method == "POST":
            return self.path.search(path) is not None
        return method == "GET" and self.resumed_path is not None and self.resumed_path.search(path) is not None

    @abstractmethod
    def turns(self, body: bytes) -> Iterator[RequestTurn]:
        """The conversation in the body of a request. Raises WireError for a body that is not a request of the wire."""

    @abstractmethod
    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        """The JSON Schemas of the tools that the request declares, by name."""

    def offered_names(self, request: Request) -> tuple[str, ...]:
        """The names that calls in the answer may have. Empty if the request does not list them all."""
        return tuple(self.declared_tools(request))

    def results_in(self, body: bytes) -> list[RequestEvent]:
        """The tool results and the new user messages of a request, in the order of the conversation."""
        return last_turn(self.turns(body))

    def continued(self, request: Request) -> str | None:
        """Names the response whose rest the request asks for (``Decoder.continuation``); None if it asks for a new one."""
        return None

    def is_streamed(self, request: Request) -> bool:
        """Whether the request asks for a streamed answer."""
        return request.fields.get("stream") is True

    def is_stored(self, request: Request) -> bool:
        """Whether the server stores the answer and builds on its own copy, not on what later requests send."""
        return False

    def from_checkpoint(self, request: Request, token: str) -> Request:
        """The request for what follows a checkpoint in its answer."""
        return request

    def kept_at(self, request: Request, answer_id: str) -> str | None:
        """Where the provider keeps the streamed answer for when the connection is lost (``GET``, ``stream=true``).

        None if the provider keeps none, or the request does not ask it to.
        """
        fields = request.fields
        is_kept = fields.get("background") is True and fields.get("stream") is True and fields.get("store") is not False
        return f"{request.path}/{quote(answer_id, safe='')}" if self.has_background and is_kept else None

    def ask_for_pieces(self, request: Request, asks: Asks = all_tools) -> Request:
        """The request, asking for streamed arguments where the wire has a switch that the request does not mention.

        ``asks`` says by name for which tools. A switch for the whole request is only set if that is all of its tools:
        otherwise calls of the others would reach an SDK in pieces that it never asked for. Returns the request itself if
        there is nothing to ask.
        """
        return request

    def ask_by_beta(self, request: Request, asks: Asks = all_tools) -> Request:
        """The same, where a wire only has a beta for the whole request. Not every model accepts a beta."""
        return self.ask_for_pieces(request, asks)

    @abstractmethod
    def add_notes(self, request: Request, notes: Notes) -> Request | None:
        """The request, telling the model at its end why calls did not run; None if it has no place for that."""

    def ask_again(self, request: Request, said: str, refused: Sequence[RefusedCall]) -> Request | None:
        """The request, continued by the model's answer: ``said``, and calls with their refusals as results.

        The refusals become notes where the wire cannot be continued like that; None if it has no place for these either.
        """
        return self.add_notes(request, {call.wire_id: call.text for call in refused})

    def restore(self, request: Request, refused: Sequence[RefusedCall]) -> list[RefusedCall]:
        """Puts calls that the program never got beside those that it did get. Returns the ones that found a place.

        Changes ``request.fields``.
        """
        return [call for call in refused if self._restore(request, call)]

    def _restore(self, request: Request, refused: RefusedCall) -> bool:
        """Puts a call and its refusal beside the calls of its response and their results. False if there are none."""
        return False

    def without_lone_reasoning(self, request: Request, lone: LoneReasoning) -> Request:
        """The request without reasoning that led only to calls which were left out, where the provider refuses that."""
        return request

    def sign(self, request: Request, known: KnownSignature) -> Request:
        """The request with the signatures that its calls have lost."""
        return request

    # -- answers --

    def answer_kind(self, request: Request, status: int, content_type: str) -> AnswerKind | None:
        """How an answer is to be read; None if it is not to be read at all: errors belong to the SDK.

        On wires that allow it, a request without a body fetches an answer that was requested before. If that is streamed,
        it is resumed; if not, it is only looked at, and calls in it may have been answered long ago.
        """
        kind = _media_type(content_type)
        if status != 200 or self.is_looked_at(request, content_type):
            return None
        if kind in self.stream_types:
            return "stream"
        return "whole" if kind == _WHOLE else None

    def is_looked_at(self, request: Request, content_type: str) -> bool:
        """Whether this is the current state of an answer that was requested before."""
        return self.resumed_path is not None and not request.body and _media_type(content_type) == _WHOLE

    @abstractmethod
    def leave_out(self, answer: dict[str, Any], is_left_out: IsLeftOut, *, stored: bool) -> None:
        """Removes the calls that are left out from a whole answer, and whatever goes with them."""

    def without_unfinished(
        self,
        body: bytes,
        decoder: Decoder[Any],
        events: Sequence[WireEvent],
        *,
        collapse: Callable[[str], bool],
        stored: bool = False,
    ) -> bytes:
        """The whole answer that the decoder has read as these events, without the calls that were not finished.

        The laws are those of a collapser: reasoning that led only to such calls is left out with them, everything else,
        including the stop reason, keeps its place, and every other answer passes byte for byte.
        """
        discarded = {event.call_id for event in events if isinstance(event, CallDiscarded)}
        passing = {event.call_id for event in events if isinstance(event, CallStarted) and not collapse(event.name)}
        left_out = discarded - passing
        answer = read_json(body) if left_out else None
        if not isinstance(answer, dict):
            return body
        decisions = iter([call_id in left_out for call_id in dict.fromkeys(decoder.pieces)])
        self.leave_out(answer, lambda: next(decisions, False), stored=stored)
        return codec.encode_line(answer)


class _ChatFunction(msgspec.Struct):
    name: str | None = None


class _ChatToolCall(msgspec.Struct):
    id: str | None = None
    function: _ChatFunction | None = None
    custom: _ChatFunction | None = None


class _ChatMessage(msgspec.Struct):
    role: str = ""
    content: Any = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[_ChatToolCall] | None = None


class _ChatBody(msgspec.Struct):
    messages: list[_ChatMessage] = []


class ChatProvider(Provider):
    """A provider whose requests are written as OpenAI's chat completions, or much like them."""

    def turns(self, body: bytes) -> Iterator[RequestTurn]:
        for message in read_body(self.wire, body, _ChatBody).messages:
            match message.role:
                case "assistant":
                    named = [(call.id, call.function or call.custom) for call in message.tool_calls or ()]
                    calls = [(call_id, (function and function.name) or "") for call_id, function in named]
                    yield RequestTurn(MODEL, [], calls)
                case "tool" | "function":
                    result = ResultReceived(message.tool_call_id, message.name, content_text(message.content))
                    yield RequestTurn("tool", [result])
                case "user":
                    yield RequestTurn("user", content_message(message.content))
                case _:
                    pass  # system and developer messages are the program's own

    def declared_tools(self, request: Request) -> dict[str, dict[str, Any]]:
        return schemas((function, function.get("parameters")) for _, function in functions_in(request))

    def add_notes(self, request: Request, notes: Notes) -> Request | None:
        """A note at the end of the last message: not every server accepts a user's message after the result of a tool."""
        last = objects_in(request.fields.get("messages"))[-1:]
        if not last or last[0].get("role") not in ("user", "tool") or not (content := last[0].get("content")):
            return None
        if isinstance(content, str):
            last[0]["content"] = f"{content}\n\n{note_text(notes)}"
        else:
            last[0]["content"] = [*content, {"type": "text", "text": note_text(notes)}]
        return request.rewritten()

    def leave_out(self, answer: dict[str, Any], is_left_out: IsLeftOut, *, stored: bool) -> None:
        message = answer["message"]
        message["tool_calls"] = [call for call in message["tool_calls"] if not is_left_out()]


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def kept(items: Iterable[T], is_left_out: Callable[[T], bool], is_reasoning: Callable[[T], bool]) -> list[T]:
    """The items of a whole response without those that are left out, and without reasoning that led to these alone."""
    found: list[T] = []
    waiting: list[T] = []  # reasoning that may have led to nothing
    after_left_out = False
    for item in items:
        if is_left_out(item):
            after_left_out = True
            continue
        if not is_reasoning(item):
            found += [*waiting, item]
            waiting = []
        elif after_left_out:
            waiting = [item]
        else:
            waiting.append(item)
        after_left_out = False
    return found if after_left_out else found + waiting


def discard_invalid(
    events: Iterable[WireEvent], collapse: Callable[[str], bool], check: Check | None
) -> list[WireEvent]:
    """The events of an answer that was not streamed, in which collapsed calls that do not fit are discarded."""
    started: dict[str, CallStarted] = {}
    judged: list[WireEvent] = []
    for event in events:
        if isinstance(event, CallStarted) and collapse(event.name):
            started[event.call_id] = event
        elif isinstance(event, CallCompleted) and event.call_id in started:
            event = judge(event, started[event.call_id], check) or event
        judged.append(event)
    return judged
