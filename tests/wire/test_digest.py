"""Requests that say the same have the same digest, and of two that do not, the first difference is named."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.wire.requests import Digest, Request

PATH = "/v1/messages"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def digest(**fields: Any) -> Digest:
    return Request(PATH, json.dumps(fields).encode()).digest


def backwards(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: backwards(value[name]) for name in reversed(value)}
    return [backwards(each) for each in value] if isinstance(value, list) else value


@given(st.dictionaries(st.text(max_size=3), VALUES, min_size=1, max_size=4))
def test_the_order_of_keys_says_nothing(fields: dict[str, Any]) -> None:
    assert digest(**backwards(fields)) == digest(**fields)


def test_the_order_of_keys_says_nothing_in_json_text() -> None:
    one, other = ({"messages": [{"content": text}]} for text in ('{"a": 1, "b": [2]}', '{"b":[2],"a":1}'))
    assert digest(**one).whole == digest(**other).whole
    assert digest(messages=["{not JSON"]) != digest(messages=["{ not JSON"])


def test_ids_that_frameworks_make_up_count_by_their_order() -> None:
    def asked(first: str, second: str) -> Digest:
        return digest(messages=[{"id": first}, {"id": second}, {"answers": first}])

    ids = [f"adk-{uuid.uuid4()}" for _ in range(2)]
    others = [f"adk-{uuid.uuid4()}" for _ in range(2)]
    assert asked(*ids) == asked(*others)
    assert asked(ids[0], ids[0]) != asked(*ids)
    assert asked("toolu_1", "toolu_2") != asked("toolu_2", "toolu_1")


def test_the_order_of_messages_of_the_user_that_follow_one_another_says_nothing() -> None:
    """That is how an agent is told what others said that ran beside each other."""
    go, left, right = ({"role": "user", "content": text} for text in ("go", "left", "right"))
    answer = {"role": "assistant", "content": "Done."}
    assert digest(messages=[go, left, right, answer]) == digest(messages=[go, right, left, answer])
    assert digest(messages=[left, answer, right]) != digest(messages=[right, answer, left])
    assert digest(messages=[left, right, answer]) != digest(messages=[left, answer])
    assert digest(messages=[answer, {**answer, "content": "."}]) != digest(
        messages=[{**answer, "content": "."}, answer]
    )


@pytest.mark.parametrize("name", ["metadata", "client_metadata", "user", "prompt_cache_key", "safety_identifier"])
def test_what_no_answer_depends_on_does_not_count(name: str) -> None:
    assert digest(model="m", **{name: "x"}) == digest(model="m")


def test_another_path_is_another_request() -> None:
    assert Request("/other", b'{"a":1}').digest != Request(PATH, b'{"a":1}').digest
    assert Request(PATH, b"no JSON").digest != Request(PATH, b"none").digest
    assert Request(PATH, b"no JSON").digest == Request(PATH, b"no JSON").digest


def test_the_first_difference() -> None:
    before = digest(model="m", messages=["a", "b"])
    assert digest(model="m", messages=["a", "c"]).first_difference(before.parts) == "messages/1"
    assert digest(model="m", messages=["a"]).first_difference(before.parts) == "messages/1"
    assert digest(model="n", messages=["a", "b"], more=1).first_difference(before.parts) == "model"
    assert before.first_difference(before.parts) == "the order of its parts"
