"""One script encoded once for many responses that differ in their numbers alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from callstream.testing.encoders import ENCODERS, frames
from callstream.testing.script import Cut, Delay, Parallel, Script, ToolCall, script_to_json

_PREFIX = "918273645"
_FIRST = int(f"{_PREFIX}000000")
_NUMBER = re.compile(rf"{_PREFIX}(\d{{6}})".encode())


def numbers_used(script: Script) -> int:
    """How many numbers the ids of one response take: the next response begins after them."""
    calls = [call for step in script for call in (step.calls if isinstance(step, Parallel) else [step])]
    return max(1, sum(isinstance(call, ToolCall) and call.call_id is None for call in calls))


class NumberedFrames:
    """The frames of a script for any first number: the same as ``frames`` gives, at a fraction of the cost.

    They are encoded once with numbers that nothing else in the script looks like, which are then replaced.
    """

    def __init__(self, wire: str, script: Script, model: str | None) -> None:
        self._wire = wire
        self._script = script
        self._model = model
        self._encoded: list[bytes | Delay | Cut] = []
        if ENCODERS[wire].is_text and _PREFIX not in f"{script_to_json(script)!r}{model}":
            self._encoded = list(frames(wire, script, model=model, first_id=_FIRST))

    def frames(self, first_id: int) -> Iterator[bytes | Delay | Cut]:
        if not self._encoded:
            return frames(self._wire, self._script, model=self._model, first_id=first_id)
        return self._renumbered(first_id)

    def _renumbered(self, first_id: int) -> Iterator[bytes | Delay | Cut]:
        def number(match: re.Match[bytes]) -> bytes:
            return b"%d" % (first_id + int(match[1]))

        for frame in self._encoded:
            yield _NUMBER.sub(number, frame) if isinstance(frame, bytes) else frame
