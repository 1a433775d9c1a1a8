"""Messages of the log in NATS, and one writer's sorted by run."""

from __future__ import annotations

import msgspec
import pytest

from callstream.journal.nats.log import WriterView, pack, parts_of, records_of, unpack
from callstream.journal.rows import Kind, RecordColumns


def piece(key: int, seq: int, text: str = "x", at_ms: int = 5) -> RecordColumns:
    return (key, seq, at_ms, 1, None, Kind.TEXT, text)


BATCH = [piece(1, 4), piece(1, 5), piece(2, 9, "ü\n"), (3, 2, 7, 0, 1, Kind.ARGS, '{"')]


def test_a_message_has_one_part_a_run_and_gives_its_records_back() -> None:
    parts = unpack(pack(parts_of(BATCH)))
    assert [(part.key, part.first, part.size, part.last) for part in parts] == [
        (1, 4, 2, 5),
        (2, 9, 1, 9),
        (3, 2, 1, 2),
    ]
    assert [record for part in parts for record in records_of(part)] == BATCH


def test_records_of_a_run_that_do_not_follow_or_have_another_time_are_parts_of_their_own() -> None:
    parts = parts_of([piece(1, 4), piece(1, 6), piece(1, 7, at_ms=6)])
    assert [(part.first, part.size) for part in parts] == [(4, 1), (6, 1), (7, 1)]


def test_an_empty_message_has_no_parts_and_another_program_is_told_apart() -> None:
    assert unpack(b"") == []
    with pytest.raises(msgspec.DecodeError):
        unpack(b"hello")


def viewed(*batches: list[RecordColumns]) -> WriterView:
    view = WriterView()
    for number, batch in enumerate(batches, 1):
        view.add(number * 10, parts_of(batch), float(number))
    return view


def test_a_run_is_read_from_any_number() -> None:
    view = viewed([piece(1, 2), piece(1, 3)], [piece(2, 2)], [piece(1, 5), piece(1, 6)])
    assert [seq for _, seq, *_ in view.read(1, 0, None)] == [2, 3, 5, 6]
    assert [seq for _, seq, *_ in view.read(1, 2, None)] == [3, 5, 6]
    assert [seq for _, seq, *_ in view.read(1, 3, 1)] == [5]
    assert view.read(1, 6, None) == view.read(9, 0, None) == []
    assert view.last(1) == (6, 5)
    assert view.last(9) is None


def test_a_message_counts_once() -> None:
    view = viewed([piece(1, 2)])
    view.add(10, parts_of([piece(1, 2)]), 2.0)
    assert len(view.read(1, 0, None)) == 1
    assert view.until == 10


def test_the_oldest_message_that_is_needed() -> None:
    view = viewed([piece(1, 2), piece(2, 2)], [piece(1, 3)], [piece(3, 2)])
    assert view.oldest == 10
    view.erase([2, 7])
    assert view.oldest == 10
    view.erase([1])
    assert view.oldest == 30
    view.erase([3])
    assert view.oldest == view.until == 30


def test_a_view_of_some_runs_knows_which() -> None:
    view = viewed([piece(1, 2), piece(2, 2)])
    assert view.has(1)
    assert view.has(9)
    view.narrow([1])
    view.add(20, parts_of([piece(1, 3), piece(2, 3)]), 2.0)
    assert len(view.read(1, 0, None)) == 2
    assert view.read(2, 0, None) == []
    assert view.has(1)
    assert not view.has(2)
    assert view.until == 20


def test_what_is_old_is_found_and_erased() -> None:
    view = viewed([piece(1, 2), piece(2, 2)], [piece(1, 3)])
    assert view.older(2.0) == [piece(1, 2), piece(2, 2)]
    assert view.age(5.0) == 4.0
    assert WriterView().age(5.0) == 0.0
    view.erase_older(2.0)
    assert view.older(9.0) == [piece(1, 3)]
    assert view.oldest == 20
