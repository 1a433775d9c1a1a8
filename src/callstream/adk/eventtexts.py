"""Text in google-adk's events that was not read from a model's response.

Custom agents, nodes of a Workflow and callbacks make events with text of their own, in pieces or whole. So does a callback
that changes what a model answered: where one may, the text is taken from the events and not from the model, so that
clients see what google-adk shows and nothing that was taken out before; ``judged`` does that for whole answers.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from google.adk.events.event import Event
from google.genai import types

from callstream.adk.invocations import Invocation, Step
from callstream.adk.knowncalls import Speaker
from callstream.errors import RunOver
from callstream.runtime import Run
from callstream.wire.transcript import Transcript


class EventTexts:
    """What events have said until now: of each invocation by model call, and by speaker for all others."""

    def __init__(self) -> None:
        self._passages: WeakKeyDictionary[Invocation, dict[object, _Passage]] = WeakKeyDictionary()

    async def read(self, invocation: Invocation, event: Event) -> None:
        """Records the text of an event, unless it was read from a model's response, or is the user's.

        A code executor makes events of an answer before that is over, which are all that is shown of it.
        """
        parts = [part for part in (event.content and event.content.parts) or () if part.text]
        if not parts or event.author == "user" or invocation.is_live or invocation.run.outcome is not None:
            return
        step = _step_of(invocation, event)
        if step is not None and step.was_read and not step.model_call.withholds:
            return
        key = step or Speaker.of(event)
        passages = self._passages.setdefault(invocation, {})
        passage = passages.get(key) or _Passage(invocation.run, event.author)
        try:
            if event.partial:
                passages[key] = passage
                await passage.preview(parts)
            else:
                passages.pop(key, None)
                await passage.end(parts)
        except RunOver:
            pass  # what is said after the end is not shown


def _step_of(invocation: Invocation, event: Event) -> Step | None:
    """The call of a model whose answer an event has; None if no model was asked for it."""
    step = invocation.step_of(event.actions)
    if step is None and any(part.executable_code for part in (event.content and event.content.parts) or ()):
        step = invocation.last_step(Speaker.of(event))  # a code executor makes another event of the answer
    return step


class _Passage:
    """One message of an event, or of several that are partial and one that is whole."""

    def __init__(self, run: Run, author: str) -> None:
        self._response = run.response("gemini", author=author, early="never")
        self._transcript = Transcript(run.engine.new_call_id)
        self._shown = {True: "", False: ""}  # reasoning and text

    async def preview(self, parts: list[types.Part]) -> None:
        for part in parts:
            self._shown[bool(part.thought)] += part.text or ""
            self._append(part.text or "", bool(part.thought))
        await self._record()

    async def end(self, parts: list[types.Part]) -> None:
        """Of the whole text, what was not shown yet. What was shown stays: if it was replaced, another message follows."""
        if not any(self._shown.values()):
            await self.preview(parts)
        else:
            for is_thought, shown in self._shown.items():
                whole = "".join(part.text or "" for part in parts if bool(part.thought) is is_thought)
                if shown.startswith(whole):
                    continue
                if not whole.startswith(shown):
                    self._transcript.end_messages()
                    shown = ""
                self._append(whole.removeprefix(shown), is_thought)
        self._transcript.end_messages()
        await self._record()

    def _append(self, text: str, is_thought: bool) -> None:
        if is_thought:
            self._transcript.append_reasoning(text)
        else:
            self._transcript.append_text(text)

    async def _record(self) -> None:
        await self._response.record(self._transcript.take())
