"""What reaches a run from outside: messages and results in requests, answers to calls that await one.

``Directory`` decides which call an id means. Wire ids may be missing: then the call that still lacks its result is meant. A
result that comes again changes nothing.

Inside Callstream, and for its clients, a call has a ``call_id`` that no other call has. Outside it has the wire's id: the
provider's, or the ``call_id`` where the provider sent none. Models and agents reuse wire ids, in a later turn or beside
another call, and two people may have threads with the same name. So an id is only meaningful within one thread of one
principal, and there is one rule for each side:

- ``find`` is for clients, which were shown a ``call_id``. Only if the thread has no such call is it taken for a wire id.
- ``find_by_wire_id`` is for models and hosts, which know nothing else. Of several calls the one that awaits an answer is
  meant: the first of the newest run that has one, since calls of one run are answered in their order. If none awaits an
  answer, the newest is meant; a discarded one only if there is no other.

``OrphanedCalls`` handles the calls that a process left in a thread when it died in the middle of their arguments. Their
abort hooks run in the process that continues the thread. A process counts as dead when its lease has run out; until then it
cannot be distinguished from a slow one. The thread does not wait for that: its next turn begins at once, and the run that
is still open is watched. If its owner ends it, there is nothing to do; if the lease runs out, the run is swept, and then the
hooks are notified. A run that goes on in another process takes care of its own calls (``Run.given_up``). So the hooks of
each call are notified once, where the call is discarded: after the sweep that ends its run, by the run's next attempt, or,
if nothing goes wrong, by the process that it began in.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from typing import Any, TypeAlias

from callstream.calls import LACKS_OUTCOME, Call, CallState, Ledger
from callstream.errors import JournalError, TransitionError, UsageError
from callstream.events import CallFailed, CallReturned, MessageReceived, RequestEvent, ResultReceived, RunEvent
from callstream.hooks import CallHooks
from callstream.journal import Journal, RunRow
from callstream.runtime.engine import Engine
from callstream.wire.transcript import json_text

logger = logging.getLogger("callstream")

_NOT_DISCARDED = tuple(state for state in CallState if state is not CallState.DISCARDED)


class Directory:
    """The calls of one thread of one principal; without a principal, of that thread of any principal.

    The calls that it returns have their arguments, unlike those of a journal's listing.
    """

    def __init__(self, journal: Journal, thread_id: str, principal: str | None) -> None:
        self.journal = journal
        self.thread_id = thread_id
        self.principal = principal
        self.own_runs: Container[str] = ()
        """Runs of the thread that are known to be the principal's, which saves asking the journal."""

    async def find(self, named: str) -> Call | None:
        """The call that a client means by an id."""
        return await self.find_by_call_id(named) or await self._find_on_wire(named)

    async def find_by_wire_id(self, wire_id: str) -> Call | None:
        """The call that a model or a host means by an id."""
        return await self._find_on_wire(wire_id) or await self.find_by_call_id(wire_id)

    async def find_by_call_id(self, call_id: str) -> Call | None:
        """The call with that ``call_id``, if it belongs to this thread."""
        call = await self.journal.call(call_id)
        if call is None or call.thread_id != self.thread_id:
            return None
        if self.principal is None or call.run_id in self.own_runs:
            return call
        return call if await self.journal.runs(run_id=call.run_id, principal=self.principal, limit=1) else None

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


Record: TypeAlias = Callable[[Sequence[RunEvent]], Awaitable[None]]
"""Records events of the run."""

_Received: TypeAlias = MessageReceived | CallReturned | CallFailed
_MessageKey: TypeAlias = tuple[str, str, tuple[str, ...]]


class Answers:
    """Finds the calls that results and answers are for: those of the run in its ledger, earlier ones in the directory."""

    def __init__(self, ledger: Ledger, directory: Directory) -> None:
        self._ledger = ledger
        self._directory = directory
        self._is_kept: dict[_MessageKey, bool] = {}  # false while a message is on its way into the journal
        self._looked_up: set[str] = set()  # wire ids whose calls need not be looked for in the journal again
        self._answered: set[str] = set()  # calls whose results are on their way into the journal
        self._made_up: dict[str, str] = {}  # ids that the program made up, and the calls that they were found to mean

    async def receive(self, events: Sequence[RequestEvent], record: Record) -> None:
        """Records what is new in a request: messages, and results of calls that have none yet."""
        found: list[_Received] = []
        latest = Counter(event.name for event in events if isinstance(event, ResultReceived) and event.latest)
        try:
            for event in events:
                if isinstance(event, MessageReceived):
                    if self._is_new(event):
                        found.append(event)
                elif (call := await self._call_for(event, is_only=latest[event.name] == 1)) is not None:
                    found.append(_outcome_of(call, event))
            if found:
                await self._keep(found, record)
            for kept in found:  # perhaps by an earlier attempt of the run, so that nothing was applied now
                if isinstance(kept, MessageReceived):
                    self.keep(kept)
        finally:  # anything that was not kept is taken when the request is sent again
            self._forget_coming(found)

    async def answer(
        self, named: str | Call, record: Record, result: Any, *, error: str | None, message_id: str | None
    ) -> bool:
        """Records the answer to the call of this thread that awaits one under that name; False if it has one already."""
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
                return False  # another run was faster
            raise
        return True

    def keep(self, message: MessageReceived) -> None:
        """Notes that a message is in the journal."""
        key = _key(message)
        if key in self._is_kept:
            self._is_kept[key] = True

    async def _keep(self, found: Sequence[_Received], record: Record) -> None:
        try:
            await record(found)
        except TransitionError:  # another process may have recorded one of these answers a moment ago
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
        """Called when the news of a request is no longer on its way: it was kept, or it may come again."""
        for event in found:
            if isinstance(event, MessageReceived):
                if not self._is_kept.get(_key(event), True):
                    del self._is_kept[_key(event)]
            else:
                self._answered.discard(event.call_id)

    async def _call_for(self, result: ResultReceived, *, is_only: bool) -> Call | None:
        """The call that a result in a request answers, None if there is none that lacks it.

        ``is_only``: the request brings no other result of that name.
        """
        own = [call for call in self._ledger if self._matches(call, result)]
        if own:
            lacking = [call for call in own if self._lacks_result(call)]
            # A result of an earlier turn identifies a call with certainty only if the id was used once.
            if not lacking or not (result.latest or len(own) == 1):
                return None
            self._answered.add(lacking[0].call_id)
            return lacking[0]
        wire_id = result.provider_id
        if wire_id is None:
            return None
        found = await self._awaiting_before(wire_id, result) or await self._unnamed(wire_id, result, is_only)
        if found is not None:
            self._answered.add(found.call_id)
        return found

    async def _awaiting_before(self, wire_id: str, result: ResultReceived) -> Call | None:
        """The call of an earlier run that awaits an answer under that id."""
        if wire_id in self._looked_up:
            return None
        earlier = await self._directory.find_awaiting(wire_id) if result.latest else None
        if earlier is None:
            self._looked_up.add(wire_id)
        else:
            self._ledger.adopt(earlier)
        return earlier

    async def _unnamed(self, wire_id: str, result: ResultReceived, is_only: bool) -> Call | None:
        """The call to which the provider gave no id, and the program one of its own, if it is the only one of that name.

        From then on the id means that call. The result has to be the only one of that name in the request, too: of two, one
        may belong to a call that was discarded.
        """
        if wire_id in self._made_up:
            known = self._ledger[self._made_up[wire_id]]
            return known if self._lacks_result(known) else None
        unnamed = [
            call
            for call in self._ledger
            if call.provider_id is None and call.name == result.name and self._lacks_result(call)
        ]
        is_certain = result.latest and is_only and len(unnamed) == 1
        if not is_certain or await self._directory.find_by_wire_id(wire_id) is not None:
            return None
        self._made_up[wire_id] = unnamed[0].call_id
        return unnamed[0]

    def _lacks_result(self, call: Call) -> bool:
        return call.state in LACKS_OUTCOME and not call.is_being_written and call.call_id not in self._answered

    async def awaiting(self, named: str | Call) -> Call | None:
        """The call of this thread that awaits an answer under that name; None if it has one already, or is executing."""
        call: Call | None
        if isinstance(named, Call):
            call = self._ledger.get(named.call_id) or named
        else:
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
        """Whether the call that this answers has its answer already."""
        if isinstance(answer, MessageReceived):
            return False
        call = await self._directory.journal.call(answer.call_id)
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


_SWEEP_EVERY = 1.0
"""Seconds between two checks whether the owner of a watched run has died."""


class OrphanedCalls:
    """Finds such calls and notifies their hooks, once per call in a process."""

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._told: set[str] = set()

    async def find(
        self, thread_id: str, principal: str | None = None, runs: Sequence[RunRow] | None = None
    ) -> list[Call]:
        """The calls of runs that were interrupted since the thread last went on. Call it before the thread has a new run.

        With a ``principal``, only that principal's: two people may have threads with the same name. ``runs``: the thread's
        runs, newest first, if they are known. Open runs of other processes are watched from now on.
        """
        journal = self._engine.journal
        await journal.open()
        if runs is None:
            runs = await journal.runs(thread_id=thread_id, principal=principal)
        if any(self._is_elsewhere(run) for run in runs):
            await journal.sweep()
            runs = await journal.runs(thread_id=thread_id, principal=principal)
        found: list[Call] = []
        for run in runs:
            if self._is_elsewhere(run):
                self._watch(run)
            elif run.outcome != "failed" or run.reason != "interrupted":
                break
            else:
                found += await self._given_up_in(run)
        return found

    async def tell(self, calls: Iterable[Call]) -> list[Call]:
        """Runs the abort hooks of these calls. Returns the calls without hooks: their tools may still become known."""
        unknown: list[Call] = []
        for call in calls:
            if call.call_id in self._told:
                continue
            hooks = self._engine.hooks_of(call.name)
            if not hooks:
                unknown.append(call)
                continue
            self._told.add(call.call_id)
            hooked = CallHooks(call, hooks, self._engine.hook_settings(call.name))
            hooked.abort(call, "interrupted")
            await hooked.settled()
        return unknown

    async def aclose(self) -> None:
        """Stops watching in this event loop."""
        loop = asyncio.get_running_loop()
        mine = [task for task in self._watching.values() if task.get_loop() is loop]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)

    def _is_elsewhere(self, run: RunRow) -> bool:
        return run.outcome is None and self._engine.active_run(run.run_id) is None

    async def _given_up_in(self, run: RunRow) -> list[Call]:
        """The calls that were discarded with the run's end. Hooks of calls discarded earlier were notified at that time."""
        journal = self._engine.journal
        listed = await journal.calls(run_id=run.run_id, states=[CallState.DISCARDED])
        last = [call for call in listed if call.reason == "interrupted" and call.updated_at == run.ended_at]
        whole = [await journal.call(call.call_id) for call in last]
        return [call for call in whole if call is not None]

    # -- a run whose owner may be dead --

    def _watch(self, run: RunRow) -> None:
        if run.run_id in self._watching:
            return
        logger.info("run %s of thread %s is still open in another process", run.run_id, run.thread_id)
        task = asyncio.create_task(self._tell_at_the_end(run.run_id), name=f"callstream watches {run.run_id}")
        self._watching[run.run_id] = task
        task.add_done_callback(lambda done: self._watching.pop(run.run_id, None))

    async def _tell_at_the_end(self, run_id: str) -> None:
        """Keeps trying while the journal is unavailable, which the journal itself logs: the run still has to be ended."""
        calls: list[Call] | None = None
        while calls is None:
            await asyncio.sleep(_SWEEP_EVERY)
            try:
                await self._engine.journal.sweep()
                calls = await self._given_up_at_the_end_of(run_id)
            except JournalError:
                pass
            except UsageError:
                return  # the journal was closed
        await self.tell(calls)

    async def _given_up_at_the_end_of(self, run_id: str) -> list[Call] | None:
        """None if the run is still open. No calls if its owner has ended it, or if it has been erased since."""
        rows = await self._engine.journal.runs(run_id=run_id, limit=1)
        if rows and rows[0].outcome is None:
            return None
        is_interrupted = rows and (rows[0].outcome, rows[0].reason) == ("failed", "interrupted")
        return await self._given_up_in(rows[0]) if is_interrupted else []
