"""Asking a running server. The standard library's HTTP, on threads, so that the command line needs no package for it."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from callstream.cli.failure import CommandError, misused
from callstream.cli.place import address, refuse_secret
from callstream.wire.framing import SseFraming

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SECONDS = 30.0
_WAITING = 256
"""Pieces of a stream that may wait to be read; the thread that reads the connection waits then."""


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
        # A proxy does not reach this machine's own addresses.
        proxies: Any = {} if parts.hostname in _LOOPBACK else None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
        self._token = os.environ.get("CALLSTREAM_TOKEN")

    async def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        """The JSON that the server answers with. ``None`` in the query leaves a parameter out."""
        return await asyncio.to_thread(self._ask, "GET", path, query, None)

    async def post(self, path: str, body: Any = None) -> Any:
        return await asyncio.to_thread(self._ask, "POST", path, None, body)

    async def events(
        self, path: str, query: Mapping[str, Any] | None = None, *, body: Any = None
    ) -> AsyncGenerator[tuple[bytes, bytes], None]:
        """The server-sent events of a response: names and data. A stream that breaks off just ends.

        With a ``body`` the request is a POST.
        """
        response = await asyncio.to_thread(self._open, "GET" if body is None else "POST", path, query, body)
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[bytes] = asyncio.Queue()
        room = threading.Semaphore(_WAITING)  # bounds the queue, from the side of the thread
        stop = threading.Event()

        def read() -> None:
            piece = b"-"
            while piece and not stop.is_set():
                room.acquire()
                try:
                    piece = response.read1(65536)
                except (OSError, ValueError, http.client.HTTPException):  # broken off
                    piece = b""
                try:
                    loop.call_soon_threadsafe(pieces.put_nowait, piece)
                except RuntimeError:  # the loop has ended, and nobody waits any more
                    break
            response.close()

        # A daemon: whoever stops looking must not wait for the server's next word.
        threading.Thread(target=read, name="callstream-events", daemon=True).start()
        framing = SseFraming()
        try:
            while piece := await pieces.get():
                room.release()
                for frame in framing.feed(piece):
                    if frame.error is not None:
                        raise CommandError(f"{self.url} did not send events: {frame.error}")
                    if frame.payload is not None:
                        yield frame.event, frame.payload
        finally:
            stop.set()
            room.release()

    def _ask(self, method: str, path: str, query: Mapping[str, Any] | None, body: Any) -> Any:
        with self._open(method, path, query, body) as response:
            text = response.read()
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise CommandError(f"{self.url}{path} did not send JSON; is it a Callstream server?") from None

    def _open(self, method: str, path: str, query: Mapping[str, Any] | None, body: Any) -> Any:
        given = {name: value for name, value in (query or {}).items() if value is not None}
        address = f"{self.url}{path}" + (f"?{urllib.parse.urlencode(given)}" if given else "")
        headers = {"accept": "application/json, text/event-stream"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        data = None
        if method == "POST":
            headers["content-type"] = "application/json"
            data = json.dumps({} if body is None else body).encode()
        request = urllib.request.Request(address, data=data, headers=headers, method=method)
        try:
            return self._opener.open(request, timeout=_SECONDS)
        except urllib.error.HTTPError as error:
            raise CommandError(f"{self.url} refused the request: {_message(error)}") from None
        except urllib.error.URLError as error:
            raise CommandError(f"cannot reach {self.url}: {error.reason}") from None
        except OSError as error:
            raise CommandError(f"cannot reach {self.url}: {error}") from None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read())["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"
