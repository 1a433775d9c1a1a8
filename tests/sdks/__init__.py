"""The real SDKs, one module each, as the tests use them."""

from __future__ import annotations

from tests.sdks.anthropic import AnthropicSdk
from tests.sdks.cohere import CohereSdk
from tests.sdks.gemini import GeminiSdk
from tests.sdks.openai import ChatSdk, ResponsesSdk
from tests.sdks.sdk import Answer, Sdk

__all__ = ["SDKS", "WIRES", "Answer", "Sdk"]

SDKS: dict[str, Sdk] = {
    "anthropic": AnthropicSdk(),
    "openai_chat": ChatSdk(),
    "openai_responses": ResponsesSdk(),
    "gemini": GeminiSdk(),
    "cohere": CohereSdk(),
}
WIRES = tuple(SDKS)
