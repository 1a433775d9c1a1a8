"""The calls of a run's earlier attempts, where the run goes on in another process: what each came to is given back once.

A tool that was running when its process died may have taken effect. It is settled by what was in force when it began, which
a newer build cannot make looser: it runs again, is asked what has become of it, a person decides, or it counts as
interrupted.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, Final

from callstream.calls import HAS_OUTCOME, Call, CallState
from callstream.errors import CallRejected, RunOver, ToolFailed
from callstream.events import CallAwaiting, CallExecuting, CallProgressed, Question, ReplayRule
from callstream.runtime.continuing import ASKED_AS, INTERRUPTED, Replay
from callstream.runtime.core import RunCore
from callstream.runtime.log import is_being_cancelled
from callstream.runtime.questions import Decision, QuestionRef, Questions
from callstream.tools import NOT_DONE, UNKNOWN, Reconcile, Tool

logger = logging.getLogger("callstream")

RUNNING = (CallState.EXECUTING, CallState.RUNNING_EARLY)

QUESTION: Final = (
    "The process stopped while this tool ran. It may or may not have taken effect. May it run again? If it has taken "
    'effect, say no, with its result: {"confirmed": false, "payload": {"result": …}}.'
)
REFUSED: Final = (
    "interrupted: the process stopped while this tool ran. It may or may not have taken effect, and a person has decided "
    "that it is not run again."
)
"""The result of such a tool then, for the model."""


class EarlierCalls:
    """Of one run."""

    def __init__(self, run: RunCore, questions: Questions) -> None:
        self._run = run
        self._questions = questions

    @property
    def _replay(self) -> Replay | None:
        keeping = self._run.keeping
        return None if keeping is None else keeping.replay

    def has(self, call_id: str) -> bool:
        """Whether an earlier attempt has made the call, and nothing was given back for it yet."""
        return self._replay is not None and self._replay.has(call_id)

    def hides(self, call_id: str) -> bool:
        """Whether the program does not know the call yet, because its turn was not given back."""
        return self._replay is not None and self._replay.hides(call_id)

    def asks(self, call_id: str, tool: Tool[Any] | None) -> bool:
        """Whether the host is to ask a person what becomes of the call, because its tool was running. True once."""
        replay = self._replay
        if replay is None or not replay.has(call_id) or self._run.call(call_id).state is not CallState.EXECUTING:
            return False
        if tool is None or not tool.replay == replay.rules.get(call_id) == "ask":
            return False
        replay.begun.add(call_id)
        return True

    async def settle(
        self,
        call_id: str,
        tool: Tool[Any] | None,
        *,
        is_safe: bool = False,
        as_result: Callable[[Any], Any] = lambda found: found,
    ) -> Call | None:
        """The call with its outcome, or executing if its tool has to run again; None if it has to run as any other.

        ``tool``: that of the call, as it is now. ``is_safe``: a host vouches for it. ``as_result`` makes a result of what
        ``reconcile`` finds.
        """
        run, replay = self._run, self._replay
        if replay is None or not replay.has(call_id):
            return None
        if run.call(call_id).state in RUNNING:
            now: ReplayRule = "safe" if is_safe else "unsafe" if tool is None else tool.replay
            began_as = replay.rules.get(call_id, "unsafe")
            reconcile = None if tool is None else tool.reconcile
            await self._settle_running(run.call(call_id), now if now == began_as else "unsafe", reconcile, as_result)
        elif run.call(call_id).state is CallState.AWAITING and call_id in replay.asked:
            await self._ask(run.call(call_id), replay)
        call = run.call(call_id)
        if call.state not in HAS_OUTCOME and call.state is not CallState.EXECUTING:
            return None
        (replay.given if call.state in HAS_OUTCOME else replay.begun).add(call_id)
        return call

    async def _settle_running(
        self, call: Call, rule: ReplayRule, reconcile: Reconcile | None, as_result: Callable[[Any], Any]
    ) -> None:
        run, replay = self._run, self._replay
        if rule == "safe" and call.state is CallState.EXECUTING:
            return
        if rule == "ask" and call.state is CallState.EXECUTING and replay is not None:
            await self._ask(call, replay)
            return
        if rule == "reconcile" and reconcile is not None:
            found = reconcile(call)
            found = await found if inspect.isawaitable(found) else found
            if found is NOT_DONE and call.state is CallState.EXECUTING:
                return
            if found is not UNKNOWN and found is not NOT_DONE:
                await run.complete(call.call_id, as_result(found))
                return
        logger.warning("run %s: tool %s was interrupted, and its outcome is unknown", run.run_id, call.name)
        run.engine.observers.tool_interrupted(run, call)
        await run.fail(call.call_id, INTERRUPTED)

    async def _ask(self, call: Call, replay: Replay) -> None:
        """Has a person decide, and waits for that. An earlier attempt may have asked already."""
        run, call_id = self._run, call.call_id
        if call.state is not CallState.AWAITING:
            replay.asked[call_id] = run.engine.new_id("call")
            question = Question("confirmation", QUESTION, metadata={ASKED_AS: replay.asked[call_id]})
            await run.record([CallAwaiting(call_id, question, is_paused=True)])
        asked = QuestionRef(replay.asked[call_id], run.thread_id, run.principal)
        deciding = asyncio.ensure_future(self._decision(call, asked))
        undo = run.on_stop(lambda reason: deciding.cancel())
        if run.is_ending:  # since it was last written to
            deciding.cancel()
        try:
            decision = await deciding
        except (asyncio.CancelledError, RunOver):
            if not run.is_elsewhere:
                await self._questions.withdraw(asked, run.call(call_id), INTERRUPTED)
            if is_being_cancelled():
                raise
            raise RunOver(f"run {run.run_id!r} was ended while a person was asked about tool {call.name!r}") from None
        finally:
            undo()
        payload = decision.said.get("payload")
        if decision.is_yes:
            await run.record([CallExecuting(call_id, "ask")])
        elif isinstance(payload, dict) and "result" in payload:
            await run.complete(call_id, payload["result"])
        else:
            await run.fail(call_id, REFUSED)

    async def _decision(self, call: Call, asked: QuestionRef) -> Decision:
        run = self._run
        about = {"tool": call.name, "arguments": call.args, "why": QUESTION}
        await self._questions.ask(asked, about, Question("confirmation", QUESTION, about=call.call_id))
        names = {"threadId": asked.thread_id, "toolCallId": asked.question_id, "message": QUESTION}
        await run.record([CallProgressed(call.call_id, {"asks": names})])
        logger.warning("run %s: tool %s was interrupted; a person is asked about it", run.run_id, call.name)
        return Decision.of(await self._questions.answer(asked))


def outcome_of(call: Call) -> Any:
    """What the tool of a call returned in an earlier attempt. Raises what stands for the error, if it failed."""
    if call.state is CallState.COMPLETED:
        return call.result
    if call.error in (INTERRUPTED, REFUSED):
        raise CallRejected(call.call_id, call.name, call.error, reason="interrupted")
    raise ToolFailed(call.name, call.error or "")
