"""A table of measurements, printed the same way by every benchmark."""

from __future__ import annotations

from typing import Any


class Table:
    """Collects rows and prints them as a Markdown table, so that it can be copied into the documentation."""

    def __init__(self, title: str, columns: list[str]) -> None:
        self._title = title
        self._rows = [columns]

    def row(self, *cells: Any) -> None:
        self._rows.append([_shown(cell) for cell in cells])

    def print(self) -> None:
        widths = [max(len(row[column]) for row in self._rows) for column in range(len(self._rows[0]))]
        print(f"\n{self._title}\n")
        for number, row in enumerate(self._rows):
            cells = [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
            print("| " + " | ".join(cells) + " |")
            if number == 0:
                print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
        print(flush=True)


def _shown(cell: Any) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"
