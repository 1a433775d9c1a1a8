"""The real SDKs, one module each, as the tests use them."""

from __future__ import annotations

from typing import Any

from tests.sdks.anthropic import AnthropicSdk
from tests.sdks.bedrock import BedrockInvokeSdk, read_converse
from tests.sdks.cohere import CohereSdk
from tests.sdks.gemini import GeminiSdk
from tests.sdks.interactions import InteractionsSdk
from tests.sdks.ollama import OllamaSdk
from tests.sdks.openai import ChatSdk, ResponsesSdk
from tests.sdks.sdk import Answer, Sdk

__all__ = ["READ", "SDKS", "WIRES", "Answer", "Sdk"]

SDKS: dict[str, Sdk] = {
    "anthropic": AnthropicSdk(),
    "openai_chat": ChatSdk(),
    "openai_responses": ResponsesSdk(),
    "gemini": GeminiSdk(),
    "cohere": CohereSdk(),
    "bedrock_invoke": BedrockInvokeSdk(),
    "gemini_interactions": InteractionsSdk(),
    "ollama": OllamaSdk(),
}
WIRES = tuple(SDKS)
READ: dict[str, Any] = {**{wire: sdk.read for wire, sdk in SDKS.items()}, "bedrock_converse": read_converse}
"""What an SDK makes of the body of a response, also where it has no HTTP client that could be tapped."""
