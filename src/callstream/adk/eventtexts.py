"""What google-adk's events say that was not read from a model's response.

Custom agents, nodes of a Workflow and callbacks make events with text of their own, in pieces or whole. So does a callback
that changes what a model answered: where one may, the text is taken from the events and not from the model, so that
clients see what google-adk shows and nothing that was taken out before; ``record_judged`` does that for whole answers.

Code that was run, what it printed, and images and files are shown as text: neither AG-UI nor the journal has another place
for what an agent says.
"""

from __future__ import annotations

import base64
from weakref import WeakKeyDictionary

from google.adk.events.event import Event
from google.genai import types

from callstream.adk.invocations import Invocation, Speaker, Step
from callstream.adk.partials import as_written, signature_of
from callstream.calls import Call, CallState
from callstream.errors import RunOver
from callstream.runtime import Run
from callstream.wire.transcript import Transcript, json_text

MAX_IMAGE = 1 << 20
"""Bytes. Of larger images the kind and the size are shown: what is shown is kept in the journal."""


class EventTexts:
    """What events have said until now: of each invocation by model call, and by speaker for all others."""

    def __init__(self) -> None:
        self._passages: WeakKeyDictionary[Invocation, dict[object, _Passage]] = WeakKeyDictionary()

    async def read(self, invocation: Invocation, event: Event, *, is_judged: bool = False) -> None:
        """Records the text of an event, unless it was read from a model's response, or is the user's.

        A code executor makes events of an answer before that is over, which are all that is shown of it. ``is_judged``:
        its text is recorded already.
        """
        if event.author == "user" or invocation.is_live or invocation.run.outcome is not None:
            return
        step = _step_of(invocation, event)
        was_read = is_judged or (step is not None and step.was_read and not step.model_call.withholds)
        # The code that an executor has found in an answer is in the text of the answer.
        has_code = was_read and step is not None and step.actions is not event.actions
        parts = [] if was_read else [part for part in _parts(event) if part.text]
        if not event.partial:
            parts += [types.Part(text=text) for part in _parts(event) if (text := _described(part, has_code=has_code))]
        if not parts:
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
    if step is None and any(part.executable_code for part in _parts(event)):
        step = invocation.last_step(Speaker.of(event))  # a code executor makes another event of the answer
    return step


def _parts(event: Event) -> list[types.Part]:
    return list((event.content and event.content.parts) or ())


def _described(part: types.Part, *, has_code: bool) -> str:
    """What is not text, as text in Markdown; nothing of what is shown elsewhere. ``has_code``: code is."""
    if part.executable_code is not None:
        language = (part.executable_code.language or "").lower()
        return "" if has_code else f"\n```{language}\n{part.executable_code.code}\n```\n"
    if part.code_execution_result is not None:
        output = (part.code_execution_result.output or "").rstrip("\n")
        return f"\n```\n{output}\n```\n" if output else ""
    if part.file_data is not None:
        return f"\n[{part.file_data.mime_type or 'file'}]({part.file_data.file_uri})\n"
    blob = part.inline_data
    if blob is None or blob.data is None:
        return ""
    kind = blob.mime_type or "application/octet-stream"
    if not kind.startswith("image/") or len(blob.data) > MAX_IMAGE:
        return f"\n({kind}, {len(blob.data):,} bytes)\n"
    return f"\n![{kind}](data:{kind};base64,{base64.b64encode(blob.data).decode()})\n"


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
        await self._response.record(self._transcript.pop())


# -- whole answers that others may have changed ------------------------------------------------------------------------


async def record_judged(invocation: Invocation, step: Step, event: Event) -> None:
    """Records a whole event that google-adk made of a withheld answer: as the application shows it, after all its judges.

    The answer says which calls are whole and fit; the event says what is shown: a call that is not in it was taken out,
    and arguments that it changes are the arguments.
    """
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
        for part in _said_or_shown(event):
            if part.function_call is not None:
                bound.append((part.function_call.id or "", self._call(part, part.function_call, drafts)))
            elif part.text and part.thought:
                self._transcript.append_reasoning(part.text)
            elif part.text:
                self._transcript.append_text(part.text)
        self._lost()
        usage = event.usage_metadata.model_dump(mode="json", exclude_none=True) if event.usage_metadata else None
        self._transcript.end_response(event.finish_reason.name if event.finish_reason else None, usage)
        await self._response.record(self._transcript.pop())
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


def _said_or_shown(event: Event) -> list[types.Part]:
    if event.output_transcription is not None:  # live mode: what was said aloud
        return [types.Part(text=event.output_transcription.text or "")]
    return _parts(event)
