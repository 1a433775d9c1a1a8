from __future__ import annotations

import json
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callstream.errors import UsageError, WireError
from callstream.jsontext.path import Path, format_path
from callstream.jsontext.writer import EMPTY, JsonWriter

# -- a document as pieces, and a text as what is known of a document ----------------------------------------------------

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


def ending(text: str) -> str:
    """What ends the beginning of a document: the quote and the brackets that are open in it."""
    closers: list[str] = []
    in_string = False
    characters = iter(text)
    for character in characters:
        if in_string and character == "\\":
            next(characters)
        elif character == '"':
            in_string = not in_string
        elif not in_string and character in "{[":
            closers.append("}" if character == "{" else "]")
        elif not in_string and character in "}]":
            assert closers.pop() == character
    return '"' * in_string + "".join(reversed(closers))


def shown(text: str) -> Any:
    """What the beginning of a document shows. Fails where it is not the beginning of one, or has a name twice."""
    return loads_unique(text + ending(text)) if text else {}


def at(document: Any, path: Path) -> Any:
    for step in path:
        document = document[step]
    return document


def exact(value: Any) -> str:
    """A text that tells 1 from true, and whole floats not from integers, because JSON does not."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(value[key]) for key in sorted(value)}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return repr(plain(value))


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


def written(writes: list[tuple[Any, Any, bool]], schema: dict[str, Any] | None = None) -> list[str]:
    """The text of each write and of close(), after checking that every prefix is the beginning of a document."""
    writer = JsonWriter(schema)
    texts: list[str] = []
    for write in writes:
        texts.append(writer.write(*write))
        text = "".join(texts)
        assert not text or json.loads(text + ending(text)) is not ...
    texts.append(writer.close())
    "".join(texts).encode()
    return texts


def loads_unique(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), f"a name was written twice: {text}"
        return dict(pairs)

    return json.loads(text, object_pairs_hook=unique)


scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
words = st.text(max_size=6) | st.text(alphabet='ab"\\/\n\x00\x7f\u2028é😀', max_size=12)
documents = st.dictionaries(
    words,
    st.recursive(
        scalars | words,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
        max_leaves=12,
    ),
    max_size=5,
)
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
@settings(max_examples=300)
def test_any_order_gives_the_document(case: tuple[Any, list[Write]]) -> None:
    document, writes = case
    assert exact(json.loads("".join(written(writes, schema_of(document))))) == exact(document)


@given(any_order())
def test_path_text_is_taken_like_a_path(case: tuple[Any, list[Write]]) -> None:
    document, writes = case
    as_text = [(format_path(path), value, more) for path, value, more in writes]
    assert written(as_text, schema_of(document)) == written(writes, schema_of(document))


@given(in_order())
@settings(max_examples=300)
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


# -- what a value is ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (-0.0, "0"), (1e20, "100000000000000000000"), (0.5, "0.5"), (1e-7, "1e-07"), (-3, "-3"), (True, "true"),
     (2**64, "18446744073709551616"), (False, "false"), (None, "null"), ("", '""')],
)  # fmt: skip
def test_scalars(value: Any, text: str) -> None:
    assert "".join(written([("$.a", value, False)])) == f'{{"a":{text}}}'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_lacks(value: float) -> None:
    with pytest.raises(WireError, match="number that JSON can express"):
        JsonWriter().write("$.a", value, False)


def test_a_value_that_is_no_piece() -> None:
    with pytest.raises(UsageError, match="got dict"):
        JsonWriter().write("$.a", {}, False)  # type: ignore[arg-type]


def test_nothing_written_is_an_empty_object() -> None:
    assert written([]) == ["{}"]
    assert "".join(written([("$", EMPTY, False)])) == "{}"
    assert "".join(written([("$.a", EMPTY, True)])) == "{}"


def test_an_empty_container_is_an_object_until_an_index_comes() -> None:
    assert "".join(written([("$.a", EMPTY, False), ("$.b", 1, False)])) == '{"a":{},"b":1}'
    assert "".join(written([("$.a", EMPTY, False), ("$.a[0]", 1, False)])) == '{"a":[1]}'
    assert "".join(written([("$.a", EMPTY, False), ("$.a.x", 1, False), ("$.a", EMPTY, False)])) == '{"a":{"x":1}}'
    late = written([("$.a", EMPTY, False), ("$.b", 1, False), ("$.a[0]", 2, False)])
    assert "".join(late) == '{"a":{},"b":1,"a":[2]}'
    late = written([("$.c.a", 1, False), ("$.b", 1, False), ("$.c.d", EMPTY, False)], {})
    assert "".join(late) == '{"c":{"a":1},"b":1,"c":{"a":1,"d":{}}}'


def test_no_value_ends_a_string() -> None:
    writes = [
        ("$.a", "x", True),
        ("$.b", "y", True),
        ("$.b", EMPTY, False),
        ("$.a", EMPTY, False),
        ("$.a", EMPTY, True),
    ]
    assert written(writes) == ['{"a":"x', "", "", '","b":"y"', "", "}"]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"properties": {"a": {"type": "array"}}}, "[]"),
        ({"properties": {"a": {"type": "ARRAY"}}}, "[]"),
        ({"properties": {"a": {"type": ["null", "array"]}}}, "[]"),
        ({"properties": {"a": {"items": {}}}}, "[]"),
        ({"properties": {"a": {"properties": {}}}}, "{}"),
        ({"properties": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/x~1y"}]}}, "$defs": {"x/y": {"type": "array"}}}, "[]"),
        ({"properties": {"a": {"oneOf": [{"type": "object"}, {"type": "array"}]}}}, "{}"),
        ({"additionalProperties": {"type": "array"}}, "[]"),
        ({"additionalProperties": True}, "{}"),
        ({"allOf": [{"$ref": "#"}, {"properties": {"a": {"type": "array"}}}]}, "[]"),
        ({"properties": {"a": {"$ref": "#/$defs/none/deeper"}}}, "{}"),
        ({"properties": {"a": {"$ref": "https://example.com/schema"}}}, "{}"),
        (None, "{}"),
    ],
)  # fmt: skip
def test_the_schema_says_what_an_empty_container_is(schema: Any, text: str) -> None:
    assert "".join(written([("$.a", EMPTY, False)], schema)) == f'{{"a":{text}}}'


def test_the_schema_of_items() -> None:
    schema = {"properties": {"a": {"prefixItems": [{"type": "array"}], "items": {"type": "object"}}}}
    assert "".join(written([("$.a[0]", EMPTY, False), ("$.a[1]", EMPTY, False)], schema)) == '{"a":[[],{}]}'


# -- the document itself ------------------------------------------------------------------------------------------------


def test_the_document_is_an_array_when_the_first_step_is_an_index() -> None:
    assert written([("$[0]", "x", True), ("$[0]", "y", False), ("$[1].a", 1, False)]) == ['["x', 'y"', ',{"a":1', "}]"]
    assert "".join(written([("$[1]", 1, False)])) == "[null,1]"


def test_the_document_is_a_single_value() -> None:
    assert written([("$", "x", True), ("$", "y", False)]) == ['"x', 'y"', ""]
    assert written([("$", "x", True)]) == ['"x', '"']
    assert written([("$", 1, False)]) == ["1", ""]


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        (("$.a", 1), ("$.a.b", 2), r"\$\.a\.b goes into \$\.a, which holds 1"),
        (("$.a", "text"), ("$.a[0].b", 2), r'\$\.a\[0\]\.b goes into \$\.a, which holds "text"'),
        (("$.a.b", 1), ("$.a", 2), r"\$\.a is given 2, but holds an object"),
        (("$.a[0]", 1), ("$.a", "x"), r"\$\.a is given 'x', but holds an array"),
        (("$.a[0]", 1), ("$.a.b", 2), r"\$\.a\.b goes into \$\.a, which holds an array"),
        (("$.a", 1), ("$[0]", 2), r"\$\[0\] goes into \$, which holds an object"),
        (("$", 1), ("$.a", 2), r"\$\.a goes into \$, which holds 1"),
        (("$", 1), ("$", 2), r"\$ is given 2, but holds 1"),
        (("$.a", 1), ("$", 2), r"\$ is given 2, but holds an object"),
    ],
)
def test_a_contradiction_names_both(first: tuple[str, Any], second: tuple[str, Any], both: str) -> None:
    writer = JsonWriter()
    writer.write(*first, False)
    with pytest.raises(WireError, match=both):
        writer.write(*second, False)


def test_a_late_item_of_the_document_cannot_be_written() -> None:
    writer = JsonWriter()
    for path in ("$[0].a", "$[1]", "$[0].b"):
        writer.write(path, 1, False)
    with pytest.raises(WireError, match=r"\$\[0\]\.b came late"):
        writer.close()


def test_depth_and_size_limits() -> None:
    with pytest.raises(WireError, match=r"indices below 100000, got \$\.a\[1000000000\]"):
        JsonWriter().write("$.a[1000000000]", 1, False)
    with pytest.raises(WireError, match="indices below 100000"):
        JsonWriter().write(("a", -1), 1, False)
    with pytest.raises(WireError, match="at most 256 steps, got one of 257"):
        JsonWriter().write(("a",) * 257, 1, False)
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(WireError, match="at most 256 steps"):
        JsonWriter().grow(deep, False)
    writer = JsonWriter(max_depth=3, max_items=10)
    writer.write("$.a.b[9]", 1, False)
    writer.write("$.c[3]", 1, False)
    with pytest.raises(WireError, match=r"at most 10 missing items, more in \$\.c"):
        writer.close()


def test_a_hostile_order_stays_linear() -> None:
    """Members of closed containers, again and again: everything is written twice at most."""
    writer = JsonWriter()
    text = ""
    for number in range(2_000):
        text += writer.write(("a", f"k{number}"), number, False) + writer.write(("b", f"k{number}"), number, False)
    text += writer.close()
    assert len(json.loads(text)["a"]) == 2_000
    assert len(text) < 2 * len(json.dumps(json.loads(text)))


# -- a value that grows -------------------------------------------------------------------------------------------------


def prefixes(value: Any) -> list[Any]:
    """How a value looks while it is being written, in order."""
    if isinstance(value, dict):
        names = list(value)
        return [{}] + [
            {**{name: value[name] for name in names[:number]}, last: part}
            for number, last in enumerate(names)
            for part in prefixes(value[last])
        ]
    if isinstance(value, list):
        return [[]] + [[*value[:number], part] for number, last in enumerate(value) for part in prefixes(last)]
    if isinstance(value, str):
        return [value[:number] for number in range(len(value) + 1)]
    if isinstance(value, int) and value > 9 and not isinstance(value, bool):
        return [None, value // 10, value]
    return [None, value]


@given(documents, st.data())
def test_accumulated_args_give_the_difference(document: Any, data: st.DataObject) -> None:
    steps = prefixes(document)
    chosen = sorted(data.draw(st.lists(st.integers(0, len(steps) - 1), max_size=20)))
    writer = JsonWriter()
    text = ""
    for number in chosen:
        text += writer.grow(steps[number], True)
        shown(text)
        assert writer.grow(steps[number], True) == ""
    text += writer.grow(document, False)
    assert exact(shown(text)) == exact(document)
    assert writer.grow(document, False) == ""
    assert exact(loads_unique(text + writer.close())) == exact(document)


def test_accumulated_args_are_eager_up_to_a_number_or_null() -> None:
    writer = JsonWriter()
    values = [
        {"a": 1},
        {"a": 12},
        {"a": 12, "b": "x"},
        {"a": 12, "b": "xy", "c": {}},
        {"a": 12, "b": "xy", "c": {"d": [None]}},
    ]
    texts = [writer.grow(value, True) for value in values]
    assert texts == ["{", "", '"a":12,"b":"x', 'y","c":{', ""]
    assert writer.grow(values[-1], False) == '"d":[null'
    assert writer.close() == "]}}"


def test_accumulated_args_that_end_without_a_word_keep_what_was_held_back() -> None:
    writer = JsonWriter()
    assert writer.grow({"a": "x", "b": [1]}, True) == '{"a":"x"'
    assert writer.close() == ',"b":[1]}'


def test_accumulated_args_do_not_depend_on_the_order_of_names() -> None:
    writer = JsonWriter()
    text = writer.grow({"a": True, "b": "x"}, True)
    text += writer.grow({"c": 1, "b": "xy", "a": True}, False) + writer.close()
    assert text == '{"a":true,"b":"xy","c":1}'


def test_accumulated_args_may_be_changed_by_the_caller_afterwards() -> None:
    writer = JsonWriter()
    args: dict[str, Any] = {"a": "x"}
    text = writer.grow(args, True)
    args["a"] += "y"
    args["b"] = []
    text += writer.grow(args, True)
    args["b"].append(1)
    assert text + writer.grow(args, False) + writer.close() == '{"a":"xy","b":[1]}'


@pytest.mark.parametrize(
    ("first", "second", "change"),
    [
        ({"a": "x"}, {"a": "y"}, r"\$\.a changed from \"x\" to 'y'"),
        ({"a": "x", "b": True}, {"a": "xy", "b": True}, r"\$\.a changed from \"x\" to 'xy'"),
        ({"a": 1, "b": True}, {"a": 12, "b": True}, r"\$\.a changed from 1 to 12"),
        ({"a": 1, "b": True}, {"a": "1", "b": True}, r"\$\.a changed from 1 to '1'"),
        ({"a": True}, {"a": 1}, r"\$\.a changed from true to 1"),
        ({"a": "x"}, {"a": None}, r"\$\.a changed from \"x\" to None"),
        ({"a": "x"}, {}, r"\$\.a changed from \"x\" to nothing"),
        ({"a": "x"}, {"b": "x"}, r"\$\.a changed from \"x\" to nothing"),
        ({"a": [True, True]}, {"a": [True]}, r"\$\.a\[1\] changed from true to nothing"),
        ({"a": [True], "b": "x"}, {"a": [True, "z"], "b": "x"}, r"\$\.a\[1\] changed from nothing to 'z'"),
        ({"a": {}, "b": "x"}, {"a": {"c": {}}, "b": "x"}, r"\$\.a\.c changed from nothing to {}"),
        ({"a": {"b": "x"}}, {"a": "x"}, r"\$\.a changed from an object to 'x'"),
        ({"a": {}}, {"a": []}, r"\$\.a changed from an object to \[\]"),
        ({"a": "x"}, {"a": {}}, r"\$\.a changed from \"x\" to {}"),
    ],
)
def test_accumulated_args_that_are_no_extension(first: Any, second: Any, change: str) -> None:
    writer = JsonWriter()
    writer.grow(first, True)
    with pytest.raises(WireError, match=change):
        writer.grow(second, True)


def test_accumulated_args_are_an_object() -> None:
    with pytest.raises(WireError, match="expected an object of arguments, got 'x'"):
        JsonWriter().grow("x", True)


def test_the_dialects_are_not_mixed() -> None:
    writer = JsonWriter()
    writer.write("$.a", 1, False)
    with pytest.raises(UsageError, match=r"grow\(\) does not go with .* write\(\)"):
        writer.grow({"a": 1}, True)
    writer.close()
    assert writer.close() == ""
    with pytest.raises(UsageError, match=r"write\(\) does not go with .* close\(\)"):
        writer.write("$.b", 1, False)


# -- the shapes that Gemini's streamed arguments come in ------------------------------------------------------------------

SHAPES: dict[str, tuple[list[tuple[str, Any, bool]], Any]] = {
    "one string": ([("$.a", "Bos", True), ("$.a", "ton", True), ("$.a", "", False)], {"a": "Boston"}),
    "two strings": ([("$.a", "x", True), ("$.a", "", False), ("$.b", "y", True), ("$.b", "", False)], {"a": "x", "b": "y"}),
    "interleaved": ([("$.a", "x", True), ("$.b", "1", True), ("$.a", "y", False), ("$.b", "2", False)], {"a": "xy", "b": "12"}),
    "nested": ([("$.a.b", "x", False)], {"a": {"b": "x"}}),
    "item": ([("$.items[0]", "x", False)], {"items": ["x"]}),
    "two items": ([("$.items[0]", "x", True), ("$.items[0]", "", False), ("$.items[1]", "y", False)], {"items": ["x", "y"]}),
    "quoted key": ([("$['my key']", "x", False)], {"my key": "x"}),
    "number": ([("$.n", 3.0, False)], {"n": 3}),
    "bool": ([("$.b", True, False)], {"b": True}),
    "null": ([("$.z", None, False)], {"z": None}),
    "string and number": ([("$.a", "x", True), ("$.a", "", False), ("$.n", 0.5, False)], {"a": "x", "n": 0.5}),
    "end with data": ([("$.a", "x", True), ("$.a", "y", False)], {"a": "xy"}),
    "whole without arguments": ([], {}),
    "awkward text": ([("$.a", '"q"\n\U0001f600\u2028', False)], {"a": '"q"\n\U0001f600\u2028'}),
    "empty string": ([("$.a", "", False)], {"a": ""}),
    "empty container": ([("$.a", EMPTY, False)], {"a": {}}),
    "reference key": ([("$['$ref']", "x", False)], {"$ref": "x"}),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_gemini_shapes_as_text(name: str) -> None:
    writes, document = SHAPES[name]
    assert loads_unique("".join(written(writes))) == document


def test_parse_linear_every_piece_of_the_open_string_costs_the_same() -> None:
    """Counted in calls of Python code: a piece costs as many at the end of a long string as at its beginning."""

    def calls_of(write: Any) -> int:
        count = 0

        def profile(_frame: object, event: str, _argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(profile)
        try:
            write("$.a.b[0]", "12345678", True)
        finally:
            sys.setprofile(None)
        return count

    writer = JsonWriter()
    writer.write("$.a.b[0]", "", True)
    early = calls_of(writer.write)
    for _ in range(5_000):
        writer.write("$.a.b[0]", "12345678", True)
    assert calls_of(writer.write) == early
