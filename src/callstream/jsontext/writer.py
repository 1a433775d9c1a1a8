"""Path values in, JSON text out: turns Gemini's ``partialArgs`` into the argument text of every other wire.

1. At every moment the text returned so far is the beginning of one JSON document, and after ``close`` it is that document.
   Text that was returned is never taken back.
2. A value is written as soon as possible. Only one string can be open at a time; values that come for other places
   meanwhile wait in their container until that string is finished. An array item waits for the items before it.
3. A container is closed when something outside it has to be written. Values that come for it afterwards are *late*: JSON
   cannot go back, so ``close`` writes the nearest enclosing member again, whole, under the same name, and the last of two
   equal names counts (as in ``json.loads`` and ``JsonStream``). Items that never came are then null.
4. A piece of text for a finished string is appended to it; any other second value replaces the first.
5. A path that runs through a string or scalar, and an object entered by index or an array by name, contradict earlier
   values: WireError. So does a late item of an array that is the document itself, because nothing encloses it. After an
   error the writer can no longer be used.

Values are only kept for law 3. A piece for the open string costs the same however much came before; the cost of anything
else depends on its depth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from json.encoder import encode_basestring
from typing import Any, Final, Literal, TypeAlias

from callstream.codec import escape_surrogates, from_utf8, utf8
from callstream.errors import UsageError, WireError
from callstream.jsontext.path import Path, format_path, parse_path, wants_array


class Empty(Enum):
    EMPTY = "no value"


EMPTY: Final = Empty.EMPTY
"""The value of a path without a value: an empty container, or with ``more`` a mere notice that something follows there."""

Piece: TypeAlias = str | int | float | bool | None | Literal[Empty.EMPTY]


class JsonWriter:
    """Writes one JSON document from values with paths (``write``) or from a value that grows (``grow``), not both.

    ``schema`` is the JSON Schema of the document; it only decides whether an empty container is an array. A path may have
    at most ``max_depth`` steps, with indices below ``max_items``; at most ``max_items`` nulls are written for missing items.
    """

    def __init__(self, schema: dict[str, Any] | None = None, *, max_depth: int = 256, max_items: int = 100_000) -> None:
        self._schema = schema
        self._max_depth = max_depth
        self._max_items = max_items
        self._gaps = 0
        self._dialect = ""
        self._grown: Any = None  # the last value for grow(), while a part of it may be held back
        self._root = _Branch(())
        self._root.state = _State.OPEN
        self._stack = [self._root]
        self._single: _Leaf | None = None  # the document itself, if that is not a container
        self._late: dict[Node, None] = {}
        self._open: _Leaf | None = None
        self._open_path: Path | None = None
        self._open_text = bytearray()

    # -- the two dialects and the end ----------------------------------------------------------------------------------

    def write(self, path: Path | str, value: Piece, more: bool) -> str:
        """Takes the value at a path and returns the text that can be written now. ``more``: the string will continue."""
        if isinstance(path, str):
            path = parse_path(path)
        if self._dialect != "write":
            self._speak("write")
        return self._write(path, value, more)

    def grow(self, value: Any, more: bool) -> str:
        """Takes the whole document so far and returns the text that it grew by.

        Each value must extend the one before: members and items are added at the end, the last string gets longer.
        While ``more`` is true, a number or null at the very end may be half of something and is held back.
        """
        self._speak("grow")
        if not isinstance(value, dict | list):
            raise WireError(f"expected an object of arguments, got {value!r:.80}")
        self._grown = value if more else None
        return self._extend(self._root, (), value, more)

    def complete(self, value: Any) -> str:
        """Ends the document as this value, which must continue what was written: otherwise WireError."""
        self._grown = None
        text = self._extend(self._root, (), value, False)
        return text + self.close()

    def close(self) -> str:
        """Ends the document: writes values that still wait or came late, and null for items that never came."""
        if self._dialect == "close":
            return ""
        self._dialect = "close"
        out: list[str] = []
        if self._grown is not None:
            out.append(self._extend(self._root, (), self._grown, False))
        while self._open is not None:
            out.append(self._finish())
        if self._single is None:
            again, deepest = self._repetitions()
            while self._stack:
                depth = len(self._stack) - 1
                if depth in again and depth <= deepest:
                    self._repeat(again[depth], out)
                self._pop(out)
        return "".join(out)

    def _speak(self, dialect: str) -> None:
        if self._dialect not in ("", dialect):
            raise UsageError(f"{dialect}() does not go with what this JsonWriter did before: {self._dialect}()")
        self._dialect = dialect

    # -- values in -----------------------------------------------------------------------------------------------------

    def _write(self, path: Path, value: Piece, more: bool) -> str:
        if path == self._open_path and isinstance(value, str):
            try:
                self._open_text += value.encode()  # as utf8 does, with one call fewer
            except UnicodeEncodeError:
                self._open_text += utf8(value)
            return escape(value) if more else escape(value) + self._finish()
        if value is EMPTY and more:
            return ""
        self._check(path)
        finished = self._finish() if path == self._open_path else ""  # anything but text ends a string
        if path:
            self._place(path, value, more)
        elif value is not EMPTY:
            self._place_single(value, more)
        return finished + self._flush()

    def _check(self, path: Path) -> None:
        if len(path) > self._max_depth:
            raise WireError(f"expected a path of at most {self._max_depth} steps, got one of {len(path)}")
        for step in path:
            if isinstance(step, int) and not 0 <= step < self._max_items:
                raise WireError(f"expected array indices below {self._max_items}, got {format_path(path)}")

    def _place(self, path: Path, value: Piece, more: bool) -> Node:
        """Puts the value into the tree, where it waits for its turn, or notes that its turn has passed."""
        node: Node | None = self._single or self._root
        trail: list[_Branch] = []
        late = False
        for depth, step in enumerate(path):
            if node is None:
                node = trail[-1].children[path[depth - 1]] = _Branch(path[:depth])
            indexed = isinstance(step, int)
            if isinstance(node, _Leaf) or (node.array is not None and node.array is not indexed):
                raise WireError(f"{format_path(path)} goes into {format_path(node.path)}, which holds {shown(node)}")
            node.array = indexed
            late = late or node.state is _State.CLOSED
            trail.append(node)
            node = node.children.get(step)
        if value is EMPTY:
            if isinstance(node, _Leaf):
                node.done = True
                return node
            if node is None:
                node = trail[-1].children[path[-1]] = _Branch(path)
            node.declared = True
        else:
            if node is None:
                node = trail[-1].children[path[-1]] = _Leaf(path)
            if isinstance(node, _Branch):
                raise WireError(f"{format_path(path)} is given {value!r:.80}, but holds {shown(node)}")
            node.assign(value, more)
        if late or node.stale:
            self._late[node] = None
        else:
            self._queue(node, trail)
        return node

    def _place_empty(self, path: Path, array: bool) -> _Branch:
        branch = self._place(path, EMPTY, False)
        assert isinstance(branch, _Branch), "nothing else stands where nothing was"
        branch.array = array
        return branch

    def _place_single(self, value: str | float | None, more: bool) -> None:
        if self._root.children or self._single is not None:
            raise WireError(f"$ is given {value!r:.80}, but holds {shown(self._single or self._root)}")
        self._single = _Leaf(())
        self._single.assign(value, more)
        self._root.waiting[0] = self._single

    def _queue(self, node: Node, trail: list[_Branch]) -> None:
        child = node
        for parent in reversed(trail):
            step = child.path[-1]
            if child.state is not _State.UNWRITTEN or step in parent.waiting:
                break
            if parent.array and step != parent.count:
                self._late[node] = None  # unless the items before it come
                break
            parent.waiting[step] = child
            child = parent

    # -- text out ------------------------------------------------------------------------------------------------------

    def _flush(self) -> str:
        """Writes the values that wait in open containers, the innermost first, until a string is left open."""
        out: list[str] = []
        stack = self._stack
        while self._open is None:
            depth = len(stack) - 1
            while depth >= 0 and not stack[depth].waiting:
                depth -= 1
            if depth < 0:
                break
            while len(stack) - 1 > depth:
                self._pop(out)
            self._put(stack[-1], out)
        return "".join(out)

    def _put(self, branch: _Branch, out: list[str]) -> None:
        """Writes the next waiting child of a container: a leaf as far as it goes; another container is just opened."""
        step = next(iter(branch.waiting))
        node = branch.waiting.pop(step)
        if not branch.bracketed and node is not self._single:
            self._bracket(branch, out)
        branch.count += 1
        if branch.array:
            follower = branch.children.get(branch.count)
            if isinstance(follower, _Leaf) or (follower is not None and (follower.waiting or follower.declared)):
                branch.waiting[branch.count] = follower
        if isinstance(node, _Branch):
            node.state = _State.OPEN
            self._stack.append(node)
        elif not isinstance(node.value, str) and not node.done:
            node.state = _State.OPEN
            self._open, self._open_path, self._open_text = node, node.path, node.value
            out.append(label(branch, step) + node.text()[:-1])
        else:
            node.state = _State.CLOSED
            out.append(label(branch, step) + node.text())

    def _bracket(self, branch: _Branch, out: list[str]) -> None:
        """Opens a container in the text, as late as possible: an empty one may still turn out to be an array."""
        branch.bracketed = True
        if branch.path:
            out.append(label(self._stack[-2], branch.path[-1]))
        out.append("[" if self._is_array(branch) else "{")

    def _pop(self, out: list[str]) -> None:
        branch = self._stack[-1]
        if not branch.bracketed:
            self._bracket(branch, out)
        out.append("]" if self._is_array(branch) else "}")
        branch.state = _State.CLOSED
        self._stack.pop()

    def _finish(self) -> str:
        assert self._open is not None
        self._open.state = _State.CLOSED
        self._open = self._open_path = None
        return '"' + self._flush()

    def _is_array(self, branch: _Branch) -> bool:
        return wants_array(self._schema, branch.path) if branch.array is None else branch.array

    # -- late values ---------------------------------------------------------------------------------------------------

    def _repetitions(self) -> tuple[dict[int, dict[str | int, None]], int]:
        """The children to write again in each open container, by depth, and the depth below which that is useless."""
        again: dict[int, dict[str | int, None]] = {}
        stack = self._stack
        deepest = len(stack) - 1
        for node in self._late:
            if node.state is not _State.UNWRITTEN and not node.stale:
                continue
            path, depth = node.path, 0
            while depth + 1 < len(stack) and stack[depth + 1].path[-1] == path[depth]:
                depth += 1
            while stack[depth].array and path[depth] < stack[depth].count:  # type: ignore[operator]
                if depth == 0:
                    raise WireError(f"expected the items of the array $ in order, {format_path(path)} came late")
                depth -= 1  # an item cannot be written twice, so the member that holds its array is written again
                deepest = min(deepest, depth)
            again.setdefault(depth, {})[path[depth]] = None
        return again, deepest

    def _repeat(self, steps: Iterable[str | int], out: list[str]) -> None:
        branch = self._stack[-1]
        if not branch.bracketed:
            self._bracket(branch, out)
        self._dump(branch, range(branch.count, max(steps) + 1) if branch.array else steps, out)  # type: ignore[operator]

    def _dump(self, branch: _Branch, steps: Iterable[str | int], out: list[str]) -> None:
        """Writes children whole, however much of them the text already holds."""
        for step in steps:
            branch.count += 1
            out.append(label(branch, step))
            node = branch.children.get(step)
            if node is None:
                self._gaps += 1
                if self._gaps > self._max_items:
                    where = format_path(branch.path)
                    raise WireError(f"expected at most {self._max_items} missing items, more in {where}")
                out.append("null")
            elif isinstance(node, _Leaf):
                out.append(node.text())
            else:
                array, node.count, inner = self._is_array(node), 0, node.children
                out.append("[" if array else "{")
                self._dump(node, range(max(inner, default=-1) + 1) if array else inner, out)  # type: ignore[operator]
                out.append("]" if array else "}")

    # -- a value that grows --------------------------------------------------------------------------------------------

    def _extend(self, node: Node | None, path: Path, value: Any, more: bool) -> str:
        """Writes the part of the value beyond the node. ``more``: the document may continue, and would do so here."""
        if isinstance(value, dict | list):
            return self._extend_container(node, path, value, more)
        if node is None:
            # Half a number looks like a number, and null may stand for a value that has not come yet.
            held = more and not isinstance(value, str | bool)
            return "" if held else self._write(path, value, more)
        if isinstance(node, _Branch):
            raise _changed(node, path, value)
        if not isinstance(value, str):
            if node.value != literal(value):
                raise _changed(node, path, value)
            return ""
        known = node.string()
        if value == known and (more or node.state is _State.CLOSED):
            return ""
        if known is None or node.state is _State.CLOSED or not value.startswith(known):
            raise _changed(node, path, value)
        return self._write(path, value[len(known) :], more)

    def _extend_container(self, node: Node | None, path: Path, value: Any, more: bool) -> str:
        self._check(path)
        array = isinstance(value, list)
        if isinstance(node, _Leaf) or (node is not None and node.array not in (None, array)):
            raise _changed(node, path, value)
        out: list[str] = []
        if node is None and not value:
            node = self._place_empty(path, array)
            out.append(self._flush())
        elif node is not None and node.array is None:
            node.array = array
        if node is self._stack[-1] and not node.bracketed:
            self._bracket(node, out)
        known = {} if node is None else node.children
        steps = [*known, *(step for step in (range(len(value)) if array else value) if step not in known)]
        if len(steps) > len(value):
            lost = next(step for step in known if (array and step == len(value)) or (not array and step not in value))
            raise _changed(known[lost], (*path, lost), EMPTY)
        for number, step in enumerate(steps, 1):
            place, child = (*path, step), known.get(step)
            if child is None and node is not None and node.state is _State.CLOSED:
                raise _changed(None, place, value[step])
            out.append(self._extend(child, place, value[step], more and number == len(steps)))
        return "".join(out)


def _changed(node: Node | None, path: Path, value: Any) -> WireError:
    now = "nothing" if value is EMPTY else f"{value!r:.80}"
    return WireError(f"expected arguments that only grow, but {format_path(path)} changed from {shown(node)} to {now}")


# -- the document --
#
# The values of a document that is being written: strings and scalars (leaves) in containers (branches).
#
# A node knows its path and how much of it the text holds; the writer decides when nodes are put into the text.


class _State(Enum):
    UNWRITTEN = 0
    OPEN = 1
    CLOSED = 2


class _Leaf:
    """A string (as UTF-8) or a scalar (its literal). ``stale``: the text holds an older value."""

    __slots__ = ("done", "path", "stale", "state", "value")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = _State.UNWRITTEN
        self.value: bytearray | str = ""
        self.done = False
        self.stale = False

    def assign(self, value: str | float | None, more: bool) -> None:
        changed = True
        if not isinstance(value, str):
            before, self.value = self.value, literal(value)
            changed = self.value != before
        else:
            if isinstance(self.value, str):
                self.value = bytearray()
            else:
                changed = value != ""
            self.value += utf8(value)
        self.done = not more
        self.stale = self.stale or (changed and self.state is _State.CLOSED)

    def string(self) -> str | None:
        return None if isinstance(self.value, str) else from_utf8(self.value)

    def text(self) -> str:
        return self.value if isinstance(self.value, str) else f'"{escape(from_utf8(self.value))}"'


class _Branch:
    """A container. ``array`` is None until something says what it is; ``count`` members are in the text.

    ``waiting`` holds the children to be written next, in order of arrival; for an array at most the next item.
    """

    __slots__ = (
        "array",
        "bracketed",
        "children",
        "count",
        "declared",
        "path",
        "state",
        "waiting",
    )

    stale = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = _State.UNWRITTEN
        self.array: bool | None = None
        self.bracketed = False
        self.declared = False
        self.count = 0
        self.children: dict[str | int, Node] = {}
        self.waiting: dict[str | int, Node] = {}


Node: TypeAlias = _Leaf | _Branch


def escape(text: str) -> str:
    """The inside of a JSON string. Surrogates are escaped one by one, so that halves in two pieces form a pair."""
    escaped = encode_basestring(text)[1:-1]
    return escaped if escaped.isascii() else escape_surrogates(escaped)


def label(branch: _Branch, step: str | int) -> str:
    """The text before a child that ``branch.count`` already includes: a comma, a name."""
    comma = "," if branch.count > 1 else ""
    return f'{comma}"{escape(step)}":' if isinstance(step, str) else comma


def literal(value: float | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if not isinstance(value, float):
        raise UsageError(f"expected a string, a number, a boolean, None or EMPTY, got {type(value).__name__}")
    if not math.isfinite(value):
        raise WireError(f"expected a number that JSON can express, got {value!r}")
    return str(int(value)) if value.is_integer() else repr(value)


def shown(node: Node | None) -> str:
    """What a node holds, for an error message."""
    if node is None:
        return "nothing"
    if isinstance(node, _Leaf):
        return f"{node.text():.80}"
    return "an array" if node.array else "an object"
