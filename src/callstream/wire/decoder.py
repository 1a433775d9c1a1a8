"""What all decoders have in common: bytes in, events out, for both ways in which a provider answers.

A decoder never loses what it has read. When the wire breaks, or the provider reports an error inside the stream, the
events before it are returned first, open calls discarded (interrupted); the WireError is raised at once if there is
nothing to return, else by the next ``feed`` or ``end``. It stays broken: every later call raises the same error. A body
that holds data, but no response of the wire, is an error at its end.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from callstream.codec import outline
from callstream.errors import WireError
from callstream.events import WireEvent
from callstream.wire.framing import Frame, Framing, SseFraming
from callstream.wire.transcript import ArgumentText, Transcript, WireCall, json_text

Chunk = TypeVar("Chunk", bound=msgspec.Struct)
DONE = b"[DONE]"
"""The sentinel with which OpenAI's wires, and others that follow them, end a stream."""


class Strict(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The base of the types for payloads that hold one thing, and nothing that this code does not know."""


class Decoder(ABC, Generic[Chunk]):
    """Reads one response of one wire. A response that follows in the same body is read too.

    ``new_id`` mints the id of a call for which the provider sent none. ``tools`` are the JSON Schemas of the request's
    tools by name; only wires whose text depends on them look at them.
    """

    wire: ClassVar[str]
    _framing: ClassVar[type[Framing]] = SseFraming
    """How the wire's streamed answers are cut."""
    _payloads: msgspec.json.Decoder[Chunk]
    _bare_payloads: ClassVar[msgspec.json.Decoder[Any] | None] = None
    """A stricter reader, for wires on which a delta may hold more than a piece of a call. See ``expects_piece``."""
    _unended: ClassVar[str] = "the stream ended in the middle of the message"
    """Why calls are discarded if the body ends before anything has said how the response ended."""

    def __init__(
        self, *, new_id: Callable[[], str] | None = None, tools: Mapping[str, dict[str, Any]] | None = None
    ) -> None:
        numbers = count(1)
        self._transcript = Transcript(new_id or (lambda: f"call_{next(numbers)}"))
        self._tools = tools or {}
        self._last_payload: bytes | None = None
        self.error: WireError | None = None
        """What broke the decoder: it has returned its last events, and raises this from now on."""
        self.framing = self._framing()
        self.chunk: Chunk | None = None
        """What the last frame read holds, as far as the decoder looks at it; None if it held nothing to read."""
        self.may_pause = False
        """Set where the response may go on in another body, which this decoder then reads as well: see ``continuation``."""
        self.is_paused = False
        """Whether a body has ended, and the response has not. ``end`` ends it."""
        self.expects_piece = False
        """Set by the forwarding side while it withholds the pieces of a call: then the next payload is tried as a
        bare piece first, and has to be read only once."""
        self._forget_response()

    @property
    def is_bare(self) -> bool:
        """Whether the last payload read was a bare piece, as expected, with nothing else in it."""
        return self._bare_payloads is not None and isinstance(self.chunk, self._bare_payloads.type)

    @property
    def pieces(self) -> list[str | None]:
        """Which call each piece of a call in the last bytes read belongs to, in the wire's order.

        One entry per piece, empty pieces, ends and repetitions included: a ``functionCall`` part, an entry of
        ``tool_calls``, an event about a call's block or item, a call in the list of a final response. Code that passes
        the bytes on learns from it which calls they belong to. None: the decoder knows no call for that piece.
        """
        return self._transcript.pieces

    @property
    def any_end(self) -> bool:
        """Whether one of these pieces is the end of its call."""
        return self._transcript.any_end

    @property
    def says_as_read(self) -> bool:
        """Whether the text of its events is exactly that of the bytes: no surrogate halves were joined or replaced."""
        return not self._transcript.expects_surrogates

    @property
    def answer_id(self) -> str | None:
        """The provider's own id of the response that is being read; None if it has not come, or the response has ended."""
        return self._transcript.response_message_id

    @property
    def checkpoint(self) -> str | None:
        """The token of the last frame that had one: a request with it asks for everything after that frame."""
        return None

    @property
    def continuation(self) -> str | None:
        """What a request for the rest of this response carries; None if it has ended, or ends with its body."""
        return None

    def resume(self) -> None:
        """The next body continues where the last one paused."""
        self.is_paused = False

    def text_of(self, call_id: str) -> ArgumentText | None:
        """The argument text of a call as far as it was read; None when the call is completed or discarded."""
        return self._transcript.text_of(call_id)

    def feed(self, data: bytes) -> list[WireEvent]:
        """The events that these bytes of a streamed answer bring."""
        if self.error is not None:
            raise self.error
        return self._read_all(self.framing.feed(data))

    def read(self, frame: Frame) -> list[WireEvent]:
        """The events of one frame of a body that was cut with ``framing``."""
        if self.error is not None:
            raise self.error
        return self._read_all((frame,))

    def end(self) -> list[WireEvent]:
        """The events at the end of the body: whatever is still open is discarded as truncated."""
        return self.read_end(self.framing.end())

    def read_end(self, frames: Sequence[Frame]) -> list[WireEvent]:
        """The events at the end of a body whose framing ended in these frames."""
        self._raise_if_broken()
        self.chunk = None
        self._transcript.pieces = []
        self._transcript.any_end = False
        try:
            # A payload without its end counts if it is whole; anything else was cut off in the middle.
            self._read(
                frame
                for frame in frames
                if frame.is_finished or frame.error or (frame.payload or b"").startswith(DONE) or _loaded(frame.payload)
            )
            if self._pauses():
                return self._transcript.pop()
            self._end_of_body()
            if self._last_payload and not self._transcript.any_response:
                raise WireError(f"expected a response of the {self.wire} wire, got {outline(self._last_payload)}")
        except WireError as error:
            return self._broken(error)
        return self._transcript.pop()

    def whole(self, body: bytes) -> list[WireEvent]:
        """The events of an answer that was not streamed: the same calls that its streamed twin would give."""
        self._raise_if_broken()
        self._transcript.pieces = []
        try:
            self._read_whole(body)
        except WireError as error:
            return self._broken(error)
        return self._transcript.pop()

    # -- what a wire defines --

    @abstractmethod
    def _chunk(self, chunk: Chunk) -> None:
        """Reads one chunk of a streamed answer."""

    def _done(self) -> None:
        """The stream's sentinel. Most wires have an end of their own and need none."""

    def _forget_response(self) -> None:
        """Resets the state that belongs to a single response."""
        self._in_response = False
        self._finish_reason: str | None = None
        self._usage: Any = None

    def _end_of_body(self) -> None:
        """Closes everything that is open."""
        if self._in_response:
            self._transcript.finish_unsaid(self._unended)
            self._end_response()

    @abstractmethod
    def _read_whole(self, body: bytes) -> None:
        """Reads a whole answer."""

    def _pause(self) -> None:
        """The body is over, and the response goes on in another. Open calls stay open."""

    # -- what they share --

    def _end_response(self) -> None:
        """The response is over; its calls must have been finished before."""
        self._transcript.end_response(self._finish_reason, self._usage if isinstance(self._usage, dict) else None)
        self._forget_response()

    def _pauses(self) -> bool:
        """Pauses, if the response goes on elsewhere. Not while a call has no name: everything after it waits for that."""
        self.is_paused = (
            self.may_pause
            and not self.is_paused
            and self.continuation is not None
            and all(call.name is not None for call in self._transcript.open_calls())
        )
        if self.is_paused:
            self._pause()
            self.framing = self._framing()
        return self.is_paused

    def _read_all(self, frames: Iterable[Frame]) -> list[WireEvent]:
        self.chunk = None
        self._transcript.pieces = []
        self._transcript.any_end = False
        try:
            self._read(frames)
        except WireError as error:
            return self._broken(error)
        return self._transcript.pop()

    def _read(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            payload = frame.payload
            if frame.error is not None:
                raise frame.error
            if frame.event == b"error":
                raise provider_error(payload or b"")
            if not payload:
                continue
            if self.expects_piece and (piece := self._bare_piece(payload)) is not None:
                chunk = piece
            else:
                try:
                    chunk = self._payloads.decode(payload) if payload.isascii() else _decode(payload, self._payloads)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    if payload.startswith(DONE):
                        self._done()
                        continue
                    if payload.isspace():
                        continue
                    chunk = self._second_try(payload, self._payloads, error)
            self.chunk = chunk
            self._last_payload = payload
            self._chunk(chunk)

    def _bare_piece(self, payload: bytes) -> Chunk | None:
        if self._bare_payloads is None:
            return None
        try:
            piece: Chunk = _decode(payload, self._bare_payloads)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None  # there is more in it
        return piece

    def _decoded(self, body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
        try:
            return _decode(body, decoder)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return self._second_try(body, decoder, error)

    def _second_try(self, payload: bytes, decoder: msgspec.json.Decoder[Any], error: Exception) -> Any:
        # msgspec refuses lone surrogates, which servers that cut UTF-16 text in two do send; json accepts them.
        if isinstance(error, msgspec.ValidationError):
            raise self._unexpected(payload, error)
        try:
            value = json.loads(payload)
        except RecursionError:
            raise WireError(f"expected {self.wire} data, got JSON that is nested too deep") from None
        except ValueError:
            raise WireError(f"expected JSON of the {self.wire} wire, got {outline(payload)} ({error})") from None
        self._transcript.expect_surrogates()
        try:
            return msgspec.convert(value, decoder.type)
        except (msgspec.ValidationError, UnicodeEncodeError) as invalid:  # the latter for a surrogate in a field's name
            raise self._unexpected(payload, invalid) from None

    def _unexpected(self, payload: bytes, error: Exception) -> WireError:
        failed = error_in({"error": _loaded(payload).get("error")})
        return failed or WireError(f"expected {self.wire} data, got something else: {error}; in {outline(payload)}")

    def _raise_if_broken(self) -> None:
        if self.error is not None:
            raise self.error

    def _broken(self, error: WireError) -> list[WireEvent]:
        self.error = error
        self._transcript.finish_calls(normal=False, reason="interrupted", detail=str(error))
        self._transcript.end_messages()
        events = self._transcript.pop()
        if not events:
            raise error
        return events


class BlockDecoder(Decoder[Chunk]):
    """Reads a wire on which a call is a block: a start names it, deltas bring its arguments, and a stop ends it.

    Arguments in a start count if no delta brings any. Compatible servers leave out the stops of blocks, or the finish
    reason: either is enough for a call to be whole.
    """

    _start: ClassVar[str]
    """The wire's own word for what begins a block."""
    _block: ClassVar[str] = "block"
    _reason_name: ClassVar[str]
    """The wire's own word for the finish reason."""
    _normal_reasons: ClassVar[frozenset[str]]

    def _forget_response(self) -> None:
        super()._forget_response()
        self._blocks: dict[int | None, WireCall | None] = {}  # the open ones: a client call, or another block
        self._initial_args: dict[WireCall, Any] = {}  # the arguments that the start of a call brought, until it ends

    def _open_block(
        self,
        index: int | None,
        name: str | None,
        provider_id: str | None,
        initial: Any = None,
        *,
        signature: str | None = None,
    ) -> WireCall:
        call = self._blocks[index] = self._transcript.open_call(name, provider_id, signature=signature)
        if initial:
            self._initial_args[call] = initial
        self._transcript.piece_of(call)
        return call

    def _unbegun(self, index: int | None) -> WireError:
        """The error where arguments come for a block that has not begun."""
        return WireError(f"expected {self._start} before the arguments of {self._block} {index}, got a piece of them")

    def _stop_block(self, index: int | None) -> None:
        call = self._blocks.pop(index, None)
        if call is not None:
            self._transcript.piece_of(call)
            self._append_initial(call)
            self._transcript.end_call(call)

    def _append_initial(self, call: WireCall) -> None:
        initial = self._initial_args.pop(call, None)
        if initial is not None and call.text.is_blank:
            self._transcript.append_args(call, json_text(initial))

    def _finish(self) -> None:
        """The response is over; its finish reason says how. Where none came, the calls that were ended are whole."""
        if self._finish_reason is None:
            self._transcript.believe_ends()
        normal = self._finish_reason in self._normal_reasons
        for call in list(self._initial_args) if normal else ():
            self._append_initial(call)
        self._transcript.finish_calls(normal=normal, detail=f"{self._reason_name} {self._finish_reason}")
        self._end_response()


def _decode(payload: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    # msgspec does not look at fields that it skips, and a later reader would find bytes that are not UTF-8.
    if not payload.isascii():
        payload.decode()
    return decoder.decode(payload)


def provider_error(payload: bytes) -> WireError:
    """The error that a provider sent instead of what was expected."""
    text = payload.decode("utf-8", "replace")
    return error_in(_loaded(payload)) or error_in({"error": text}) or WireError("the provider reported an error")


def reported(error: Any, otherwise: str | None = None, **beside: Any) -> WireError:
    """The error that a provider sent as an ``error`` field, and ``beside`` it; ``otherwise`` if that says nothing."""
    return error_in({"error": error, **beside}) or WireError(otherwise or f"the provider reported an error: {error}")


def error_in(value: dict[str, Any]) -> WireError | None:
    """The provider's error in a JSON object, in the shapes that occur; None where there is none."""
    inner = value.get("error")
    fields = inner if isinstance(inner, dict) else value
    message = fields.get("message") or fields.get("detail") or fields.get("msg") or inner
    if inner and isinstance(inner, str):
        fields, message = {}, inner
    if not message:
        return None
    kind = fields.get("type") or fields.get("status") or fields.get("code") or "an error"
    return WireError(f"the provider reported {kind}: {message}", provider_message=str(message))


def _loaded(payload: bytes | None) -> dict[str, Any]:
    """The payload as an object, an empty one if it is anything else."""
    try:
        value = json.loads(payload or b"")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
