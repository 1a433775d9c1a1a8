"""What a client's answer says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.agui.results import result_value
from callstream.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"ok": true}', {"ok": True}),
        ('"said"', "said"),
        ("plain words", "plain words"),
        ("", ""),
        ("NaN", "NaN"),
        ("1e999", "1e999"),
        ("\ud800", "\ud800"),
        ("[" * 64 + "]" * 64, json.loads("[" * 64 + "]" * 64)),
    ],
)
def test_an_answer_is_its_value_where_it_is_json(text: str, value: Any) -> None:
    assert result_value(text) == value


@pytest.mark.parametrize("depth", [65, 500, 100_000])
def test_an_answer_that_nests_too_deep_is_refused(depth: int) -> None:
    with pytest.raises(UsageError, match="nests at most 64 deep"):
        result_value("[" * depth + "]" * depth)
