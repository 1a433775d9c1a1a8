"""The interface of every wire encoder, and the parts that they share.

An encoder is fed the steps of one response in order and yields the stream's bytes, one event per chunk. It remembers what
it has sent, so that ``whole`` is the non-streaming answer with the same content. Nothing in it depends on time or chance:
the same script gives the same bytes.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, ClassVar, Literal, TypeAlias

from callstream.codec import escape_surrogates
from callstream.errors import UsageError
from callstream.testing.script import Failure, HttpError, Text, Thought, ToolCall

CREATED = 1_760_000_000
"""The time at which every scripted response claims to have been made."""

Form: TypeAlias = Literal["events", "array", "whole"]
"""The wire's own stream, a stream as a JSON array, or an answer that is not streamed."""
Credentials: TypeAlias = tuple[tuple[str, str | None], ...]


class Encoder(ABC):
    """One response of one wire. ``first_id`` is the number of the first id that has to be made up.

    ``path`` matches the paths of the wire's requests, with groups for the ``model`` and the ``verb`` that they name.
    ``place`` is such a path for people to read, ``base_path`` the part of it in an SDK's ``base_url``. ``upstream`` is the
    address of the wire's own provider, ``variables`` name the environment variables that give its SDKs another address, and
    ``credentials`` those that give them made-up keys; None for one that must not be set.

    ``resumed_path`` matches the paths at which answers are fetched again, with GET; ``stream=true`` asks for a stream.
    ``stream_type``: the content type of a stream. ``request_id``: the header that names a request. ``failure_status``: the
    status with which an answer that is not streamed fails. ``kinds`` are the wire's words for errors, by status;
    ``other_kind`` is for any other status. ``ends`` are its words for why a response ends: after text, after a call, for
    lack of tokens.

    ``is_text``: text of a script is in the stream as it is, and may be replaced there; false if it is encoded, or followed
    by a checksum. ``streams_arguments``: calls come in pieces. ``alternates``: pieces of parallel calls alternate.
    ``has_custom``: there are free-text tools.
    """

    model: ClassVar[str]
    path: ClassVar[re.Pattern[str]]
    place: ClassVar[str]
    base_path: ClassVar[str] = ""
    resumed_path: ClassVar[re.Pattern[str] | None] = None
    upstream: ClassVar[str]
    variables: ClassVar[tuple[str, ...]]
    credentials: ClassVar[Credentials]
    stream_type: ClassVar[str] = "text/event-stream; charset=utf-8"
    request_id: ClassVar[str | None] = None
    failure_status: ClassVar[int] = 500
    kinds: ClassVar[Mapping[int, str]] = {}
    other_kind: ClassVar[str] = ""
    is_text: ClassVar[bool] = True
    streams_arguments: ClassVar[bool] = True
    alternates: ClassVar[bool] = False
    has_custom: ClassVar[bool] = False
    ends: ClassVar[tuple[str, str, str]]

    @classmethod
    def form_of(cls, verb: str, query: Mapping[str, str], fields: Mapping[str, Any]) -> Form:
        """The form of answer that a request wants: a stream if its path names a streaming operation, or a field asks so."""
        return "events" if "stream" in verb or fields.get("stream") is True else "whole"

    def __init__(self, model: str | None, first_id: int) -> None:
        self.model_name = model or self.model
        self.response_number = first_id
        self.next_id = first_id
        self.sent = 0
        self.finish_reason: str | None = None
        self.content: list[dict[str, Any]] = []
        """The content sent so far, in order, in the form that ``whole`` has it."""
        self.tool_calls: list[dict[str, Any]] = []
        """The calls, on wires that keep them separate from other content."""
        self.is_open = False
        """Whether the last content was begun and not ended, on wires that mark both."""
        self._has_called = False
        self.malformed: str | None = None
        """A call's text that is not JSON, which a whole answer cannot carry where arguments are values."""

    def begin(self) -> Iterator[bytes]:
        """What comes before any content."""
        return iter(())

    @abstractmethod
    def text(self, step: Text) -> Iterator[bytes]: ...

    @abstractmethod
    def thought(self, step: Thought) -> Iterator[bytes]: ...

    def calls(self, calls: Sequence[ToolCall]) -> Iterator[bytes]:
        self._has_called = self._has_called or bool(calls)
        streams = [self.call(call) for call in calls]
        return _alternating(streams) if self.alternates else chain.from_iterable(streams)

    @abstractmethod
    def call(self, call: ToolCall) -> Iterator[bytes]: ...

    def failure(self, step: Failure) -> Iterator[bytes]:
        yield self.framed(self.error(step))

    def end(self, reason: str | None) -> Iterator[bytes]:
        """The normal end. ``reason`` is the wire's own word; None picks the one that fits, every wire knows ``length``."""
        said, called, out_of_tokens = self.ends
        self.finish_reason = {None: called if self._has_called else said, "length": out_of_tokens}.get(reason, reason)
        return self.finish()

    @abstractmethod
    def finish(self) -> Iterator[bytes]:
        """The end, for ``finish_reason``."""

    @abstractmethod
    def whole(self) -> Any:
        """The non-streaming answer with everything sent so far."""

    def framed(self, payload: Any) -> bytes:
        """An object as it is in the stream, where events have no name."""
        return f"data: {dumps(payload)}\n\n".encode()

    def error(self, step: Failure | HttpError) -> Any:
        """The body of a request that failed or is refused."""
        status = step.status if isinstance(step, HttpError) else self.failure_status
        return self.error_body(status, step.kind or self.kinds.get(status, self.other_kind), step.message)

    @abstractmethod
    def error_body(self, status: int, kind: str, message: str) -> Any: ...

    def named(self, call: ToolCall, prefix: str, field: str = "id") -> dict[str, str]:
        """The field with the call's id, made up if the script leaves that to the encoder; empty without an id."""
        call_id = call.call_id
        if call_id is None:
            call_id, self.next_id = f"{prefix}{self.next_id}", self.next_id + 1
        return {field: call_id} if call_id else {}

    def parsed(self, text: str) -> Any:
        """The arguments as a whole answer holds them; None for text that is not JSON."""
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            self.malformed = text
            return None

    def pieces(self, text: str, size: int | None) -> list[str]:
        """The text cut into deltas, and counted for the usage figures."""
        self.sent += len(text)
        if size is None:
            return [text] if text else []
        return [text[start : start + size] for start in range(0, len(text), max(size, 1))]

    def argument_pieces(self, call: ToolCall, text: str) -> list[str]:
        return self.pieces(text, call.size if call.streamed else None)[: call.stop_after]

    @property
    def output_tokens(self) -> int:
        return self.sent // 4 + 1


class OpenAIEncoder(Encoder):
    """What both of OpenAI's wires have in common: their server, and their error bodies. A rate limit has a code."""

    base_path = "/v1"
    upstream = "https://api.openai.com"
    variables = ("OPENAI_BASE_URL",)
    credentials = (("OPENAI_API_KEY", "none"),)
    request_id = "x-request-id"
    kinds: ClassVar[Mapping[int, str]] = {
        **dict.fromkeys((400, 401, 403, 404), "invalid_request_error"),
        429: "requests",
    }
    other_kind = "server_error"
    alternates = True

    def error_body(self, status: int, kind: str, message: str) -> Any:
        code = "rate_limit_exceeded" if status == 429 else None
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def dumps(value: Any, separators: tuple[str, str] = (",", ":")) -> str:
    """JSON text as providers send it: UTF-8 unescaped, except for lone surrogates."""
    text = json.dumps(value, ensure_ascii=False, separators=separators)
    return escape_surrogates(text)


def argument_text(call: ToolCall, separators: tuple[str, str] = (",", ":")) -> str:
    """The text that the model wrote for a call."""
    if call.text is not None:
        return call.text
    if call.custom:
        if not isinstance(call.args, str):
            raise UsageError(f"the input of the free-text tool {call.name!r} has to be a string, got {call.args!r:.80}")
        return call.args
    return dumps(call.args, separators)


def named_event(name: str, payload: dict[str, Any]) -> bytes:
    """A server-sent event with a name."""
    return f"event: {name}\ndata: {dumps(payload)}\n\n".encode()


def _alternating(streams: Sequence[Iterator[bytes]]) -> Iterator[bytes]:
    """One chunk of each stream in turn until all have ended."""
    for turn in zip_longest(*streams):
        yield from filter(None, turn)
