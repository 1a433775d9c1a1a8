"""The real SDKs, each asked once and streamed through its raw stream; what they put together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from callstream import Callstream
from callstream.testing import ScriptedProvider
from callstream.testing.encoders import ENCODERS
from tests.sdks import SDKS, Answer
from tests.sdks.sdk import NAMES, SCHEMA

__all__ = ["ASK", "NAMES", "SCHEMA", "WIRES", "Answer", "ask", "sdk"]

WIRES = tuple(wire for wire in SDKS if ENCODERS[wire].streams_arguments)
"""Those on which calls come in pieces."""
ASK: dict[str, Any] = {wire: each.ask for wire, each in SDKS.items()}


@asynccontextmanager
async def sdk(wire: str, provider: ScriptedProvider, cs: Callstream | None, **options: Any) -> AsyncIterator[Any]:
    """The SDK's client for the provider, with the tap in it if there is a Callstream."""
    retries = options.pop("max_retries", 0)
    make = options.pop("client", None)
    http = None if cs is None else (make or getattr(cs, SDKS[wire].library))(**options)
    async with SDKS[wire].client(provider.base_url, http, retries) as client:
        yield client


async def ask(wire: str, provider: ScriptedProvider, cs: Callstream | None, **options: Any) -> Answer:
    async with sdk(wire, provider, cs, **options) as client:
        return await SDKS[wire].ask(client)
