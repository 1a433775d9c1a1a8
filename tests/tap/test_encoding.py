from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncIterator
from types import ModuleType

import httpx
import httpx2
import pytest

from callstream.tap.library import can_decode, codings_in, decoded, decoded_bytes

TEXT = b"data: {}\n\n" * 50


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def zstd(data: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").ZstdCompressor().compress(data))


def brotli(data: bytes) -> bytes:
    return bytes(pytest.importorskip("brotli").compress(data))


async def cut(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("gzip, Deflate", lambda data: zlib.compress(gzip.compress(data))),
        ("zstd", zstd),
        ("br", brotli),
    ],
)
async def test_what_comes_compressed_is_decoded_at_any_split(library: ModuleType, coding: str, pack) -> None:  # type: ignore[no-untyped-def]
    packed = pack(TEXT)
    answer = library.Response(200, headers={"content-encoding": coding})
    assert can_decode(library, codings_in(coding))
    for size in (1, 7, len(packed)):
        assert b"".join([piece async for piece in decoded(answer, cut(packed, size))]) == TEXT
    assert decoded_bytes(answer, packed) == TEXT


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_the_beginning_of_a_body_is_decoded_as_far_as_it_goes(library: ModuleType) -> None:
    answer = library.Response(400, headers={"content-encoding": "gzip"})
    packed = gzip.compress(TEXT)
    assert TEXT.startswith(decoded_bytes(answer, packed[:-12]))
    assert decoded_bytes(answer, b"neither the one nor the other") == b""
    assert decoded_bytes(library.Response(400), TEXT) == TEXT


def test_the_names_of_codings_are_read_in_any_case() -> None:
    assert codings_in("") == codings_in("Identity") == codings_in(" identity , IDENTITY") == []
    assert codings_in(" GZIP , identity") == ["gzip"]
    assert codings_in("gzip, br") == ["gzip", "br"]


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_an_unknown_coding_cannot_be_decoded(library: ModuleType) -> None:
    assert not can_decode(library, ["compress"])
    assert not can_decode(library, ["gzip", "compress"])
    assert can_decode(library, [])
