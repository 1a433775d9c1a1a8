"""A JSON array that arrives piece by piece: bytes in, its finished elements out.

This is how Gemini streams when it is not asked for server-sent events. Elements are cut out by their brackets, outside
of strings; what they hold is for the decoder to judge. Every byte is looked at once. Strings and brackets where no
element can be are a WireError; after the array only another one may follow.
"""

from __future__ import annotations

import re

from callstream.errors import WireError

_MARK = re.compile(rb'["\\{}\[\]]')


class JsonArrayStream:
    """Cuts the body of an array of objects into its elements."""

    def __init__(self, *, max_element_bytes: int = 64 * 1024 * 1024) -> None:
        self.error: WireError | None = None
        """What is wrong with the body after the elements that were given, if anything is."""
        self._max_element_bytes = max_element_bytes
        self._element: list[bytes] = []
        self._held = 0
        self._depth = 0  # 1 inside the array, 2 and more inside an element
        self._in_string = False
        self._escaped = False

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The elements that these bytes finish, as nameless events. If what follows is wrong, ``error`` says so."""
        elements: list[tuple[bytes, bytes]] = []
        try:
            self._take(data, elements)
        except WireError as error:
            self.error = error
        return elements

    def end(self) -> list[tuple[bytes, bytes]]:
        """Nothing: an element that the body ended in is cut off."""
        return []

    def _take(self, data: bytes, elements: list[tuple[bytes, bytes]]) -> None:
        start = 0
        skip = 1 if self._escaped and data else 0
        self._escaped = self._escaped and not data
        for mark in _MARK.finditer(data):
            at = mark.start()
            if at < skip:
                continue
            byte = mark[0]
            if self._in_string:
                if byte == b'"':
                    self._in_string = False
                elif byte == b"\\":
                    skip = at + 2
            elif byte == b'"' and self._depth > 1:
                self._in_string = True
            elif byte in b"{[" and (self._depth > 0 or byte == b"["):
                self._depth += 1
                if self._depth == 2:
                    start = at
            elif byte in b"}]" and (self._depth > 1 or (self._depth == 1 and byte == b"]")):
                self._depth -= 1
                if self._depth == 1:
                    self._hold(data[start : at + 1])
                    elements.append((b"", b"".join(self._element)))
                    self._element.clear()
                    self._held = 0
            else:
                raise WireError(f"expected the objects of an array, got {byte.decode()} between them")
        self._escaped = self._escaped or skip > len(data)
        if self._depth > 1:
            self._hold(data[start:])

    def _hold(self, part: bytes) -> None:
        self._element.append(part)
        self._held += len(part)
        if self._held > self._max_element_bytes:
            raise WireError(f"expected an array element of at most {self._max_element_bytes} bytes, got more")
