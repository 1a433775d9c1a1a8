"""What tests need of a provider's SDK, in no provider's words."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

import httpx
import httpx2

SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}, "content": {"type": "string"}}}
NAMES = ("write", "other", "slow", "fast")
MESSAGES: Any = [{"role": "user", "content": "go"}]


class Answer:
    """Text, reasoning and calls of a response as its SDK has them. ``pieces`` counts the deltas of arguments."""

    def __init__(self) -> None:
        self.text = ""
        self.thoughts = ""
        self.calls: list[tuple[str | None, str, Any]] = []
        self.finish: Any = None
        self.events = 0
        self.pieces = 0

    @property
    def told(self) -> tuple[Any, ...]:
        """All that must be the same with and without the tap."""
        return self.text, self.thoughts, self.calls, self.finish


class Sdk(ABC):
    """An SDK's async client. ``library``: the method of Callstream that makes the HTTP client which it takes.

    ``takes_httpx2``: whether it takes a client of httpx2 too. ``retries_streams``: whether it asks again for a stream that
    was refused.
    """

    library: ClassVar[str] = "httpx_client"
    takes_httpx2: ClassVar[bool] = True
    retries_streams: ClassVar[bool] = True
    stream_type: ClassVar[str] = "text/event-stream"

    @abstractmethod
    def client(self, base_url: str, http: Any, retries: int) -> AbstractAsyncContextManager[Any]:
        """The SDK's client; None for ``http`` is one of its own."""

    @abstractmethod
    async def stream(self, client: Any) -> AsyncIterator[Any]:
        """The events of one streamed answer to a request that declares tools."""

    @abstractmethod
    def fold(self, events: list[Any]) -> Answer:
        """What the events amount to."""

    @abstractmethod
    async def whole(self, client: Any) -> Answer:
        """An answer that is not streamed."""

    @abstractmethod
    def raw(self, base_url: str) -> tuple[str, dict[str, Any]]:
        """The URL and a body that get a stream from the provider."""

    async def ask(self, client: Any) -> Answer:
        events = [event async for event in await self.stream(client)]
        answer = self.fold(events)
        answer.events = len(events)
        return answer

    def read(self, body: bytes, *, stream: bool = True) -> Answer:
        """What the SDK makes of the body of a response."""
        return asyncio.run(self._read(body, stream))

    async def _read(self, body: bytes, stream: bool) -> Answer:
        kind = self.stream_type if stream else "application/json"

        library: Any = httpx2 if self.library == "httpx2_client" else httpx

        def answered(request: Any) -> Any:
            return library.Response(200, headers={"content-type": kind}, content=body)

        http = library.AsyncClient(transport=library.MockTransport(answered))
        async with self.client("http://test", http, 0) as client:
            return await (self.ask(client) if stream else self.whole(client))


def loads(text: str) -> Any:
    """The arguments of a call; the text itself where it is not JSON."""
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return text
