"""google-adk's services as runs use them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from google.adk.events.event import Event
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from callstream.adk import shielded


class Counting(SqliteSessionService):
    """Knows how many write at a time."""

    writing = most = 0

    async def append_event(self, session: Session, event: Event) -> Event:
        Counting.writing += 1
        Counting.most = max(Counting.most, Counting.writing)
        try:
            return await super().append_event(session=session, event=event)
        finally:
            Counting.writing -= 1


async def test_writes_into_one_sqlite_file_take_turns(tmp_path: Path) -> None:
    """Those who find it busy would wait in no order, and some would give up."""
    service: Any = shielded(Counting(str(tmp_path / "sessions.db")))
    names = [f"s{number}" for number in range(20)]
    sessions = await asyncio.gather(
        *(service.create_session(app_name="app", user_id="u", session_id=name) for name in names)
    )
    await asyncio.gather(*(service.append_event(session, Event(author="user")) for session in sessions))
    assert Counting.most == 1
    kept = [await service.get_session(app_name="app", user_id="u", session_id=name) for name in names]
    assert [len(session.events) for session in kept] == [1] * len(names)
