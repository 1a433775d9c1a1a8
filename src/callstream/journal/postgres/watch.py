"""Hearing of records that other processes have committed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from callstream.errors import JournalError
from callstream.journal.follow import Followers
from callstream.journal.postgres.link import Link, failure
from callstream.journal.store import StoreAway

_log = logging.getLogger("callstream.journal")

POLL_SECONDS = 0.025
"""How often the followed runs are looked at where nothing can be heard."""
_PULSE_SECONDS = 5.0
"""How often the listening connection is asked whether it is alive."""
_MAX_BACK_OFF = 1.0


class PostgresWatch:
    """Wakes followers: by NOTIFY on one listening connection, or by looking.

    ``own``: the server's process through which this one writes. What that says is known here.
    """

    def __init__(
        self,
        link: Link,
        sql: Mapping[str, str],
        channel: str,
        followers: Followers,
        run_of: Callable[[int], str | None],
        own: Callable[[], int | None],
    ) -> None:
        self._link = link
        self._sql = sql
        self._channel = channel
        self._followers = followers
        self._run_of = run_of
        self._own = own

    async def run(self) -> None:
        """Until it is cancelled. After every break all followers look once, because what was said meanwhile is lost."""
        back_off = 0.05
        complaint = ""
        while True:
            try:
                with failure(self._link.where):
                    if self._channel:
                        await self._listen()
                    else:
                        await self._look()
            except StoreAway:
                await asyncio.sleep(back_off)
                back_off = min(back_off * 2, _MAX_BACK_OFF)
            except JournalError as error:
                if self._channel:
                    _log.warning(
                        "LISTEN was refused, looking for new records every %g s instead: %s",
                        POLL_SECONDS,
                        error,
                    )
                    self._channel = ""
                else:
                    if complaint != (complaint := str(error)):
                        _log.warning("new records could not be looked for, trying again: %s", complaint)
                    self._followers.wake_all()  # what keeps them from reading they will be told
                    await asyncio.sleep(_MAX_BACK_OFF)
            else:
                back_off = 0.05

    async def _listen(self) -> None:
        """Returns when the connection is gone. It is made when a run is first followed."""
        await self._followers.any()
        connection = await self._link.connect()
        gone = asyncio.Event()
        connection.add_termination_listener(lambda _: gone.set())
        try:
            await connection.add_listener(self._channel, self._heard)
            self._followers.wake_all()
            while not gone.is_set():
                try:
                    await asyncio.wait_for(gone.wait(), _PULSE_SECONDS)
                except TimeoutError:
                    await connection.execute("SELECT 1", timeout=_PULSE_SECONDS)
        finally:
            connection.terminate()

    def _heard(self, connection: Any, pid: int, channel: str, payload: str) -> None:
        if pid == self._own():
            return  # followers here were told, and given the records
        run_ids = (self._run_of(int(key)) for key in payload.split(",") if key)
        self._followers.wake([run_id for run_id in run_ids if run_id is not None])

    async def _look(self) -> None:
        seen: dict[str, int] = {}
        while True:
            await self._followers.any()
            await asyncio.sleep(POLL_SECONDS)
            run_ids = list(self._followers.runs())
            async with self._link.reading() as connection:
                found = {row[0]: row[1] for row in await connection.fetch(self._sql["followed_runs"], run_ids)}
            self._followers.wake([run_id for run_id in run_ids if seen.get(run_id) != found.get(run_id)])
            seen = found
