"""Events into columns and back, and folding: pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.calls import Call
from callstream.errors import UsageError
from callstream.events import ArgsAppended, CallReturned, CallStarted, ReasoningAppended, RunEvent, TextAppended
from callstream.journal.rows import (
    ESCAPED,
    Kind,
    Stored,
    clean,
    event_of,
    find_folded_range,
    fold,
    join_pieces,
    prepare,
)
from callstream.journal.sql import queries

any_text = st.text(st.characters(exclude_categories=()))


@given(any_text)
def test_pieces_come_back_as_they_were(text: str) -> None:
    for event in (ArgsAppended("c", text), TextAppended("m", text), ReasoningAppended("m", text)):
        row = prepare(event)
        row.body.encode()
        assert "\0" not in row.body
        assert event_of(row.kind, row.body, "c", "m") == event


@given(any_text)
def test_events_come_back_as_they_were(text: str) -> None:
    event: RunEvent = CallReturned("c", {"a": [text, {text: None}]})
    row = prepare(event)
    row.body.encode()
    assert "\0" not in row.body
    assert event_of(row.kind, row.body, None, None) == event


@given(any_text)
def test_clean_text_can_be_stored_and_differs_only_where_it_must(text: str) -> None:
    cleaned = clean(text)
    assert cleaned is not None
    cleaned.encode()
    assert "\0" not in cleaned
    if "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text):
        assert cleaned == text


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "text", "reasoning", "other"]), any_text), max_size=30))
def test_folding_keeps_the_text_of_each_and_the_place_of_the_last(parts: list[tuple[str, str]]) -> None:
    rows = []
    for seq, (whose, text) in enumerate(parts, 1):
        match whose:
            case "text":
                row, call, message = prepare(TextAppended("m", text)), None, "m"
            case "reasoning":
                row, call, message = prepare(ReasoningAppended("m", text)), None, "m"
            case "other":
                row, call, message = prepare(CallReturned("x", text)), None, None
            case _:
                row, call, message = prepare(ArgsAppended(whose, text)), ord(whose), None
        rows.append(Stored(seq, seq * 10, 1, call, row.kind, row.body, message))
    after = fold(rows)
    assert [row.seq for row in after] == sorted(row.seq for row in after)
    for whose in ("a", "b", "text", "reasoning"):
        kind = {"text": Kind.TEXT, "reasoning": Kind.REASONING}.get(whose, Kind.ARGS)
        call = ord(whose) if kind is Kind.ARGS else None
        mine = [row for row in after if row.kind & ~ESCAPED == kind and row.call == call]
        seqs = [seq for seq, part in enumerate(parts, 1) if part[0] == whose]
        assert len(mine) == bool(seqs)
        if seqs:
            assert join_pieces([(mine[0].kind, mine[0].body)]) == "".join(text for name, text in parts if name == whose)
            assert (mine[0].seq, mine[0].at_ms) == (seqs[-1], seqs[-1] * 10)
            assert mine[0].first_seq == (seqs[0] if len(seqs) > 1 else None)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)).map(lambda p: (p[0], p[0] + p[1])), max_size=8),
    st.integers(0, 60),
)
def test_folded_range_can_be_read_from_its_beginning(ranges: list[tuple[int, int]], after: int) -> None:
    found = find_folded_range(ranges, after)
    assert (found is not None) == any(first <= after < last for first, last in ranges)
    if found is not None:
        assert found[0] <= after < found[1]
        assert find_folded_range(ranges, found[0] - 1) is None


def test_ids_that_no_database_can_hold_are_refused() -> None:
    wrong: list[tuple[RunEvent, str | None, str | None]] = [
        (CallStarted("a\0", "t"), None, None),
        (CallStarted("a", "t", "\ud800"), None, None),
        (TextAppended("m\0", "x"), None, None),
        (ArgsAppended("\ud800", "x"), None, None),
        (CallReturned("\0"), None, None),
        (ArgsAppended("c", "x"), "\ud800", None),
        (ArgsAppended("c", "x"), None, "\0"),
    ]
    for event, response_id, author in wrong:
        with pytest.raises(UsageError, match="an id must be text"):
            prepare(event, response_id, author)


def test_every_field_of_a_call_has_a_column() -> None:
    """A new field of Call must be given a column, or be left to the log on purpose."""
    left_out = {"args_json", "run_id", "thread_id"}
    for dialect in ("sqlite", "postgres"):
        listed = queries(dialect)["list_calls"]  # type: ignore[index]
        for field in set(Call.__struct_fields__) - left_out:
            assert f"tool_call.{field}" in listed


def test_queries_have_the_same_names_in_both_dialects() -> None:
    """All but those in which the dialects differ: PostgreSQL writes a batch by one function, and takes a turn for that; SQLite
    writes it table by table, and reads many runs so.
    """
    sqlite, postgres = set(queries("sqlite")), set(queries("postgres"))
    written_one_by_one = {"insert_run", "check_runs", "end_run", "insert_record", "insert_source"}
    written_one_by_one |= {"insert_call", "advance_call", "count_active"}
    table_by_table = {"read_logs", "read_archives"}
    assert sqlite - postgres == written_one_by_one | table_by_table
    assert postgres - sqlite == {"append", "give_back", "take_turn", "read_runs", "sync_commit"}
