"""Writes the table of a call's transitions into docs/design.md, between its two markers."""

from __future__ import annotations

from pathlib import Path

from callstream.calls import FINAL, TRANSITIONS, CallState

PAGE = Path(__file__).parent / "design.md"
BEGIN = "<!-- transitions: written by docs/transitions.py -->"
END = "<!-- end of transitions -->"


def table() -> str:
    """One row a state: where each event leads from it."""
    lines = ["| from | event | to |", "|---|---|---|"]
    for state in CallState:
        leads = [(event.__name__, after) for (before, event), after in TRANSITIONS.items() if before is state]
        if state in FINAL:
            lines.append(f"| `{state}` | none: final | |")
        lines += [f"| `{state}` | `{event}` | `{after}` |" for event, after in leads]
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with the table as it is today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
