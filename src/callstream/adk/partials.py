"""google-adk's partial responses in, events out: for models that the tap cannot read.

There are three dialects:

- values by path (``partial_args`` with ``json_path``): Gemini, and with the name on every chunk Anthropic, OpenAI and
  LiteLLM. They lose empty containers, make floats of integers, and may never say that a call has ended;
- raw JSON text (``partial_args`` without a path): Interactions;
- ``args`` that grow from one response to the next.

Calls without ids are distinguished by what they say. A named value for a place that has its value already begins another
call. Args that do not extend those before belong to another call, or take them back: only the whole response tells, so they
wait for it. Where two calls were taken for one nevertheless, the preview is given up and the calls come whole.

So partial responses are a preview, and the response that is not partial decides: whether a call is complete, and what
its arguments are. What the preview lacks is written behind it, so that the joined text parses to those arguments; a call of
which the preview had anything wrong is malformed. A call that a preview began is complete only if its response finished
normally, or if it said itself that it had ended. The last call of a response that finished otherwise is never complete
(``wire/transcript.py``).
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

from google.adk.models.llm_response import LlmResponse
from google.genai import types

from callstream.adk.partialcall import PartialCall, extends
from callstream.errors import WireError
from callstream.events import DiscardReason, WireEvent
from callstream.wire.transcript import Transcript

MINTED_PREFIX = "adk-"
"""How ids begin that google-adk, or Callstream for it, made up. They are not sent to the model."""

_MALFORMED = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "JSON_PARSE_ERROR"})


class _Waiting:
    """Args of a partial response that cannot be shown before it is known which call they are of."""

    def __init__(self, call_id: str, name: str | None, args: dict[str, Any]) -> None:
        self.call_id = call_id
        self.name = name
        self.args = args


class PartialReader:
    """Reads the responses of one call of a model. ``tools`` are the request's tools, JSON Schemas by name.

    It gives every chunk of a call the id of its call, where the model gave it none or another one each time, so that
    what google-adk makes of them agrees.
    """

    def __init__(self, new_id: Callable[[], str], tools: Mapping[str, dict[str, Any]]) -> None:
        self._new_id = new_id
        self._given_id: str | None = None
        self._transcript = Transcript(self._next_id)
        self._tools = tools
        self._calls: list[PartialCall] = []  # not decided yet
        self._touched: list[PartialCall] = []  # by this response
        self._waiting: list[_Waiting] = []
        self._shown = {False: "", True: ""}  # text and reasoning since the last response that was not partial

    def read(self, response: LlmResponse) -> list[WireEvent]:
        """The events that a response makes known, partial or not."""
        parts = (response.content and response.content.parts) or []
        self._touched.clear()
        if response.partial:
            for part in parts:
                self._part(part)
        elif parts or response.finish_reason or response.error_code:
            self._decide(parts, response)
        return self._transcript.take()

    # -- a preview --

    def _part(self, part: types.Part) -> None:
        if part.function_call is not None:
            self._chunk(part.function_call, signature_of(part))
        elif part.text:
            self._shown[bool(part.thought)] += part.text
            self._append_text(part.text, bool(part.thought))

    def _chunk(self, chunk: types.FunctionCall, signature: str | None) -> None:
        known = self._find_continued(chunk)
        if isinstance(known, _Waiting):
            known.args = chunk.args or {}
            chunk.id = known.call_id
            return
        if known is None:
            if not chunk.name and not chunk.args and not chunk.partial_args:
                return  # the end of a call that had ended already
            known = self._open_call(chunk.name, chunk.id, signature)
        chunk.id = known.wire_id
        self._touched.append(known)
        if known.call.final:
            return
        if signature:
            self._transcript.sign_call(known.call, signature)
        known.said_end = not chunk.will_continue
        try:
            known.take(chunk, self._transcript)
        except WireError as error:
            self._transcript.discard_call(known.call, "malformed", str(error))

    def _find_continued(self, chunk: types.FunctionCall) -> PartialCall | _Waiting | None:
        """The call that a chunk belongs to, None if it begins one.

        With an id the id tells. Without one, a chunk that has a name continues the last call of that name, because
        models that name a chunk name every one; one without a name continues the last call. Values by path end when they
        say so, and arguments that grow come once in a response.
        """
        if chunk.id:
            for known in self._calls:
                if known.wire_id == chunk.id:
                    return known
            if chunk.name or not chunk.id.startswith(MINTED_PREFIX):
                return None
        candidates = [known for known in self._calls if not chunk.name or chunk.name == known.call.name]
        if chunk.args and not chunk.partial_args:
            free = [known for known in candidates if known not in self._touched]
            fitting = next((known for known in free if known.can_take(chunk)), None)
            return self._waiting_for(chunk) if free and fitting is None else fitting
        has_more = [known for known in candidates if not (known.said_end and known.dialect == "paths")]
        return has_more[-1] if has_more and has_more[-1].can_take(chunk) else None

    def _waiting_for(self, chunk: types.FunctionCall) -> _Waiting:
        for waiting in self._waiting:
            if waiting.name == chunk.name and extends(waiting.args, chunk.args or {}):
                return waiting
        self._waiting.append(_Waiting(self._new_id(), chunk.name, chunk.args or {}))
        return self._waiting[-1]

    def _open_call(self, name: str | None, given_id: str | None, signature: str | None) -> PartialCall:
        minted = given_id is not None and given_id.startswith(MINTED_PREFIX)
        self._given_id = given_id if minted else None
        call = self._transcript.open_call(name, None if minted else given_id, signature=signature)
        known = PartialCall(call, self._tools)
        known.began_nameless = not name
        self._calls.append(known)
        return known

    def _next_id(self) -> str:
        given, self._given_id = self._given_id, None
        return given or self._new_id()

    # -- the decision --

    def _decide(self, parts: list[types.Part], response: LlmResponse) -> None:
        finish = response.finish_reason.name if response.finish_reason else None
        is_normal = finish in (None, "STOP") and not response.error_code
        self._decide_text(parts)
        said = [part for part in parts if part.function_call is not None or part.text]
        chunks = [(each.function_call, signature_of(each), each is said[-1]) for each in said if each.function_call]
        begun = Counter(known.call.name for known in self._calls)
        whole = Counter(chunk.name for chunk, _, _ in chunks)
        for chunk, signature, is_last in chunks:
            known = self._find_completed(chunk, may_be_anothers=whole[chunk.name] > begun[chunk.name] + begun[None])
            if known is None:
                known = self._open_call(chunk.name, chunk.id or self._waiting_id(chunk), signature)
            self._calls.remove(known)
            chunk.id = known.wire_id
            if not known.call.final:
                if signature:
                    self._transcript.sign_call(known.call, signature)
                # As on the wires: what the response went on after was not cut off.
                trouble = _trouble(response) if is_last else None
                self._decide_call(known, chunk, response, finish if is_normal else trouble)
        # LiteLLM has two whole responses, of which the second has the calls; google-adk loses a call that began nameless.
        for known in [known for known in self._calls if chunks or not is_normal or known.began_nameless]:
            if not known.call.final:
                self._discard(known, response, "the whole response does not have this call")
            self._calls.remove(known)
        if chunks or not is_normal:
            self._waiting.clear()
        if not self._calls:
            usage = (
                response.usage_metadata.model_dump(mode="json", exclude_none=True) if response.usage_metadata else None
            )
            self._transcript.end_response(finish, usage)

    def _decide_call(
        self, known: PartialCall, chunk: types.FunctionCall, response: LlmResponse, finish: str | None
    ) -> None:
        if chunk.will_continue:
            known.take(chunk, self._transcript)
            self._discard(known, response, "the whole response has a call that was to continue")
        elif chunk.partial_args is not None and chunk.args is None:
            # Interactions: google-adk makes the pieces into arguments when the step stops.
            self._discard(known, response, "the whole response has a call that has not ended")
        elif finish not in (None, "STOP"):
            self._discard(known, response, f"the response finished with {finish}")
        elif finish is None and known.dialect in ("paths", "text") and not known.said_end:
            self._discard(known, response, "the response ended without a finish reason")
        elif not known.call.name and not chunk.name:
            self._discard(known, response, "")
        else:
            if known.call.name is None and chunk.name:
                known.take(types.FunctionCall(name=chunk.name, will_continue=True), self._transcript)
            try:
                text, chunk.args = known.rest(chunk.args or {})
                self._transcript.append_args(known.call, text)
            except WireError as error:
                self._transcript.discard_call(known.call, "malformed", str(error))
            else:
                self._transcript.complete_whole(known.call)

    def _discard(self, known: PartialCall, response: LlmResponse, detail: str) -> None:
        reason: DiscardReason = "malformed" if _trouble(response) in _MALFORMED else "truncated"
        if known.call.name is None:
            reason, detail = "malformed", "the call never got a name"
        self._transcript.discard_call(known.call, reason, detail)

    def _find_completed(self, chunk: types.FunctionCall, *, may_be_anothers: bool) -> PartialCall | None:
        """The call of the preview that a whole call completes: by its id, else the first that can become it.

        ``may_be_anothers``: there are more whole calls than the preview has, so one that cannot become this call belongs to
        another. Else the model took back what it had shown.
        """
        if chunk.id:
            for known in self._calls:
                if known.wire_id == chunk.id:
                    return known
            if not chunk.id.startswith(MINTED_PREFIX):
                return None
        candidates = [
            known for known in self._calls if known.call.provider_id is None and known.call.name in (chunk.name, None)
        ]
        if len(candidates) == 1 and not may_be_anothers:
            return candidates[0]
        args = chunk.args or {}
        first = None if may_be_anothers or not candidates else candidates[0]
        return next((known for known in candidates if known.can_become(args)), first)

    def _waiting_id(self, chunk: types.FunctionCall) -> str | None:
        """The id that a whole call had in the preview, where it waited for this response."""
        for waiting in self._waiting:
            if waiting.name == chunk.name and extends(waiting.args, chunk.args or {}):
                self._waiting.remove(waiting)
                return waiting.call_id
        return None

    def _decide_text(self, parts: Iterable[types.Part]) -> None:
        """Text that the preview did not have. What it had stays as it was shown."""
        for is_thought, shown in self._shown.items():
            whole = "".join(part.text for part in parts if part.text and bool(part.thought) is is_thought)
            if whole.startswith(shown):
                self._append_text(whole.removeprefix(shown), is_thought)
            self._shown[is_thought] = ""

    def _append_text(self, text: str, is_thought: bool) -> None:
        if text and is_thought:
            self._transcript.append_reasoning(text)
        elif text:
            self._transcript.append_text(text)


def _trouble(response: LlmResponse) -> str | None:
    """What went wrong in a response, None if it finished normally."""
    if response.error_code:
        code = response.error_code
        return str(code.value if isinstance(code, Enum) else code)
    finish = response.finish_reason
    return finish.name if finish and finish.name != "STOP" else None


def signature_of(part: types.Part) -> str | None:
    """A part's thought signature as the journal and the wire write it."""
    return base64.b64encode(part.thought_signature).decode() if part.thought_signature else None
