"""A provider's stand-in that asks the real one, and keeps what it answers.

::

    with recording_proxy("answers", "https://api.anthropic.com") as proxy:
        ...  # any program, in any language, whose SDK uses proxy.origin

What ``record`` is for a client that one can hand a transport, this is for a program that takes nothing but an address.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from callstream.errors import UsageError
from callstream.tap.pools import Pools
from callstream.testing.httpserver import Frame, HttpAnswer, HttpServer, ReceivedRequest
from callstream.testing.recording import record
from callstream.testing.script import Cut

# What belongs to one connection and not to the message (RFC 9110, section 7.6.1), and what each side counts itself.
_OF_THE_CONNECTION = frozenset(
    {"connection", "content-length", "host", "keep-alive", "proxy-authenticate", "proxy-authorization"}
    | {"te", "trailer", "transfer-encoding", "upgrade"}
)


def recording_proxy(folder: str | Path, upstream: str, *, port: int = 0) -> RecordingProxy:
    """A server on loopback that passes requests on to ``upstream`` and writes each exchange into the folder.

    Bodies pass byte for byte, as they come. Proxies of the environment count. What is kept and what is not: ``record``.
    """
    return RecordingProxy(Path(folder), upstream, port=port)


class RecordingProxy:
    """See ``recording_proxy``."""

    def __init__(self, folder: Path, upstream: str, *, port: int = 0) -> None:
        parts = urlsplit(upstream)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise UsageError(f"expected the address of a provider, such as https://api.anthropic.com, got {upstream!r}")
        self.exchanges = 0
        """How many answers were passed on until now."""
        self._upstream = upstream.rstrip("/")
        self._library = _library()
        self._transport = record(folder, _Outside(self._library))
        self._server = HttpServer(self._answering, port=port, name="recording proxy")

    @property
    def origin(self) -> str:
        """The address to use in place of the provider's."""
        return f"http://127.0.0.1:{self._server.port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()

    async def _answering(self, request: ReceivedRequest) -> HttpAnswer:
        library: Any = self._library
        headers = [(name, value) for name, value in request.headers.items() if name not in _OF_THE_CONNECTION]
        sent = library.Request(
            request.method, f"{self._upstream}{request.target}", headers=headers, content=request.body or None
        )
        sent.extensions["timeout"] = {"connect": 30.0, "read": None, "write": 60.0, "pool": 30.0}
        try:
            response = await self._transport.handle_async_request(sent)
        except library.TransportError as error:
            message = f"the recording proxy could not reach {self._upstream}: {type(error).__name__}: {error}"
            body = msgspec.json.encode({"error": {"message": message}})
            return HttpAnswer(502, [("content-type", "application/json")], [body], length=len(body))
        self.exchanges += 1
        kept = [(name, value) for name, value in response.headers.multi_items() if name not in _OF_THE_CONNECTION]
        return HttpAnswer(response.status_code, kept, (), relayed=self._passed(response))

    async def _passed(self, response: Any) -> AsyncGenerator[Frame, None]:
        library: Any = self._library
        try:
            async for piece in response.stream:
                yield piece
        except library.TransportError:
            yield Cut()
        finally:
            await asyncio.shield(response.aclose())


class _Outside:
    """The way out: connections as the library would make them, by the environment's proxies."""

    def __init__(self, library: ModuleType) -> None:
        # None is kept for later: the loop that would have to close it is the server's, and ends with it.
        self._pools = Pools({"limits": library.Limits(max_keepalive_connections=0)})

    async def handle_async_request(self, request: Any) -> Any:
        return await self._pools.transport_for(request).handle_async_request(request)

    async def aclose(self) -> None:
        await self._pools.aclose()


def _library() -> ModuleType:
    for name in ("httpx", "httpx2"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise UsageError("recording needs httpx or httpx2, which most SDKs bring, but not boto3: pip install httpx")
