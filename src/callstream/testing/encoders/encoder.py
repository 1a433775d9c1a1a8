"""What every wire encoder can do, and the pieces that all of them are made of.

An encoder is fed the steps of one response in order and gives the stream's bytes, one event a chunk. It
remembers what it sent, so that ``whole`` is the non-streaming answer with the same content. Nothing in it depends on
time or chance: the same script gives the same bytes.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from callstream.codec import escape_surrogates
from callstream.errors import UsageError
from callstream.testing.script import Failure, HttpError, Text, Thought, ToolCall

CREATED = 1_760_000_000
"""The moment that every scripted response was made at."""

_OPENAI_KINDS = {
    400: "invalid_request_error",
    401: "invalid_request_error",
    403: "invalid_request_error",
    404: "invalid_request_error",
    429: "requests",
}


Form: TypeAlias = Literal["events", "array", "whole"]
"""The wire's own stream, a stream as a JSON array, or an answer that is not streamed."""
Carrying: TypeAlias = Literal["first", "last"]
"""The piece of a call, beside those of its arguments alone, that carries some of them."""


class Encoder(ABC):
    """One response of one wire. ``first_id`` is the number of the first id that has to be made up.

    ``path`` matches the paths that the wire's requests go to; ``model`` and ``verb`` in it are what they name. ``place`` is
    such a path for people, ``base_path`` what an SDK's ``base_url`` has of it after the host. ``upstream`` is the address of
    the wire's own provider, ``variables`` name the environment variables that tell its SDKs another address, and
    ``credentials`` those by which they get made-up keys; None for one that must not be set.

    ``resumed_path`` matches the paths at which answers are asked for again, with GET; ``stream=true`` asks for a stream.
    ``stream_type``: the content type of a stream. ``request_id``: the header that names a request. ``failure_status``: what
    an answer that is not streamed fails with. ``is_text``: text of a script stands in the stream as it is, and may be
    replaced there; not so where it is encoded, or where a checksum follows. ``streams_arguments``: calls come in pieces.
    """

    model: ClassVar[str]
    path: ClassVar[re.Pattern[str]]
    place: ClassVar[str]
    base_path: ClassVar[str] = ""
    resumed_path: ClassVar[re.Pattern[str] | None] = None
    upstream: ClassVar[str]
    variables: ClassVar[tuple[str, ...]]
    credentials: ClassVar[tuple[tuple[str, str | None], ...]]
    stream_type: ClassVar[str] = "text/event-stream; charset=utf-8"
    request_id: ClassVar[str | None] = None
    failure_status: ClassVar[int] = 500
    is_text: ClassVar[bool] = True
    streams_arguments: ClassVar[bool] = True

    @classmethod
    def form_of(cls, verb: str | None, query: Mapping[str, str], fields: Mapping[str, Any]) -> Form:
        """Which form of answer a request wants."""
        return "events" if fields.get("stream") is True else "whole"

    @classmethod
    def carry(cls, frames: list[bytes], carrying: Carrying) -> list[bytes]:
        """The frames of a script with arguments in the first or the last piece of its first call too.

        A wire that has no form for it, or whose stream has that form anyway, leaves them as they are.
        """
        return frames

    def __init__(self, model: str | None, first_id: int) -> None:
        self.model_name = model or self.model
        self.response_number = first_id
        self.next_id = first_id
        self.sent = 0
        self._malformed: str | None = None

    @abstractmethod
    def begin(self) -> Iterator[bytes]: ...

    @abstractmethod
    def text(self, step: Text) -> Iterator[bytes]: ...

    @abstractmethod
    def thought(self, step: Thought) -> Iterator[bytes]: ...

    @abstractmethod
    def calls(self, calls: Sequence[ToolCall]) -> Iterator[bytes]: ...

    @abstractmethod
    def failure(self, step: Failure) -> Iterator[bytes]: ...

    @abstractmethod
    def finish(self, reason: str | None) -> Iterator[bytes]: ...

    @abstractmethod
    def whole(self) -> Any:
        """The non-streaming answer with what was sent until now."""

    @abstractmethod
    def error(self, step: Failure) -> Any:
        """The body of a request that failed."""

    @abstractmethod
    def refusal(self, step: HttpError) -> Any:
        """The body of a refused request, with the wire's word for its status."""

    def call_id(self, call: ToolCall, prefix: str) -> str | None:
        """The call's id, made up where the script leaves that to the encoder. None: the wire carries no id."""
        if call.call_id is None:
            number, self.next_id = self.next_id, self.next_id + 1
            return f"{prefix}{number}"
        return call.call_id or None

    def named(self, call: ToolCall, prefix: str, field: str = "id") -> dict[str, str]:
        """The field that has the call's id; nothing where the wire carries none."""
        call_id = self.call_id(call, prefix)
        return {} if call_id is None else {field: call_id}

    def parsed(self, text: str) -> Any:
        """The arguments as a whole answer holds them; None for text that is not JSON, which only a stream can carry."""
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            self._malformed = text
            return None

    def refuse_malformed(self, answer: str) -> None:
        """Refuses to give a whole answer with a call whose text was not JSON."""
        if self._malformed is not None:
            raise UsageError(f"{answer} cannot carry text that is not JSON: {self._malformed!r:.80}")

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
    """What both of OpenAI's wires share: their server, and their error bodies. A rate limit has a code."""

    base_path = "/v1"
    upstream = "https://api.openai.com"
    variables = ("OPENAI_BASE_URL",)
    credentials = (("OPENAI_API_KEY", "none"),)
    request_id = "x-request-id"

    def error(self, step: Failure) -> Any:
        return self._error(step.message, step.kind or "server_error")

    def refusal(self, step: HttpError) -> Any:
        code = "rate_limit_exceeded" if step.status == 429 else None
        return self._error(step.message, step.kind or _OPENAI_KINDS.get(step.status, "server_error"), code)

    def _error(self, message: str, kind: str, code: str | None = None) -> Any:
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def dumps(value: Any, separators: tuple[str, str] = (",", ":")) -> str:
    """JSON text as providers send it: UTF-8 as it is, with lone surrogates escaped."""
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


def refuse_custom(call: ToolCall, wire: str) -> None:
    if call.custom:
        raise UsageError(f"the wire {wire!r} has no free-text tools; {call.name!r} is custom")


def payload_of(frame: bytes) -> dict[str, Any]:
    """What a server-sent event says."""
    line = next(line for line in frame.decode().split("\n") if line.startswith("data: "))
    return dict(json.loads(line.removeprefix("data: ")))


def with_payload(frame: bytes, payload: dict[str, Any]) -> bytes:
    """The server-sent event with another payload."""
    head, _, _ = frame.decode().partition("data: ")
    return f"{head}data: {dumps(payload)}\n\n".encode()


def named_event(name: str, payload: dict[str, Any]) -> bytes:
    """A server-sent event with a name."""
    return f"event: {name}\ndata: {dumps(payload)}\n\n".encode()


def numbers_of(frames: list[bytes], *marks: str) -> list[int]:
    """Where the frames are that have all these texts in them."""
    return [number for number, frame in enumerate(frames) if all(mark.encode() in frame for mark in marks)]


def merge_frames(
    frames: list[bytes], taken: int, into: int, merge: Callable[[dict[str, Any], dict[str, Any]], None]
) -> list[bytes]:
    """Without the frame ``taken``, whose content ``merge`` puts into another."""
    target = payload_of(frames[into])
    merge(payload_of(frames[taken]), target)
    merged = list(frames)
    merged[into] = with_payload(frames[into], target)
    del merged[taken]
    return merged


def alternating(streams: Iterable[Iterator[bytes]]) -> Iterator[bytes]:
    """One chunk of each stream in turn until all are through."""
    running = list(streams)
    while running:
        going_on = []
        for stream in running:
            chunk = next(stream, None)
            if chunk is not None:
                yield chunk
                going_on.append(stream)
        running = going_on
