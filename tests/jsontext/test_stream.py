"""The incremental JSON reader, held against its laws and against json.loads."""

from __future__ import annotations

import copy
import json
import sys
import tracemalloc
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from callstream.errors import UsageError, WireError
from callstream.jsontext.stream import Change, JsonStream

pytestmark = pytest.mark.filterwarnings("error")
relaxed = settings(max_examples=200, deadline=None)

# -- documents ----------------------------------------------------------------------------------------------------------

awkward_text = st.text(
    st.sampled_from(["a", "é", "😀", "\ud83d", "\ude00", '"', "\\", "/", "u", "\n", "\x00", "\x1f", "\x7f", "\u2028"]),
    max_size=8,
)
strings = st.text(max_size=12) | awkward_text
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**30, max_value=10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | strings
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4), max_leaves=12
)


@st.composite
def documents(draw: st.DrawFn, of: st.SearchStrategy[Any] = values) -> str:
    """A JSON text in any formatting."""
    text = json.dumps(
        draw(of),
        indent=draw(st.sampled_from([None, None, 0, 2, "\t"])),
        separators=draw(st.sampled_from([None, (",", ":"), (" ,\r\n", "\t: ")])),
        ensure_ascii=draw(st.booleans()),
    )
    return draw(st.sampled_from(["", " ", "\n\t"])) + text + draw(st.sampled_from(["", " ", "\r\n"]))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A JSON text with something left out, put in or written over."""
    text = draw(documents())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(junk) + text[at + draw(st.integers(0, 2)) :]
    return text


junk = st.sampled_from(
    [
        *"{}[]:,\"\\/0123456789-+.eEtfnuN \t\n\x00\x0b\xa0'",
        "true",
        "nul",
        "NaN",
        "Infinity",
        "\\ud83d",
        "\\uDE00",
        "\\u00",
        "",
    ]
)
jsonish = st.lists(junk, max_size=14).map("".join)
any_text = documents() | mutated() | jsonish


@st.composite
def split(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> list[str]:
    """A text in pieces; some of them are empty."""
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


# -- what a consumer does -------------------------------------------------------------------------------------------------


def outcome(pieces: Iterable[str], **limits: int) -> tuple[list[Change], Any]:
    """All changes, and the value that close() gave or the (text, position) of the error."""
    stream = JsonStream(**limits)
    changes: list[Change] = []
    try:
        for piece in pieces:
            changes += stream.feed(piece)
        return changes, ("value", repr(stream.close()))
    except WireError as error:
        assert stream.error is error
        return changes, ("error", str(error), error.position)


def merged(changes: list[Change]) -> list[Change]:
    """The changes with adjacent appends to one path joined."""
    result: list[Change] = []
    for change in changes:
        if change.kind == "append" and result and result[-1].kind == "append":
            assert result[-1].path == change.path
            result[-1] = Change(change.path, "append", result[-1].value + change.value)
        else:
            result.append(change)
    return result


class Replay:
    """A consumer that knows nothing but the changes."""

    def __init__(self) -> None:
        self.root: list[Any] = [None]
        self.open: tuple[str | int, ...] | None = None  # the string being written

    def apply(self, change: Change) -> None:
        holder: Any = self.root
        path = (0, *change.path)
        for step in path[:-1]:
            holder = holder[step]
        last: Any = path[-1]
        match change.kind:
            case "append" if self.open == change.path:
                holder[last] += change.value
            case "close" if isinstance(change.value, str):
                assert holder[last] == change.value
                self.open = None
            case "close":
                assert repr(holder[last]) == repr(change.value)
            case kind:
                assert change.value in ({}, []) if kind == "open" else not isinstance(change.value, (dict, list))
                self.open = change.path if kind == "append" else None
                if isinstance(holder, list) and last == len(holder):
                    holder.append(None)
                holder[last] = copy.copy(change.value)


def strict_loads(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise ValueError(name)

    return json.loads(text, parse_constant=refuse)


def grown(before: Any, after: Any) -> bool:
    """Whether nothing of the one was taken back in the other."""
    match before, after:
        case str(), str():
            return after.startswith(before)
        case list(), list():
            return len(before) <= len(after) and all(map(grown, before, after))
        case dict(), dict():
            keys = list(after)[: len(before)]
            return keys == list(before) and all(grown(before[key], after[key]) for key in keys)
        case _:
            return repr(before) == repr(after)


# -- laws -----------------------------------------------------------------------------------------------------------------


@relaxed
@given(split(any_text))
@example(["{} x"])
@example(['["abc\\', "x"])
@example(['["\\ud83d\\', "x"])
@example(["[1, 0", "1]"])
@example(["[tru", "x]"])
def test_any_split_gives_the_same_changes_and_the_same_end(pieces: list[str]) -> None:
    text = "".join(pieces)
    changes, end = outcome(pieces)
    whole_changes, whole_end = outcome([text])
    single_changes, single_end = outcome(text)
    assert merged(changes) == merged(whole_changes) == merged(single_changes)
    assert end == whole_end == single_end


@relaxed
@given(split(documents()))
def test_any_split_shows_the_same_value_for_the_same_prefix(pieces: list[str]) -> None:
    stream, single = JsonStream(), JsonStream()
    for piece in pieces:
        stream.feed(piece)
        for character in piece:
            single.feed(character)
        assert repr(stream.value) == repr(single.value)
        assert stream.complete == single.complete


@relaxed
@given(documents())
@example(json.dumps("😀" * 3))
@example('["\\ud83d\\ud83d\\ude00", "\\\\ud83d", "\\ud83dx", "\\ud83d\\n", "\\ud83d\\u0041", "\\ud83d"]')
@example("[-1.5e+10, 12, true, null]")
def test_preview_monotonic_over_every_prefix(text: str) -> None:
    stream = JsonStream()
    final = json.loads(text)
    before = None
    for character in text:
        stream.feed(character)
        preview = stream.value
        if before is not None:
            assert grown(before, preview)
        if preview is not None:
            assert grown(preview, final)
        before = preview
    assert repr(stream.close()) == repr(final)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", None),
        ("  ", None),
        ("{", {}),
        ('{"a', {}),
        ('{"a":', {}),
        ('{"a": "', {"a": ""}),
        ('{"a": "b', {"a": "b"}),
        ('{"a": "b\\', {"a": "b"}),
        ('{"a": "b\\n', {"a": "b\n"}),
        ('{"a": "b\\u00e', {"a": "b"}),
        ('{"a": "b\\u00e9', {"a": "bé"}),
        ('{"a": "\\ud83d', {"a": ""}),
        ('{"a": "\\ud83d\\', {"a": ""}),
        ('{"a": "\\ud83d\\ude0', {"a": ""}),
        ('{"a": "\\ud83d\\ude00', {"a": "😀"}),
        ('{"a": "\\uD83D\\uDE00', {"a": "😀"}),
        ('{"a": "\\ud83dx', {"a": "\ud83dx"}),
        ('{"a": "\\ude00', {"a": "\ude00"}),
        ('{"a": "\\ud83d\\n', {"a": "\ud83d\n"}),
        ('{"a": "\\ud83d"', {"a": "\ud83d"}),
        ('{"a": "\\\\ud83d', {"a": "\\ud83d"}),
        ('{"a": "\\\\\\ud83d', {"a": "\\"}),
        ('{"a": 1', {}),
        ('{"a": 1,', {"a": 1}),
        ('{"a": 1 ', {"a": 1}),
        ('{"a": -', {}),
        ("[1.", []),
        ("[1.5, tru", [1.5]),
        ("[1.5, true", [1.5, True]),
        ("[[", [[]]),
        ("[[], [[1], {", [[], [[1], {}]]),
        ("12", None),
        ("12 ", 12),
        ('"ab', "ab"),
        ("nul", None),
    ],
)
def test_preview_monotonic_shows_all_that_is_known(text: str, shown: Any) -> None:
    for pieces in ([text], text):
        stream = JsonStream()
        for piece in pieces:
            stream.feed(piece)
        assert repr(stream.value) == repr(shown)


@relaxed
@given(split(documents()), st.integers(0, 255), st.integers(0, 255))
def test_snapshot_immutable_whichever_are_asked_for_and_kept(pieces: list[str], asked: int, kept: int) -> None:
    stream = JsonStream()
    snapshots: list[tuple[Any, str]] = []
    changes: list[tuple[list[Change], str]] = []
    value = None
    for number, piece in enumerate(pieces):
        found = stream.feed(piece)
        changes.append((found, repr(found)))
        if asked >> number & 1:
            value = stream.value
            if kept >> number & 1:
                snapshots.append((value, repr(value)))
    assert repr(stream.close()) == repr(json.loads("".join(pieces)))
    assert [repr(value) for value, _ in snapshots] == [then for _, then in snapshots]
    assert [repr(found) for found, _ in changes] == [then for _, then in changes]


def test_snapshot_immutable_while_one_string_and_one_list_grow() -> None:
    stream = JsonStream()
    stream.feed('{"rows": [{"text": "')
    kept = []
    for number in range(300):
        stream.feed(f"{number},")
        kept.append(stream.value)
        if number % 3 == 0:
            stream.feed('"}, {"text": "')
    lengths = [sum(len(row["text"]) for row in value["rows"]) for value in kept]
    assert lengths == [sum(len(f"{n},") for n in range(number + 1)) for number in range(300)]


@pytest.mark.parametrize(("opening", "member"), [("[", "[{n}], "), ("{", '"{n}": {n}, ')])
def test_parse_linear_where_a_long_container_stays_open(opening: str, member: str) -> None:
    """A reader that looks at every piece is shown two copies in turn, not one more copy of everything at each look."""
    stream = JsonStream()
    stream.feed(f'{{"rows": {opening}')
    shown = set()
    value = stream.value
    for number in range(1000):
        stream.feed(member.format(n=number))
        value = stream.value
        assert len(value["rows"]) == number + 1
        shown.add((id(value), id(value["rows"])))
    assert len(shown) <= 2


def test_snapshot_immutable_where_only_a_part_of_it_is_kept() -> None:
    stream = JsonStream()
    stream.feed('{"rows": [')
    parts = []
    for number in range(50):
        stream.feed(f"{number}, ")
        parts.append(stream.value["rows"])
    assert parts == [list(range(number + 1)) for number in range(50)]


def test_snapshot_immutable_but_not_built_again_when_nothing_changed() -> None:
    stream = JsonStream()
    stream.feed('{"a": [1, 2], "b')
    value = stream.value
    stream.feed("cd")
    assert stream.value is value
    stream.feed('": "')
    assert stream.value["a"] is value["a"], "finished parts are shared"


@relaxed
@given(split(documents()))
@example(['{"a": 1, "a": [', "2], ", '"a": "x', 'y"}'])
def test_folding_the_changes_rebuilds_the_value_at_every_step(pieces: list[str]) -> None:
    stream, replay = JsonStream(), Replay()
    for piece in pieces:
        for change in stream.feed(piece):
            replay.apply(change)
        assert repr(replay.root[0]) == repr(stream.value)


# -- agreement with json.loads --------------------------------------------------------------------------------------------


@relaxed
@given(split(documents()))
def test_json_agrees_with_stdlib_on_valid_documents(pieces: list[str]) -> None:
    stream = JsonStream()
    for piece in pieces:
        stream.feed(piece)
    value = stream.close()
    assert repr(value) == repr(json.loads("".join(pieces)))
    assert stream.complete
    assert stream.close() is value is stream.value


@settings(max_examples=600, deadline=None)
@given(split(mutated() | jsonish))
def test_json_agrees_with_stdlib_on_what_is_wrong(pieces: list[str]) -> None:
    try:
        expected = ("value", repr(strict_loads("".join(pieces))))
    except ValueError:
        expected = None
    _, end = outcome(pieces)
    if expected is None:
        assert end[0] == "error"
        assert 0 <= end[2] <= len("".join(pieces))
    else:
        assert end == expected


WRONG = [
    ("", 0, "expected a value, got the end of the JSON text"),
    (" \n", 2, "expected a value, got the end of the JSON text"),
    ("\ufeff{}", 0, "expected a value in the JSON text, got '\\ufeff'"),
    ("nope", 1, "expected null in the JSON text, got 'no'"),
    ("tru", 3, "expected a value, got the end of the JSON text"),
    ("[true1]", 5, "expected , or ] in the JSON text, got '1'"),
    ("NaN", 0, "expected a value in the JSON text, got 'N'"),
    ("Infinity", 0, "expected a value in the JSON text, got 'I'"),
    ("-Infinity", 0, "expected a number of JSON, got '-'"),
    ("[01]", 1, "expected a number of JSON, got '01'"),
    ("[1.]", 1, "expected a number of JSON, got '1.'"),
    ("[.5]", 1, "expected a value or ] in the JSON text, got '.'"),
    ("[+1]", 1, "expected a value or ] in the JSON text, got '+'"),
    ("1e", 0, "expected a number of JSON, got '1e'"),
    ("--1", 0, "expected a number of JSON, got '--1'"),
    ("[12", 3, "expected the rest of an array or object, got the end of the JSON text"),
    ("[1,]", 3, "expected a value in the JSON text, got ']'"),
    ("[1 2]", 3, "expected , or ] in the JSON text, got '2'"),
    ("[", 1, "expected a value or ], got the end of the JSON text"),
    ("[}", 1, "expected a value or ] in the JSON text, got '}'"),
    ('{"a": 1]', 7, "expected , or } in the JSON text, got ']'"),
    ('{"a": 1,}', 8, "expected a key in double quotes in the JSON text, got '}'"),
    ("{'a': 1}", 1, 'expected a key in double quotes or } in the JSON text, got "\'"'),
    ('{"a" 1}', 5, "expected : in the JSON text, got '1'"),
    ('{"a', 3, "expected the rest of a key, got the end of the JSON text"),
    ('{"a\\q": 1}', 3, "expected an escape of JSON in a string, got '\\\\q'"),
    ('"ab', 3, "expected the rest of a string, got the end of the JSON text"),
    ('"ab\\', 4, "expected the rest of a string, got the end of the JSON text"),
    ('"a\nb"', 2, "expected control characters escaped in a string, got '\\n'"),
    ('"a\\x41"', 2, "expected an escape of JSON in a string, got '\\\\x'"),
    ('"\\u12"', 1, "expected an escape of JSON in a string, got '\\\\u12\"'"),
    ('"\\ud83d\\u12x"', 7, "expected an escape of JSON in a string, got '\\\\u12x'"),
    ("{} {}", 3, "expected nothing but white space in the JSON text, got '{'"),
    ("1 2", 2, "expected nothing but white space in the JSON text, got '2'"),
    ("[1]\xa0", 3, "expected nothing but white space in the JSON text, got '\\xa0'"),
    ("9" * 5000, 0, "expected an integer that Python can read, got one of 5000 digits"),
    ("[" + "9" * 5000 + "]", 1, "expected an integer that Python can read, got one of 5000 digits"),
]


@pytest.mark.parametrize(("text", "position", "message"), WRONG)
def test_json_agrees_with_stdlib_and_says_what_was_expected(text: str, position: int, message: str) -> None:
    with pytest.raises(ValueError):
        strict_loads(text)
    for pieces in ([text], text):
        _, end = outcome(pieces)
        assert end == ("error", f"{message} (at position {position})", position)


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-0",
        "-0.0",
        "1e5",
        "1E+2",
        "1e-7",
        "1e400",
        "123456789012345678901234567890",
        "[1E1,0e0]",
        '"\\/"',
        "\t[ ]\r\n",
    ],
)
def test_json_agrees_with_stdlib_on_numbers_and_small_things(text: str) -> None:
    for pieces in ([text], text):
        assert outcome(pieces)[1] == ("value", repr(json.loads(text)))


# -- changes ----------------------------------------------------------------------------------------------------------------


def test_changes_of_a_document() -> None:
    stream = JsonStream()
    assert stream.feed('{"a": "b') == [Change((), "open", {}), Change(("a",), "append", "b")]
    assert stream.feed("cd") == [Change(("a",), "append", "cd")]
    assert stream.feed("") == []
    assert stream.feed('e", "n": 1') == [Change(("a",), "append", "e"), Change(("a",), "close", "bcde")]
    assert stream.feed("2") == []
    assert stream.feed(', "l": [null, {}') == [
        Change(("n",), "set", 12),
        Change(("l",), "open", []),
        Change(("l", 0), "set", None),
        Change(("l", 1), "open", {}),
        Change(("l", 1), "close", {}),
    ]
    assert not stream.complete
    assert stream.feed("]}") == [
        Change(("l",), "close", [None, {}]),
        Change((), "close", {"a": "bcde", "n": 12, "l": [None, {}]}),
    ]
    assert stream.complete
    assert stream.feed(" \n") == []
    assert stream.close() == {"a": "bcde", "n": 12, "l": [None, {}]}


@pytest.mark.parametrize("pieces", [['""'], ['"', '"'], ["", '"', "", '"', ""]])
def test_an_empty_string_is_seen(pieces: list[str]) -> None:
    changes, end = outcome(pieces)
    assert changes == [Change((), "append", ""), Change((), "close", "")]
    assert end == ("value", "''")


def test_a_string_that_is_held_back_is_seen_as_empty() -> None:
    stream = JsonStream()
    assert stream.feed('["\\ud8') == [Change((), "open", []), Change((0,), "append", "")]
    assert stream.feed("3d\\ude00") == [Change((0,), "append", "😀")]


def test_scalars_that_are_the_whole_document() -> None:
    assert outcome(["tr", "ue"]) == ([Change((), "set", True)], ("value", "True"))
    assert outcome(["1", "2 "]) == ([Change((), "set", 12)], ("value", "12"))
    assert outcome(['"x', '"']) == (
        [Change((), "append", "x"), Change((), "close", "x")],
        ("value", "'x'"),
    )


def test_a_number_that_is_the_whole_document_is_finished_by_close() -> None:
    stream = JsonStream()
    before = stream.feed("12")
    assert before == []
    assert not stream.complete
    assert stream.value is None
    assert stream.close() == 12
    assert stream.complete
    assert stream.value == 12
    assert before == [], "a list of changes that was given away is not touched"
    assert stream.feed(" ") == []
    with pytest.raises(WireError, match="expected nothing but white space"):
        stream.feed("3")


def test_duplicate_key_opens_its_path_again_and_the_last_wins() -> None:
    text = '{"a": "x", "b": 2, "a": [1], "b": "y"}'
    stream = JsonStream()
    changes = stream.feed(text[:-3])
    assert [change.kind for change in changes if change.path == ("a",)] == ["append", "close", "open", "close"]
    assert changes[-1] == Change(("b",), "append", "")
    assert stream.value == {"a": [1], "b": ""}
    stream.feed(text[-3:])
    assert repr(stream.close()) == repr(json.loads(text)) == repr({"a": [1], "b": "y"})


def test_the_path_of_a_string_is_one_object() -> None:
    stream = JsonStream()
    paths = [change.path for piece in ('{"a": {"b": "x', "yz", "\\n", '"') for change in stream.feed(piece)]
    assert len({id(path) for path in paths if path == ("a", "b")}) == 1


# -- mistakes ---------------------------------------------------------------------------------------------------------------


def test_an_error_comes_after_the_changes_before_it_and_stays() -> None:
    stream = JsonStream()
    assert stream.feed('{"a": "good\x00bad') == [Change((), "open", {}), Change(("a",), "append", "good")]
    error = stream.error
    assert error is not None
    assert error.position == 11
    assert stream.value == {"a": "good"}
    assert not stream.complete
    for call in (lambda: stream.feed("plain"), lambda: stream.feed(""), stream.close, lambda: stream.feed('"}')):
        with pytest.raises(WireError) as caught:
            call()
        assert caught.value is error
    assert stream.value == {"a": "good"}


def test_an_error_without_changes_before_it_is_raised_at_once_and_stays() -> None:
    stream = JsonStream()
    assert stream.feed("[]") == [Change((), "open", []), Change((), "close", [])]
    assert stream.complete
    with pytest.raises(WireError) as first:
        stream.feed(" x")
    with pytest.raises(WireError) as second:
        stream.close()
    assert first.value is second.value is stream.error
    assert not stream.complete


def test_an_unfinished_document_cannot_go_on_after_close() -> None:
    stream = JsonStream()
    stream.feed("[1, 2")
    with pytest.raises(WireError) as first:
        stream.close()
    with pytest.raises(WireError) as second:
        stream.feed("]")
    assert first.value is second.value


# -- limits -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_depth_and_size_limits_depth(opening: str) -> None:
    changes, end = outcome([opening * 4], max_depth=3)
    assert len(changes) == 3
    assert end[2] == 3 * len(opening)
    assert "at most 3 deep" in end[1]
    assert outcome(["[[[]], [[]]]"], max_depth=3)[1] == ("value", "[[[]], [[]]]")
    _, end = outcome([opening * 100_000])
    assert end[2] == 256 * len(opening)


def test_depth_and_size_limits_no_recursion() -> None:
    depth = 3_000  # three times the interpreter's own limit
    stream = JsonStream(max_depth=depth)
    stream.feed("[" * depth + '"x')
    assert isinstance(stream.value, list)
    stream.feed('"' + "]" * depth)
    value = stream.close()
    found = 0
    while isinstance(value, list):
        value, found = value[0], found + 1
    assert (value, found) == ("x", depth)


def test_depth_and_size_limits_items() -> None:
    assert outcome(["[1,2,[1,2,3]]"], max_items=3)[1] == ("value", "[1, 2, [1, 2, 3]]")
    changes, end = outcome("[1,2,3,4]", max_items=3)
    assert [change.value for change in changes if change.kind == "set"] == [1, 2, 3]
    assert end == ("error", "expected arrays of at most 3 items, got a longer one (at position 6)", 6)


@given(split(st.just('{"a": "long text", "b": [1, 2, 3]}')), st.integers(1, 40))
@settings(deadline=None)
def test_depth_and_size_limits_length(pieces: list[str], limit: int) -> None:
    text = "".join(pieces)
    changes, end = outcome(pieces, max_length=limit)
    if limit >= len(text):
        assert end[0] == "value"
    else:
        assert end == (
            "error",
            f"expected a JSON text of at most {limit} characters, got more (at position {limit})",
            limit,
        )
        assert merged(changes) == merged(JsonStream().feed(text[:limit]))


@pytest.mark.parametrize("limits", [{"max_depth": 0}, {"max_items": 0}, {"max_length": 0}])
def test_depth_and_size_limits_must_be_positive(limits: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        JsonStream(**limits)


# -- cost -------------------------------------------------------------------------------------------------------------------


def operations(text: str, size: int, ask: bool) -> int:
    """How many functions, in Python and in C, reading the text in pieces of that size calls."""
    stream = JsonStream()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for piece in pieces:
            stream.feed(piece)
            if ask:
                stream.value  # noqa: B018
        stream.close()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("ask", [False, True])
@pytest.mark.parametrize("size", [1, 8])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: json.dumps({"content": "some text\n\\u \u00e9\U0001f600" * n}),
        lambda n: json.dumps([{"id": number % 10, "on": True, "tags": ["a", None]} for number in range(n)]),
        lambda n: json.dumps({f"key {number:06}": number % 10 for number in range(n)}),
        lambda n: "[" + "1" * n + ".5]",
        lambda n: "[" + " " * n + "]",
        lambda n: json.dumps({"\\" * n: 1}),
    ],
)
def test_parse_linear_in_calls(make: Any, size: int, ask: bool) -> None:
    single, double, fourfold = (operations(make(n), size, ask) for n in (200, 400, 800))
    assert abs((fourfold - double) / (double - single) - 2) < 0.05


@relaxed
@given(any_text)
@example('["\\ud83d\\ude0')
def test_parse_linear_since_hardly_anything_is_read_again(text: str) -> None:
    stream = JsonStream()
    try:
        for character in text:
            stream.feed(character)
            assert len(stream._held) <= 11
    except WireError:
        pass


@pytest.mark.skipif(sys.gettrace() is not None, reason="a traced interpreter does not grow strings in place")
def test_parse_linear_since_a_growing_string_is_not_copied_for_who_keeps_the_last_value() -> None:
    """The value kept and the one before it are there; a copy would be the third string of that length."""
    stream = JsonStream()
    tracemalloc.start()
    try:
        stream.feed('["' + "x" * 1_000_000)
        for _ in range(200):  # the interpreter grows strings in place in code that has run for a while
            preview = stream.value
            stream.feed("x" * 64)
        tracemalloc.reset_peak()
        preview = stream.value
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(preview[0]) == 1_012_800
    assert 2_000_000 < peak < 2_500_000
