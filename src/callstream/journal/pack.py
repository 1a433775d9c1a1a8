"""Many runs in one object: how they lie there. Pure.

A pack is a line that says what it is, some random bytes, and the runs, each compressed by itself, so that one is read
without the others. Its name is the digest of its contents. The random bytes make every pack another one, so a name that was
given up is never used again.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from callstream.errors import JournalError
from callstream.journal.whole import WholeRun

_FIRST_LINE = b"callstream pack 1\n"
_ZLIB = b"z"
"""How a run is kept: compressed by zlib, as MessagePack within."""
NONCE_BYTES = 16
_decoder = msgspec.msgpack.Decoder(WholeRun)


class Place(NamedTuple):
    """Where a run lies: in which pack, and which bytes of it."""

    run_key: int
    run_id: str
    pack: str
    start: int
    size: int


class Pack(NamedTuple):
    name: str
    data: bytes
    places: Sequence[Place]


def encode_run(run: WholeRun) -> bytes:
    return _ZLIB + zlib.compress(msgspec.msgpack.encode(run), 6)


def decode_run(data: bytes, place: Place) -> WholeRun:
    """Raises JournalError if those bytes are not that run."""
    try:
        if data[:1] != _ZLIB:
            raise ValueError(f"begins with {data[:1]!r}")
        run = _decoder.decode(zlib.decompress(data[1:]))
    except (zlib.error, ValueError, msgspec.DecodeError) as error:
        raise JournalError(f"pack {place.pack} is damaged: run {place.run_id!r} cannot be read: {error}") from error
    if (run.key, run.run_id) != (place.run_key, place.run_id):
        raise JournalError(f"pack {place.pack} has run {run.run_id!r} where {place.run_id!r} should be")
    return run


def make_pack(runs: Sequence[tuple[int, str, bytes]], nonce: bytes) -> Pack:
    """A pack of key, id and encoded text of runs."""
    parts = [_FIRST_LINE, nonce]
    start = len(_FIRST_LINE) + len(nonce)
    spans: list[tuple[int, str, int, int]] = []
    for key, run_id, data in runs:
        spans.append((key, run_id, start, len(data)))
        parts.append(data)
        start += len(data)
    whole = b"".join(parts)
    name = digest_of(whole)
    return Pack(name, whole, [Place(key, run_id, name, begin, size) for key, run_id, begin, size in spans])


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
