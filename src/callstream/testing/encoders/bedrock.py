"""Amazon Bedrock, in AWS event streams.

Converse: one content block after another, ``messageStart`` to ``metadata``. InvokeModel: the events of Anthropic's Messages
API, each in a chunk.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from callstream.testing.encoders.anthropic import AnthropicEncoder
from callstream.testing.encoders.encoder import Carrying, Encoder, Form, argument_text, dumps, refuse_custom
from callstream.testing.script import Failure, HttpError, Text, Thought, ToolCall
from callstream.wire.eventstream import CONTENT_TYPE, ChunkFraming, EventStreamFraming, write_event, write_exception
from callstream.wire.framing import SseFraming, plain_event

_PADDING = "abcdefghijklmnopqrstuvwxyz"
_LETTERS = _PADDING + _PADDING.upper()
_EXCEPTIONS = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    424: "ModelErrorException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
}


class BedrockConverseEncoder(Encoder):
    model = "us.anthropic.claude-sonnet-5-5-20250929-v1:0"
    path = re.compile(r"/model/(?P<model>.+)/(?P<verb>converse-stream|converse)$")
    place = "/model/{model}/converse-stream"
    upstream = "https://bedrock-runtime.us-east-1.amazonaws.com"
    variables = ("AWS_ENDPOINT_URL_BEDROCK_RUNTIME",)
    # Not a bearer token: botocore sends one over TLS only.
    credentials = (
        ("AWS_ACCESS_KEY_ID", "none"),
        ("AWS_SECRET_ACCESS_KEY", "none"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_SESSION_TOKEN", None),
        ("AWS_BEARER_TOKEN_BEDROCK", None),
    )
    stream_type = CONTENT_TYPE
    request_id = "x-amzn-requestid"
    failure_status = 503
    is_text = False

    @classmethod
    def form_of(cls, verb: str | None, query: Mapping[str, str], fields: Mapping[str, Any]) -> Form:
        return "events" if verb == "converse-stream" else "whole"

    @classmethod
    def carry(cls, frames: list[bytes], carrying: Carrying) -> list[bytes]:
        """First: no empty delta comes before the first of the text. Last: one delta has all of the first call's text."""
        read = [EventStreamFraming().feed(frame)[0] for frame in frames]
        end = next(number for number, frame in enumerate(read) if frame.event == b"contentBlockStop")
        deltas = [number for number in range(end) if read[number].event == b"contentBlockDelta"]
        if carrying == "first":
            return [*frames[: deltas[0]], *frames[deltas[1] :]]
        payloads = [json.loads(read[number].payload or b"") for number in deltas]
        text = "".join(payload["delta"]["toolUse"]["input"] for payload in payloads)
        whole = _event("contentBlockDelta", **payloads[0] | {"delta": {"toolUse": {"input": text}}})
        return [*frames[: deltas[0]], whole, *frames[end:]]

    def __init__(self, model: str | None, first_id: int) -> None:
        super().__init__(model, first_id)
        self._content: list[dict[str, Any]] = []
        self._open = False
        self._stop_reason: str | None = None

    def begin(self) -> Iterator[bytes]:
        yield _event("messageStart", role="assistant")

    def text(self, step: Text) -> Iterator[bytes]:
        self._content.append({"text": step.text})
        for piece in self.pieces(step.text, step.size):
            yield self._delta(text=piece)
        yield self._stop()

    def thought(self, step: Thought) -> Iterator[bytes]:
        signature = step.signature or f"sig_{self.response_number}_{len(self._content)}"
        self._content.append({"reasoningContent": {"reasoningText": {"text": step.text, "signature": signature}}})
        for piece in self.pieces(step.text, step.size):
            yield self._delta(reasoningContent={"text": piece})
        yield self._delta(reasoningContent={"signature": signature})
        yield self._stop()

    def calls(self, calls: Sequence[ToolCall]) -> Iterator[bytes]:
        for call in calls:
            yield from self._call(call)

    def _call(self, call: ToolCall) -> Iterator[bytes]:
        refuse_custom(call, "bedrock_converse")
        text = argument_text(call)
        use = {**self.named(call, "tooluse_", "toolUseId"), "name": call.name}
        self._content.append({"toolUse": use | {"input": {} if call.stop_after is not None else self.parsed(text)}})
        self._open = True
        yield _event("contentBlockStart", contentBlockIndex=len(self._content) - 1, start={"toolUse": use})
        # Claude begins with an empty delta; a model that sends its arguments whole, such as Nova, does not.
        for piece in [*([""] if call.streamed else []), *self.argument_pieces(call, text)]:
            yield self._delta(toolUse={"input": piece})
        if call.stop_after is None:
            yield self._stop()

    def failure(self, step: Failure) -> Iterator[bytes]:
        yield write_exception(step.kind or "serviceUnavailableException", dumps({"message": step.message}).encode())

    def finish(self, reason: str | None) -> Iterator[bytes]:
        if self._open:
            yield self._stop()
        called = any("toolUse" in block for block in self._content)
        words = {None: "tool_use" if called else "end_turn", "length": "max_tokens"}
        self._stop_reason = words.get(reason, reason)
        yield _event("messageStop", stopReason=self._stop_reason)
        yield _event("metadata", usage=self._usage(), metrics={"latencyMs": 700})

    def whole(self) -> Any:
        self.refuse_malformed("a whole bedrock_converse answer")
        return {
            "output": {"message": {"role": "assistant", "content": self._content}},
            "stopReason": self._stop_reason,
            "usage": self._usage(),
            "metrics": {"latencyMs": 700},
        }

    def error(self, step: Failure) -> Any:
        kind = step.kind or "serviceUnavailableException"
        return {"__type": kind[:1].upper() + kind[1:], "message": step.message}

    def refusal(self, step: HttpError) -> Any:
        return self.error(Failure(step.message, step.kind or _EXCEPTIONS.get(step.status, "InternalServerException")))

    def _delta(self, **delta: Any) -> bytes:
        self._open = True
        return _event("contentBlockDelta", contentBlockIndex=len(self._content) - 1, delta=delta)

    def _stop(self) -> bytes:
        self._open = False
        return _event("contentBlockStop", contentBlockIndex=len(self._content) - 1)

    def _usage(self) -> dict[str, int]:
        return {"inputTokens": 25, "outputTokens": self.output_tokens, "totalTokens": 25 + self.output_tokens}


def _event(event_type: str, **fields: Any) -> bytes:
    """An event, with the padding by which Bedrock hides the length of its text."""
    text = dumps(fields)
    return write_event(event_type, dumps({**fields, "p": _LETTERS[: len(text) % len(_LETTERS)]}).encode())


class BedrockInvokeEncoder(AnthropicEncoder):
    model = "us.anthropic.claude-sonnet-5-5-20250929-v1:0"
    path = re.compile(r"/model/(?P<model>.+)/(?P<verb>invoke-with-response-stream|invoke)$")
    place = "/model/{model}/invoke-with-response-stream"
    upstream = BedrockConverseEncoder.upstream
    variables = (*BedrockConverseEncoder.variables, "ANTHROPIC_BEDROCK_BASE_URL")
    credentials = BedrockConverseEncoder.credentials
    stream_type = BedrockConverseEncoder.stream_type
    request_id = BedrockConverseEncoder.request_id
    failure_status = BedrockConverseEncoder.failure_status
    is_text = False

    @classmethod
    def form_of(cls, verb: str | None, query: Mapping[str, str], fields: Mapping[str, Any]) -> Form:
        return "events" if verb == "invoke-with-response-stream" else "whole"

    @classmethod
    def carry(cls, frames: list[bytes], carrying: Carrying) -> list[bytes]:
        events = [plain_event(b"", ChunkFraming().feed(frame)[0].payload or b"") for frame in frames]
        return list(_chunks(super().carry(events, carrying)))

    def begin(self) -> Iterator[bytes]:
        return _chunks(super().begin())

    def text(self, step: Text) -> Iterator[bytes]:
        return _chunks(super().text(step))

    def thought(self, step: Thought) -> Iterator[bytes]:
        return _chunks(super().thought(step))

    def calls(self, calls: Sequence[ToolCall]) -> Iterator[bytes]:
        return _chunks(super().calls(calls))

    def finish(self, reason: str | None) -> Iterator[bytes]:
        return _chunks(super().finish(reason))

    def failure(self, step: Failure) -> Iterator[bytes]:
        return self._aws().failure(step)

    def error(self, step: Failure) -> Any:
        return self._aws().error(step)

    def refusal(self, step: HttpError) -> Any:
        return self._aws().refusal(step)

    def _aws(self) -> BedrockConverseEncoder:
        """Errors are the service's, whatever the operation."""
        return BedrockConverseEncoder(self.model_name, self.response_number)


def _chunks(events: Iterable[bytes]) -> Iterator[bytes]:
    """Server-sent events as chunks; pings do not come through Bedrock."""
    for event in events:
        payload = SseFraming().feed(event)[0].payload or b""
        if payload != b'{"type": "ping"}':
            chunk = {"bytes": base64.b64encode(payload).decode(), "p": _PADDING[: len(payload) % len(_PADDING)]}
            yield write_event("chunk", dumps(chunk).encode())
