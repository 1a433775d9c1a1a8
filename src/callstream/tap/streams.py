"""What an HTTP library reads a body by: one kind of stream, for async and for sync clients.

A sync client reads in any thread. Each step is done on the event loop of the body, which another thread runs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import cache
from types import ModuleType
from typing import Any, Protocol
from weakref import finalize

from callstream.runtime.ownloop import finish_in, run_in
from callstream.tap.again import AskingBody
from callstream.tap.body import TappedBody
from callstream.tap.pools import library_of


class Body(Protocol):
    """``reader`` stays in use until all is read."""

    def chunks(self, reader: object) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


class WholeBody:
    """A body that is there."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def chunks(self, reader: object) -> AsyncIterator[bytes]:
        yield self._data

    async def aclose(self) -> None:
        pass


class UntouchedBody:
    """The body of an answer that the tap does not read, for a sync client whose connections are async."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def chunks(self, reader: object) -> AsyncIterator[bytes]:
        async for data in self._stream:
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


class BegunBody:
    """A body whose first bytes were looked at before it is read."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._chunks: AsyncIterator[bytes] = aiter(stream)
        self._first = b""

    async def first(self) -> bytes:
        """The first bytes; empty where there are none."""
        self._first = await anext(self._chunks, b"")
        return self._first

    async def chunks(self, reader: object) -> AsyncIterator[bytes]:
        if self._first:
            yield self._first
        async for data in self._chunks:
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


class RestBody:
    """A body of which the beginning is there."""

    def __init__(self, beginning: bytes, rest: Any, close: Callable[[], Awaitable[None]]) -> None:
        self._beginning = beginning
        self._rest = rest
        self._close = close

    async def chunks(self, reader: object) -> AsyncIterator[bytes]:
        yield self._beginning
        async for data in self._rest:
            yield data

    async def aclose(self) -> None:
        await self._close()


def stream_of(library: ModuleType, body: Body) -> Any:
    """The body as a stream of the library, made on the loop of the body."""
    return _stream_class(library)(body)


class BodyStream:
    """What reads a body, async or in any thread. Made on the loop of the body."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._abandoned: finalize[..., Any] | None = None
        if isinstance(body, TappedBody | AskingBody):
            self._abandoned = finalize(self, body.abandon)
            self._abandoned.atexit = False

    def deliver_to(self, push: Callable[[bytes], bool]) -> None:
        """See ``Delivering``. To be called before iterating."""
        if isinstance(self._body, TappedBody):
            self._body.deliver_to(push)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body.chunks(self)

    async def aclose(self) -> None:
        self._is_closed()
        await self._body.aclose()

    def _is_closed(self) -> None:
        """Whatever held the body for the case that it is never closed need not hold it any more."""
        if self._abandoned is not None:
            self._abandoned.detach()

    def __iter__(self) -> Iterator[bytes]:
        return _Chunks(self._loop, self._body.chunks(self))

    def close(self) -> None:
        if os.getpid() == self._process:  # else it was forked, and the loop runs in the parent only
            self._is_closed()
            finish_in(self._loop, self._body.aclose)


@cache
def _stream_class(library: ModuleType) -> Any:
    class LibraryBodyStream(BodyStream, library.AsyncByteStream, library.SyncByteStream):  # type: ignore[misc, name-defined]
        """What the library takes for a stream of its own."""

    return LibraryBodyStream


class _Chunks:
    """Not a generator: one that is not read to its end would be closed wherever garbage is collected, and wait there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, chunks: AsyncIterator[bytes]) -> None:
        self._loop = loop
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        data = run_in(self._loop, self._next)
        if data is None:
            raise StopIteration
        return data

    async def _next(self) -> bytes | None:
        return await anext(self._chunks, None)


# Content codings: the tap asks for none, and has what comes anyway decoded by the HTTP library.
#
# One read may hold a thousand times its size then. That is bearable, because a provider is no attacker; what is held of a
# stream and of a whole answer is limited after decoding (``Limits``).


def codings_in(header: str) -> list[str]:
    """What a Content-Encoding names, in lower case; ``identity`` is nothing to be undone."""
    named = [coding.strip().lower() for coding in header.split(",")]
    return [coding for coding in named if coding not in ("", "identity")]


def can_decode(library: ModuleType, codings: list[str]) -> bool:
    return _codings_of(library).issuperset(codings)


def decoded(answer: Any, stream: Any) -> AsyncIterator[bytes]:
    """The stream of an answer without its coding."""
    library = library_of(answer)
    body = stream_of(library, _CodedBody(stream))
    pieces: AsyncIterator[bytes] = library.Response(200, headers=_coding_of(answer), stream=body).aiter_bytes()
    return pieces


class _CodedBody(UntouchedBody):
    """A body whose first piece has two bytes at least: by these httpx distinguishes zlib's deflate from raw deflate."""

    async def chunks(self, reader: object) -> AsyncIterator[bytes]:
        first: bytes | None = b""
        async for data in super().chunks(reader):
            if first is not None:
                data = first = first + data
                if len(first) < 2:
                    continue
                first = None
            yield data
        if first:
            yield first


def decoded_bytes(answer: Any, data: bytes) -> bytes:
    """The beginning of an answer's body without its coding, as far as it can be decoded."""
    library = library_of(answer)
    pieces: list[bytes] = []
    try:
        pieces.extend(library.Response(200, headers=_coding_of(answer), stream=library.ByteStream(data)).iter_bytes())
    except library.DecodingError:
        pass  # for the SDK to raise
    return b"".join(pieces)


def _coding_of(answer: Any) -> dict[str, str]:
    return {"content-encoding": answer.headers.get("content-encoding", "")}


@cache
def _codings_of(library: ModuleType) -> set[str]:
    """What the library can decode depends on the packages that are installed; a client says it with each request."""
    client = library.Client(transport=library.MockTransport(lambda request: None), trust_env=False)
    return set(codings_in(client.headers["accept-encoding"]))
