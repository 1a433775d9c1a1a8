"""Streams that fall silent: how long a streamed answer may take to begin, and to continue.

What counts is bytes, whatever they say: a provider that sends pings while its model thinks is not silent. Time in which
nobody reads, because enough waits for the SDK already, does not count. The error is the HTTP library's own ReadTimeout.
Until the first byte the SDK has no response yet: it then does what it does for any time-out, which is to ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class Patience:
    """For one request, from now on. ``first_byte`` and ``idle`` are seconds, None waits as long as the HTTP client does."""

    def __init__(self, first_byte: float | None, idle: float | None, timed_out: Callable[[str], Exception]) -> None:
        self._first_byte = first_byte
        self._idle = idle
        self._timed_out = timed_out
        self._began = asyncio.get_running_loop().time()

    async def wait_for_head(self, head: Awaitable[_T]) -> _T:
        """The answer to a request for a stream."""
        return await self._wait(head, self._until_first_byte(), self._first_byte, "the stream to begin")

    async def wait_for_body(self, stream: Any) -> Any:
        """The body of a streamed answer, when its first byte has come if there is a limit to that."""
        if self._first_byte is None and self._idle is None:
            return stream
        chunks: AsyncIterator[bytes] = aiter(stream)
        first: bytes | None = None
        if self._first_byte is not None:
            first = await self._wait(
                anext(chunks, None), self._until_first_byte(), self._first_byte, "the first byte of the stream"
            )
        return self._read(first, chunks)

    async def _read(self, first: bytes | None, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Without a first chunk the stream has not begun, or was empty, and is over either way when it is asked again."""
        if first is None:
            first = await anext(chunks, None)
        data = first
        while data is not None:
            yield data
            data = await self._wait(anext(chunks, None), self._idle, self._idle, "the stream to continue")

    def _until_first_byte(self) -> float | None:
        if self._first_byte is None:
            return None
        return max(0.0, self._began + self._first_byte - asyncio.get_running_loop().time())

    async def _wait(self, work: Awaitable[_T], left: float | None, limit: float | None, what: str) -> _T:
        if left is None:
            return await work
        timeout = asyncio.timeout(left)
        try:
            async with timeout:
                return await work
        except TimeoutError:
            if not timeout.expired():
                raise
        raise self._timed_out(f"expected {what} within {limit} seconds, got nothing from the provider")
