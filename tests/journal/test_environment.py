"""Where the environment says that the journal is."""

from __future__ import annotations

from pathlib import Path

import pytest

from callstream.errors import UsageError
from callstream.journal.environment import journal_url


def test_journal_url_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "journal"
    secret.write_text("postgresql://me:secret@database/calls\n")
    assert journal_url({}) is None
    assert journal_url({"CALLSTREAM_JOURNAL": " memory: "}) == "memory:"
    assert journal_url({"CALLSTREAM_JOURNAL_FILE": str(secret)}) == "postgresql://me:secret@database/calls"
    assert journal_url({"CALLSTREAM_JOURNAL_FILE": ""}) is None
    assert journal_url({"CALLSTREAM_JOURNAL": "memory:", "CALLSTREAM_JOURNAL_FILE": " "}) == "memory:"
    filled = {"CALLSTREAM_JOURNAL": "", "CALLSTREAM_JOURNAL_FILE": str(secret)}
    assert journal_url(filled) == "postgresql://me:secret@database/calls"


def test_journal_url_that_is_wrong_is_refused_and_not_repeated(tmp_path: Path) -> None:
    secret, binary = tmp_path / "journal", tmp_path / "binary"
    secret.write_text("postgresql://me:secret@database/calls\nand more\n")
    binary.write_bytes(b"\xff\xfe")
    for environment in (
        {"CALLSTREAM_JOURNAL": ""},
        {"CALLSTREAM_JOURNAL": "postgresql://me:secret@a", "CALLSTREAM_JOURNAL_FILE": str(secret)},
        {"CALLSTREAM_JOURNAL_FILE": str(secret)},
        {"CALLSTREAM_JOURNAL_FILE": str(binary)},
        {"CALLSTREAM_JOURNAL_FILE": str(tmp_path / "absent")},
        {"CALLSTREAM_JOURNAL_FILE": "\0"},
    ):
        with pytest.raises(UsageError) as refused:
            journal_url(environment)
        assert "CALLSTREAM_JOURNAL" in str(refused.value)
        assert "secret" not in str(refused.value)
