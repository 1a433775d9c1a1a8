"""The runs of programs that know nothing of runs, by conversation.

A run is a turn: from a request whose last word is a user's to the answer that calls no tool. Requests that bring results go
on in the run whose calls they answer. What is not answered in time is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from callstream import Callstream
from callstream.calls import LACKS_OUTCOME, CallState
from callstream.errors import CallstreamError
from callstream.events import ResultReceived
from callstream.gateway.conversation import ConversationIds, Conversations
from callstream.runtime import Run
from callstream.runtime.engine import OnRejected
from callstream.wire.requests import RequestTurn as Said
from callstream.wire.requests import last_turn

_UNANSWERED = LACKS_OUTCOME - {CallState.AWAITING}
_PATIENCE = 3600.0
"""How long a turn waits for the results of its calls: a person may have to approve of them."""


class Turn:
    """A run, and how many of its answers are under way."""

    def __init__(self, run: Run, turn_id: str | None, principal: str | None) -> None:
        self.run = run
        self.turn_id = turn_id
        self.principal = principal
        self.answers = 0
        self.error: BaseException | None = None
        self.timer: asyncio.TimerHandle | None = None

    def has_any(self, wire_ids: Collection[str]) -> bool:
        """Whether any of these calls was made in it."""
        return any(call.wire_id in wire_ids for call in self.run.calls)


class Turns:
    """The turns of one gateway that have not ended."""

    def __init__(self, callstream: Callstream) -> None:
        self._callstream = callstream
        self._rejected: OnRejected = "say" if callstream.engine.guards else "forward"
        self._conversations = Conversations()
        self._turns: list[Turn] = []
        self._endings: set[asyncio.Task[None]] = set()

    async def begin(
        self, ids: ConversationIds, principal: str | None, said: Sequence[Said], rest_of: str | None = None
    ) -> Turn:
        """The turn of a request, which has an answer more under way from now on. ``rest_of``: ``Provider.continued``."""
        turn = self._going_on(ids, principal, said, rest_of)
        if turn is None:
            thread_id = ids.thread_id or await self._thread_of(ids, principal, said)
            await self._end_left(thread_id, principal, said)
            run_id = None if ids.turn_id is None else await self._callstream.free_run_id(ids.turn_id)
            run = await self._callstream.start(
                thread_id, run_id, principal=principal, rejected=self._rejected, as_current=False
            )
            turn = Turn(run, ids.turn_id, principal)
            self._turns.append(turn)
        turn.answers += 1
        if turn.timer is not None:
            turn.timer.cancel()
            turn.timer = None
        return turn

    async def _thread_of(self, ids: ConversationIds, principal: str | None, said: Sequence[Said]) -> str:
        """The thread of a request that names none."""
        found = None if ids.previous is None else self._conversations.find(principal, ids, ())
        for wire_id in () if found is not None else _answered_ids(said):
            # A call of a run that has ended, or of another process.
            rows = await self._callstream.journal.calls(provider_id=wire_id, principal=principal, limit=1, newest=True)
            found = next((row.thread_id for row in rows), None)
            if found is not None:
                break
        found = found or self._conversations.find(principal, ids, said)
        return found or ids.group or self._callstream.new_id("thread")

    def remember(self, turn: Turn, said: Sequence[Said], answer_id: str | None) -> None:
        """A request of the turn was answered to its end."""
        self._conversations.remember(turn.principal, turn.run.thread_id, said, answer_id)

    async def answered(self, turn: Turn, error: BaseException | None) -> None:
        """An answer of the turn has ended. Ends the turn if nothing is open, else lets it wait for results."""
        turn.answers -= 1
        turn.error = error
        if turn.answers:
            return
        if turn.run.unfinished or any(call.state in _UNANSWERED for call in turn.run.calls):
            turn.timer = turn.run.loop.call_later(_PATIENCE, self._give_up, turn)
        else:
            await self._end(turn)

    async def aclose(self) -> None:
        for turn in [*self._turns]:
            await self._end(turn)
        await asyncio.gather(*self._endings, return_exceptions=True)

    def _going_on(
        self, ids: ConversationIds, principal: str | None, said: Sequence[Said], rest_of: str | None
    ) -> Turn | None:
        here = [turn for turn in self._turns if turn.principal == principal and turn.run.outcome is None]
        for turn in here:
            if rest_of in turn.run.unfinished:
                return turn
        if ids.thread_id is not None:
            here = [turn for turn in here if turn.run.thread_id == ids.thread_id]
        if ids.turn_id is not None:
            return next((turn for turn in here if turn.turn_id == ids.turn_id), None)
        wire_ids = _answered_ids(said)
        return next((turn for turn in reversed(here) if turn.has_any(wire_ids)), None)

    async def _end_left(self, thread_id: str, principal: str | None, said: Sequence[Said]) -> None:
        """Ends the turns whose calls lie behind a request of their conversation: nothing answers them any more.

        Programs ask for other things meanwhile, such as titles, in the name of the same conversation.
        """
        behind = {wire_id for entry in said for wire_id, _ in entry.calls if wire_id is not None}
        for turn in [*self._turns]:
            is_here = turn.principal == principal and turn.run.thread_id == thread_id and not turn.answers
            if is_here and turn.has_any(behind):
                await self._end(turn)

    def _give_up(self, turn: Turn) -> None:
        ending = asyncio.ensure_future(self._end(turn))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _end(self, turn: Turn) -> None:
        if turn not in self._turns:
            return
        self._turns.remove(turn)
        if turn.timer is not None:
            turn.timer.cancel()
        error = turn.error if isinstance(turn.error, Exception) else None
        try:
            await (
                turn.run.stop("the client left") if turn.error is not None and error is None else turn.run.end(error)
            )
        except CallstreamError:
            pass  # the journal ends it when it can


def _answered_ids(said: Sequence[Said]) -> list[str]:
    """The calls whose results a request brings."""
    results = [event for event in last_turn(said) if isinstance(event, ResultReceived) and event.latest]
    return [event.provider_id for event in results if event.provider_id is not None]
