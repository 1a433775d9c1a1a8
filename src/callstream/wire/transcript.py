"""The events of one response while it is being read.

Decoders report what their wire said to a transcript, in the wire's order; it keeps the laws that all wires share:

- a message starts before the first thing in it and ends with the response;
- a call starts once it has a name; pieces that came before wait;
- a call is completed only by an end that the wire sent, never because its text parses; and only if it parses, with
  no name twice in an object;
- the end of a call is not believed before the response goes on or has ended normally. Providers also send it when the
  response was cut in the middle of the arguments, and close the text of an answer that is not streamed, so that it looks
  whole. So the last call of a response that ends in any other way never runs, whether the answer is streamed or not, and
  whether it is read from its bytes or from a host's events;
- whatever is open when the response ends otherwise is discarded, with the reason.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from callstream import codec
from callstream.calls import numbered
from callstream.codec import SurrogateJoin, escape_surrogates, is_strict, mistake_in
from callstream.errors import WireError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallSigned,
    CallStarted,
    DiscardReason,
    Encoding,
    MessageEnded,
    MessageStarted,
    ReasoningAppended,
    ResponseEnded,
    TextAppended,
    WireEvent,
)
from callstream.jsontext.path import Path, has_place
from callstream.jsontext.writer import JsonWriter

# -- the text of a call's arguments ------------------------------------------------------------------------------------

_CONTROL = re.compile(r"[\x00-\x1f]")
_MARK = re.compile(r'["\\\x00-\x1f]')
_SHORT_ESCAPE = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BLANK = b" \t\n\r"
_LOOK = 64
"""This many bytes nearly always show whether there is more than white space."""


def json_text(value: Any) -> str:
    """A value as compact JSON text that can be encoded as UTF-8, lone surrogates as escapes."""
    try:
        return codec.encode(value).decode()
    except RecursionError:
        raise WireError("expected arguments that are nested less deep") from None


def text_of(arguments: Any) -> str:
    """Arguments as text; some servers send them as an object, or null."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else json_text(arguments)


class ArgumentText:
    """Collects the pieces of one call's arguments, and makes them strict as they pass.

    Models write raw line breaks and tabs inside JSON strings, which JSON forbids. They are escaped here, so that the text
    that leaves is strict and every later reader agrees. Where strings begin and end is only worked out when a control
    character shows up, and then from where the last look ended: every character is looked at once.
    """

    __slots__ = ("_escaped", "_in_string", "_scanned", "_text")

    def __init__(self) -> None:
        self._text = bytearray()
        self._scanned = 0  # bytes of it
        self._in_string = False
        self._escaped = False

    def append(self, text: str) -> str:
        """Adds a piece and returns it as strict text."""
        if not text.isprintable() and _CONTROL.search(text):  # the first test alone decides for nearly every piece
            self._scan(codec.from_utf8(self._text[self._scanned :]))
            text = self._scan(text)
            self._text += codec.utf8(text)
            self._scanned = len(self._text)
        else:
            self._text += text.encode()  # the caller has escaped surrogates
        return text

    def append_raw(self, text: str) -> str:
        """Adds a piece of free text, which is left as it is."""
        self._text += codec.utf8(text)
        return text

    def join(self) -> str:
        return codec.from_utf8(self._text)

    @property
    def is_blank(self) -> bool:
        return not self._text[:_LOOK].strip(_BLANK) and not self._text.strip(_BLANK)

    def ends_with(self, character: str) -> bool:
        """Whether the text ends with this character, white space aside."""
        end = self._text[-_LOOK:].rstrip(_BLANK) or self._text.rstrip(_BLANK)
        return end.endswith(character.encode())

    def _scan(self, text: str) -> str:
        strict: list[str] = []
        copied = 0
        skip = 1 if self._escaped and text else 0
        self._escaped = self._escaped and not text
        for mark in _MARK.finditer(text):
            at = mark.start()
            if at < skip:
                continue
            character = mark[0]
            if character == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                continue
            elif character == "\\":
                skip = at + 2
            else:
                strict += (text[copied:at], _SHORT_ESCAPE.get(character) or f"\\u{ord(character):04x}")
                copied = at + 1
        self._escaped = self._escaped or skip > len(text)
        if not strict:
            return text
        strict.append(text[copied:])
        return "".join(strict)


# -- the response -----------------------------------------------------------------------------------------------------


class WireCall(msgspec.Struct, eq=False):
    """One call of the response: what the wire has said about it so far."""

    call_id: str
    provider_id: str | None
    encoding: Encoding
    choice: int
    message_id: str
    signature: str | None
    name: str | None = None
    text: ArgumentText = msgspec.field(default_factory=ArgumentText)
    ended: bool = False  # the wire has ended it, which is not believed yet
    final: bool = False  # completed or discarded


class Transcript:
    """Collects events until they are popped."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._events: list[WireEvent] = []
        self._call_ids: set[str] = set()
        self._messages: dict[int, str] = {}  # the open ones, by choice
        self._message_ids: set[str] = set()
        self._calls: list[WireCall] = []  # not final yet
        self._surrogates: dict[str, SurrogateJoin] | None = None
        self.pieces: list[str | None] = []
        """The calls that the pieces of the bytes being read belong to; the decoder empties it before it reads on."""
        self.any_end = False
        """Whether a call has ended in these bytes; the decoder resets it, too."""
        self.any_response = False
        """Whether a response has ended."""
        self.response_message_id: str | None = None
        """The provider's own name for the message, set by the decoder as soon as it is known."""

    def pop(self) -> list[WireEvent]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def expect_surrogates(self) -> None:
        """The response holds lone surrogates: from now on they are looked for."""
        if self._surrogates is None:
            self._surrogates = {}

    @property
    def expects_surrogates(self) -> bool:
        return self._surrogates is not None

    # -- messages --

    def message(self, choice: int = 0) -> str:
        """The id of the choice's message, which starts now if it has not."""
        message_id = self._messages.get(choice)
        if message_id is None:
            message_id = _claim(self.response_message_id or f"message_{len(self._message_ids) + 1}", self._message_ids)
            self._messages[choice] = message_id
            self._events.append(MessageStarted(message_id))
        return message_id

    def append_text(self, text: str, choice: int = 0) -> None:
        message_id = self._messages.get(choice) or self.message(choice)
        if self._surrogates is not None:
            text = self._whole_characters(f"text {message_id}", text)
        if text:
            self._events.append(TextAppended(message_id, text))

    def append_reasoning(self, text: str, choice: int = 0) -> None:
        message_id = self._messages.get(choice) or self.message(choice)
        if self._surrogates is not None:
            text = self._whole_characters(f"reasoning {message_id}", text)
        if text:
            self._events.append(ReasoningAppended(message_id, text))

    def _whole_characters(self, key: str, text: str) -> str:
        if self._surrogates is None:
            return text
        return self._surrogates.setdefault(key, SurrogateJoin()).feed(text)

    def _rest(self, key: str) -> str:
        waiting = (self._surrogates or {}).pop(key, None)
        return "" if waiting is None else waiting.end()

    # -- calls --

    def open_call(
        self,
        name: str | None,
        provider_id: str | None,
        *,
        call_id: str | None = None,
        signature: str | None = None,
        encoding: Encoding = "json",
        choice: int = 0,
    ) -> WireCall:
        """A new call. It starts now if it has a name, else when ``name_call`` gives it one.

        ``call_id``: the id that it gets, instead of a new one, if the provider sent none.
        """
        provider_id = provider_id or None
        call_id = _claim(provider_id or call_id or self._new_id(), self._call_ids)
        call = WireCall(call_id, provider_id, encoding, choice, self.message(choice), signature)
        self._calls.append(call)
        if name:
            self.name_call(call, name)
        return call

    def piece_of(self, call: WireCall | None) -> None:
        """The wire sent a piece of this call, empty or not; None for a piece that belongs to no call."""
        self.pieces.append(None if call is None else call.call_id)

    def name_call(self, call: WireCall, name: str) -> None:
        """The wire has named the call. A call is named once; the arguments that waited for the name follow.

        A name that comes after the call was discarded changes nothing: a final call stays final.
        """
        if call.final:
            return
        call.name = name
        self._events.append(
            CallStarted(call.call_id, name, call.provider_id, call.signature, call.encoding, call.message_id)
        )
        waiting = call.text.join()
        if waiting:
            self._events.append(ArgsAppended(call.call_id, waiting))

    def sign_call(self, call: WireCall, signature: str) -> None:
        """A signature that came after the call was opened."""
        if signature == call.signature:
            return
        call.signature = signature
        if call.name is not None:
            self._events.append(CallSigned(call.call_id, signature))

    def append_args(self, call: WireCall, text: str) -> None:
        """A piece of the call's arguments, as the wire sent it."""
        if not text:
            return
        if call.final or call.ended:
            raise WireError(
                f"expected no more arguments after the end of call {call.call_id!r}, got {len(text)} characters more"
            )
        if call.encoding == "json":
            text = call.text.append(text if self._surrogates is None else escape_surrogates(text))
        else:
            text = call.text.append_raw(self._whole_characters(f"call {call.call_id}", text))
        if text and call.name is not None:
            self._events.append(ArgsAppended(call.call_id, text))

    def end_call(self, call: WireCall) -> None:
        """The wire has ended the call: it is whole, if the response goes on or ends normally."""
        call.ended = self.any_end = True

    def believe_ends(self, choice: int | None = None) -> None:
        """The response, or one choice of it, went on after the calls that have ended: they were not cut off."""
        if self._calls:
            for call in self.open_calls():
                if choice in (None, call.choice):
                    self.believe_end(call)

    def believe_end(self, call: WireCall) -> None:
        """The response went on after this call."""
        if call.ended and not call.final and call.name is not None:
            self._complete(call)

    def complete_whole(self, call: WireCall) -> None:
        """Completes a call if its text is whole, though nothing says how the response ended."""
        if call.final or call.name is None:
            return
        if call.encoding == "text" or (not call.text.is_blank and is_strict(call.text.join())):
            self._complete(call)

    def discard_call(self, call: WireCall, reason: DiscardReason, detail: str | None = None) -> None:
        call.final = True
        self._calls.remove(call)
        self._events.append(CallDiscarded(call.call_id, reason, detail))

    def open_calls(self) -> Iterator[WireCall]:
        """The calls that are not final, in the order in which they were opened."""
        return iter(list(self._calls))

    def text_of(self, call_id: str) -> ArgumentText | None:
        """The argument text of a call, while the call is not final."""
        return next((call.text for call in self._calls if call.call_id == call_id), None)

    def _complete(self, call: WireCall) -> None:
        if call.encoding == "json" and call.text.is_blank:
            # A tool without parameters: no text means no arguments.
            self._events.append(ArgsAppended(call.call_id, call.text.append("{}")))
        elif call.encoding == "text" and (rest := self._rest(f"call {call.call_id}")):
            self._events.append(ArgsAppended(call.call_id, call.text.append_raw(rest)))
        text = call.text.join()
        if call.encoding == "text":
            text = json_text(text)
        elif mistake := mistake_in(text):
            self.discard_call(call, "malformed", mistake)
            return
        call.final = True
        self._calls.remove(call)
        self._events.append(CallCompleted(call.call_id, text))

    # -- the end --

    def finish_calls(
        self,
        *,
        normal: bool,
        detail: str | None = None,
        reason: DiscardReason = "truncated",
        choice: int | None = None,
    ) -> None:
        """The response, or one choice of it, is over: open calls are completed if it ended normally, else discarded."""
        for call in self.open_calls():
            if choice is not None and call.choice != choice:
                continue
            if call.name is None:
                self.discard_call(call, "malformed", "the call never got a name")
            elif normal:
                self._complete(call)
            else:
                self.discard_call(call, reason, detail)

    def finish_unsaid(self, detail: str) -> None:
        """The body is over and nothing has said how the response ended. Calls that have ended are whole if their text is."""
        for call in self.open_calls():
            if call.ended:
                self.complete_whole(call)
        self.finish_calls(normal=False, detail=detail)

    def end_messages(self) -> None:
        for message_id in self._messages.values():
            for kind, append in (("text", TextAppended), ("reasoning", ReasoningAppended)):
                if rest := self._rest(f"{kind} {message_id}"):
                    self._events.append(append(message_id, rest))
            self._events.append(MessageEnded(message_id))
        self._messages.clear()
        self.response_message_id = None

    def end_response(self, finish_reason: str | None, usage: dict[str, Any] | None) -> None:
        """The response is over; open calls must have been finished before."""
        self.end_messages()
        self.any_response = True
        self._events.append(ResponseEnded(finish_reason, usage))


def _claim(wanted: str, taken: set[str]) -> str:
    """A free id made from the wanted one; it is taken from now on."""
    free = numbered(wanted, taken)
    taken.add(free)
    return free


# -- calls whose arguments may come before their name ------------------------------------------------------------------


class _Piece(Protocol):
    """A piece of a call, which may have the call's name."""

    @property
    def name(self) -> str | None: ...


PieceT = TypeVar("PieceT", bound=_Piece)


class PiecewiseCall(ABC, Generic[PieceT]):
    """A call whose arguments come in pieces. While it has no name it has no schema either, and its pieces wait.

    A call without a name may be of any declared tool whose schema has every place that its arguments name.
    """

    def __init__(self, call: WireCall, tools: Mapping[str, dict[str, Any]]) -> None:
        self.call = call
        self.writer = JsonWriter(tools.get(call.name or ""))
        self._tools = tools
        self._waiting: list[PieceT] = []

    @abstractmethod
    def text_of(self, piece: PieceT) -> str:
        """The argument text that a piece adds."""

    @abstractmethod
    def paths_in(self, piece: PieceT) -> Iterator[Path]:
        """Every place in the arguments that a piece names."""

    def add(self, piece: PieceT, transcript: Transcript) -> None:
        if self.call.name is not None:
            transcript.append_args(self.call, self.text_of(piece))
            return
        self._waiting.append(piece)
        paths = (path for waiting in self._waiting for path in self.paths_in(waiting))
        names = [piece.name] if piece.name else tools_that_fit(self._tools, paths)
        if len(names) == 1:
            self.writer = JsonWriter(self._tools.get(names[0]))
            transcript.name_call(self.call, names[0])
            for waiting in self._waiting:
                transcript.append_args(self.call, self.text_of(waiting))


def tools_that_fit(tools: Mapping[str, Mapping[str, Any]], paths: Iterable[Path]) -> list[str]:
    """The names of the tools that have all of these paths, in the order of the declarations."""
    seen = list(paths)
    return [name for name, schema in tools.items() if all(has_place(schema, path) for path in seen)]
