"""The events of one response while it is being read.

Decoders tell a transcript what their wire said, in the wire's order; it keeps the laws that all wires share:

- a message starts before the first thing in it and ends with the response;
- a call starts once it has a name; what came before waits;
- a call is completed only by an end that the wire sent, never because its text parses; and only if it parses, with
  no name twice in an object;
- the end of a call is not believed before the response goes on or has ended normally. Providers also send it when the
  response was cut in the middle of the arguments, and close the text of an answer that is not streamed, so that it looks
  whole. So the last call of a response that ends in any other way never runs, whether the answer is streamed or not, is
  read from its bytes or from a host's events;
- whatever is open when the response ends otherwise is discarded, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

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
from callstream.wire.argtext import ArgumentText, json_text


class WireCall:
    """One call of the response: what the wire has said of it so far."""

    __slots__ = (
        "call_id",
        "choice",
        "encoding",
        "ended",
        "final",
        "message_id",
        "name",
        "provider_id",
        "signature",
        "text",
    )

    def __init__(self, call_id: str, provider_id: str | None, encoding: Encoding, choice: int, message_id: str) -> None:
        self.call_id = call_id
        self.choice = choice
        self.provider_id = provider_id
        self.encoding: Encoding = encoding
        self.message_id = message_id
        self.name: str | None = None
        self.signature: str | None = None
        self.text = ArgumentText()
        self.ended = False  # the wire has ended it, which is not believed yet
        self.final = False  # completed or discarded


class Transcript:
    """Collects events until they are taken."""

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

    def take(self) -> list[WireEvent]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def expect_surrogates(self) -> None:
        """The response holds lone surrogates: from now on they are looked for."""
        if self._surrogates is None:
            self._surrogates = {}

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
        message_id = self.message(choice)
        text = self._whole_characters(f"text {message_id}", text)
        if text:
            self._events.append(TextAppended(message_id, text))

    def append_reasoning(self, text: str, choice: int = 0) -> None:
        message_id = self.message(choice)
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
        signature: str | None = None,
        encoding: Encoding = "json",
        choice: int = 0,
    ) -> WireCall:
        """A new call. It starts now if it has a name, else when ``name_call`` gives it one."""
        provider_id = provider_id or None
        call_id = _claim(provider_id or self._new_id(), self._call_ids)
        call = WireCall(call_id, provider_id, encoding, choice, self.message(choice))
        call.signature = signature
        self._calls.append(call)
        if name:
            self.name_call(call, name)
        return call

    def piece_of(self, call: WireCall | None) -> None:
        """The wire sent a piece of this call, empty or not; None for a piece that belongs to no call."""
        self.pieces.append(None if call is None else call.call_id)

    def name_call(self, call: WireCall, name: str) -> None:
        """The wire has named the call. A call is named once; what waited for the name follows.

        A name that comes after the call was given up changes nothing: what is final stays final.
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
            raise WireError(f"expected no more arguments after the end of call {call.call_id!r}, got {text[:80]!r}")
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
        for call in self.open_calls():
            if choice in (None, call.choice):
                self.believe_end(call)

    def believe_end(self, call: WireCall) -> None:
        """The response went on after this call."""
        if call.ended and not call.final and call.name is not None:
            self._complete(call)

    def complete_whole(self, call: WireCall) -> None:
        """Completes a call if its text is whole, though nothing says how the response ended."""
        is_open = not call.final and call.name is not None
        if is_open and (call.encoding == "text" or self._is_whole(call)):
            self._complete(call)

    def discard_call(self, call: WireCall, reason: DiscardReason, detail: str | None = None) -> None:
        call.final = True
        self._calls.remove(call)
        self._events.append(CallDiscarded(call.call_id, reason, detail))

    def open_calls(self) -> Iterator[WireCall]:
        """The calls that are not final, in the order in which they were opened."""
        return iter(list(self._calls))

    def text_of(self, call_id: str) -> ArgumentText | None:
        """The argument text of a call, while that is not final."""
        return next((call.text for call in self._calls if call.call_id == call_id), None)

    def _is_whole(self, call: WireCall) -> bool:
        return not call.text.is_blank and is_strict(call.text.join())

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
        """The response is over; what is open must have been finished before."""
        self.end_messages()
        self.any_response = True
        self._events.append(ResponseEnded(finish_reason, usage))


def _claim(wanted: str, taken: set[str]) -> str:
    """A free id made from the wanted one; it is taken from now on."""
    free = numbered(wanted, taken)
    taken.add(free)
    return free
