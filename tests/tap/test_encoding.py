from __future__ import annotations

import gzip
import zlib

import pytest

from callstream.tap.encoding import decoding_of

TEXT = b"data: {}\n\n" * 50


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def zstd(data: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").ZstdCompressor().compress(data))


def brotli(data: bytes) -> bytes:
    return bytes(pytest.importorskip("brotli").compress(data))


@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        (" GZIP ", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("zstd", zstd),
        ("br", brotli),
    ],
)
def test_what_comes_compressed_is_decoded_at_any_split(coding: str, pack) -> None:  # type: ignore[no-untyped-def]
    packed = pack(TEXT)
    for size in (1, 7, len(packed)):
        decoding = decoding_of(coding)
        assert decoding is not None
        pieces = [decoding.feed(packed[start : start + size]) for start in range(0, len(packed), size)]
        assert b"".join(pieces) + decoding.end() == TEXT


def test_an_unknown_coding_cannot_be_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoding_of("compress") is None
    empty = decoding_of("deflate")
    assert empty is not None
    assert empty.end() == b""
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    assert decoding_of("zstd") is None
