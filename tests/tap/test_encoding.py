from __future__ import annotations

import gzip
import zlib

import pytest

from callstream.tap.encoding import codings_in, decoding_of

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
        pieces = [
            piece for start in range(0, len(packed), size) for piece in decoding.feed(packed[start : start + size])
        ]
        assert b"".join(pieces) == TEXT


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_bomb_is_given_in_pieces(coding: str) -> None:
    text = b"0" * (20 * 1024 * 1024 + 7)
    decoding = decoding_of(coding)
    assert decoding is not None
    packed = gzip.compress(text) if coding == "gzip" else raw_deflate(text)
    pieces = list(decoding.feed(packed))
    assert max(map(len, pieces)) <= 1024 * 1024
    assert b"".join(pieces) == text


def test_the_names_of_codings_are_read_in_any_case() -> None:
    assert codings_in("") == codings_in("Identity") == codings_in(" identity , IDENTITY") == []
    assert codings_in(" GZIP , identity") == ["gzip"]
    assert codings_in("gzip, br") == ["gzip", "br"]


def test_an_unknown_coding_cannot_be_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoding_of("compress") is None
    empty = decoding_of("deflate")
    assert empty is not None
    assert list(empty.feed(b"")) == []
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    assert decoding_of("zstd") is None
