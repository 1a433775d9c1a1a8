"""JSON-Schema-Test-Suite, every instance fed character by character. ``make schema-suite`` downloads it."""

from __future__ import annotations

import json

import jsonschema
import pytest

from callstream.tools.check import faults

from . import suite

pytestmark = pytest.mark.skipif(not suite.folder().exists(), reason="make schema-suite downloads the suite")


@pytest.mark.parametrize("file", suite.IN)
def test_the_verdict_is_that_of_jsonschema(file: str) -> None:
    seen = 0
    for case in suite.cases():
        if case.file != file:
            continue
        seen += 1
        fits = jsonschema.Draft202012Validator(case.schema).is_valid(case.data)
        assert fits is case.is_valid
        found = suite.find_fault(case.schema, json.dumps(case.data))
        assert (found is None) is fits, f"{case.name}: {found}"
        assert (faults(case.schema, case.data, lenient=False) == []) is fits, case.name
    assert seen or file == "defs"


def test_every_file_is_in_or_out() -> None:
    names = {file.stem for file in suite.folder().glob("*.json")}
    assert names == set(suite.IN) | set(suite.OUT)
