"""The picture of the rooms is that of the code."""

from __future__ import annotations

import pytest

from tests.rooms import PICTURE, arrows, circles, draw, imports, storeys


def test_the_picture_in_the_docs_shows_the_imports_of_today() -> None:
    assert PICTURE.read_text() == draw(imports()), "run 'python -m tests.rooms'"


def test_a_circle_is_found_over_a_third_room_and_is_not_drawn() -> None:
    round_about = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert circles(round_about) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="these rooms import each other: a, b, c"):
        draw(round_about)


def test_a_room_stands_above_all_that_it_imports() -> None:
    rooms = {"top": {"low", "middle"}, "middle": {"low"}, "low": set[str](), "other": {"low"}}
    assert storeys(rooms) == [["top"], ["middle", "other"], ["low"]]
    assert arrows(rooms) == [("middle", "low"), ("other", "low"), ("top", "middle")]
