"""A gateway on a real port before a scripted provider."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from callstream import Callstream
from callstream.gateway import GatewaySettings, create_gateway
from callstream.testing import ScriptedProvider
from tests.server.serving import Server, serving

NAMES = {"anthropic": "anthropic", "openai_chat": "openai", "openai_responses": "openai", "gemini": "gemini"}


class Gate:
    """``base_url`` is what the SDK is given in the place of its provider's."""

    def __init__(self, callstream: Callstream, server: Server, provider: ScriptedProvider) -> None:
        self.callstream = callstream
        self.server = server
        self.provider = provider
        self.base_url = f"http://127.0.0.1:{server.port}/{NAMES[provider.wire]}" + provider.base_url.removeprefix(
            provider.origin
        )

    async def runs(self) -> list[Any]:
        return sorted(await self.callstream.journal.runs(), key=lambda run: run.started_at)

    async def arguments(self, run_id: str) -> list[tuple[str, Any]]:
        """The calls of a run, by name, with their arguments."""
        rows = await self.callstream.journal.calls(run_id=run_id)
        calls = [await self.callstream.journal.call(row.call_id) for row in rows]
        return [(call.name, json.loads(call.args_json or "null")) for call in calls if call is not None]


@asynccontextmanager
async def gate(
    wire: str,
    scripts: Sequence[Any],
    *,
    key: str | None = None,
    settings: GatewaySettings | None = None,
    guards: Sequence[Any] = (),
    **options: Any,
) -> AsyncIterator[Gate]:
    callstream = Callstream("memory:", guards=guards)
    async with ScriptedProvider(wire, list(scripts), **options) as provider:
        base = provider.origin if NAMES[wire] == "gemini" else f"{provider.origin}/v1"
        app = create_gateway(callstream, upstreams={NAMES[wire]: base}, key=key, settings=settings)
        async with serving(app) as server:
            yield Gate(callstream, server, provider)
