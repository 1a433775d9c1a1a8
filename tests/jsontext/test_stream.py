"""The incremental JSON reader, held against its laws."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callstream.jsontext.stream import Change, JsonStream

from .documents import any_text, documents, merged, outcome, relaxed, split

pytestmark = pytest.mark.filterwarnings("error")


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
