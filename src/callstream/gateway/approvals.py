"""Questions of guards to people.

A question is a call of the gateway's own, in a thread beside that of the call that it is about. It is answered as any call
that awaits an answer: in the inspector, by ``callstream answer``, by a client that speaks AG-UI, at any replica.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from callstream import Callstream
from callstream.calls import Call
from callstream.errors import CallstreamError
from callstream.events import CallCompleted, CallStarted, Question
from callstream.guards import APPROVAL, Verdict

_EVERY: Final = 0.25
"""Seconds between two looks at the journal: the answer may come to another replica."""


class Approvals:
    """Asks, and waits for the answer."""

    def __init__(self, callstream: Callstream) -> None:
        self._callstream = callstream

    async def ask(self, call: Call, verdict: Verdict) -> str | None:
        """None if the tool may run, else why not."""
        asked = self._callstream.engine.active_run(call.run_id or "")
        thread_id = f"{asked.thread_id if asked is not None else call.call_id} approvals"
        principal = None if asked is None else asked.principal
        run = await self._callstream.start(thread_id, principal=principal, as_current=False)
        question_id = self._callstream.new_id("call")
        try:
            about = {"tool": call.name, "arguments": call.args, "why": verdict.reason}
            await run.record(
                [CallStarted(question_id, APPROVAL), CallCompleted(question_id, json.dumps(about, ensure_ascii=False))]
            )
            message = f"May {call.name} run? {verdict.reason}"
            await run.await_answer(question_id, Question("confirmation", message, about=call.call_id))
        finally:
            await run.end(None)
        try:
            return _refusal(await self._answer(question_id), verdict)
        except asyncio.CancelledError:
            await self._withdraw(thread_id, principal, question_id)
            raise

    async def _answer(self, question_id: str) -> Call:
        while True:
            call = await self._callstream.journal.call(question_id)
            if call is not None and call.is_final:
                return call
            await asyncio.sleep(_EVERY)

    async def _withdraw(self, thread_id: str, principal: str | None, question_id: str) -> None:
        """Nobody waits for the answer any more, so nobody should be asked any more."""
        run = await self._callstream.start(thread_id, principal=principal, as_current=False)
        try:
            await run.answer(question_id, None, error="the call is over; nobody waits for the answer any more")
        except CallstreamError:
            pass  # it was answered at that moment
        finally:
            await run.end(None)


def _refusal(answer: Call, verdict: Verdict) -> str | None:
    result: Any = answer.result
    if isinstance(result, str):
        try:
            result = json.loads(result)
        except ValueError:
            pass
    said = result if isinstance(result, dict) else {"approved": result}
    if answer.error is None and (said.get("approved") is True or said.get("confirmed") is True):
        return None
    comment = said.get("comment") or answer.error
    return f"a person refused it ({comment})" if comment else f"a person refused it ({verdict.reason})"
