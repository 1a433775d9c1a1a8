"""Deltas on their way to hooks: the queue in which they wait, and the changes to single fields in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from callstream.jsontext.path import Path
from callstream.tools.delta import ArgsDelta, FieldDelta

__all__ = ["ArgsDelta", "DeltaQueue", "FieldDelta", "FieldReader"]


class FieldReader:
    """Finds the changes to watched fields in each delta, in the order of the text.

    A field inside another watched field comes before it.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(dict.fromkeys(paths))
        self._open: set[Path] = set()

    def read(self, delta: ArgsDelta) -> list[FieldDelta]:
        found: list[FieldDelta] = []
        touched: dict[Path, list[str]] = {}
        begun: set[Path] = set()
        for change in delta.changes:
            for path in self._paths:
                is_there = change.path == path
                if not is_there and change.path[: len(path)] != path:
                    continue
                if path not in self._open:
                    self._open.add(path)
                    begun.add(path)
                texts = touched.setdefault(path, [])
                if not is_there or change.kind == "open":
                    continue
                if change.kind == "append":
                    texts.append(change.value)
                    continue
                found.append(_field(delta, path, touched.pop(path), path in begun, change.value))
                self._open.discard(path)
                begun.discard(path)
        for path in sorted(touched, key=len, reverse=True):
            texts = touched[path]
            if texts and not any(
                texts
            ):  # Only a string's opening quote: it has not grown, and begins with the next delta.
                if path in begun:
                    self._open.discard(path)
                continue
            found.append(_field(delta, path, texts, path in begun))
        return found


def _field(delta: ArgsDelta, path: Path, texts: list[str], first: bool, whole: Any = msgspec.UNSET) -> FieldDelta:
    is_complete = whole is not msgspec.UNSET
    return FieldDelta(delta.call_id, delta.tool_name, delta.seq, path, "".join(texts), is_complete, first, delta, whole)


class DeltaQueue:
    """Text that waits for its hooks. Nothing is ever dropped or reordered, and putting never waits.

    It is full when it holds ``max_deltas`` deltas or ``max_chars`` characters. Then all waiting text becomes one delta: so
    the number of deltas is bounded, and their memory is that of the text itself. The same happens whenever hooks that are
    behind take from the queue. A hook that keeps up sees each delta as it came; one that falls behind sees fewer, longer
    ones, and so catches up.
    """

    def __init__(self, max_deltas: int, max_chars: int) -> None:
        self._max_deltas = max_deltas
        self._max_chars = max_chars
        self._waiting: deque[tuple[list[str], int]] = deque()
        self._chars = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, text: str, seq: int) -> None:
        self._chars += len(text)
        self._waiting.append(([text], seq))
        if len(self._waiting) > self._max_deltas or (self._chars > self._max_chars and len(self._waiting) > 1):
            self._merge()

    def pop(self, *, merged: bool = False) -> tuple[str, int]:
        """The oldest delta, or with ``merged`` all waiting text as one."""
        if merged:
            self._merge()
        pieces, seq = self._waiting.popleft()
        text = pieces[0] if len(pieces) == 1 else "".join(pieces)
        self._chars -= len(text)
        return text, seq

    def clear(self) -> None:
        self._waiting.clear()
        self._chars = 0

    def _merge(self) -> None:
        pieces, _ = self._waiting[0]
        for more, _ in list(self._waiting)[1:]:
            pieces += more
        seq = self._waiting[-1][1]
        self._waiting.clear()
        self._waiting.append((pieces, seq))
