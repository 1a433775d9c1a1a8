"""Content codings: the tap asks for none, and has what comes anyway decoded by the HTTP library.

One read may hold a thousand times its size then. That is bearable, because a provider is no attacker; what is held of a
stream and of a whole answer is limited after decoding (``Limits``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache
from types import ModuleType
from typing import Any

from callstream.tap.pools import library_of
from callstream.tap.streams import UntouchedBody, stream_of


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
