"""Questions to a person, and waiting for the answer.

A question is a call of its own, in a thread beside that of the call that it is about. It is answered like any call that
awaits an answer: in the inspector, by ``callstream answer``, by a client that speaks AG-UI, at any replica. The answer runs
nothing: the process that asked looks for it in the journal.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import msgspec

from callstream.calls import Call, decision
from callstream.errors import AnswerRefused, CallstreamError
from callstream.events import CallCompleted, CallStarted, Question, RunStarted
from callstream.guards import APPROVAL
from callstream.journal import Journal
from callstream.runtime.core import RunCore

_EVERY: Final = 0.25
"""Seconds between two looks into the journal: the answer may come to another replica."""

_BESIDE: Final = " approvals"

Start: TypeAlias = Callable[[RunStarted], Awaitable[RunCore]]
"""Starts a run that is not the current one."""


class QuestionRef(msgspec.Struct, frozen=True):
    """A question: its ``call_id``, the thread that it is beside, and whose that is."""

    question_id: str
    beside: str
    principal: str | None

    @property
    def thread_id(self) -> str:
        return thread_of_questions(self.beside)


def thread_of_questions(thread_id: str) -> str:
    """The thread of the questions about calls of that thread."""
    return f"{thread_id}{_BESIDE}"


def may_have_questions(thread_id: str) -> bool:
    """Whether a thread may be one of questions, judging by its name."""
    return thread_id.endswith(_BESIDE)


class Questions:
    def __init__(self, journal: Journal, start: Start) -> None:
        self._journal = journal
        self._start = start

    async def ask(self, asked: QuestionRef, arguments: dict[str, Any], question: Question) -> None:
        """Asks, unless the question has been asked already. ``arguments``: those of the question's call."""
        if await self._journal.call(asked.question_id) is not None:
            return
        run = await self._start(RunStarted(asked.thread_id, asked.principal))
        try:
            made = CallStarted(asked.question_id, APPROVAL)
            await run.record([made, CallCompleted(asked.question_id, json.dumps(arguments, ensure_ascii=False))])
            await run.await_answer(asked.question_id, question)
        finally:
            await run.end(None)

    async def answer(self, asked: QuestionRef) -> Call:
        """Waits for the answer, and returns the question with it."""
        while True:
            call = await self._journal.call(asked.question_id)
            if call is not None and call.is_final:
                return call
            await asyncio.sleep(_EVERY)

    async def withdraw(self, asked: QuestionRef, paused: Call | None = None, error: str = "") -> None:
        """Ends the question, because no run waits for the answer any longer. A ``paused`` call fails."""
        run = await self._start(RunStarted(asked.thread_id, asked.principal))
        try:
            over = "the call is over; the answer is no longer needed"
            answers: list[tuple[str | Call, str]] = [(asked.question_id, over)]
            if paused is not None:
                answers.append((paused, error))
            for named, why in answers:
                try:
                    await run.answer(named, None, error=why)
                except CallstreamError:
                    pass  # it was answered at that moment, or never asked
        finally:
            await run.end(None)


def check_answer(call_id: str, result: Any, error: str | None) -> None:
    """Raises AnswerRefused for an answer that is neither yes nor no, nor a result for the tool."""
    if error is None and decision(_said(result)) is None and "payload" not in _said(result):
        raise AnswerRefused(
            call_id, f'{call_id} asks for yes or no: expected true, false or {{"approved": true}}, got {result!r:.100}'
        )


class Decision(msgspec.Struct, frozen=True):
    """What a person has said. Anything that is not clearly a yes is a no."""

    is_yes: bool
    said: dict[str, Any]
    error: str | None = None

    @classmethod
    def of(cls, answer: Call) -> Decision:
        said = _said(answer.result)
        return cls(answer.error is None and decision(said) is True, said, answer.error)


def _said(result: Any) -> dict[str, Any]:
    if isinstance(result, str):
        try:
            result = json.loads(result)
        except ValueError:
            pass
    return result if isinstance(result, dict) else {"approved": result}
