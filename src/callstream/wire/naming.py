"""Calls whose arguments may come before their name, as Gemini's do.

Such a call can mean a declared tool whose schema has every place that its arguments name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from callstream.jsontext.path import Path, has_place
from callstream.jsontext.writer import JsonWriter
from callstream.wire.transcript import Transcript, WireCall


class Piece(Protocol):
    """A piece of a call, which may have the call's name."""

    @property
    def name(self) -> str | None: ...


PieceT = TypeVar("PieceT", bound=Piece)


class PiecewiseCall(ABC, Generic[PieceT]):
    """A call whose arguments come in pieces. While it has no name it has no schema either, and its pieces wait."""

    def __init__(self, call: WireCall, tools: Mapping[str, dict[str, Any]]) -> None:
        self.call = call
        self.writer = JsonWriter(tools.get(call.name or ""))
        self._tools = tools
        self._waiting: list[PieceT] = []

    @abstractmethod
    def text_of(self, piece: PieceT) -> str:
        """The argument text that a piece adds."""

    @abstractmethod
    def paths_in(self, piece: PieceT) -> Iterator[Path]:
        """Every place in the arguments that a piece names."""

    def take(self, piece: PieceT, transcript: Transcript) -> None:
        if self.call.name is not None:
            transcript.append_args(self.call, self.text_of(piece))
            return
        self._waiting.append(piece)
        paths = (path for waiting in self._waiting for path in self.paths_in(waiting))
        names = [piece.name] if piece.name else tools_that_fit(self._tools, paths)
        if len(names) == 1:
            self.writer = JsonWriter(self._tools.get(names[0]))
            transcript.name_call(self.call, names[0])
            for waiting in self._waiting:
                transcript.append_args(self.call, self.text_of(waiting))


def tools_that_fit(tools: Mapping[str, Mapping[str, Any]], paths: Iterable[Path]) -> list[str]:
    """The names of the tools that have all of these paths, in the order of the declarations."""
    seen = list(paths)
    return [name for name, schema in tools.items() if all(has_place(schema, path) for path in seen)]
