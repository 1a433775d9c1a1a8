"""Content codings: the tap asks for none, and undoes what comes anyway.

gzip and deflate are undone by the standard library, br and zstd by the packages that httpx itself would use, where
they are installed. A few bytes may stand for gigabytes, so what they hold is given piece by piece, and no piece is made
before the one before it was taken.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

_PIECE = 1024 * 1024
_SLICE = 64
"""How many bytes a package that cannot be told how much to return is given at a time."""


class Decoding(Protocol):
    """``error`` is what it raises for bytes that are not in the coding."""

    error: type[Exception]

    def feed(self, data: bytes) -> Iterator[bytes]: ...


class Checked:
    """A decoding whose errors are those that ``fault`` makes: of the library whose client reads the body."""

    def __init__(self, decoding: Decoding, fault: Callable[[str], Exception]) -> None:
        self._decoding = decoding
        self._fault = fault
        self.error: type[Exception] = decoding.error

    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            yield from self._decoding.feed(data)
        except self.error as error:
            raise self._fault(str(error)) from error


class _Zlib:
    error: type[Exception] = zlib.error

    def __init__(self, wbits: int) -> None:
        self._decoder = zlib.decompressobj(wbits)

    def feed(self, data: bytes) -> Iterator[bytes]:
        # zlib may have taken all of the input and still owe some output: only a piece that is not full is the last one.
        piece = self._decoder.decompress(data, _PIECE)
        while piece:
            yield piece
            if len(piece) < _PIECE:
                return
            piece = self._decoder.decompress(self._decoder.unconsumed_tail, _PIECE)


class _Deflate:
    """``deflate`` is zlib by the standard, and raw by some servers; the two bytes of zlib's header tell."""

    error: type[Exception] = zlib.error

    def __init__(self) -> None:
        self._head = b""
        self._decoder: _Zlib | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._decoder is None:
            data = self._head = self._head + data
            if len(data) < 2:
                return
            is_zlib = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._decoder = _Zlib(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
        yield from self._decoder.feed(data)


class _Package:
    """A decompressor of a package that is there or not."""

    def __init__(self, decompressor: Any, error: type[Exception]) -> None:
        self.error = error
        self._decompress = getattr(decompressor, "decompress", None) or decompressor.process

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _SLICE):
            if piece := bytes(self._decompress(data[start : start + _SLICE])):
                yield piece


def codings_in(header: str) -> list[str]:
    """What a Content-Encoding names, in lower case; ``identity`` is nothing to be undone."""
    named = [coding.strip().lower() for coding in header.split(",")]
    return [coding for coding in named if coding not in ("", "identity")]


def decoding_of(coding: str) -> Decoding | None:
    """What undoes one content coding; None if nothing here can."""
    match coding:
        case "gzip" | "x-gzip":
            return _Zlib(zlib.MAX_WBITS | 16)
        case "deflate":
            return _Deflate()
        case "br":
            return _of_package(("brotli", "Decompressor", "error"), ("brotlicffi", "Decompressor", "error"))
        case "zstd":
            return _of_package(("zstandard", "ZstdDecompressor", "ZstdError"))
        case _:
            return None


def _of_package(*candidates: tuple[str, str, str]) -> Decoding | None:
    for module, name, error in candidates:
        try:
            package = importlib.import_module(module)
        except ImportError:
            continue
        made = getattr(package, name)()
        return _Package(made.decompressobj() if hasattr(made, "decompressobj") else made, getattr(package, error))
    return None
