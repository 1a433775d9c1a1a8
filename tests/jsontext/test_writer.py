"""JSON text from values at paths, held against its laws; the order of what is written."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.jsontext.path import Path, format_path
from callstream.jsontext.writer import EMPTY, JsonWriter
from tests.examples import examples

from .pieces import documents, exact, loads_unique, shown, words, written

Write = tuple[Path, Any, bool]


def leaves(value: Any, path: Path = ()) -> list[tuple[Path, Any]]:
    """Every string, scalar and empty container of a document with its path, in order."""
    if isinstance(value, dict | list) and value:
        steps = value if isinstance(value, dict) else range(len(value))
        return [leaf for step in steps for leaf in leaves(value[step], (*path, step))]
    return [(path, EMPTY if isinstance(value, dict | list) else value)]


def pieces(path: Path, value: Any, cuts: list[int]) -> list[Write]:
    if not isinstance(value, str):
        return [(path, value, False)]
    edges = [0, *sorted({cut % (len(value) + 1) for cut in cuts}), len(value)]
    parts = [value[a:b] for a, b in pairwise(edges)]
    return [(path, part, number < len(parts)) for number, part in enumerate(parts, 1)]


def schema_of(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: schema_of(item) for key, item in value.items()}}
    if isinstance(value, list):
        return {"type": "array", "prefixItems": [schema_of(item) for item in value]}
    return {}


def at(document: Any, path: Path) -> Any:
    for step in path:
        document = document[step]
    return document


def set_at(document: Any, path: Path, value: Any) -> None:
    for step, following in pairwise(path):
        empty: Any = [] if isinstance(following, int) else {}
        if isinstance(document, list) and step == len(document):
            document.append(empty)
        document = document[step] if isinstance(document, list) else document.setdefault(step, empty)
    if isinstance(document, list) and path[-1] == len(document):
        document.append(value)
    else:
        document[path[-1]] = value


cuts = st.lists(st.integers(0, 12), max_size=4)


@st.composite
def in_order(draw: st.DrawFn) -> tuple[Any, list[Write]]:
    document = draw(documents)
    found = leaves(document) if document else []
    return document, [piece for path, value in found for piece in pieces(path, value, draw(cuts))]


@st.composite
def any_order(draw: st.DrawFn) -> tuple[Any, list[Write]]:
    document = draw(documents)
    queues = [pieces(path, value, draw(cuts)) for path, value in (leaves(document) if document else [])]
    turns = draw(st.permutations([number for number, queue in enumerate(queues) for _ in queue]))
    remaining = [iter(queue) for queue in queues]
    return document, [next(remaining[turn]) for turn in turns]


# -- laws ---------------------------------------------------------------------------------------------------------------


@given(any_order())
@examples(300)
def test_any_order_gives_the_document(case: tuple[Any, list[Write]]) -> None:
    document, writes = case
    assert exact(json.loads("".join(written(writes, schema_of(document))))) == exact(document)


@given(any_order())
def test_path_text_is_taken_like_a_path(case: tuple[Any, list[Write]]) -> None:
    document, writes = case
    as_text = [(format_path(path), value, more) for path, value, more in writes]
    assert written(as_text, schema_of(document)) == written(writes, schema_of(document))


@given(in_order())
@examples(300)
def test_in_order_is_eager_and_writes_nothing_twice(case: tuple[Any, list[Write]]) -> None:
    document, writes = case
    writer = JsonWriter(schema_of(document))
    text = ""
    known: dict[str, Any] = {}
    strings: dict[Path, str] = {}
    for path, value, more in writes:
        text += writer.write(path, value, more)
        if isinstance(value, str):
            strings[path] = value = strings.get(path, "") + value
        set_at(known, path, at(document, path) if value is EMPTY else value)
        if value is not EMPTY:  # an empty container is shown together with what comes after it
            assert exact(shown(text)) == exact(known)
    assert exact(loads_unique(text + writer.close())) == exact(document)


def test_surrogate_halves_in_two_pieces_make_one_character() -> None:
    text = "x😀y\ud83d"
    halves = text.encode("utf-16-le", "surrogatepass")
    units = [halves[i : i + 2].decode("utf-16-le", "surrogatepass") for i in range(0, len(halves), 2)]
    joined = "".join(written([(("a",), unit, True) for unit in units]))
    assert json.loads(joined) == {"a": text}
    joined = "".join(written([(("a",), "".join(units), False)]))
    assert json.loads(joined) == {"a": text}


@given(words)
def test_strings_are_escaped_as_json_dumps_does(text: str) -> None:
    assert "".join(written([(("a",), text, False)])) == json.dumps(
        {"a": text}, ensure_ascii=False, separators=(",", ":")
    )


# -- order --------------------------------------------------------------------------------------------------------------


def test_other_values_wait_for_the_open_string_in_order_of_arrival() -> None:
    writes = [("$.a", "x", True), ("$.b", 1, False), ("$.c", "y", True), ("$.a", "z", False), ("$.c", "!", False)]
    assert written(writes) == ['{"a":"x', "", "", 'z","b":1,"c":"y', '!"', "}"]


def test_waiting_members_of_the_open_container_come_first() -> None:
    writes = [("$.a.x", "1", True), ("$.b", 2, False), ("$.a.y", 3, False), ("$.a.x", "", False)]
    assert written(writes) == ['{"a":{"x":"1', "", "", '","y":3},"b":2', "}"]


def test_a_waiting_value_is_replaced_before_it_is_written() -> None:
    writes = [("$.a", "x", True), ("$.b", 1, False), ("$.b", "t", True), ("$.b", "u", False), ("$.b", 2, False)]
    assert "".join(written(writes)) == '{"a":"x","b":2}'


def test_items_wait_for_the_items_before_them() -> None:
    writes = [("$.a[1].x", 1, False), ("$.b", 2, False), ("$.a[2]", 3, False), ("$.a[0]", 0, False)]
    assert written(writes) == ["", '{"b":2', "", ',"a":[0,{"x":1},3', "]}"]


def test_an_empty_item_waits_like_any_other() -> None:
    writes = [("$.a[1]", EMPTY, False), ("$.a[3]", 3, False), ("$.a[0]", 0, False), ("$.a[2].b[1]", 2, False)]
    assert json.loads("".join(written(writes))) == {"a": [0, {}, {"b": [None, 2]}, 3]}


def test_items_that_never_come_are_null() -> None:
    assert "".join(written([("$.a[2]", 1, False), ("$.a[0].b[1]", 2, False)])) == '{"a":[{"b":[null,2]},null,1]}'


def test_late_values_repeat_their_member_once() -> None:
    writes = [("$.a.x", 1, False), ("$.b", 2, False), ("$.a.y", 3, False), ("$.a.z.z", 4, False), ("$.c", 5, False)]
    assert written(writes) == ['{"a":{"x":1', '},"b":2', "", "", ',"c":5', ',"a":{"x":1,"y":3,"z":{"z":4}}}']


def test_a_late_value_repeats_no_more_than_its_own_member() -> None:
    writes = [("$.a.b.x", 1, False), ("$.a.c", 2, False), ("$.a.b.y", 3, False)]
    assert "".join(written(writes)) == '{"a":{"b":{"x":1},"c":2,"b":{"x":1,"y":3}}}'


def test_a_late_value_in_an_item_repeats_the_array() -> None:
    writes = [("$.o.a[0].x", 1, False), ("$.o.a[1].p.x", 2, False), ("$.o.a[1].q", 2, False),
              ("$.o.a[0].y", 3, False), ("$.o.a[1].p.y", 4, False)]  # fmt: skip
    assert "".join(written(writes)) == (
        '{"o":{"a":[{"x":1},{"p":{"x":2},"q":2}],"a":[{"x":1,"y":3},{"p":{"x":2,"y":4},"q":2}]}}'
    )


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [(1, 2, 2), (1, "x", "x"), ("x", "y", "xy"), ("x", 1, 1), (None, False, False), ("x", "", "x"), (1, 1.0, 1)],
)
def test_a_second_value_for_a_finished_place(first: Any, second: Any, result: Any) -> None:
    texts = written([("$.a", first, False), ("$.a", second, False)])
    assert json.loads("".join(texts)) == {"a": result}
    assert "".join(texts).count('"a"') == (1 if first == result else 2)


def test_a_string_goes_on_after_its_end() -> None:
    writes = [("$.a", "x", False), ("$.a", "y", True), ("$.a", "z", False), ("$.b", 1, False)]
    assert written(writes) == ['{"a":"x"', "", "", ',"b":1', ',"a":"xyz"}']


def test_a_scalar_ends_the_open_string_and_replaces_it() -> None:
    assert written([("$.a", "x", True), ("$.a", 1, False)]) == ['{"a":"x', '"', ',"a":1}']


def test_an_open_string_ends_with_the_document() -> None:
    writes = [("$.a", "x", True), ("$.b", "y", True), ("$.c.d", "z", True)]
    assert written(writes)[-1] == '","b":"y","c":{"d":"z"}}'
