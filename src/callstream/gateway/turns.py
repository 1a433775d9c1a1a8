"""The runs of programs that know nothing of runs, by conversation.

A run is a turn: from a request whose last word is a user's to the answer that calls no tool. Requests that bring results go
on in the run whose calls they answer. What is not answered in time is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from callstream import Callstream
from callstream.calls import LACKS_OUTCOME, CallState
from callstream.errors import CallstreamError
from callstream.events import RequestEvent, ResultReceived
from callstream.gateway.conversation import ConversationIds
from callstream.runtime import Run
from callstream.runtime.engine import OnRejected

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

    def answers_any(self, wire_ids: set[str | None]) -> bool:
        return any(call.wire_id in wire_ids for call in self.run.calls)


class Turns:
    """The turns of one gateway that have not ended."""

    def __init__(self, callstream: Callstream) -> None:
        self._callstream = callstream
        self._rejected: OnRejected = "say" if callstream.engine.guards else "forward"
        self._turns: list[Turn] = []
        self._endings: set[asyncio.Task[None]] = set()

    async def begin(self, ids: ConversationIds, principal: str | None, said: Sequence[RequestEvent]) -> Turn:
        """The turn of a request, which has an answer more under way from now on."""
        turn = self._going_on(ids, principal, said)
        if turn is None:
            await self._end_left(ids, principal)
            thread_id = ids.thread_id or self._callstream.new_id("thread")
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

    async def answered(self, turn: Turn, error: BaseException | None) -> None:
        """An answer of the turn has ended. Ends the turn if nothing is open, else lets it wait for results."""
        turn.answers -= 1
        turn.error = error
        if turn.answers:
            return
        if any(call.state in _UNANSWERED for call in turn.run.calls):
            turn.timer = turn.run.loop.call_later(_PATIENCE, self._give_up, turn)
        else:
            await self._end(turn)

    async def aclose(self) -> None:
        for turn in [*self._turns]:
            await self._end(turn)
        await asyncio.gather(*self._endings, return_exceptions=True)

    def _going_on(self, ids: ConversationIds, principal: str | None, said: Sequence[RequestEvent]) -> Turn | None:
        here = [turn for turn in self._turns if turn.principal == principal and turn.run.outcome is None]
        if ids.thread_id is not None:
            here = [turn for turn in here if turn.run.thread_id == ids.thread_id]
        if ids.turn_id is not None:
            return next((turn for turn in here if turn.turn_id == ids.turn_id), None)
        wire_ids = {event.provider_id for event in said if isinstance(event, ResultReceived) and event.latest}
        return next((turn for turn in reversed(here) if turn.answers_any(wire_ids - {None})), None)

    async def _end_left(self, ids: ConversationIds, principal: str | None) -> None:
        """A new turn of a conversation ends the turns before it that were not answered."""
        if ids.thread_id is None:
            return
        for turn in [*self._turns]:
            if turn.principal == principal and turn.run.thread_id == ids.thread_id and not turn.answers:
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
