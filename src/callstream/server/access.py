"""Whose request it is, and what is theirs."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TypeAlias

from starlette.requests import Request

from callstream.calls import Call
from callstream.journal import RunRow
from callstream.server.agent import AppHost, Host
from callstream.server.problems import Problem, not_found
from callstream.server.requests import MAX_CALL_ID, is_id

Auth: TypeAlias = Callable[[Request], str | None | Awaitable[str | None]]
"""Turns a request into a principal, the name of the user who sent it; None to refuse it. Sync or async.

If it raises, the request fails with 500, without its text, and nothing runs.
"""


class Access:
    """With ``auth``, each principal sees its own threads only; without it there is one user, who sees all.

    Of a thread, the runs of the ``host``'s app are shown.
    """

    def __init__(self, auth: Auth | None, host: Host) -> None:
        self._auth = auth
        self._host = host
        self._journal = host.callstream.journal

    async def principal(self, request: Request) -> str | None:
        """Who asks. None only where nobody is asked who he is."""
        if self._auth is None:
            return None
        found = self._auth(request)
        principal = await found if inspect.isawaitable(found) else found
        if principal is not None and not isinstance(principal, str):
            raise TypeError(f"expected auth to return a principal's name or None, got {type(principal).__name__}")
        if not principal or not is_id(principal):
            raise Problem(HTTPStatus.UNAUTHORIZED, "unauthorized", "Authentication required.")
        return principal

    async def check_thread(self, thread_id: str, principal: str | None) -> None:
        """A thread belongs to the principal that began it; a new one is free."""
        if principal is None:
            return
        runs = await self._journal.runs(thread_id=thread_id)
        if runs and runs[-1].principal != principal:
            raise not_found("thread")

    async def runs_of(self, thread_id: str, principal: str | None) -> list[RunRow]:
        """The runs of a thread, the newest first."""
        runs = await self._journal.runs(thread_id=thread_id) if is_id(thread_id) else []
        if not runs or (principal is not None and runs[-1].principal != principal):
            raise not_found("thread")
        # Somebody else's can be among them only if he was refused after it had begun; it is not shown.
        own = await self._own(runs if principal is None else [row for row in runs if row.principal == principal])
        if not own:
            raise not_found("thread")
        return own

    async def thread_run(self, run_id: str, principal: str | None) -> RunRow:
        """A run that is to be shown as part of its thread."""
        own = await self._own([await self.run(run_id, principal)])
        if not own:
            raise not_found("run")
        return own[0]

    async def _own(self, rows: list[RunRow]) -> list[RunRow]:
        return await self._host.own_runs(rows) if isinstance(self._host, AppHost) else rows

    async def run(self, run_id: str, principal: str | None) -> RunRow:
        found = await self._journal.runs(run_id=run_id, limit=1) if is_id(run_id) else []
        if not found or (principal is not None and found[0].principal != principal):
            raise not_found("run")
        return found[0]

    async def call(self, call_id: str, principal: str | None) -> Call:
        call = await self._journal.call(call_id) if is_id(call_id, MAX_CALL_ID) else None
        if call is None:
            raise not_found("call")
        if principal is not None:
            owners = await self._journal.runs(run_id=call.run_id, limit=1)
            if not owners or owners[0].principal != principal:
                raise not_found("call")
        return call
