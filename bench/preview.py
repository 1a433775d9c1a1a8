"""Preview at every delta: ``python -m bench.preview``.

A model writes an object of Python source and nested lists, eight characters at a time, and a program looks at it after
each delta: once at what changed, once at the whole value. All readers run in this process, in turns, and the best of
three rounds counts. Readers that parse the whole buffer again per delta do so for evenly spread deltas only where the
document is long for them; such times are extrapolated and marked with ``~``.

The thresholds at the end are for half of the lists before the source and half after it. How much a reader that parses
everything again suffers depends on that; a table of its own shows it.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import AsyncIterator, Callable
from time import perf_counter
from typing import Any, NamedTuple

import jiter
import jsonriver
import partial_json_parser
import pydantic_core
from langchain_core.utils.json import parse_partial_json

from callstream.jsontext.stream import JsonStream

DELTA = 8
ROUNDS = 3
SAMPLES = 60
SOURCE = inspect.getsource(argparse)
SIZES = {"1 KB": 1_000, "10 KB": 10_000, "100 KB": 100_000, "400 KB": 400_000}

Run = Callable[[str], tuple[float, Any]]
"""Reads a text delta by delta; the seconds it took and the last value."""


class Reader(NamedTuple):
    name: str
    changes: Run
    value: Run
    exact_up_to: int = sys.maxsize  # characters; longer texts are sampled


def document(size: int, lists_before: float = 0.5) -> str:
    """An object of that size: Python source, and for a tenth of it (250 characters at least) lists and objects.

    The source is the same over again where one file is not enough, so that documents differ in nothing but their size.

    ``lists_before`` is the part of them that stands before the source. It matters to readers that parse everything again:
    a list in front of the source is then parsed again at every delta of the source.
    """
    marks: list[Any] = []
    while len(json.dumps(marks)) < max(250, size // 10):
        line = len(marks) + 1
        marks.append([line, line % 80] if line % 2 else {"line": line, "kept": True, "note": None})
    cut = round(len(marks) * lists_before)
    shape = {"path": "src/module.py", "marks": marks[:cut], "content": "", "notes": marks[cut:]}
    room = size - len(json.dumps(shape))
    content = SOURCE * (size // len(SOURCE) + 1)
    while (excess := len(json.dumps(content)) - 2 - room) > 0:
        content = content[: -max(1, excess // 3)]
    return json.dumps(shape | {"content": content})


def wide_document(size: int) -> str:
    """A list that stays open to the end."""
    return json.dumps({"rows": [[number, f"row {number}"] for number in range(size // 20)]})


def our_changes(text: str) -> tuple[float, Any]:
    pieces = [text[at : at + DELTA] for at in range(0, len(text), DELTA)]
    begin = perf_counter()
    stream = JsonStream()
    for piece in pieces:
        stream.feed(piece)
    value = stream.close()
    return perf_counter() - begin, value


def our_value(text: str) -> tuple[float, Any]:
    pieces = [text[at : at + DELTA] for at in range(0, len(text), DELTA)]
    begin = perf_counter()
    stream = JsonStream()
    for piece in pieces:
        stream.feed(piece)
        value = stream.value
    return perf_counter() - begin, value


def river(text: str) -> tuple[float, Any]:
    pieces = [text[at : at + DELTA] for at in range(0, len(text), DELTA)]
    last: Any = None

    async def deltas() -> AsyncIterator[str]:
        for piece in pieces:
            yield piece

    async def read() -> None:
        nonlocal last
        async for value in jsonriver.parse(deltas()):
            last = value

    begin = perf_counter()
    try:
        read().send(None)  # nothing in it waits, so it needs no event loop
    except StopIteration:
        pass
    return perf_counter() - begin, last


def parsing_again(parse: Callable[[Any], Any], encode: bool, exact_up_to: int) -> Run:
    """A run of a parser that gets the whole buffer at every delta."""

    def run(text: str) -> tuple[float, Any]:
        buffer: Any = text.encode() if encode else text
        ends = list(range(DELTA, len(text) + DELTA, DELTA))
        asked = ends if len(text) <= exact_up_to else ends[:: len(ends) // SAMPLES]
        begin = perf_counter()
        for end in asked:
            parse(buffer[:end])
        seconds = (perf_counter() - begin) * len(ends) / len(asked)
        return seconds, parse(buffer)

    return run


def again(name: str, parse: Callable[[Any], Any], *, encode: bool, exact_up_to: int) -> Reader:
    run = parsing_again(parse, encode, exact_up_to)
    return Reader(name, run, run, exact_up_to)


OURS = Reader("callstream", our_changes, our_value)
JITER = again(
    "jiter", lambda data: jiter.from_json(data, partial_mode="trailing-strings"), encode=True, exact_up_to=120_000
)
RIVER = Reader("jsonriver", river, river)
READERS = [
    OURS,
    JITER,
    again(
        "pydantic_core",
        lambda data: pydantic_core.from_json(data, allow_partial="trailing-strings"),
        encode=True,
        exact_up_to=20_000,
    ),
    RIVER,
    again("partial-json-parser", partial_json_parser.loads, encode=False, exact_up_to=2_000),
    again("langchain_core", parse_partial_json, encode=False, exact_up_to=2_000),
]


def best(readers: list[Reader], text: str, look: str) -> dict[str, float]:
    """The best time of each reader, in rounds, so that a slow moment of the machine does not hit one of them alone."""
    expected = json.loads(text)
    seconds = {reader.name: float("inf") for reader in readers}
    for _ in range(ROUNDS):
        for reader in readers:
            for _ in range(max(1, 20_000 // len(text))):  # as often for each reader: the best of more runs is better
                taken, value = getattr(reader, look)(text)
                assert value == expected, f"{reader.name} is wrong"
                seconds[reader.name] = min(seconds[reader.name], taken)
    return seconds


def table(title: str, look: str, texts: dict[str, str], readers: list[Reader]) -> dict[str, dict[str, float]]:
    results = {label: best(readers, text, look) for label, text in texts.items()}
    print(f"\n{title}\n{'':20}" + "".join(f"{label:>22}" for label in texts))
    for reader in readers:
        cells = []
        for label, text in texts.items():
            seconds = results[label][reader.name]
            mark = "~" if len(text) > reader.exact_up_to else ""
            cells.append(f"{mark}{seconds * 1000:,.2f} ms {seconds / results[label][OURS.name]:7,.1f}x")
        print(f"{reader.name:20}" + "".join(f"{cell:>22}" for cell in cells), flush=True)
    return results


def growth(short: str, long: str) -> float:
    """How much longer ours takes for the long text, the best of ten runs each, in turns."""
    times = [(our_changes(short)[0], our_changes(long)[0]) for _ in range(10)]
    return min(long for _, long in times) / min(short for short, _ in times)


def check(what: str, measured: float, limit: float, *, at_least: bool) -> bool:
    passed = measured >= limit if at_least else measured <= limit
    sign = "at least" if at_least else "at most"
    print(f"{'PASS' if passed else 'FAIL'}  {what}: {measured:,.2f} ({sign} {limit:g})")
    return passed


def main() -> int:
    texts = {label: document(size) for label, size in SIZES.items()}
    wide = {label: wide_document(SIZES[label]) for label in ("10 KB", "100 KB", "400 KB")}
    places = {"lists first": 1.0, "half and half": 0.5, "lists last": 0.0}
    layouts = {label: document(SIZES["100 KB"], before) for label, before in places.items()}
    print(
        f"Python {sys.version.split()[0]}, deltas of {DELTA} characters, best of {ROUNDS}, x: times ours, ~: extrapolated"
    )
    changes = table("preview at every delta: the changes", "changes", texts, READERS)
    value = table("preview at every delta: the whole value", "value", texts, READERS)
    some = [OURS, JITER, RIVER]
    table("the changes, 100 KB, by where the lists stand", "changes", layouts, some)
    table("the whole value, 100 KB, by where the lists stand", "value", layouts, some)
    table("preview at every delta: the whole value, one list open to the end", "value", wide, some)

    def ratio(results: dict[str, dict[str, float]], size: str, other: Reader) -> float:
        return results[size][other.name] / results[size][OURS.name]

    print()
    passed = [
        check("changes, 100 KB, jiter / ours", ratio(changes, "100 KB", JITER), 40, at_least=True),
        check("changes, 100 KB, jsonriver / ours", ratio(changes, "100 KB", RIVER), 5, at_least=True),
        check("changes, ours, 400 KB / 100 KB", growth(texts["100 KB"], texts["400 KB"]), 5, at_least=False),
        check("changes, 1 KB, ours / jiter", 1 / ratio(changes, "1 KB", JITER), 1.5, at_least=False),
        check("whole value, 100 KB, jiter / ours", ratio(value, "100 KB", JITER), 12, at_least=True),
        check("whole value, 100 KB, jsonriver / ours", ratio(value, "100 KB", RIVER), 3, at_least=True),
    ]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
