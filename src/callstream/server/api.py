"""What the journal knows, as JSON: threads, runs, calls, and the agent."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callstream.calls import CallState
from callstream.errors import JournalError
from callstream.events import MessageReceived
from callstream.journal import Journal, RunRow, history
from callstream.server.health import JournalHealth
from callstream.server.requests import Access, choice, json_response, number, query_id
from callstream.server.routes import IdRoute
from callstream.view import RunView

MOST: Final = 1000
_TITLE: Final = 120
_RUNS_A_THREAD: Final = 5
"""How many runs are read for each thread asked for; if threads have more runs than that, the list may be shorter."""
_GRACE_SECONDS: Final = 0.5
_LOOKED_AT: Final = 20
"""A run's first message is among its first records."""
_TAGGED: Final = re.compile(r"\A\s*(?:<([a-z][\w-]*)>.*?</\1>\s*)+", re.DOTALL)
"""Tagged blocks at the beginning of a text, such as ``<system-reminder>…</system-reminder>``."""


class Api:
    """Shows each principal its own data and nothing else."""

    def __init__(self, journal: Journal, access: Access, agent: dict[str, Any], health: JournalHealth) -> None:
        self._journal = journal
        self._health = health
        self._access = access
        self._agent = agent
        self._titles: dict[str, str] = {}  # cached by run, since pages ask for them every few seconds

    def routes(self) -> list[Route]:
        guarded = partial(self._health.guarded, grace=_GRACE_SECONDS)
        return [
            Route("/api/agent", self.agent),
            Route("/api/threads", guarded(self.threads)),
            Route("/api/runs", guarded(self.runs)),
            IdRoute("/api/runs/{run_id}/view", guarded(self.view)),
            IdRoute("/api/runs/{run_id}", guarded(self.run)),
            Route("/api/calls", guarded(self.calls)),
            IdRoute("/api/calls/{call_id}", guarded(self.call)),
        ]

    async def agent(self, request: Request) -> Response:
        await self._access.principal(request)
        return json_response({**self._agent, "version": version("callstream")})

    async def threads(self, request: Request) -> Response:
        principal = await self._access.principal(request)
        most = number(request.query_params, "limit", 50, most=MOST)
        by_thread: dict[str, list[RunRow]] = {}
        for row in await self._journal.runs(principal=principal, limit=max(MOST, most * _RUNS_A_THREAD)):
            by_thread.setdefault(row.thread_id, []).append(row)
        awaiting = await self._journal.calls(principal=principal, states=[CallState.AWAITING], limit=MOST, newest=True)
        counts = Counter(call.thread_id for call in awaiting)
        listed = [await self._thread(each, rows, counts[each]) for each, rows in list(by_thread.items())[:most]]
        return json_response({"threads": listed})

    async def _thread(self, thread_id: str, rows: list[RunRow], awaiting: int) -> dict[str, Any]:
        return {
            "thread_id": thread_id,
            "title": await self._title(rows[-1]),
            "runs": len(rows),
            "active": rows[0].outcome is None,
            "outcome": rows[0].outcome,
            "awaiting": awaiting,
            "started_at": rows[-1].started_at,
            "updated_at": rows[0].ended_at or rows[0].started_at,
        }

    async def _title(self, row: RunRow) -> str | None:
        try:
            text = None if row.run_id in self._titles else await self._first_words(row.run_id)
        except JournalError:
            return None  # it is in an archive that is unavailable: a list can do without it
        if text is not None:
            if len(self._titles) >= MOST:
                self._titles.clear()
            self._titles[row.run_id] = text if len(text) <= _TITLE else f"{text[: _TITLE - 1]}…"
        return self._titles.get(row.run_id)

    async def _first_words(self, run_id: str) -> str | None:
        """The user's first words. Tagged text that coding agents add in the user's name counts only if there is no other."""
        found: str | None = None
        async for record in self._journal.read(run_id):
            match record.event:
                case MessageReceived(role="user", text=text) if text:
                    if own := _TAGGED.sub("", text, count=1):
                        return own
                    found = found or text
            if record.seq >= _LOOKED_AT:
                break
        return found

    async def runs(self, request: Request) -> Response:
        principal = await self._access.principal(request)
        asked = request.query_params
        rows = await self._journal.runs(
            principal=principal,
            thread_id=query_id(asked, "thread_id"),
            active={"true": True, "false": False, None: None}[choice(asked, "active", ("true", "false"))],
            limit=number(asked, "limit", 100, most=MOST),
        )
        return json_response({"runs": [asdict(row) for row in rows]})

    async def run(self, request: Request) -> Response:
        row = await self._access.run(request.path_params["run_id"], await self._access.principal(request))
        calls = await self._journal.calls(run_id=row.run_id)
        return json_response({**asdict(row), "calls": [asdict(call) for call in calls]})

    async def view(self, request: Request) -> Response:
        row = await self._access.run(request.path_params["run_id"], await self._access.principal(request))
        view = RunView()
        async for records in history(self._journal, [row]):
            for record in records:
                view.feed(record)
            await asyncio.sleep(0)  # reading from memory never waits, so other tasks would not get a turn
        return json_response(view.as_json())

    async def calls(self, request: Request) -> Response:
        principal = await self._access.principal(request)
        asked = request.query_params
        state = choice(asked, "state", tuple(CallState))
        found = await self._journal.calls(
            principal=principal,
            run_id=query_id(asked, "run_id"),
            thread_id=query_id(asked, "thread_id"),
            states=[CallState(state)] if state else None,
            limit=number(asked, "limit", 100, most=MOST),
            newest=True,
        )
        return json_response({"calls": [asdict(call) for call in found]})

    async def call(self, request: Request) -> Response:
        call = await self._access.call(request.path_params["call_id"], await self._access.principal(request))
        return json_response(asdict(call))
