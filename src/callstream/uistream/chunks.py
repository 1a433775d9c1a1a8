"""Chunks of the AI SDK's UI message stream: how they are written, and how they are made fewer.

A chunk is an object with a ``type``. The SDK refuses nulls and types that it does not know, so a chunk has only the fields
that say something, and only types that the client's major version knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias

from callstream import codec

Chunk: TypeAlias = dict[str, Any]
Sdk: TypeAlias = Literal[5, 6, 7]
"""The major version of the client's ``ai`` package. No request tells it."""

HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}
DONE: Final = b"data: [DONE]\n\n"
"""The end of a stream that has ended well."""

_DELTAS: Final = {
    "text-delta": ("id", "delta"),
    "reasoning-delta": ("id", "delta"),
    "tool-input-delta": ("toolCallId", "inputTextDelta"),
}
_SHARE: Final = 16
"""A delta is held back until it is this part of what its reader has; see ``Merger``."""


def encode_sse(chunks: Iterable[Chunk]) -> bytes:
    """The chunks as server-sent events; LF only."""
    return b"".join([b"data: %b\n\n" % codec.encode(chunk) for chunk in chunks])


class Merger:
    """Joins deltas, more of them the longer the text is.

    With every delta the SDK's reader looks at all text of its part again, so a text in pieces of constant size costs it
    quadratic time: 100 KB of arguments in pieces of 8 characters take 12 seconds. Pieces that grow with the text keep the
    cost proportional to its length. What is held back comes with the next chunk that is no delta, or with ``flush``, which
    whoever sends the chunks calls now and then, so that nothing is held for long.
    """

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], int] = {}
        self._held: dict[tuple[str, str], list[str]] = {}

    def feed(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """What is to be sent now."""
        told: list[Chunk] = []
        for chunk in chunks:
            fields = _DELTAS.get(chunk["type"])
            if fields is None:
                told += self.flush()
                told.append(chunk)
                continue
            key = (chunk["type"], chunk[fields[0]])
            held = self._held.setdefault(key, [])
            held.append(chunk[fields[1]])
        return told + [self._take(key) for key in [*self._held] if self._is_long_enough(key)]

    def flush(self) -> list[Chunk]:
        """All that is held back."""
        return [self._take(key) for key in [*self._held]]

    @property
    def is_empty(self) -> bool:
        return not self._held

    def _is_long_enough(self, key: tuple[str, str]) -> bool:
        return sum(map(len, self._held[key])) * _SHARE >= self._sent.get(key, 0)

    def _take(self, key: tuple[str, str]) -> Chunk:
        kind, name = key
        text = "".join(self._held.pop(key))
        self._sent[key] = self._sent.get(key, 0) + len(text)
        named, grown = _DELTAS[kind]
        return {"type": kind, named: name, grown: text}
