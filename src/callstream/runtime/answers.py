"""Which call an answer means.

Outside of Callstream a call has the wire's id, inside a ``call_id``. Wire ids may be reused in a thread, or be missing:
then the call that still lacks its result is meant. A result that is seen again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from callstream.calls import Call, CallState, Ledger
from callstream.errors import UsageError
from callstream.events import CallFailed, CallReturned, MessageReceived, ResultReceived, RunEvent
from callstream.journal import Journal

_MessageKey: TypeAlias = tuple[str, str, tuple[str, ...]]
_UNANSWERED = (CallState.ARGS_COMPLETE, CallState.EXECUTING, CallState.AWAITING)


async def is_of_thread(journal: Journal, call: Call, thread_id: str, principal: str | None) -> bool:
    """Whether a call belongs to that thread of that principal; without one, to that thread of anybody."""
    if call.thread_id != thread_id:
        return False
    return principal is None or bool(await journal.runs(run_id=call.run_id, principal=principal, limit=1))


class Answers:
    """Finds the calls of a thread: those of the run in its ledger, earlier ones in the journal.

    Two people may have threads of one name; with a ``principal``, only calls of his runs are found.
    """

    def __init__(self, ledger: Ledger, journal: Journal, thread_id: str, principal: str | None = None) -> None:
        self._ledger = ledger
        self._journal = journal
        self._thread_id = thread_id
        self._principal = principal
        self._messages: set[_MessageKey] = set()
        self._looked_up: set[str] = set()  # wire ids whose calls need not be looked for in the journal again
        self._coming: set[_MessageKey] = set()  # messages that are on their way into the journal
        self._answered: set[str] = set()  # calls whose results are on their way

    def is_new(self, message: MessageReceived) -> bool:
        """Whether the run has not had this message. Every request of a turn repeats the turn's messages."""
        key = _key(message)
        if key in self._messages or key in self._coming:
            return False
        self._coming.add(key)
        return True

    def keep(self, message: MessageReceived) -> None:
        """A message is in the journal."""
        key = _key(message)
        if key in self._coming:
            self._messages.add(key)

    def arrived(self, found: Iterable[MessageReceived | CallReturned | CallFailed]) -> None:
        """What was new in a request is no longer on its way: it was kept, or it may come again."""
        for event in found:
            if isinstance(event, MessageReceived):
                self._coming.discard(_key(event))
            else:
                self._answered.discard(event.call_id)

    async def call_for(self, result: ResultReceived) -> Call | None:
        """The call that a result in a request answers, None if there is none that lacks it."""
        own = [call for call in self._ledger if self._matches(call, result)]
        if own:
            lacking = [call for call in own if call.state in _UNANSWERED and call.call_id not in self._answered]
            # An earlier turn's result names a call for sure only while the id was used once.
            if not lacking or not (result.latest or len(own) == 1):
                return None
            self._answered.add(lacking[0].call_id)
            return lacking[0]
        if result.provider_id is None or result.provider_id in self._looked_up:
            return None
        earlier = await self._journal.calls(
            thread_id=self._thread_id,
            provider_id=result.provider_id,
            states=[CallState.AWAITING],
            principal=self._principal,
        )
        if not earlier or not result.latest:
            self._looked_up.add(result.provider_id)
            return None
        self._ledger.adopt(earlier[-1])
        self._answered.add(earlier[-1].call_id)
        return earlier[-1]

    async def awaiting(self, named: str) -> Call | None:
        """The call of this thread that awaits an answer under that name; None if it has had it."""
        if named in self._ledger:
            call: Call | None = self._ledger[named]
        else:
            call = await self._journal.call(named)
            if call is None or not await is_of_thread(self._journal, call, self._thread_id, self._principal):
                of_thread = await self._journal.calls(
                    thread_id=self._thread_id, provider_id=named, principal=self._principal
                )
                waiting = [known for known in of_thread if known.state is CallState.AWAITING]
                meant = waiting[0] if waiting else of_thread[-1] if of_thread else None
                # A listing leaves the arguments out, and whoever resumes the call executes it with them.
                call = None if meant is None else await self._journal.call(meant.call_id)
        if call is None:
            raise UsageError(f"no call {named!r} awaits an answer in thread {self._thread_id!r}")
        if call.is_final:
            return None
        if call.state is not CallState.AWAITING:
            raise UsageError(f"call {call.call_id!r} is {call.state}; it does not await an answer")
        self._ledger.adopt(call)
        return call

    async def has_come(self, answer: RunEvent) -> bool:
        """Whether the call that this would answer has its answer already, whoever brought it."""
        if not isinstance(answer, CallReturned | CallFailed):
            return False
        call = await self._journal.call(answer.call_id)
        return call is not None and call.is_final

    def _matches(self, call: Call, result: ResultReceived) -> bool:
        if result.provider_id is None or call.provider_id is None:
            return result.latest and call.name == result.name and (result.provider_id in (None, call.call_id))
        return call.provider_id == result.provider_id


def _key(message: MessageReceived) -> _MessageKey:
    return (message.role, message.text, message.attachments)
