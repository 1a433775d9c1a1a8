"""Draws the rooms of the package and who imports whom: ``python -m tests.rooms`` writes docs/rooms.svg.

A room stands above all that it imports. An arrow is an import, type imports included; one that a longer way implies is left
out. ``tests/test_rooms.py`` compares the picture with the code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from pathlib import Path

import callstream

PACKAGE = Path(callstream.__file__).parent
PICTURE = Path(__file__).parents[1] / "docs" / "rooms.svg"

_WIDTH, _HEIGHT = 112, 40
_GAP, _RISE = 28, 64
_MARGIN = 24

_STYLE = (
    "text{font:14px ui-sans-serif,system-ui,sans-serif;fill:#1f2937;text-anchor:middle}"
    "rect{fill:#eef2ff;stroke:#6366f1;rx:6}"
    "path{fill:none;stroke:#94a3b8;stroke-width:1.3}"
    "marker path{fill:#94a3b8;stroke:none}"
    "@media(prefers-color-scheme:dark){text{fill:#e5e7eb}rect{fill:#1e1b4b}path{stroke:#64748b}marker path{fill:#64748b}}"
)


def imports() -> dict[str, set[str]]:
    """The rooms, and which each of them imports."""
    found: dict[str, set[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        room = _room(file.relative_to(PACKAGE).parts[0])
        if room is not None:
            found.setdefault(room, set()).update(set(_imported(file)) - {room})
    return {room: others & found.keys() for room, others in found.items()}


def _room(part: str) -> str | None:
    name = part.removesuffix(".py")
    return None if name.startswith("__") else name  # the public names and ``python -m`` belong to no room


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "callstream":
            names = [f"callstream.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("callstream."))


def circles(rooms: Mapping[str, set[str]]) -> list[str]:
    """The rooms that import each other, over whatever way."""
    return sorted(room for room in rooms if room in _reached(rooms, room))


def _reached(rooms: Mapping[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [*rooms[start]]
    while waiting:
        room = waiting.pop()
        if room not in reached:
            reached.add(room)
            waiting += rooms[room]
    return reached


def storeys(rooms: Mapping[str, set[str]]) -> list[list[str]]:
    """The rooms by height, the highest first: each stands one above the highest that it imports."""

    @cache
    def height(room: str) -> int:
        return max((height(other) + 1 for other in rooms[room]), default=0)

    return [
        sorted(room for room in rooms if height(room) == level)
        for level in sorted(set(map(height, rooms)), reverse=True)
    ]


def arrows(rooms: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """The imports that no longer way implies."""
    return sorted(
        (room, other)
        for room, others in rooms.items()
        for other in others
        if not any(other in _reached(rooms, between) for between in others)
    )


def draw(rooms: Mapping[str, set[str]]) -> str:
    """The picture. Raises ValueError if rooms import each other, because then none is above."""
    if circle := circles(rooms):
        raise ValueError(f"expected imports that point one way; these rooms import each other: {', '.join(circle)}")
    rows = storeys(rooms)
    width = max(len(row) * (_WIDTH + _GAP) - _GAP for row in rows) + 2 * _MARGIN
    height = len(rows) * (_HEIGHT + _RISE) - _RISE + 2 * _MARGIN
    places: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        left = (width - len(row) * (_WIDTH + _GAP) + _GAP) / 2
        for column, room in enumerate(row):
            places[room] = (left + column * (_WIDTH + _GAP), _MARGIN + number * (_HEIGHT + _RISE))
    said = "; ".join(f"{room} imports {', '.join(sorted(others))}" for room, others in sorted(rooms.items()) if others)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        "<title>The rooms of Callstream, each above all that it imports</title>",
        f"<desc>{escape(said)}.</desc>",
        f"<style>{_STYLE}</style>",
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L8 4L0 8Z"/></marker>',
        *(_arrow(places[room], places[other]) for room, other in arrows(rooms)),
        *(_box(room, *places[room]) for row in rows for room in row),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    x1, y1 = start[0] + _WIDTH / 2, start[1] + _HEIGHT
    x2, y2 = end[0] + _WIDTH / 2, end[1] - 2
    bend = (y2 - y1) / 2
    return f'<path d="M{x1:g} {y1:g}C{x1:g} {y1 + bend:g} {x2:g} {y2 - bend:g} {x2:g} {y2:g}" marker-end="url(#tip)"/>'


def _box(room: str, x: float, y: float) -> str:
    middle = f'x="{x + _WIDTH / 2:g}" y="{y + _HEIGHT / 2 + 5:g}"'
    return f'<rect x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}"/><text {middle}>{escape(room)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw(imports()))
    print(PICTURE.name)
