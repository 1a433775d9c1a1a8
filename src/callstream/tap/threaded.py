"""A sync transport that a program wants wrapped, used from an event loop: in a thread for each request.

All that is done for one request is done by its thread, one thing after another. A thread that waits for bytes cannot be
cancelled. So to close a response that is being read, its socket is shut down; where the transport shows no socket, or
shares it (HTTP/2), the response is closed as soon as the wait is over, and that is not waited for.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any

from callstream.hooks.thread import HookThread
from callstream.tap.pools import library_of


class ThreadedTransport:
    """The sync transport as an async one."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def handle_async_request(self, request: Any) -> Any:
        thread = HookThread("callstream-http")
        asking = thread.submit(self._inner.handle_request, request)
        try:
            answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(lambda asked: _close_unwanted(asked, thread))
            raise
        library = library_of(request)
        stream = ThreadedStream(answer.stream, answer.stream.close, partial(_wake, answer), thread)
        return library.Response(
            answer.status_code, headers=answer.headers, stream=stream, extensions=answer.extensions, request=request
        )


class ThreadedStream:
    """Blocking chunks, read in a thread. ``wake`` ends a wait for one, and returns whether that was possible."""

    def __init__(
        self,
        chunks: Iterable[bytes],
        close: Callable[[], None],
        wake: Callable[[], bool],
        thread: HookThread | None = None,
    ) -> None:
        self._chunks = chunks
        self._close = close
        self._wake = wake
        self._thread = thread or HookThread("callstream-http")
        self._reading: asyncio.Future[bytes | None] | None = None
        self._is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = iter(self._chunks)
        while True:
            self._reading = self._thread.submit(next, chunks, None)
            data = await asyncio.shield(self._reading)
            if data is None:
                return
            yield data

    async def aclose(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        is_waiting = self._reading is not None and not self._reading.done()
        can_be_woken = is_waiting and self._wake()
        closing = self._thread.submit(self._close)
        self._thread.close()
        if can_be_woken or not is_waiting:
            await closing


def _wake(answer: Any) -> bool:
    """Ends a wait for bytes of this answer in another thread. False if that is not possible."""
    network = answer.extensions.get("network_stream")
    if network is None or answer.extensions.get("http_version") == b"HTTP/2":
        return False
    try:
        socket.socket.shutdown(network.get_extra_info("socket"), socket.SHUT_RDWR)
    except (OSError, TypeError):
        return False
    return True


def _close_unwanted(asked: asyncio.Future[Any], thread: HookThread) -> None:
    if not asked.cancelled() and asked.exception() is None:
        _ = thread.submit(asked.result().stream.close)
    thread.close()
