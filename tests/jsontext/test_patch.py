from __future__ import annotations

import copy
from typing import Any

import pytest

from callstream.errors import UsageError
from callstream.jsontext.patch import apply_patch

# The examples of RFC 6902, appendix A, by their numbers.
APPLY: list[tuple[str, Any, list[dict[str, Any]], Any]] = [
    ("A.1", {"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
    ("A.2", {"foo": [1, 2]}, [{"op": "add", "path": "/foo/1", "value": 9}], {"foo": [1, 9, 2]}),
    ("A.3", {"baz": 1, "foo": 2}, [{"op": "remove", "path": "/baz"}], {"foo": 2}),
    ("A.4", {"foo": [1, 2, 3]}, [{"op": "remove", "path": "/foo/1"}], {"foo": [1, 3]}),
    ("A.5", {"baz": 1, "foo": 2}, [{"op": "replace", "path": "/baz", "value": 3}], {"baz": 3, "foo": 2}),
    (
        "A.6",
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    ("A.7", {"foo": [1, 2, 3, 4]}, [{"op": "move", "from": "/foo/1", "path": "/foo/3"}], {"foo": [1, 3, 4, 2]}),
    (
        "A.8",
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2}],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    ("A.10", {"foo": "bar"}, [{"op": "add", "path": "/child", "value": {"g": {}}}], {"foo": "bar", "child": {"g": {}}}),
    ("A.11", {"foo": 1}, [{"op": "add", "path": "/baz", "value": 2, "xyz": 123}], {"foo": 1, "baz": 2}),
    ("A.14", {"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
    (
        "A.16",
        {"foo": ["bar"]},
        [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}],
        {"foo": ["bar", ["abc", "def"]]},
    ),
    ("whole", {"a": 1}, [{"op": "replace", "path": "", "value": [1]}], [1]),
    ("whole added", {"a": 1}, [{"op": "add", "path": "", "value": 2}], 2),
    ("whole removed", {"a": 1}, [{"op": "remove", "path": ""}], None),
    ("copied", {"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
    ("moved onto itself", {"a": 1}, [{"op": "move", "from": "/a", "path": "/a"}], {"a": 1}),
    ("deep", {"a": [{"b": 1}]}, [{"op": "replace", "path": "/a/0/b", "value": 2}], {"a": [{"b": 2}]}),
    ("same", {"a": [{"b": 1.0}]}, [{"op": "test", "path": "/a", "value": [{"b": 1}]}], {"a": [{"b": 1.0}]}),
    ("true", [True], [{"op": "test", "path": "/0", "value": True}], [True]),
    ("nothing", {"a": 1}, [], {"a": 1}),
]


@pytest.mark.parametrize(("document", "patch", "after"), [case[1:] for case in APPLY], ids=[case[0] for case in APPLY])
def test_patches_that_apply(document: Any, patch: list[dict[str, Any]], after: Any) -> None:
    before = copy.deepcopy(document)
    assert apply_patch(document, patch) == after
    assert document == before


REFUSE: dict[str, tuple[Any, dict[str, Any]]] = {
    "A.9": ({"baz": "qux"}, {"op": "test", "path": "/baz", "value": "bar"}),
    "A.12": ({"foo": "bar"}, {"op": "add", "path": "/baz/bat", "value": "qux"}),
    "A.15": ({"/": 9, "~1": 10}, {"op": "test", "path": "/~01", "value": "10"}),
    "no such key": ({}, {"op": "remove", "path": "/a"}),
    "no such index": ({"a": [1]}, {"op": "replace", "path": "/a/1", "value": 1}),
    "an index with a nought": ({"a": [1, 2]}, {"op": "remove", "path": "/a/01"}),
    "no such place": ({"a": [1]}, {"op": "add", "path": "/a/3", "value": 1}),
    "not an index": ({"a": [1]}, {"op": "add", "path": "/a/x", "value": 1}),
    "the end is no value": ({"a": [1]}, {"op": "remove", "path": "/a/-"}),
    "nothing to add to": ({"a": 1}, {"op": "add", "path": "/a/b", "value": 1}),
    "into itself": ({"a": {"b": 1}}, {"op": "move", "from": "/a", "path": "/a/b"}),
    "not a pointer": ({"a": 1}, {"op": "remove", "path": "a"}),
    "no operation": ({"a": 1}, {"op": "increment", "path": "/a"}),
    "without a value": ({"a": 1}, {"op": "add", "path": "/b"}),
    "without a path": ({"a": 1}, {"op": "add", "value": 1}),
    "true is not 1": ([True], {"op": "test", "path": "/0", "value": 1}),
    "1 is not true": ({"a": {"b": [1]}}, {"op": "test", "path": "/a", "value": {"b": [True]}}),
    "fewer keys": ({"a": {"b": 1}}, {"op": "test", "path": "/a", "value": {}}),
    "fewer items": ({"a": [1]}, {"op": "test", "path": "/a", "value": []}),
    "another kind": ({"a": []}, {"op": "test", "path": "/a", "value": {}}),
}


@pytest.mark.parametrize("case", REFUSE)
def test_a_patch_that_does_not_apply_is_refused_whole(case: str) -> None:
    document, operation = REFUSE[case]
    before = copy.deepcopy(document)
    with pytest.raises(UsageError, match="operation 1 of the patch does not apply"):
        apply_patch(document, [{"op": "test", "path": "", "value": document}, operation])
    assert document == before
