"""A public test aid: providers that answer by a script, as the bytes that the real ones would send."""

from callstream.testing.encoders import WIRES, encode, encode_whole, frames
from callstream.testing.script import (
    Call,
    Cut,
    Delay,
    Failure,
    Finish,
    Parallel,
    Script,
    Step,
    Text,
    Thought,
    Truncated,
)

__all__ = [
    "WIRES",
    "Call",
    "Cut",
    "Delay",
    "Failure",
    "Finish",
    "Parallel",
    "Script",
    "Step",
    "Text",
    "Thought",
    "Truncated",
    "encode",
    "encode_whole",
    "frames",
]
