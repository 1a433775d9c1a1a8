"""Writes what becomes of agents whose models make mistakes into docs/howto/frameworks.md, between its two markers.

``make frameworks`` keeps it in tests/frameworks/results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "howto" / "frameworks.md"
RESULTS = Path(__file__).parent.parent / "tests" / "frameworks" / "results"
BEGIN = "<!-- faults: written by docs/faults.py -->"
END = "<!-- end of faults -->"


def table() -> str:
    """One row a framework and version, one column a fault."""
    kept: list[dict[str, Any]] = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")]
    kept.sort(key=lambda result: str(result["framework"]).lower())
    faults = list(kept[0]["outcomes"])
    lines = [f"| framework | {' | '.join(faults)} |", "|---" * (len(faults) + 1) + "|"]
    lines += [f"| {each['framework']} | {' | '.join(each['outcomes'][fault] for fault in faults)} |" for each in kept]
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with the table as it is today."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
