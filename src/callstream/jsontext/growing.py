"""What has been read of a document that is still being written: containers and text that grow.

Who looks gets a value that never changes later, at the price of what is new since the last look.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any

from callstream.jsontext.path import Path

NOTHING = object()
"""In the place of a child, where none is being written."""


class OpenDocument:
    """A place that values stand in, here the outermost one. ``items`` are the finished values in it."""

    __slots__ = ("items", "key", "path")

    def __init__(self, path: Path, items: Any) -> None:
        self.path = path
        self.items = items
        self.key = ""

    def next_path(self) -> Path:
        return self.path

    def add(self, value: Any) -> None:
        self.items.append(value)

    def reclaim(self) -> None:
        """Takes back the copy that was shown before last, if nobody else holds it."""

    def show(self, child: Any) -> Any:
        """The items, together with the child that is still being written, or NOTHING."""
        if child is NOTHING:
            return self.items[0] if self.items else None
        return child


class _Copy:
    """A container as it was shown: ``count`` of what was added to it, and perhaps a child that was half-written then."""

    __slots__ = ("child", "count", "items")

    def __init__(self, items: Any, count: int, child: Any) -> None:
        self.items = items
        self.count = count
        self.child = child


class OpenContainer(OpenDocument):
    """An open array or object, shown as a copy that never changes while anybody holds it.

    Copying every item at every look would be quadratic. So the last two copies are kept, and the older one, once nobody
    else holds it, is brought up to date and shown again: an item is copied twice, however often somebody looks. Two,
    because a reader in a loop still holds the last copy while it asks for the next. Whether anybody holds a copy is
    read off its reference count: one reference is ours, one is getrefcount's own argument. A copy inside another copy
    counts as held until the outer one was taken back; hence reclaim from the outside in, show from the inside out.
    """

    __slots__ = ("added", "last", "spare")

    def __init__(self, path: Path, items: Any, added: list[Any]) -> None:
        super().__init__(path, items)
        self.added = added
        """Everything that was added, in order: an array's items, an object's keys."""
        self.last: _Copy | None = None
        self.spare: _Copy | None = None

    def reclaim(self) -> None:
        copy = self.spare
        if copy is None:
            return
        if getrefcount(copy.items) > 2:
            self.spare = None
        else:
            self.take_out_child(copy)

    def show(self, child: Any) -> Any:
        copy = self.spare
        count = len(self.added)
        if copy is None:
            copy = _Copy(self.items.copy(), count, None)
        elif copy.count < count:
            self.catch_up(copy)
            copy.count = count
        copy.child = None
        if child is not NOTHING:
            self.put_in_child(copy, child)
        self.spare, self.last = self.last, copy
        return copy.items

    def take_out_child(self, copy: _Copy) -> None: ...

    def put_in_child(self, copy: _Copy, child: Any) -> None: ...

    def catch_up(self, copy: _Copy) -> None:
        """Adds what was finished since the copy was made."""


class OpenArray(OpenContainer):
    __slots__ = ()

    def __init__(self, path: Path) -> None:
        items: list[Any] = []
        super().__init__(path, items, items)

    def next_path(self) -> Path:
        return self.path + (len(self.items),)  # three times as fast as (*path, n)

    def take_out_child(self, copy: _Copy) -> None:
        del copy.items[copy.count :]

    def put_in_child(self, copy: _Copy, child: Any) -> None:
        copy.items.append(child)

    def catch_up(self, copy: _Copy) -> None:
        copy.items += self.items[copy.count :]


class OpenObject(OpenContainer):
    """``key`` is that of the member being written."""

    __slots__ = ()

    def __init__(self, path: Path) -> None:
        super().__init__(path, {}, [])

    def next_path(self) -> Path:
        return self.path + (self.key,)

    def add(self, value: Any) -> None:
        self.items[self.key] = value
        self.added.append(self.key)

    def take_out_child(self, copy: _Copy) -> None:
        if copy.child is not None:
            copy.items[copy.child] = None  # it is finished by now, or still being written: what it is now follows

    def put_in_child(self, copy: _Copy, child: Any) -> None:
        copy.child = self.key
        copy.items[self.key] = child

    def catch_up(self, copy: _Copy) -> None:
        for key in self.added[copy.count :]:
            copy.items[key] = self.items[key]


class GrowingText:
    """Text that grows by ``pieces`` and may be read at any time.

    Reading goes on from the text that was read before last: CPython's ``+=`` grows a string in place where nobody else
    refers to it. Who keeps only the last text read pays for what is new; who keeps more pays one copy each.
    """

    __slots__ = ("before", "between", "last", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.clear()

    def clear(self) -> None:
        self.pieces.clear()
        self.before = self.between = self.last = ""

    def read(self) -> str:
        if self.pieces:
            new = "".join(self.pieces)
            self.pieces.clear()
            text, self.before = self.before, ""
            text += self.between + new
            self.before, self.between, self.last = self.last, new, text
        return self.last
