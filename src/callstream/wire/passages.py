"""Text and reasoning that reach the SDK in one piece: adjacent frames that hold nothing else become one.

The frame that leaves is the last of them with all of the text, because what else it may hold (figures of usage, a number)
counts for all before it. A wire says by a strict type which frames hold nothing but text, so that anything unknown in a
frame, a signature, a citation, an end, keeps it as it is.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import msgspec

from callstream import codec
from callstream.wire.framing import Frame

Passage: TypeAlias = tuple[object, ...]
"""What a frame's text belongs to: only text of the same passage is joined."""
Joined: TypeAlias = tuple[Frame, dict[str, Any] | None]
"""A frame, and the payload that it is to be written with; None: its own."""


class TextForm(Protocol):
    """How a wire writes text."""

    def passage_of(self, payload: bytes) -> Passage | None:
        """Which passage the payload adds text to, None if it holds anything else."""

    def with_text(self, payload: dict[str, Any], text: str) -> dict[str, Any]:
        """The payload with another text."""


class Passages:
    """Holds frames of one passage back, and gives them as one."""

    def __init__(self, form: TextForm) -> None:
        self._form = form
        self._passage: object = None
        self._texts: list[str] = []
        self._last = Frame()

    @property
    def is_holding(self) -> bool:
        return bool(self._texts)

    def takes(self, frame: Frame, text: str) -> Passage | None:
        """Which passage a frame that said this text may be held for, None if it has to leave as it is."""
        return self._form.passage_of(frame.payload) if text and frame.payload is not None else None

    def hold(self, frame: Frame) -> Joined | None:
        """Holds a frame back. Returns what was held of another passage."""
        assert frame.text is not None
        passage, text = frame.text
        held = self.release() if passage != self._passage else None
        self._passage, self._last = passage, frame
        self._texts.append(text)
        return held

    def release(self) -> Joined | None:
        """What is held, as one frame."""
        if not self._texts:
            return None
        texts, self._texts, self._passage = self._texts, [], None
        if len(texts) == 1:
            return self._last, None
        return self._last, self._form.with_text(codec.decode(self._last.payload or b""), "".join(texts))


class StrictText(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The root of the types that a wire's frames of text are read as."""
