"""Table "uistream": the CPU time that the AI SDK's reader spends on one long argument: ``python -m bench.uistream``.

With every delta, ``readUIMessageStream`` parses all of the argument again. The server merges deltas, more of them the longer
the argument is. Both streams are read by the published packages, which npm installs: the deltas of eight characters as the
model wrote them, and what the server sends of them if it never has to flush.
"""

from __future__ import annotations

import sys

from bench.table import Table
from callstream.testing import ToolCall
from callstream.uistream import ChunkTranslator, Merger, Sdk, encode_sse
from tests import npm
from tests.agui.judge import NodeProgram
from tests.agui.scenes import Play, Respond, play
from tests.uistream.conftest import FOLDER

DELTA = 8
WANTED_SECONDS = 1.0
"""For 100 KB, merged."""
KILOBYTES = (10, 100, 400)
UNMERGED = (10, 100)
"""400 KB in single deltas take minutes."""
SDKS: tuple[Sdk, ...] = (5, 6, 7)
TEXT = "It rises 🌊, and it falls.\n"


def bodies(kilobytes: int) -> tuple[str, str, int]:
    """A run with one call of that many arguments as a stream: delta by delta, merged, and the merged deltas' number."""
    text = TEXT * (kilobytes * 1000 // len(TEXT.encode()))
    [run] = play([Play([Respond([ToolCall("write", {"content": text}, size=DELTA)])])]).runs
    translator, merger = ChunkTranslator("message"), Merger()
    plain = [chunk for record in run.records for chunk in translator.feed(record)]
    merged = [chunk for each in plain for chunk in merger.feed([each])]
    deltas = sum(chunk["type"] == "tool-input-delta" for chunk in merged)
    return encode_sse(plain).decode(), encode_sse([*merged, *merger.flush()]).decode(), deltas


def seconds(judge: NodeProgram, sdk: Sdk, body: str) -> float:
    verdict = judge.ask({"sdk": sdk, "body": body})
    if verdict["errors"]:
        raise AssertionError(f"ai {sdk} refused the stream: {verdict['errors']}")
    return float(verdict["milliseconds"]) / 1000


def main() -> int:
    try:
        npm.install(FOLDER)
    except npm.Unavailable as reason:
        print(reason)
        return 0
    shown = Table(
        f"uistream: CPU seconds of readUIMessageStream, one argument in deltas of {DELTA} characters",
        ["argument", "reader", "delta by delta", "as sent", "deltas sent", ""],
    )
    passed = True
    with NodeProgram("judge.mjs", FOLDER) as judge:
        for sdk in SDKS:
            seconds(judge, sdk, bodies(1)[1])  # what is loaded once is no part of it
        for kilobytes in KILOBYTES:
            plain, merged, deltas = bodies(kilobytes)
            for sdk in SDKS:
                one_by_one = seconds(judge, sdk, plain) if kilobytes in UNMERGED else "–"
                sent = seconds(judge, sdk, merged)
                good = kilobytes != 100 or sent <= WANTED_SECONDS
                passed = passed and good
                verdict = "" if kilobytes != 100 else "PASS" if good else "FAIL"
                shown.row(f"{kilobytes} KB", f"ai {sdk}", one_by_one, sent, deltas, verdict)
    shown.print()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
