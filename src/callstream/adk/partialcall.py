"""A call of which google-adk shows the arguments as they grow: what was shown of it, and what makes that the whole call.

What was shown is never taken back. So of values by path that google-adk made itself (it names the tool in each chunk then),
only what the whole response can complete is shown: a string stays open until something else follows; and after a number that
a float cannot hold, or at a place for which a container would have to be closed, the rest waits for the whole response.
google-adk leaves empty containers out, and the last piece of a string.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from google.genai import types

from callstream.errors import WireError
from callstream.jsontext.path import Path, parse_path
from callstream.jsontext.writer import EMPTY
from callstream.wire.argtext import json_text
from callstream.wire.naming import PiecewiseCall
from callstream.wire.transcript import WireCall

_MAX_EXACT = 2**53
"""Integers from here on may have been rounded on their way through a float."""


class PartialCall(PiecewiseCall[types.FunctionCall]):
    """One call while its response is being read."""

    dialect: Literal["paths", "text", "args"] | None = None
    said_end = False
    began_nameless = False

    def __init__(self, call: WireCall, tools: Mapping[str, dict[str, Any]]) -> None:
        super().__init__(call, tools)
        self._args: dict[str, Any] = {}
        self._finished: set[Path] = set()
        self._last: Path | None = None  # the place that was shown last
        self._is_open = False  # whether that is a string which was not ended in the text
        self._held: list[types.PartialArg] = []

    @property
    def wire_id(self) -> str:
        return self.call.provider_id or self.call.call_id

    def paths_in(self, chunk: types.FunctionCall) -> Iterator[Path]:
        for piece in chunk.partial_args or ():
            path = _path(piece.json_path) if piece.json_path else None
            if path is not None:
                yield path
        yield from ((name,) for name in chunk.args or ())

    def can_take(self, chunk: types.FunctionCall) -> bool:
        """Whether a chunk can be of this call: nothing that is finished is said in it again."""
        if chunk.args and not chunk.partial_args:
            return extends(self._args, chunk.args)
        return not chunk.name or self._finished.isdisjoint(self.paths_in(chunk))

    def can_become(self, args: dict[str, Any]) -> bool:
        """Whether what was shown is a beginning of these arguments."""
        if self.dialect == "args":
            return extends(self._args, args)
        try:
            copy.deepcopy(self).rest(args)
        except WireError:
            return False
        return True

    def text_of(self, chunk: types.FunctionCall) -> str:
        if chunk.args and not chunk.partial_args:
            self.dialect = "args"
            self._args = chunk.args
            return self.writer.grow(chunk.args, True)
        text = []
        pieces = chunk.partial_args or []
        if self._held and not chunk.name:
            self._held, pieces = [], [*self._held, *pieces]
        for piece in pieces:
            if piece.json_path:
                self.dialect = "paths"
                path = _path(piece.json_path)
                if path is not None:
                    text.append(self._show(path, piece, is_lossy=bool(chunk.name)))
                    if not piece.will_continue:
                        self._finished.add(path)
            elif piece.string_value:
                self.dialect = "text"
                text.append(piece.string_value)
        return "".join(text)

    def _show(self, path: Path, piece: types.PartialArg, *, is_lossy: bool) -> str:
        value = _value(piece)
        if is_lossy and (self._held or not self._is_certain(path, value)):
            self._held.append(piece)
            return ""
        text = ""
        if self._is_open and self._last is not None and path != self._last:
            text = self.writer.write(self._last, "", False)
        self._last = path
        self._is_open = is_lossy and isinstance(value, str)
        if self._is_open and "\ud800" <= value[-1:] <= "\udbff":
            value = value[:-1]  # half a character, which google-adk sends again with the other half
        return text + self.writer.write(path, value, self._is_open or bool(piece.will_continue))

    def _is_certain(self, path: Path, value: Any) -> bool:
        """Whether the whole response can only go on from this value."""
        if value is EMPTY or (isinstance(value, float) and abs(value) >= _MAX_EXACT):
            return False
        container = (self._last or ())[:-1]
        return path[: len(container)] == container

    def rest(self, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The text that makes what was shown into the arguments, and these, with what google-adk lost of them.

        WireError if no text can.
        """
        match self.dialect:
            case None:
                return json_text(args), args
            case "args":
                return self.writer.grow(args, False) + self.writer.close(), args
            case "text":
                if not _same(_parse(self.call.text.join()), args):
                    raise WireError("expected the text of the arguments to be the arguments, got something else")
                return "", args
        shown = _parse(self.call.text.join() + copy.deepcopy(self.writer).close())
        whole = _restore(shown, args)
        return self.writer.complete(whole), whole


def _path(text: str) -> Path | None:
    """The place that a piece is for; None for a path that google-adk did not write as the standard wants it.

    Then the whole response brings what the preview lacks.
    """
    try:
        return parse_path(text)
    except WireError:
        return None


def _value(piece: types.PartialArg) -> Any:
    """The piece of string, the scalar, or EMPTY: a path without a value is an empty container."""
    for value in (piece.string_value, piece.number_value, piece.bool_value):
        if value is not None:
            return value
    return EMPTY if piece.null_value is None else None


def _parse(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError as error:
        raise WireError(f"expected arguments in JSON, got {text!r:.80} ({error})") from None


def _restore(shown: Any, value: Any) -> Any:
    """The value with the empty containers that only the preview has. WireError if the preview has anything else more."""
    if isinstance(shown, dict) and isinstance(value, dict):
        whole = {name: _restore(shown[name], part) if name in shown else part for name, part in value.items()}
        for name, lost in shown.items():
            if name not in value and not _is_hollow(lost):
                raise WireError(f"expected arguments that only grow, but {name!r} was {lost!r:.80} and is gone")
        return {**whole, **{name: lost for name, lost in shown.items() if name not in value}}
    if isinstance(shown, list) and isinstance(value, list) and len(shown) == len(value):
        return [_restore(*pair) for pair in zip(shown, value, strict=True)]
    return shown if value is None and _is_hollow(shown) else value


def extends(before: Any, after: Any) -> bool:
    """Whether a JSON value may be what another one has grown to: members and items are added, the last one grows."""
    if isinstance(before, dict) and isinstance(after, dict):
        names, values = list(before), list(before.values())
        grown = list(after)[: len(names)] == names
        return grown and _items_extend(values, [after[name] for name in names])
    if isinstance(before, list) and isinstance(after, list):
        return len(after) >= len(before) and _items_extend(before, after[: len(before)])
    if isinstance(before, str) and isinstance(after, str):
        return after.startswith(before)
    # Half a number looks like a number, and null may stand for what is not there yet.
    return before is None or _same(before, after) or _are_numbers(before, after)


def _items_extend(before: list[Any], after: list[Any]) -> bool:
    settled = len(before) - 1 if before else 0
    if not all(_same(*pair) for pair in zip(before[:settled], after[:settled], strict=True)):
        return False
    return not before or extends(before[-1], after[-1])


def _are_numbers(before: Any, after: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in (before, after))


def _is_hollow(value: Any) -> bool:
    """Whether a value is containers and nothing in them."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [None]
    return all(part is not None and _is_hollow(part) for part in parts)


def _same(shown: Any, value: Any) -> bool:
    """Whether two JSON values are one: 1 and 1.0 are, 1 and true are not."""
    if isinstance(shown, dict) and isinstance(value, dict):
        return shown.keys() == value.keys() and all(_same(shown[name], value[name]) for name in shown)
    if isinstance(shown, list) and isinstance(value, list):
        return len(shown) == len(value) and all(map(_same, shown, value))
    return isinstance(shown, bool) is isinstance(value, bool) and bool(shown == value)


def as_written(value: Any, written: Any) -> Any:
    """The value with its numbers as the model wrote them, where they are the same: partial events make floats of all."""
    if isinstance(value, dict) and isinstance(written, dict):
        return {name: as_written(part, written.get(name)) for name, part in value.items()}
    if isinstance(value, list) and isinstance(written, list) and len(value) == len(written):
        return [as_written(*pair) for pair in zip(value, written, strict=True)]
    return written if _are_numbers(value, written) and value == written else value
