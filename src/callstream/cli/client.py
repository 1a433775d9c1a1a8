"""Asking a running server."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from callstream.cli.output import CommandError, misused
from callstream.cli.place import address, refuse_secret
from callstream.wire.framing import SseFraming

if TYPE_CHECKING:
    import httpx

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SECONDS = 30.0


def server_address(options: argparse.Namespace) -> str:
    """The server that a command needs: ``--server``, or ``CALLSTREAM_SERVER``."""
    found = options.server or os.environ.get("CALLSTREAM_SERVER")
    if not found:
        raise misused("expected a server: give --server URL or set CALLSTREAM_SERVER")
    return str(found)


class ServerClient:
    """One server, by its address."""

    def __init__(self, url: str) -> None:
        self.url = refuse_secret(url, "CALLSTREAM_TOKEN").rstrip("/")
        parts = address(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise misused(f"expected the server's address, such as http://127.0.0.1:8000, got {url!r}")
        self._is_local = parts.hostname in _LOOPBACK
        self._token = os.environ.get("CALLSTREAM_TOKEN")

    async def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        """The JSON that the server answers with. ``None`` in the query leaves a parameter out."""
        return await self._ask("GET", path, query, None)

    async def post(self, path: str, body: Any = None) -> Any:
        return await self._ask("POST", path, None, body)

    async def events(
        self, path: str, query: Mapping[str, Any] | None = None, *, body: Any = None
    ) -> AsyncGenerator[tuple[bytes, bytes], None]:
        """The server-sent events of a response: names and data. A stream that breaks off just ends.

        With a ``body`` the request is a POST.
        """
        framing = SseFraming()
        async with self._open("GET" if body is None else "POST", path, query, body) as response:
            async for piece in _until_broken_off(response):
                for frame in framing.feed(piece):
                    if frame.error is not None:
                        raise CommandError(f"{self.url} did not send events: {frame.error}")
                    if frame.payload is not None:
                        yield frame.event, frame.payload

    async def _ask(self, method: str, path: str, query: Mapping[str, Any] | None, body: Any) -> Any:
        async with self._open(method, path, query, body) as response:
            text = await response.aread()
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise CommandError(f"{self.url}{path} did not send JSON; is it a Callstream server?") from None

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, query: Mapping[str, Any] | None, body: Any
    ) -> AsyncIterator[httpx.Response]:
        try:
            import httpx
        except ImportError:
            raise CommandError("asking a server needs httpx: pip install 'callstream[cli]'") from None
        headers = {"accept": "application/json, text/event-stream"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        asked: dict[str, Any] = {"params": {name: each for name, each in (query or {}).items() if each is not None}}
        if method == "POST":
            asked["json"] = {} if body is None else body
        # With a transport of its own httpx uses no proxy of the environment, which would not reach this machine.
        transport = httpx.AsyncHTTPTransport() if self._is_local else None
        async with httpx.AsyncClient(
            headers=headers, timeout=_SECONDS, transport=transport, follow_redirects=True
        ) as client:
            try:
                async with client.stream(method, f"{self.url}{path}", **asked) as response:
                    if response.is_error:
                        await response.aread()
                        raise CommandError(f"{self.url} refused the request: {_message(response)}")
                    yield response
            except httpx.HTTPError as error:
                raise CommandError(f"cannot reach {self.url}: {str(error) or type(error).__name__}") from None


async def _until_broken_off(response: httpx.Response) -> AsyncIterator[bytes]:
    import httpx

    try:
        async for piece in response.aiter_bytes():
            yield piece
    except httpx.HTTPError:
        return


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code} {response.reason_phrase}"
