"""What reaches a run from outside: messages and results in requests, answers to calls that await one.

Which call an id means is the directory's to say. Wire ids may be missing: then the call that still lacks its result is
meant. A result that is seen again changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

from callstream.calls import LACKS_OUTCOME, Call, CallState, Ledger
from callstream.errors import TransitionError, UsageError
from callstream.events import CallFailed, CallReturned, MessageReceived, RequestEvent, ResultReceived, RunEvent
from callstream.journal import Journal
from callstream.runtime.directory import Directory
from callstream.wire.argtext import json_text

Record: TypeAlias = Callable[[Sequence[RunEvent]], Awaitable[None]]
"""Keeps events of the run in its journal."""

_Received: TypeAlias = MessageReceived | CallReturned | CallFailed
_MessageKey: TypeAlias = tuple[str, str, tuple[str, ...]]


class Answers:
    """Finds the calls of a thread: those of the run in its ledger, earlier ones in the directory."""

    def __init__(self, ledger: Ledger, journal: Journal, directory: Directory) -> None:
        self._ledger = ledger
        self._journal = journal
        self._directory = directory
        self._is_kept: dict[_MessageKey, bool] = {}  # false while a message is on its way into the journal
        self._looked_up: set[str] = set()  # wire ids whose calls need not be looked for in the journal again
        self._answered: set[str] = set()  # calls whose results are on their way

    async def receive(self, events: Sequence[RequestEvent], record: Record) -> None:
        """Takes in what a request says: new messages, and results of calls that have none yet."""
        found: list[_Received] = []
        try:
            for event in events:
                if isinstance(event, MessageReceived):
                    if self._is_new(event):
                        found.append(event)
                elif (call := await self._call_for(event)) is not None:
                    found.append(_outcome_of(call, event))
            if found:
                await self._keep(found, record)
        finally:  # what was not kept is taken when the request is sent again
            self._forget_coming(found)

    async def answer(
        self, named: str, record: Record, result: Any, *, error: str | None, message_id: str | None
    ) -> bool:
        """The answer to the call of this thread that awaits one under that name; False if it has had it."""
        call = await self.awaiting(named)
        if call is None:
            return False
        answer = (
            CallReturned(call.call_id, result, message_id)
            if error is None
            else CallFailed(call.call_id, error, message_id)
        )
        try:
            await record([answer])
        except TransitionError:
            if await self._has_come(answer):
                return False  # another run was quicker
            raise
        return True

    def keep(self, message: MessageReceived) -> None:
        """A message is in the journal."""
        key = _key(message)
        if key in self._is_kept:
            self._is_kept[key] = True

    async def _keep(self, found: Sequence[_Received], record: Record) -> None:
        try:
            await record(found)
        except TransitionError:  # another process may have brought an answer of these a moment ago
            missing = [event for event in found if not await self._has_come(event)]
            if len(missing) == len(found):
                raise
            await record(missing)

    def _is_new(self, message: MessageReceived) -> bool:
        """Whether the run has not had this message. Every request of a turn repeats the turn's messages."""
        key = _key(message)
        if key in self._is_kept:
            return False
        self._is_kept[key] = False
        return True

    def _forget_coming(self, found: Iterable[_Received]) -> None:
        """What was new in a request is no longer on its way: it was kept, or it may come again."""
        for event in found:
            if isinstance(event, MessageReceived):
                if not self._is_kept.get(_key(event), True):
                    del self._is_kept[_key(event)]
            else:
                self._answered.discard(event.call_id)

    async def _call_for(self, result: ResultReceived) -> Call | None:
        """The call that a result in a request answers, None if there is none that lacks it."""
        own = [call for call in self._ledger if self._matches(call, result)]
        if own:
            lacking = [
                call
                for call in own
                if call.state in LACKS_OUTCOME and not call.is_being_written and call.call_id not in self._answered
            ]
            # An earlier turn's result names a call for sure only while the id was used once.
            if not lacking or not (result.latest or len(own) == 1):
                return None
            self._answered.add(lacking[0].call_id)
            return lacking[0]
        if result.provider_id is None or result.provider_id in self._looked_up:
            return None
        earlier = await self._directory.find_awaiting(result.provider_id) if result.latest else None
        if earlier is None:
            self._looked_up.add(result.provider_id)
            return None
        self._ledger.adopt(earlier)
        self._answered.add(earlier.call_id)
        return earlier

    async def awaiting(self, named: str) -> Call | None:
        """The call of this thread that awaits an answer under that name; None if it has had it, or is being executed."""
        call = self._ledger[named] if named in self._ledger else await self._directory.find(named)
        if call is None:
            raise UsageError(f"no call {named!r} awaits an answer in thread {self._directory.thread_id!r}")
        if call.is_final or (call.state is CallState.EXECUTING and call.call_id not in self._ledger):
            return None  # it has its answer, or another run has taken it up
        if call.state is not CallState.AWAITING:
            raise UsageError(f"call {call.call_id!r} is {call.state}; it does not await an answer")
        self._ledger.adopt(call)
        return call

    async def _has_come(self, answer: _Received) -> bool:
        """Whether the call that this would answer has its answer already."""
        if isinstance(answer, MessageReceived):
            return False
        call = await self._journal.call(answer.call_id)
        return call is not None and call.is_final

    def _matches(self, call: Call, result: ResultReceived) -> bool:
        if result.provider_id is None or call.provider_id is None:
            return result.latest and call.name == result.name and (result.provider_id in (None, call.call_id))
        return call.provider_id == result.provider_id


def _outcome_of(call: Call, result: ResultReceived) -> CallReturned | CallFailed:
    if not result.is_error:
        return CallReturned(call.call_id, result.content)
    content = result.content
    return CallFailed(call.call_id, content if isinstance(content, str) else json_text(content))


def _key(message: MessageReceived) -> _MessageKey:
    return (message.role, message.text, message.attachments)
