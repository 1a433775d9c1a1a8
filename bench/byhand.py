"""What is done by hand though a library does something like it: ``python -m bench.byhand``.

Docstrings: what each parser makes of those that people write. Schemas: what a verdict costs when the value is whole, and
how early one is known while the value is being written, which is what the own validator is for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from time import perf_counter
from typing import Any

import docstring_parser
import griffe
import jsonschema

from bench.table import Table
from callstream.tools.check import StreamCheck, faults
from callstream.tools.tool import parameters_of

ROUNDS = 5
DELTA = 8
DOCSTRINGS = {
    "plain": "Speaks.\n\nArgs:\n    text: What\n        to say.\n    loud (bool): How: with a colon.\n",
    "text after the section": "Speaks.\n\nArgs:\n    text: What to say.\n\nIt ends here: no parameter.\n",
    "empty section": "Speaks.\n\nArgs:\n\nReturns:\n    Nothing.\n",
    "keyword arguments": "Speaks.\n\nKeyword Args:\n    text: What to say.\n",
    "entry of stars": "Speaks.\n\nArgs:\n    *texts: What to say.\n    **more: Other things.\n",
}
MEANT = {
    "plain": {"text": "What to say.", "loud": "How: with a colon."},
    "text after the section": {"text": "What to say."},
    "empty section": {},
    "keyword arguments": {"text": "What to say."},
    "entry of stars": {"texts": "What to say.", "more": "Other things."},
}
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "level": {"type": "integer", "minimum": 1, "maximum": 5},
        "tags": {"type": "array", "items": {"enum": ["sea", "moon"]}},
        "content": {"type": "string"},
    },
    "required": ["title", "level", "tags", "content"],
    "additionalProperties": False,
}
FITS = {"title": "Tides", "level": 3, "tags": ["sea", "moon"], "content": "The moon pulls. " * 250}
WRONG = {**FITS, "level": 9}


def by_docstring_parser(doc: str) -> dict[str, str]:
    return {
        each.arg_name.lstrip("*"): " ".join((each.description or "").split())
        for each in docstring_parser.google.parse(doc).params
    }


def by_griffe(doc: str) -> dict[str, str]:
    sections = griffe.parse_google(griffe.Docstring(doc), warnings=False)
    kinds = (griffe.DocstringSectionParameters, griffe.DocstringSectionOtherParameters)
    found = [each for section in sections if isinstance(section, kinds) for each in section.value]
    return {each.name.lstrip("*"): " ".join(each.description.split()) for each in found}


def outcome(parse: Callable[[str], dict[str, str]], name: str) -> str:
    try:
        return "yes" if parse(DOCSTRINGS[name]) == MEANT[name] else "otherwise"
    except Exception as error:  # noqa: BLE001  # that it raises is the finding
        return type(error).__name__


def microseconds(work: Callable[[], Any], times: int) -> float:
    def once() -> float:
        begun = perf_counter()
        for _ in range(times):
            work()
        return (perf_counter() - begun) / times * 1e6

    return min(once() for _ in range(ROUNDS))


def streamed(value: Any) -> int:
    """How many characters were read when the verdict was certain; all of them if it fits."""
    text = json.dumps(value)
    check = StreamCheck(SCHEMA)
    for start in range(0, len(text), DELTA):
        if check.feed(text[start : start + DELTA]):
            return start + DELTA
    return len(text)


def main() -> None:
    parsers = {"own": parameters_of, "docstring_parser": by_docstring_parser, "griffe": by_griffe}
    table = Table("Docstrings: the parameters as they are meant", ["docstring", *parsers])
    for name in DOCSTRINGS:
        table.row(name, *(outcome(parse, name) for parse in parsers.values()))
    table.row("µs", *(microseconds(lambda parse=parse: parse(DOCSTRINGS["plain"]), 200) for parse in parsers.values()))
    table.print()

    validator = jsonschema.Draft202012Validator(SCHEMA)
    size = len(json.dumps(FITS))
    table = Table(f"One schema, a value of {size} characters", ["", "own", "jsonschema"])
    table.row(
        "whole, µs",
        microseconds(lambda: faults(SCHEMA, FITS), 200),
        microseconds(lambda: validator.is_valid(FITS), 200),
    )
    table.row(f"written by {DELTA} characters, µs", microseconds(lambda: streamed(FITS), 5), "–")
    table.row("a wrong second field is known after characters", streamed(WRONG), size)
    table.print()


if __name__ == "__main__":
    main()
