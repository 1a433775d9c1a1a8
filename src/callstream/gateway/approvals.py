"""Questions of guards to people: see ``callstream.runtime.questions``."""

from __future__ import annotations

import asyncio
from functools import partial

from callstream import Callstream
from callstream.calls import Call
from callstream.events import Question
from callstream.guards import Verdict
from callstream.runtime import Run
from callstream.runtime.questions import Decision, QuestionRef, Questions


class Approvals:
    """Asks, and waits for the answer."""

    def __init__(self, callstream: Callstream) -> None:
        self._engine = callstream.engine
        self._questions = Questions(callstream.journal, partial(Run.start, callstream.engine, as_current=False))

    async def ask(self, call: Call, verdict: Verdict) -> str | None:
        """None if the tool may run, else why not."""
        run = self._engine.active_run(call.run_id or "")
        beside, principal = (call.call_id, None) if run is None else (run.thread_id, run.principal)
        asked = QuestionRef(self._engine.new_id("call"), beside, principal)
        about = {"tool": call.name, "arguments": call.args, "why": verdict.reason}
        message = f"May {call.name} run? {verdict.reason}"
        await self._questions.ask(asked, about, Question("confirmation", message, about=call.call_id))
        try:
            return _refusal(Decision.of(await self._questions.answer(asked)), verdict)
        except asyncio.CancelledError:
            await self._questions.withdraw(asked)
            raise


def _refusal(decision: Decision, verdict: Verdict) -> str | None:
    if decision.is_yes:
        return None
    comment = decision.said.get("comment") or decision.error
    return f"a person refused it ({comment})" if comment else f"a person refused it ({verdict.reason})"
