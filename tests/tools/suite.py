"""JSON-Schema-Test-Suite, draft 2020-12, as the source distribution of ``jsonschema`` on PyPI has it.

``python -m tests.tools.suite`` downloads it with pip (``make schema-suite``), runs it and prints how early faults are found.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from callstream.tools.check import StreamCheck

HERE = Path(__file__).parent / ".suite"
INSIDE = "json/tests/draft2020-12/"
IN = (
    "type", "enum", "const", "properties", "required", "additionalProperties", "patternProperties", "items", "prefixItems",
    "contains", "minContains", "maxContains", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minLength", "maxLength", "pattern", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties",
    "dependentRequired", "ref", "defs", "allOf", "anyOf", "oneOf", "not", "if-then-else", "boolean_schema", "default",
    "infinite-loop-detection",
)  # fmt: skip
OUT = (
    "anchor", "content", "dependentSchemas", "dynamicRef", "format", "propertyNames", "refRemote", "unevaluatedItems",
    "unevaluatedProperties", "vocabulary",
)  # fmt: skip
"""Files of the suite whose keywords are not judged."""
OUT_WORDS = frozenset(
    {
        "$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "dependentSchemas", "propertyNames", "unevaluatedItems",
        "unevaluatedProperties",
    }
)  # fmt: skip
"""A schema of one of the other files that uses one of these is left out, too."""


class Case(NamedTuple):
    file: str
    name: str
    schema: Any
    data: Any
    is_valid: bool


def folder() -> Path:
    return HERE / version("jsonschema")


def cases() -> Iterator[Case]:
    """The instances of the keywords that are in."""
    for name in IN:
        for group in json.loads((folder() / f"{name}.json").read_text(encoding="utf-8")):
            if not leaves_out(group["schema"]):
                for test in group["tests"]:
                    described = f"{group['description']}: {test['description']}"
                    yield Case(name, described, group["schema"], test["data"], test["valid"])


def left_out() -> list[str]:
    return [
        f"{name}: {group['description']}"
        for name in IN
        for group in json.loads((folder() / f"{name}.json").read_text(encoding="utf-8"))
        if leaves_out(group["schema"])
    ]


def leaves_out(schema: Any) -> bool:
    """Whether a schema needs what is out: one of those keywords, or a reference out of it."""
    if isinstance(schema, list):
        return any(map(leaves_out, schema))
    if not isinstance(schema, dict):
        return False
    reference = schema.get("$ref")
    if isinstance(reference, str) and not (reference == "#" or reference.startswith("#/")):
        return True
    return any(
        (word in OUT_WORDS and (isinstance(part, str) or not word.startswith("$"))) or leaves_out(part)
        for word, part in schema.items()
        if word not in ("const", "enum")
    )


def find_fault(schema: Any, text: str) -> int | None:
    """After how many characters the text is known to be invalid, fed one by one; None if it fits at the end."""
    check = StreamCheck(schema, lenient=False)
    for place, character in enumerate(text):
        if check.feed(character):
            return place + 1
    return len(text) if check.end() else None


def download() -> None:
    if folder().exists():
        return
    with tempfile.TemporaryDirectory() as temporary:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "jsonschema"]
        subprocess.run([*pip, f"jsonschema=={version('jsonschema')}", "-d", temporary], check=True)
        [archive] = Path(temporary).glob("jsonschema-*.tar.gz")
        folder().mkdir(parents=True)
        with tarfile.open(archive) as sources:
            for member in sources.getmembers():
                _, _, path = member.name.partition("/")
                content = sources.extractfile(member)
                if path.startswith(INSIDE) and path.count("/") == INSIDE.count("/") and content is not None:
                    (folder() / Path(path).name).write_bytes(content.read())


def main() -> None:
    download()
    total, wrong = 0, 0
    early: dict[str, list[float]] = {}
    for case in cases():
        text = json.dumps(case.data)
        found = find_fault(case.schema, text)
        total += 1
        if (found is None) is not case.is_valid:
            wrong += 1
            print("WRONG", case.file, case.name)
        elif found is not None:
            early.setdefault(case.file, []).append(found / len(text))
    print(f"jsonschema {version('jsonschema')}: {total} instances, {wrong} wrong verdicts")
    print(f"out: {', '.join(OUT)}; and of the other files:")
    for name in left_out():
        print(f"  {name}")
    print("\n| file | invalid instances | found at, of the text | before the last character |")
    print("|---|---|---|---|")
    for name, shares in sorted(early.items()):
        before = sum(share < 1 for share in shares)
        print(f"| {name} | {len(shares)} | {100 * sum(shares) / len(shares):.0f} % | {before} |")
    shares = [share for each in early.values() for share in each]
    print(f"| all | {len(shares)} | {100 * sum(shares) / len(shares):.0f} % | {sum(share < 1 for share in shares)} |")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
