"""Table "rewrite": what withholding a delta costs in the tap, beside decoding it.

One collapsed call of 20,000 deltas of 8 characters on each wire, an event at a time, as a provider sends them. CPU time of
this process, best of three.
"""

from __future__ import annotations

import sys
import time

from bench.decode import DELTAS, ROUNDS, SIZE, body
from bench.table import Table
from callstream.testing.encoders import ENCODERS
from callstream.wire import WIRES, decoder_for, provider_of

WANTED = 0.6


def events_of(wire: str) -> list[bytes]:
    """The body as it comes: an event at a time."""
    return [frame.raw for frame in decoder_for(wire).framing.feed(body(wire))]


def decoding(wire: str, events: list[bytes]) -> float:
    decoder = decoder_for(wire)
    began = time.process_time()
    for event in events:
        decoder.feed(event)
    return time.process_time() - began


def collapsing(wire: str, events: list[bytes]) -> float:
    """Decoding and withholding."""
    collapser = provider_of(wire).collapser(decoder_for(wire), collapse=lambda name: True)
    began = time.process_time()
    for event in events:
        collapser.feed(event)
    return time.process_time() - began


def main() -> int:
    table = Table(
        f"rewrite: {DELTAS:,} withheld deltas of {SIZE} characters, CPU µs per delta, best of {ROUNDS}",
        ["wire", "decode", "decode and withhold", "more / decode", f"wanted: {WANTED:g}"],
    )
    passed = True
    for wire in (wire for wire in WIRES if ENCODERS[wire].streams_arguments):
        events = events_of(wire)
        decode = min(decoding(wire, events) for _ in range(ROUNDS))
        collapse = min(collapsing(wire, events) for _ in range(ROUNDS))
        ratio = (collapse - decode) / decode
        passed = passed and ratio <= WANTED
        each = (spent / DELTAS * 1e6 for spent in (decode, collapse))
        table.row(wire, *each, ratio, "PASS" if ratio <= WANTED else "FAIL")
    table.print()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
