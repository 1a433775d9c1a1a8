"""A store's reader, and behind it the archive for what the store has no records of any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from callstream.calls import Call
from callstream.events import Record, in_order
from callstream.journal.archive.archive import Archive
from callstream.journal.filters import CallFilter
from callstream.journal.follow import Folded, Page
from callstream.journal.rows import call_with_pieces, find_folded_range, from_json, record_of
from callstream.journal.store import StoreReader
from callstream.journal.whole import WholeCall, WholeRecord, WholeRun

_EMPTIED = ("signature", "detail", "result", "error")
"""What the rows of calls in archived runs have lost."""


class ArchivedReader:
    """See ``StoreReader``. The store is asked first, since a run leaves it for the archive and never comes back; so a run
    that it knows and has no records of lies there.
    """

    def __init__(self, store: StoreReader, archive: Archive) -> None:
        self._store = store
        self._archive = archive
        self.call_log = store.call_log
        self.runs = store.runs
        self.taken = store.taken
        self.has_forgotten = store.has_forgotten
        self.heads = store.heads
        self.log = store.log
        self.writers = store.writers
        self.run_sizes = store.run_sizes
        self.forgotten = store.forgotten

    async def page(self, run_id: str, after: int, limit: int, is_first: bool) -> Page | Folded | None:
        page = await self._store.page(run_id, after, limit, is_first)
        if page is None or (isinstance(page, Page) and page.compacted and not page.records):
            run = (await self._archive.read([run_id])).get(run_id)
            if run is not None:
                return _page(run, after, limit, is_first=is_first)
        return page

    async def read_whole(self, run_ids: Sequence[str], merged: bool) -> list[Record]:
        found: dict[str, list[Record]] = {}
        for record in await self._store.read_whole(run_ids, merged):
            found.setdefault(record.run_id, []).append(record)
        missing = [run_id for run_id in run_ids if run_id not in found]
        if missing:
            for run_id, run in (await self._archive.read(missing)).items():
                found[run_id] = list(in_order(_records(run, run.records)))
        return [record for run_id in run_ids for record in found.get(run_id, ())]

    async def call(self, call_id: str) -> Call | None:
        call = await self._store.call(call_id)
        if call is None or call.run_id is None or not self._archive.is_named:
            return call
        run = (await self._archive.read([call.run_id])).get(call.run_id)
        whole = next((each for each in run.calls if each.call_id == call_id), None) if run is not None else None
        if run is None or whole is None:
            return call
        last = whole.args_seq or run.last_seq
        rows = [
            (seq, kind, body)
            for seq, _, _, number, kind, body, _ in run.records
            if whole.first_seq <= seq <= (last or 0) and (number == whole.number or seq == last)
        ]
        return call_with_pieces(_filled(call, whole), rows)

    async def calls(self, wanted: CallFilter, limit: int | None, newest: bool) -> list[Call]:
        calls = await self._store.calls(wanted, limit, newest)
        if not self._archive.is_named:
            return calls
        run_ids = {call.run_id: None for call in calls if call.run_id is not None}
        archived = await self._archive.read(list(run_ids)) if run_ids else {}
        whole = {each.call_id: each for run in archived.values() for each in run.calls}
        return [_filled(call, whole[call.call_id]) if call.call_id in whole else call for call in calls]

    async def whole_runs(self, run_keys: Sequence[int]) -> Sequence[WholeRun]:
        runs = await self._store.whole_runs(run_keys)
        missing = [run.run_id for run in runs if run.compacted and not run.records]
        archived = await self._archive.read(missing) if missing else {}
        return [_with_calls(archived[run.run_id], run.calls) if run.run_id in archived else run for run in runs]

    async def stats(self) -> dict[str, Any]:
        stats = await self._store.stats()
        return {**stats, "archive": (await self._archive.figures())._asdict()} if self._archive.is_named else stats


def _filled(call: Call, whole: WholeCall) -> Call:
    """The call with what its row has not any more. What its row has was said later."""
    result = None if whole.result is None else from_json(whole.result)
    return msgspec.structs.replace(
        call,
        signature=whole.signature if call.signature is None else call.signature,
        detail=whole.detail if call.detail is None else call.detail,
        result=result if call.result is None else call.result,
        error=whole.error if call.error is None else call.error,
    )


def _with_calls(run: WholeRun, rows: Sequence[WholeCall]) -> WholeRun:
    """The run with its calls as they are now."""
    packed = {call.number: call for call in run.calls}
    calls = [
        row._replace(**{name: getattr(packed[row.number], name) for name in _EMPTIED if getattr(row, name) is None})
        for row in rows
    ]
    return msgspec.structs.replace(run, calls=calls)


def _page(run: WholeRun, after: int, limit: int, *, is_first: bool) -> Page | Folded:
    ranges = [(first, seq) for seq, *_, first in run.records if first is not None]
    if is_first and after and (inside := find_folded_range(ranges, after)):
        return Folded(*inside)
    rows = [record for record in run.records if record[0] > after][:limit]
    return Page(_records(run, rows), not rows or rows[-1][0] == run.last_seq, compacted=True)


def _records(run: WholeRun, rows: Sequence[WholeRecord]) -> list[Record]:
    sources = {number: source for number, *source in run.sources}
    call_ids = {call.number: call.call_id for call in run.calls}
    found = []
    for seq, at_ms, number, call, kind, body, first_seq in rows:
        response_id, author, message_id = sources.get(number, (None, None, None))
        call_id = None if call is None else call_ids.get(call)
        columns = (seq, at_ms, kind, body, response_id, author, message_id, call_id, first_seq)
        found.append(record_of(run.run_id, run.started_at, columns))
    return found
