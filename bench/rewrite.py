"""Table "rewrite": what withholding a delta costs in the tap, beside decoding it.

One collapsed call of 20,000 deltas of 8 characters on each wire, frame by frame. CPU time of this process, best of
three.
"""

from __future__ import annotations

import sys
import time

from bench.decode import DELTAS, ROUNDS, SIZE, body, reads
from bench.table import Table
from callstream.tap.frames import FrameSplitter
from callstream.tap.rewriter import rewriter_for
from callstream.wire import WIRES, decoder_for

WANTED = 0.6


def cutting(data: bytes) -> tuple[float, list[bytes]]:
    splitter = FrameSplitter()
    frames: list[bytes] = []
    began = time.process_time()
    for piece in reads(data):
        frames += splitter.feed(piece)
    return time.process_time() - began, frames


def decoding(wire: str, frames: list[bytes]) -> float:
    decoder = decoder_for(wire)
    began = time.process_time()
    for frame in frames:
        decoder.feed(frame)
    return time.process_time() - began


def rewriting(wire: str, frames: list[bytes]) -> float:
    """The rewriter's share: the frames were decoded before."""
    decoder = decoder_for(wire)
    rewriter = rewriter_for(Replayed(decoder.wire), collapse=lambda name: True)  # type: ignore[arg-type]
    replayed = rewriter._decoder
    read = [(frame, decoder.feed(frame), decoder.pieces) for frame in frames]
    began = time.process_time()
    for frame, events, pieces in read:
        replayed.pieces = pieces  # type: ignore[misc]
        rewriter.frame(frame, events)
    return time.process_time() - began


class Replayed:
    """As much of a decoder as a rewriter looks at."""

    error = None

    def __init__(self, wire: str) -> None:
        self.wire = wire
        self.pieces: list[str | None] = []


def main() -> int:
    table = Table(
        f"rewrite: {DELTAS:,} withheld deltas of {SIZE} characters, CPU µs per delta, best of {ROUNDS}",
        ["wire", "cut", "decode", "rewrite", "rewrite / decode", f"wanted: {WANTED:g}"],
    )
    passed = True
    for wire in WIRES:
        data = body(wire)
        cut = min(cutting(data)[0] for _ in range(ROUNDS))
        frames = cutting(data)[1]
        decode = min(decoding(wire, frames) for _ in range(ROUNDS))
        rewrite = min(rewriting(wire, frames) for _ in range(ROUNDS))
        ratio = rewrite / decode
        passed = passed and ratio <= WANTED
        each = (spent / DELTAS * 1e6 for spent in (cut, decode, rewrite))
        table.row(wire, *each, ratio, "PASS" if ratio <= WANTED else "FAIL")
    table.print()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
