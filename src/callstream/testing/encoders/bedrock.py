"""Amazon Bedrock, in AWS event streams.

Converse: one content block after another, ``messageStart`` to ``metadata``. InvokeModel: the events of Anthropic's Messages
API, each in a chunk.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from callstream.testing.encoders.anthropic import AnthropicEncoder
from callstream.testing.encoders.encoder import Credentials, Encoder, argument_text, dumps
from callstream.testing.script import Failure, Text, Thought, ToolCall
from callstream.wire.eventstream import CONTENT_TYPE, write_event, write_exception

_PADDING = "abcdefghijklmnopqrstuvwxyz"
_LETTERS = _PADDING + _PADDING.upper()


class _BedrockEncoder(Encoder):
    """What both operations have in common: their service, and its errors."""

    model = "us.anthropic.claude-sonnet-5-5-20250929-v1:0"
    upstream = "https://bedrock-runtime.us-east-1.amazonaws.com"
    variables: ClassVar[tuple[str, ...]] = ("AWS_ENDPOINT_URL_BEDROCK_RUNTIME",)
    # Not a bearer token: botocore sends one only over TLS.
    credentials: ClassVar[Credentials] = (
        ("AWS_ACCESS_KEY_ID", "none"),
        ("AWS_SECRET_ACCESS_KEY", "none"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_SESSION_TOKEN", None),
        ("AWS_BEARER_TOKEN_BEDROCK", None),
    )
    stream_type = CONTENT_TYPE
    request_id = "x-amzn-requestid"
    failure_status = 503
    kinds: ClassVar[Mapping[int, str]] = {
        400: "ValidationException",
        403: "AccessDeniedException",
        404: "ResourceNotFoundException",
        408: "ModelTimeoutException",
        424: "ModelErrorException",
        429: "ThrottlingException",
        503: "ServiceUnavailableException",
    }
    other_kind = "InternalServerException"
    is_text = False

    def failure(self, step: Failure) -> Iterator[bytes]:
        yield write_exception(step.kind or "serviceUnavailableException", dumps({"message": step.message}).encode())

    def error_body(self, status: int, kind: str, message: str) -> Any:
        return {"__type": kind[:1].upper() + kind[1:], "message": message}


class BedrockConverseEncoder(_BedrockEncoder):
    path = re.compile(r"/model/(?P<model>.+)/(?P<verb>converse-stream|converse)$")
    place = "/model/{model}/converse-stream"
    ends = ("end_turn", "tool_use", "max_tokens")

    def begin(self) -> Iterator[bytes]:
        yield _event("messageStart", role="assistant")

    def text(self, step: Text) -> Iterator[bytes]:
        self.content.append({"text": step.text})
        for piece in self.pieces(step.text, step.size):
            yield self._delta(text=piece)
        yield self._stop()

    def thought(self, step: Thought) -> Iterator[bytes]:
        signature = step.signature or f"sig_{self.response_number}_{len(self.content)}"
        self.content.append({"reasoningContent": {"reasoningText": {"text": step.text, "signature": signature}}})
        for piece in self.pieces(step.text, step.size):
            yield self._delta(reasoningContent={"text": piece})
        yield self._delta(reasoningContent={"signature": signature})
        yield self._stop()

    def call(self, call: ToolCall) -> Iterator[bytes]:
        text = argument_text(call)
        use = {**self.named(call, "tooluse_", "toolUseId"), "name": call.name}
        self.content.append({"toolUse": use | {"input": {} if call.stop_after is not None else self.parsed(text)}})
        self.is_open = True
        yield _event("contentBlockStart", contentBlockIndex=len(self.content) - 1, start={"toolUse": use})
        # Claude begins with an empty delta; a model that sends its arguments whole, such as Nova, does not.
        pieces = self.argument_pieces(call, text)
        begun = ["", *pieces] if call.streamed else pieces
        for piece in {None: begun, "first": pieces, "last": [text]}[call.carrying]:
            yield self._delta(toolUse={"input": piece})
        if call.stop_after is None:
            yield self._stop()

    def finish(self) -> Iterator[bytes]:
        if self.is_open:
            yield self._stop()
        yield _event("messageStop", stopReason=self.finish_reason)
        yield _event("metadata", usage=self._usage(), metrics={"latencyMs": 700})

    def whole(self) -> Any:
        return {
            "output": {"message": {"role": "assistant", "content": self.content}},
            "stopReason": self.finish_reason,
            "usage": self._usage(),
            "metrics": {"latencyMs": 700},
        }

    def _delta(self, **delta: Any) -> bytes:
        self.is_open = True
        return _event("contentBlockDelta", contentBlockIndex=len(self.content) - 1, delta=delta)

    def _stop(self) -> bytes:
        self.is_open = False
        return _event("contentBlockStop", contentBlockIndex=len(self.content) - 1)

    def _usage(self) -> dict[str, int]:
        return {"inputTokens": 25, "outputTokens": self.output_tokens, "totalTokens": 25 + self.output_tokens}


def _event(event_type: str, **fields: Any) -> bytes:
    """An event, with the padding with which Bedrock hides the length of its text."""
    text = dumps(fields)
    return write_event(event_type, dumps({**fields, "p": _LETTERS[: len(text) % len(_LETTERS)]}).encode())


class BedrockInvokeEncoder(_BedrockEncoder, AnthropicEncoder):
    path = re.compile(r"/model/(?P<model>.+)/(?P<verb>invoke-with-response-stream|invoke)$")
    place = "/model/{model}/invoke-with-response-stream"
    variables = (*_BedrockEncoder.variables, "ANTHROPIC_BEDROCK_BASE_URL")
    pings = False  # they do not come through Bedrock

    def _event(self, name: str, **fields: Any) -> bytes:
        payload = dumps({"type": name, **fields}).encode()
        chunk = {"bytes": base64.b64encode(payload).decode(), "p": _PADDING[: len(payload) % len(_PADDING)]}
        return write_event("chunk", dumps(chunk).encode())
