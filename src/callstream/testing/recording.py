"""Real answers, stored as files and served again.

::

    client = AsyncAnthropic(http_client=httpx2.AsyncClient(transport=record("answers")))  # once, with an account
    with replay("answers") as provider:
        ...  # then without

An exchange is two files: ``0001.json`` has the request and how the answer came, ``0001.body`` is the body, byte for
byte. Headers and query parameters are only kept if they are on a list of harmless names, so no key, token, cookie or
account gets into a file. The request's own body is kept whole: secrets in it are yours to remove.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from callstream.errors import UsageError
from callstream.tap.library import Pools, library_of
from callstream.testing.encoders import ENCODERS
from callstream.testing.httpserver import Frame, HttpAnswer, HttpServer, ReceivedRequest
from callstream.testing.provider import ProviderServer, Route, base_path, wire_of
from callstream.testing.script import Cut

_KEPT_REQUEST_HEADERS = frozenset(
    {"accept", "accept-encoding", "anthropic-beta", "anthropic-version", "content-type", "openai-beta", "user-agent"}
)
_KEPT_RESPONSE_HEADERS = frozenset({"content-encoding", "content-type", "retry-after", "retry-after-ms"})
_KEPT_QUERY = frozenset({"alt", "$alt", "api-version", "beta"})


class Recording(msgspec.Struct, frozen=True, omit_defaults=True):
    """One exchange. ``body`` names the file beside this one; ``read_sizes`` are the sizes of the pieces in which it came.

    ``complete`` is false if the answer broke off, or its reader left before the end.
    """

    method: str
    path: str
    status: int
    body: str
    read_sizes: list[int]
    query: dict[str, str] = {}
    request_headers: dict[str, str] = {}
    request_json: Any = None
    response_headers: dict[str, str] = {}
    complete: bool = True


def record(folder: str | Path, inner: Any = None) -> RecordingTransport:
    """A transport for a client of httpx or httpx2, sync or async, that writes each exchange into the folder.

    ``inner`` is the transport that does the work; None uses the library's own. Nothing is changed on the way. New
    recordings are added to those already in the folder.
    """
    return RecordingTransport(Path(folder), inner)


def replay(
    place: str | Path, *, wire: str | None = None, size: int | None = None, repeat: bool = False, port: int = 0
) -> ReplayedProvider:
    """A provider that serves recorded answers again.

    ``place`` is a folder of recordings, one of them (``0001.json``), or the file of any response body, for which the
    ``wire`` has to be stated. A request gets the first answer to its path that was not served yet, and a request for
    which there is none is an error; with ``repeat`` answers are served again and again. Bodies come in the pieces in which
    they were recorded, or in pieces of ``size`` bytes.
    """
    return ReplayedProvider(_kept(Path(place), wire), wire, size=size, repeat=repeat, port=port)


# -- recording ---------------------------------------------------------------------------------------------------------


class RecordingTransport:
    """See ``record``."""

    def __init__(self, folder: Path, inner: Any) -> None:
        self._folder = folder
        self._inner = inner
        self._lock = threading.Lock()

    def handle_request(self, request: Any) -> Any:
        body = request.read()
        response = self._inner_for(request, "HTTPTransport").handle_request(request)
        return self.kept(request, body, response)

    async def handle_async_request(self, request: Any) -> Any:
        body = await request.aread()
        response = await self._inner_for(request, "AsyncHTTPTransport").handle_async_request(request)
        return self.kept(request, body, response)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    async def aclose(self) -> None:
        if self._inner is not None:
            await self._inner.aclose()

    def __enter__(self) -> RecordingTransport:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> RecordingTransport:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def _inner_for(self, request: Any, kind: str) -> Any:
        if self._inner is None:
            self._inner = getattr(library_of(request), kind)()
        return self._inner

    def kept(self, request: Any, body: bytes, response: Any) -> Any:
        """The answer, which is recorded while it is read."""
        library = library_of(request)
        started = Recording(
            method=request.method,
            path=request.url.path,
            status=response.status_code,
            body="",
            read_sizes=[],
            query={name: value for name, value in request.url.params.items() if name in _KEPT_QUERY},
            request_headers={k: v for k, v in request.headers.items() if k.lower() in _KEPT_REQUEST_HEADERS},
            request_json=_json(body),
            response_headers={k: v for k, v in response.headers.items() if k.lower() in _KEPT_RESPONSE_HEADERS},
        )
        stream = _stream_class(library)(self, started, response.stream)
        headers = response.headers
        return library.Response(response.status_code, headers=headers, stream=stream, extensions=response.extensions)

    def write(self, recording: Recording, body: bytes) -> None:
        """Stores an exchange under the next free number."""
        with self._lock:
            self._folder.mkdir(parents=True, exist_ok=True)
            number = 1 + max((int(file.stem) for file in _numbered(self._folder)), default=0)
            name = f"{number:04}"
            (self._folder / f"{name}.body").write_bytes(body)
            kept = msgspec.structs.replace(recording, body=f"{name}.body")
            text = msgspec.json.format(msgspec.json.encode(kept), indent=2)
            (self._folder / f"{name}.json").write_bytes(text + b"\n")


def _numbered(folder: Path) -> list[Path]:
    """The recordings of a folder, which may have other files too, in their order."""
    return sorted((file for file in folder.glob("*.json") if file.stem.isdecimal()), key=lambda file: int(file.stem))


class _Keeping:
    """A body on its way, collected as it passes and written when it ends, however it ends."""

    def __init__(self, transport: RecordingTransport, recording: Recording, stream: Any) -> None:
        self._transport = transport
        self._recording = recording
        self._stream = stream
        self._pieces: list[bytes] = []
        self._is_written = False

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            self._pieces.append(piece)
            yield piece
        self._write(complete=True)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._pieces.append(piece)
            yield piece
        self._write(complete=True)

    def close(self) -> None:
        self._stream.close()
        self._write(complete=False)

    async def aclose(self) -> None:
        await self._stream.aclose()
        self._write(complete=False)

    def _write(self, *, complete: bool) -> None:
        if self._is_written:
            return
        self._is_written = True
        sizes = [len(piece) for piece in self._pieces]
        recording = msgspec.structs.replace(self._recording, read_sizes=sizes, complete=complete)
        self._transport.write(recording, b"".join(self._pieces))


@cache
def _stream_class(library: ModuleType) -> Any:
    """The same as one of the library's stream classes, for which the library checks."""
    return type("KeptStream", (_Keeping, library.SyncByteStream, library.AsyncByteStream), {})


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


# -- replaying ---------------------------------------------------------------------------------------------------------


class _Kept(NamedTuple):
    """A recording and its body. A recording without a path fits every path."""

    recording: Recording
    body: bytes

    def fits(self, path: str) -> bool:
        return self.recording.path in ("", path)


class ReplayedProvider(ProviderServer):
    """See ``replay``."""

    def __init__(
        self, kept: list[_Kept], wire: str | None, *, size: int | None = None, repeat: bool = False, port: int = 0
    ) -> None:
        found = {wire} if wire is not None else {wire_of(each.recording.path) for each in kept}
        if len(found) != 1 or None in found:
            raise UsageError(f"expected recordings of one wire, got {sorted(map(str, found))}; wire= can say which one")
        if size is not None and size < 1:
            raise UsageError(f"expected size to be at least 1, got {size}")
        [known] = found
        super().__init__(str(known), port=port)
        self._kept = [each for each in kept if not each.recording.path or wire_of(each.recording.path) == self.wire]
        if not self._kept:
            raise UsageError(f"expected recordings of the wire {self.wire!r}, got none of {len(kept)}")
        self._left = list(self._kept)
        self._size = size
        self._repeat = repeat

    @property
    def base_url(self) -> str:
        """The ``base_url`` for the SDK, with the part of the recorded paths before the wire's own."""
        prefix = base_path(self.wire)
        path = self._kept[0].recording.path
        own = ENCODERS[self.wire].place.removeprefix(prefix)
        if path.endswith(own):
            prefix = path.removesuffix(own)
        return f"{self.origin}{prefix}"

    async def answer(self, request: ReceivedRequest, route: Route) -> HttpAnswer:
        kept = self._next(request.path)
        recording = kept.recording
        frames: list[bytes | Cut] = list(self._pieces(kept))
        if not recording.complete:
            frames.append(Cut())
        return HttpAnswer(recording.status, list(recording.response_headers.items()), frames)

    def _next(self, path: str) -> _Kept:
        for _ in range(2):
            for kept in self._left:
                if kept.fits(path):
                    self._left.remove(kept)
                    return kept
            if self._repeat:
                self._left = [*self._left, *filter(lambda kept: kept.fits(path), self._kept)]
        recorded = sum(kept.fits(path) for kept in self._kept)
        if recorded:
            raise UsageError(
                f"all that was recorded for {path} is answered already (requests: {recorded}); with repeat it begins again"
            )
        there = sorted({kept.recording.path for kept in self._kept})
        raise UsageError(f"expected a request that was recorded, to one of {there}, got {path}")

    def _pieces(self, kept: _Kept) -> Iterator[bytes]:
        body, sizes = kept.body, kept.recording.read_sizes
        if self._size is not None:
            sizes = [self._size] * -(-len(body) // self._size)
        at = 0
        for size in sizes:
            if size:
                yield body[at : at + size]
            at += size


def _kept(place: Path, wire: str | None) -> list[_Kept]:
    if place.is_dir():
        files = _numbered(place)
        if not files:
            raise UsageError(f"expected a folder of recordings, got {place}, which has none")
        return [_read(file) for file in files]
    if not place.is_file():
        raise UsageError(f"expected a folder of recordings or a file, got {place}, which is not there")
    if place.suffix == ".json" and wire is None:
        return [_read(place)]
    if wire is None:
        raise UsageError(f"{place.name} does not say which wire it speaks: state it as wire=")
    if wire not in ENCODERS:
        raise UsageError(f"expected one of the wires {', '.join(ENCODERS)}, got {wire!r}")
    body = place.read_bytes()
    is_stream = body.startswith(b"\0") or body.lstrip().startswith((b"data:", b"event:", b"id:", b":"))
    headers = {"content-type": ENCODERS[wire].stream_type if is_stream else "application/json"}
    recording = Recording("POST", "", 200, place.name, [len(body)], response_headers=headers)
    return [_Kept(recording, body)]


def _read(file: Path) -> _Kept:
    try:
        recording = msgspec.json.decode(file.read_bytes(), type=Recording)
        body = (file.parent / recording.body).read_bytes()
    except (msgspec.DecodeError, FileNotFoundError) as error:
        raise UsageError(f"expected a recording, got {file}: {error}") from error
    if sum(recording.read_sizes) != len(body):
        raise UsageError(f"{file}: the read sizes sum to {sum(recording.read_sizes)}, the body has {len(body)} bytes")
    return _Kept(recording, body)


# -- a stand-in that asks the real provider, and records its answers ---------------------------------------------------
# ::
#
#     with recording_proxy("answers", "https://api.anthropic.com") as proxy:
#         ...  # any program, in any language, whose SDK uses proxy.origin
#
# ``record`` is for clients that accept a transport; this is for programs that accept only an address.


# Headers of one connection, not of the message (RFC 9110, section 7.6.1), and those that each side sets itself.
_OF_THE_CONNECTION = frozenset(
    {"connection", "content-length", "host", "keep-alive", "proxy-authenticate", "proxy-authorization"}
    | {"te", "trailer", "transfer-encoding", "upgrade"}
)


def recording_proxy(folder: str | Path, upstream: str, *, port: int = 0) -> RecordingProxy:
    """A server on loopback that passes requests on to ``upstream`` and writes each exchange into the folder.

    Bodies pass byte for byte, as they come. Proxies from the environment apply. ``record`` says what is kept.
    """
    return RecordingProxy(Path(folder), upstream, port=port)


class RecordingProxy(HttpServer):
    """See ``recording_proxy``. ``origin`` is the address to use instead of the provider's."""

    def __init__(self, folder: Path, upstream: str, *, port: int = 0) -> None:
        parts = urlsplit(upstream)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise UsageError(f"expected the address of a provider, such as https://api.anthropic.com, got {upstream!r}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):
                pass  # an answer that could not be kept would be cut off on its way
        except OSError as error:
            raise UsageError(f"expected a folder that can be written, got {folder}: {error}") from error
        self.requests = 0
        """How many requests have come so far."""
        self.exchanges = 0
        """How many answers have been passed on so far."""
        self._upstream = upstream.rstrip("/")
        self._library: Any = _library()
        # No connection is kept for later: it would have to be closed by the server's loop, which ends with the server.
        self._pools = Pools({"limits": self._library.Limits(max_keepalive_connections=0)})
        self._recorder = record(folder)
        super().__init__(self._answering, port=port, name="recording proxy")

    async def _answering(self, request: ReceivedRequest) -> HttpAnswer:
        library = self._library
        self.requests += 1
        headers = [(name, value) for name, value in request.headers.items() if name not in _OF_THE_CONNECTION]
        sent = library.Request(
            request.method, f"{self._upstream}{request.target}", headers=headers, content=request.body or None
        )
        sent.extensions["timeout"] = {"connect": 30.0, "read": None, "write": 60.0, "pool": 30.0}
        try:
            response = await self._pools.transport_for(sent).handle_async_request(sent)
        except library.TransportError as error:
            message = f"the recording proxy could not reach {self._upstream}: {type(error).__name__}: {error}"
            body = msgspec.json.encode({"error": {"message": message}})
            return HttpAnswer(502, [("content-type", "application/json")], [body], length=len(body))
        response = self._recorder.kept(sent, request.body, response)
        self.exchanges += 1
        kept = [(name, value) for name, value in response.headers.multi_items() if name not in _OF_THE_CONNECTION]
        return HttpAnswer(response.status_code, kept, (), relayed=self._passed(response))

    async def _passed(self, response: Any) -> AsyncGenerator[Frame, None]:
        try:
            async for piece in response.stream:
                yield piece
        except self._library.TransportError:
            yield Cut()
        finally:
            await asyncio.shield(response.aclose())


def _library() -> ModuleType:
    for name in ("httpx", "httpx2"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise UsageError("recording needs httpx or httpx2, which most SDKs bring, but not boto3: pip install httpx")
