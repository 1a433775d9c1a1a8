"""The arguments of a call on their way to a tool with a ``Streamed`` parameter, which starts before they have ended.

Every argument is converted when it is whole. The tool may start when its required parameters are there and the streamed
value has begun (``is_ready``). From then on nothing may change what it was called with: another argument that arrives is a
fault, unless it is the default that the tool has anyway, or null for it; and so is a key that comes twice.
"""

from __future__ import annotations

import inspect
from typing import Any

from callstream import codec
from callstream.calls import Call
from callstream.errors import InvalidArguments, WireError
from callstream.events import DiscardReason, Encoding
from callstream.jsontext.stream import Change, JsonStream
from callstream.tools import Streamed, StreamedParameter, Tool
from callstream.tools.convert import converter
from callstream.tools.fault import Misfit, describe


class UnusableArguments(Exception):
    """Why the tool must not run on these arguments, or not any longer."""

    def __init__(self, reason: DiscardReason, detail: str) -> None:
        super().__init__(detail)
        self.reason: DiscardReason = reason
        self.detail = detail


class ArrivingArguments:
    """Of one call. ``streamed`` is the tool's parameter that takes the stream."""

    def __init__(self, tool: Tool[Any], streamed: StreamedParameter, encoding: Encoding) -> None:
        self.stream: Streamed[Any] = Streamed()
        """What the tool iterates over."""
        self.is_ready = False
        """Whether the tool can start. What it is called with does not change from then on, wherever the text was cut."""
        self._tool = tool
        self._streamed = streamed
        self._convert_value = None if streamed.is_text else converter(streamed.item)
        self._is_text = encoding == "text"
        self._json = JsonStream(unique_names=True)
        parameters = inspect.signature(tool).parameters.values()
        self._named = {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._required = {name for name, p in self._named.items() if p.default is p.empty} - {streamed.name}
        self._given: dict[str, Any] = {}
        self._begun: set[str] = set()
        self._open: str | None = None

    @property
    def kwargs(self) -> dict[str, Any]:
        """What the tool is called with."""
        return {**self._given, self._streamed.name: self.stream}

    def feed(self, text: str) -> None:
        """Reads more of the text. Raises UnusableArguments."""
        if self._is_text:
            self.is_ready = True
            if text:
                self.stream.put(text)
            return
        try:
            changes = self._json.feed(text)
        except WireError as error:
            raise UnusableArguments("malformed", str(error)) from error
        for change in changes:
            self._take(change)
            self.is_ready = self.is_ready or (
                self._streamed.name in self._begun and self._required <= self._given.keys()
            )
        if self._json.error is not None:
            raise UnusableArguments("malformed", str(self._json.error))

    def end(self, call: Call) -> None:
        """The wire has ended the arguments. Raises UnusableArguments if the tool should not have started."""
        if not self._is_text and (mistake := codec.mistake_in(call.args_json or "{}")):
            raise UnusableArguments("malformed", mistake)
        self.stream.end()

    def _take(self, change: Change) -> None:
        path = change.path
        if not path:
            if not isinstance(change.value, dict):
                raise UnusableArguments("malformed", "the arguments are not an object")
            return
        name = str(path[0])
        if self._open != name:
            self._open = name
            self._begin(name)
        if name == self._streamed.name:
            self._grow(change)
        if len(path) == 1 and change.kind in ("set", "close"):
            self._open = None
            if name != self._streamed.name:
                self._give(name, self._convert(name, change.value))

    def _begin(self, name: str) -> None:
        if name not in self._named and not self._takes_all:
            raise UnusableArguments(
                "invalid", f"there is no argument {name!r}; its arguments are {', '.join(self._named)}"
            )
        if self.is_ready and name not in self._named:
            raise self._too_late(name)
        self._begun.add(name)

    def _give(self, name: str, value: Any) -> None:
        if not self.is_ready:
            self._given[name] = value
        elif not _is_same(value, self._named[name].default):
            raise self._too_late(name)

    def _too_late(self, name: str) -> UnusableArguments:
        return UnusableArguments(
            "invalid",
            f"the argument {name!r} came after the tool had started; write {name!r} before {self._streamed.name!r}",
        )

    def _grow(self, change: Change) -> None:
        """Something happened to the streamed value."""
        streamed = self._streamed
        expects = "append" if streamed.is_text else "open"
        if len(change.path) == 1 and change.kind != "close":
            if change.kind != expects or (expects == "open" and not isinstance(change.value, list)):
                if change.value is None and streamed.takes_none:
                    self._begun.discard(streamed.name)  # nothing is streamed, so nothing starts early
                    return
                expected = "a string" if streamed.is_text else "an array"
                raise UnusableArguments("invalid", f"the argument {streamed.name!r} should be {expected}")
            if streamed.is_text and change.value:
                self.stream.put(change.value)
        elif not streamed.is_text and len(change.path) == 2 and change.kind in ("set", "close"):
            self.stream.put(self._convert_item(change))

    def _convert(self, name: str, value: Any) -> Any:
        try:
            return self._tool.arguments.convert_one(name, value)
        except InvalidArguments as invalid:
            raise UnusableArguments("invalid", invalid.detail) from invalid

    def _convert_item(self, change: Change) -> Any:
        try:
            return change.value if self._convert_value is None else self._convert_value(change.value)
        except Misfit as misfit:
            raise UnusableArguments("invalid", describe(misfit.within(change.path), self._named)) from misfit


def _is_same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))
