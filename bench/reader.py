"""Table "reader": JSON that is still being written, read in JavaScript: ``python -m bench.reader``.

The npm package's reader beside the ones that front ends use, which npm installs: ``parsePartialJson`` of ``ai``,
partial-json (of TanStack AI and CopilotKit), jsonriver, and the parser of pi. First what they make of JSONTestSuite's files,
of every prefix and of every split of texts with escapes, surrogate pairs, numbers and literals. Then what a preview after
every delta of eight characters costs. Readers that parse everything again with each delta do so for evenly spread deltas
only; such times are extrapolated and marked with ``~``.

partial-json and pi's parser are lenient by design: that they accept invalid documents is no mistake of theirs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.table import Table
from tests import npm
from tests.agui.judge import NodeProgram

FOLDER = Path(__file__).parents[1] / "js" / "bench"
DELTA = 8
SAMPLES = 60
KILOBYTES = (10, 100, 400)
OURS = "Callstream"
READERS = (
    "Callstream, changes",
    OURS,
    "jsonriver",
    "pi StreamingJsonParser",
    "ai parsePartialJson",
    "partial-json",
)
TEXT = "It rises 🌊, and it falls:\n\ttwice a day, “up” and down.\n"


def document(kind: str, kilobytes: int) -> str:
    if kind == "string":
        count = kilobytes * 1000 // len(json.dumps(TEXT, ensure_ascii=False))
        return json.dumps({"content": TEXT * count}, ensure_ascii=False)
    rows = [{"id": number, "name": f"row {number}", "ok": True} for number in range(kilobytes * 1000 // 43)]
    return json.dumps({"rows": rows})


def show_cost(node: NodeProgram) -> None:
    kinds = [(kind, size) for kind in ("string", "rows") for size in KILOBYTES]
    table = Table(
        f"reader: milliseconds of CPU for a preview after every delta of {DELTA} characters",
        ["reader", *(f"{kind} {size} KB" for kind, size in kinds)],
    )
    for name in READERS:
        node.ask({"cost": name, "text": document("rows", 10), "delta": DELTA})  # what is compiled once is no part of it
        cells: list[Any] = []
        for kind, size in kinds:
            question = {"cost": name, "text": document(kind, size), "delta": DELTA, "samples": SAMPLES}
            rounds = [node.ask(question) for _ in range(3 if size < 400 else 1)]
            best = min(answer["milliseconds"] for answer in rounds)
            cells.append(f"{'~' if rounds[0]['isExtrapolated'] else ''}{best:,.0f}")
        table.row(name, *cells)
    table.print()


def show_correctness(node: NodeProgram) -> bool:
    columns = [
        "reader",
        "valid read right",
        "invalid refused",
        "prefixes taken back",
        "half characters",
        "splits wrong",
    ]
    table = Table("reader: JSONTestSuite's parsing files; every prefix; every split", columns)
    is_right = True
    for name in READERS[1:]:
        told = node.ask({"correct": name})
        splits = f"{told['wrong']} of {told['splits']}" if told["splits"] else "–"
        table.row(
            name,
            f"{told['accepted']} of {told['valid']}",
            f"{told['refused']} of {told['invalid']}",
            f"{told['takenBack']} of {told['prefixes']}",
            told["halves"],
            splits,
        )
        if name == OURS:
            all_read = told["accepted"] == told["valid"] and told["refused"] == told["invalid"]
            is_right = all_read and told["takenBack"] == told["halves"] == told["wrong"] == 0
    table.print()
    return is_right


def main() -> int:
    try:
        npm.install(FOLDER)
    except npm.Unavailable as reason:
        print(f"skipped: {reason}")
        return 0
    with NodeProgram("reader.mjs", FOLDER) as node:
        is_right = show_correctness(node)
        show_cost(node)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
