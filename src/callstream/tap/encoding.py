"""Content codings: the tap asks for none, and undoes what comes anyway.

gzip and deflate are undone by the standard library, br and zstd by the packages that httpx itself would use, where
they are installed.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any, Protocol


class Decoding(Protocol):
    """``error`` is what it raises for bytes that are not in the coding."""

    error: type[Exception]

    def feed(self, data: bytes) -> bytes: ...

    def end(self) -> bytes: ...


class Checked:
    """A decoding whose errors are those that ``fault`` makes: of the library whose client reads the body."""

    def __init__(self, decoding: Decoding, fault: Callable[[str], Exception]) -> None:
        self._decoding = decoding
        self._fault = fault
        self.error: type[Exception] = decoding.error

    def feed(self, data: bytes) -> bytes:
        try:
            return self._decoding.feed(data)
        except self.error as error:
            raise self._fault(str(error)) from error

    def end(self) -> bytes:
        try:
            return self._decoding.end()
        except self.error as error:
            raise self._fault(str(error)) from error


class _Zlib:
    error: type[Exception] = zlib.error

    def __init__(self, wbits: int) -> None:
        self._decoder = zlib.decompressobj(wbits)

    def feed(self, data: bytes) -> bytes:
        return self._decoder.decompress(data)

    def end(self) -> bytes:
        return self._decoder.flush()


class _Deflate:
    """``deflate`` is zlib by the standard, and raw by some servers; the two bytes of zlib's header tell."""

    error: type[Exception] = zlib.error

    def __init__(self) -> None:
        self._head = b""
        self._decoder: _Zlib | None = None

    def feed(self, data: bytes) -> bytes:
        if self._decoder is not None:
            return self._decoder.feed(data)
        self._head += data
        if len(self._head) < 2:
            return b""
        is_zlib = self._head[0] & 0x0F == 8 and int.from_bytes(self._head[:2], "big") % 31 == 0
        self._decoder = _Zlib(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
        return self._decoder.feed(self._head)

    def end(self) -> bytes:
        return self._decoder.end() if self._decoder is not None else b""


class _Package:
    """A decompressor of a package that is there or not."""

    def __init__(self, decompressor: Any, error: type[Exception]) -> None:
        self.error = error
        self._decompress = getattr(decompressor, "decompress", None) or decompressor.process

    def feed(self, data: bytes) -> bytes:
        return bytes(self._decompress(data))

    def end(self) -> bytes:
        return b""


def decoding_of(coding: str) -> Decoding | None:
    """What undoes a Content-Encoding; None if nothing here can."""
    match coding.strip().lower():
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
