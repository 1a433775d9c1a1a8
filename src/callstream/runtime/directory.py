"""Which call an id means.

Inside Callstream, and for its clients, a call has a ``call_id`` that no other call has. Outside it has the wire's id: the
provider's, or the ``call_id`` where the provider sent none. Models and agents use a wire id again, in a later turn or
beside another call, and two people may have threads of one name. So an id means something only in one thread of one
principal, and there is one rule for each side:

- ``find`` is for clients, who were shown a ``call_id``. Only if the thread has no such call may it be a wire id.
- ``find_by_wire_id`` is for models and hosts, who know nothing else. Of several calls the one that awaits an answer is
  meant: the first of the newest run that has one, since calls of one run are answered in their order. If none awaits an
  answer, the newest is meant; a discarded one only if there is no other.
"""

from __future__ import annotations

from callstream.calls import Call, CallState
from callstream.journal import Journal

_NOT_DISCARDED = tuple(state for state in CallState if state is not CallState.DISCARDED)


class Directory:
    """The calls of one thread of one principal; without a principal, of that thread of anybody.

    What it returns has its arguments, unlike a journal's listing.
    """

    def __init__(self, journal: Journal, thread_id: str, principal: str | None) -> None:
        self.journal = journal
        self.thread_id = thread_id
        self.principal = principal

    async def find(self, named: str) -> Call | None:
        """The call that a client means by an id."""
        return await self.find_by_call_id(named) or await self._find_on_wire(named)

    async def find_by_wire_id(self, wire_id: str) -> Call | None:
        """The call that a model or a host means by an id."""
        return await self._find_on_wire(wire_id) or await self.find_by_call_id(wire_id)

    async def find_by_call_id(self, call_id: str) -> Call | None:
        """The call of that ``call_id``, if it is of this thread."""
        call = await self.journal.call(call_id)
        if call is None or call.thread_id != self.thread_id:
            return None
        if self.principal is None or await self.journal.runs(run_id=call.run_id, principal=self.principal, limit=1):
            return call
        return None

    async def find_awaiting(self, wire_id: str) -> Call | None:
        """The call with that wire id that awaits an answer; None if none does."""
        awaiting = await self.journal.calls(
            thread_id=self.thread_id,
            principal=self.principal,
            provider_id=wire_id,
            states=[CallState.AWAITING],
        )
        if not awaiting:
            return None
        newest_run = awaiting[-1].run_id
        return await self.journal.call(next(call.call_id for call in awaiting if call.run_id == newest_run))

    async def find_newest(self, wire_id: str) -> Call | None:
        """The call with that wire id that started last; a discarded one only if there is no other."""
        for states in (_NOT_DISCARDED, (CallState.DISCARDED,)):
            newest = await self.journal.calls(
                thread_id=self.thread_id,
                principal=self.principal,
                provider_id=wire_id,
                states=states,
                limit=1,
                newest=True,
            )
            if newest:
                return await self.journal.call(newest[0].call_id)
        return None

    async def _find_on_wire(self, wire_id: str) -> Call | None:
        return await self.find_awaiting(wire_id) or await self.find_newest(wire_id)
