"""The answer of a model as the application shows it: recorded from google-adk's event, after all who may change it.

The model's own answer was withheld until now. It says which calls are whole and fit; the event says what is shown: a call
that is not in it was taken out, and arguments that it changes are the arguments.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.adk.events.event import Event
from google.genai import types

from callstream.adk.invocations import Invocation, Step
from callstream.adk.partialcall import as_written
from callstream.adk.partials import signature_of
from callstream.calls import Call, CallState
from callstream.errors import RunOver
from callstream.wire.argtext import json_text
from callstream.wire.transcript import Transcript


async def record_judged(invocation: Invocation, step: Step, event: Event) -> None:
    """Records a whole event that google-adk made of a withheld answer."""
    if event.partial or invocation.run.outcome is not None:
        return
    try:
        await _Answer(invocation, step).record(event)
    except RunOver:
        pass  # what is said after the end is not shown


class _Answer:
    def __init__(self, invocation: Invocation, step: Step) -> None:
        self._invocation = invocation
        self._step = step
        self._wanted_id = ""
        self._transcript = Transcript(lambda: self._wanted_id)
        asked = step.model_call
        self._response = invocation.run.response("gemini", author=asked.author, early="never", own_tools=asked.tools)

    async def record(self, event: Event) -> None:
        drafts = self._step.calls()
        bound: list[tuple[str, str]] = []
        for part in _parts(event):
            if part.function_call is not None:
                bound.append((part.function_call.id or "", self._call(part, part.function_call, drafts)))
            elif part.text and part.thought:
                self._transcript.append_reasoning(part.text)
            elif part.text:
                self._transcript.append_text(part.text)
        self._lost()
        usage = event.usage_metadata.model_dump(mode="json", exclude_none=True) if event.usage_metadata else None
        self._transcript.end_response(event.finish_reason.name if event.finish_reason else None, usage)
        await self._response.record(self._transcript.take())
        for function_call_id, local in bound:
            self._invocation.known_calls.bind(self._step.speaker, function_call_id, self._response.call_ids[local])

    def _call(self, part: types.Part, shown: types.FunctionCall, drafts: list[Call]) -> str:
        draft = next((each for each in drafts if each.wire_id == shown.id), None)
        if draft is not None:
            drafts.remove(draft)
        args = as_written(shown.args or {}, None if draft is None else draft.args)
        is_as_written = draft is not None and args == (draft.args or {})
        self._wanted_id = shown.id or ""
        provider_id = shown.id if draft is None else draft.provider_id
        signature = (draft and draft.signature) or signature_of(part)  # the model wants it back, whatever is shown
        call = self._transcript.open_call(shown.name, provider_id, signature=signature)
        if draft is not None and _is_refused(draft, is_as_written=is_as_written):
            if args:
                self._transcript.append_args(call, json_text(args))
            self._transcript.discard_call(call, draft.reason or "malformed", draft.detail)
        else:
            written = draft.args_json if draft is not None and is_as_written else None
            self._transcript.append_args(call, written or json_text(args))
            self._transcript.complete_whole(call)
        return call.call_id

    def _lost(self) -> None:
        """Calls that the model did not finish and that end the invocation. Of their arguments nothing is shown."""
        for lost in self._step.taken_out:
            self._wanted_id = lost.call_id
            call = self._transcript.open_call(lost.name, lost.provider_id)
            self._transcript.discard_call(call, lost.reason or "truncated", lost.detail)
        self._step.taken_out = []


def _is_refused(draft: Call, *, is_as_written: bool) -> bool:
    """Whether the tool of a call must not run. Arguments that do not fit may have been replaced by others."""
    return draft.state is CallState.DISCARDED and (is_as_written or draft.reason != "invalid")


def _parts(event: Event) -> Iterable[types.Part]:
    if event.output_transcription is not None:  # live mode: what was said aloud
        return [types.Part(text=event.output_transcription.text or "")]
    return (event.content and event.content.parts) or ()
