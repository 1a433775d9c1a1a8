"""Amazon Bedrock's InvokeModel: the events of Anthropic's Messages API, each in a chunk of an AWS event stream."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from callstream.testing.encoders.anthropic import AnthropicEncoder
from callstream.testing.encoders.bedrock_converse import BedrockConverseEncoder
from callstream.testing.encoders.encoder import Carrying, Form, dumps
from callstream.testing.script import Failure, HttpError, Text, Thought, ToolCall
from callstream.wire.eventstream import ChunkFraming, write_event
from callstream.wire.framing import SseFraming, plain_event

_PADDING = "abcdefghijklmnopqrstuvwxyz"


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
