from __future__ import annotations

import pytest

from callstream.testing.demo import DOCUMENT, main


def test_the_demo_shows_arguments_as_they_are_written_and_what_was_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pace", "2000"]) == 0
    shown = capsys.readouterr().out
    assert shown.index(DOCUMENT) < shown.index("all arguments are here") < shown.index("20/20")
    assert shown.count("completed") == 4


def test_the_demo_says_what_is_wrong_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pace", "0"]) == 2
    assert main(["--journal", "telepathy:"]) == 2
    assert "expected memory:, sqlite:///file.db or postgresql://" in capsys.readouterr().err
