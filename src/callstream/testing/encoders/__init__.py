"""A script as the bytes of a provider's wire: what the real API would send, event by event.

``encode`` returns a stream, ``encode_whole`` the non-streaming answer with the same content. ``frames`` is for code that
sends them over a network: it also yields the script's ``Delay`` and ``Cut`` steps, in their places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from callstream.errors import UsageError
from callstream.testing.encoders.anthropic import AnthropicEncoder
from callstream.testing.encoders.bedrock import BedrockConverseEncoder, BedrockInvokeEncoder
from callstream.testing.encoders.cohere import CohereEncoder
from callstream.testing.encoders.encoder import Encoder, dumps
from callstream.testing.encoders.gemini import GeminiEncoder
from callstream.testing.encoders.gemini_interactions import GeminiInteractionsEncoder
from callstream.testing.encoders.ollama import OllamaEncoder
from callstream.testing.encoders.openai_chat import OpenAIChatEncoder
from callstream.testing.encoders.openai_responses import OpenAIResponsesEncoder
from callstream.testing.script import (
    Cut,
    Delay,
    Failure,
    Finish,
    HttpError,
    Parallel,
    Script,
    Step,
    Text,
    Thought,
    ToolCall,
    Truncated,
    calls_of,
    checked,
)

__all__ = ["ENCODERS", "WIRES", "encode", "encode_whole", "frames"]

ENCODERS: dict[str, type[Encoder]] = {
    "gemini": GeminiEncoder,
    "anthropic": AnthropicEncoder,
    "openai_chat": OpenAIChatEncoder,
    "openai_responses": OpenAIResponsesEncoder,
    "cohere": CohereEncoder,
    "bedrock_converse": BedrockConverseEncoder,
    "bedrock_invoke": BedrockInvokeEncoder,
    "gemini_interactions": GeminiInteractionsEncoder,
    "ollama": OllamaEncoder,
}
WIRES: tuple[str, ...] = tuple(ENCODERS)


def encode(wire: str, script: Script, *, model: str | None = None, first_id: int = 1) -> Iterator[bytes]:
    """The body of a streamed answer, one event per chunk. Made-up ids count from ``first_id``."""
    return (frame for frame in frames(wire, script, model=model, first_id=first_id) if isinstance(frame, bytes))


def frames(wire: str, script: Script, *, model: str | None = None, first_id: int = 1) -> Iterator[bytes | Delay | Cut]:
    """The chunks of ``encode`` and, between them, the steps that only a sender can act on."""
    steps = checked(script)
    if isinstance(steps[-1], HttpError):
        raise UsageError(f"{steps[-1]!r} has no stream: it is an answer of its own; encode_whole gives its body")
    return _played(wire, _encoder(wire, model, first_id), steps)


def encode_whole(wire: str, script: Script, *, model: str | None = None, first_id: int = 1) -> bytes:
    """The body of a non-streaming answer; for a script that fails or refuses, the body of the error."""
    steps = checked(script)
    encoder = _encoder(wire, model, first_id)
    match steps[-1]:
        case Failure() | HttpError() as error:
            return dumps(encoder.error(error)).encode()
        case Truncated() | Cut() as end:
            raise UsageError(f"a whole answer cannot end with {end!r}")
    for _ in _played(wire, encoder, steps):
        pass
    if encoder.malformed is not None:
        raise UsageError(f"a whole {wire} answer cannot carry text that is not JSON: {encoder.malformed!r:.80}")
    return dumps(encoder.whole()).encode()


def _encoder(wire: str, model: str | None, first_id: int) -> Encoder:
    if wire not in ENCODERS:
        raise UsageError(f"no encoder for the wire {wire!r}; there are {', '.join(WIRES)}")
    return ENCODERS[wire](model, first_id)


def _played(wire: str, encoder: Encoder, steps: list[Step]) -> Iterator[bytes | Delay | Cut]:
    yield from encoder.begin()
    for step in steps:
        match step:
            case Text():
                yield from encoder.text(step)
            case Thought():
                yield from encoder.thought(step)
            case ToolCall() | Parallel():
                calls = calls_of(step)
                for call in calls:
                    if call.custom and not encoder.has_custom:
                        raise UsageError(f"the wire {wire!r} has no free-text tools; {call.name!r} is custom")
                yield from encoder.calls(calls)
            case Finish(reason=reason):
                yield from encoder.end(reason)
            case Failure():
                yield from encoder.failure(step)
            case Truncated() | HttpError():
                pass
            case Delay() | Cut():
                yield step
            case _:
                assert_never(step)
