"""google-adk's partial responses in, events out: for models that the tap cannot read.

There are three dialects:

- values by path (``partial_args`` with ``json_path``): Gemini, and with the name on every chunk Anthropic, OpenAI and
  LiteLLM. They lose empty containers, turn integers into floats, and may never say that a call has ended;
- raw JSON text (``partial_args`` without a path): Interactions;
- ``args`` that grow from one response to the next.

Calls without ids are distinguished by their content. A chunk with a name and a value for a place that already has its value
begins another call. Args that do not extend the earlier ones belong to another call, or replace them: only the whole
response tells which, so they wait for it. If two calls were nevertheless taken for one, the preview is given up and the
calls arrive whole.

So partial responses are a preview, and the response that is not partial decides whether a call is complete and what its
arguments are. Anything that the preview lacks is appended to it, so that the joined text parses to those arguments; if the
preview of a call was wrong in any way, the call is malformed. A call that a preview began is complete only if its response
finished normally, or if the call itself was marked as ended. The last call of a response that finished in any other way is
never complete (``wire/transcript.py``).
"""

from __future__ import annotations

import base64
import copy
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Literal

import msgspec
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from callstream.errors import WireError
from callstream.events import DiscardReason, WireEvent
from callstream.jsontext.path import Path, parse_path
from callstream.jsontext.writer import EMPTY
from callstream.wire.transcript import PiecewiseCall, Transcript, WireCall, json_text

# -- one call ----------------------------------------------------------------------------------------------------------

_MAX_EXACT = 2**53
"""Integers from this one on may have been rounded on their way through a float."""


class _PartialCall(PiecewiseCall[types.FunctionCall]):
    """One call while its response is being read: the part that was shown, and how to complete it to the whole call.

    What was shown is never taken back. google-adk makes some values by path itself (then it names the tool in each chunk),
    and leaves out empty containers and the last piece of a string. Of such values, only those are shown that the whole
    response can complete: a string stays open until something else follows; and after a number that a float cannot hold, or
    at a place for which a container would have to be closed, the rest waits for the whole response.
    """

    dialect: Literal["paths", "text", "args"] | None = None
    said_end = False
    began_nameless = False

    def __init__(self, call: WireCall, tools: Mapping[str, dict[str, Any]]) -> None:
        super().__init__(call, tools)
        self._args: dict[str, Any] = {}
        self._finished: set[Path] = set()
        self._last: Path | None = None  # the path that was shown last
        self._is_open = False  # whether it is a string that has not been closed in the text
        self._held: list[types.PartialArg] = []

    @property
    def wire_id(self) -> str:
        return self.call.provider_id or self.call.call_id

    def paths_in(self, chunk: types.FunctionCall) -> Iterator[Path]:
        for piece in chunk.partial_args or ():
            path = _path(piece.json_path) if piece.json_path else None
            if path is not None:
                yield path
        yield from ((name,) for name in chunk.args or ())

    def can_add(self, chunk: types.FunctionCall) -> bool:
        """Whether a chunk can belong to this call: it does not repeat a finished value."""
        if chunk.args and not chunk.partial_args:
            return extends(self._args, chunk.args)
        return not chunk.name or self._finished.isdisjoint(self.paths_in(chunk))

    def can_become(self, args: dict[str, Any]) -> bool:
        """Whether the shown part is a beginning of these arguments."""
        if self.dialect == "args":
            return extends(self._args, args)
        try:
            copy.deepcopy(self).rest(args)
        except WireError:
            return False
        return True

    def text_of(self, chunk: types.FunctionCall) -> str:
        if chunk.args and not chunk.partial_args:
            self.dialect = "args"
            self._args = chunk.args
            return self.writer.grow(chunk.args, True)
        text = []
        pieces = chunk.partial_args or []
        if self._held and not chunk.name:
            self._held, pieces = [], [*self._held, *pieces]
        for piece in pieces:
            if piece.json_path:
                self.dialect = "paths"
                path = _path(piece.json_path)
                if path is not None:
                    text.append(self._show(path, piece, is_lossy=bool(chunk.name)))
                    if not piece.will_continue:
                        self._finished.add(path)
            elif piece.string_value:
                self.dialect = "text"
                text.append(piece.string_value)
        return "".join(text)

    def _show(self, path: Path, piece: types.PartialArg, *, is_lossy: bool) -> str:
        value = _value(piece)
        if is_lossy and (self._held or not self._is_certain(path, value)):
            self._held.append(piece)
            return ""
        text = ""
        if self._is_open and self._last is not None and path != self._last:
            text = self.writer.write(self._last, "", False)
        self._last = path
        self._is_open = is_lossy and isinstance(value, str)
        if self._is_open and "\ud800" <= value[-1:] <= "\udbff":
            value = value[:-1]  # half a surrogate pair, which google-adk sends again with the other half
        return text + self.writer.write(path, value, self._is_open or bool(piece.will_continue))

    def _is_certain(self, path: Path, value: Any) -> bool:
        """Whether the whole response can only continue from this value."""
        if value is EMPTY or (isinstance(value, float) and abs(value) >= _MAX_EXACT):
            return False
        container = (self._last or ())[:-1]
        return path[: len(container)] == container

    def rest(self, args: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The text that completes the shown part to the arguments, and the arguments, with what google-adk lost of them.

        Raises WireError if no text can.
        """
        match self.dialect:
            case None:
                return json_text(args), args
            case "args":
                return self.writer.grow(args, False) + self.writer.close(), args
            case "text":
                if not _same(_parse(self.call.text.join()), args):
                    raise WireError("expected the text of the arguments to be the arguments, got something else")
                return "", args
        shown = _parse(self.call.text.join() + copy.deepcopy(self.writer).close())
        whole = _restore(shown, args)
        return self.writer.complete(whole), whole


def _path(text: str) -> Path | None:
    """The path that a piece is for; None if google-adk did not write it according to the standard.

    Then the whole response supplies what the preview lacks.
    """
    try:
        return parse_path(text)
    except WireError:
        return None


def _value(piece: types.PartialArg) -> Any:
    """The piece of string, the scalar, or EMPTY: a path without a value is an empty container."""
    for value in (piece.string_value, piece.number_value, piece.bool_value):
        if value is not None:
            return value
    return EMPTY if piece.null_value is None else None


def _parse(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError as error:
        raise WireError(f"expected arguments in JSON, got {text!r:.80} ({error})") from None


def _restore(shown: Any, value: Any) -> Any:
    """The value, plus empty containers that only the preview has. Raises WireError if the preview has anything else."""
    if isinstance(shown, dict) and isinstance(value, dict):
        whole = {name: _restore(shown[name], part) if name in shown else part for name, part in value.items()}
        for name, lost in shown.items():
            if name not in value and not _is_hollow(lost):
                raise WireError(f"expected arguments that only grow, but {name!r} was {lost!r:.80} and is gone")
        return {**whole, **{name: lost for name, lost in shown.items() if name not in value}}
    if isinstance(shown, list) and isinstance(value, list) and len(shown) == len(value):
        return [_restore(*pair) for pair in zip(shown, value, strict=True)]
    return shown if value is None and _is_hollow(shown) else value


def extends(before: Any, after: Any) -> bool:
    """Whether a JSON value may have grown into another one: members and items are added, and the last one grows."""
    if isinstance(before, dict) and isinstance(after, dict):
        names, values = list(before), list(before.values())
        grown = list(after)[: len(names)] == names
        return grown and _items_extend(values, [after[name] for name in names])
    if isinstance(before, list) and isinstance(after, list):
        return len(after) >= len(before) and _items_extend(before, after[: len(before)])
    if isinstance(before, str) and isinstance(after, str):
        return after.startswith(before)
    # Half a number looks like a number, and null may stand for a value that has not arrived yet.
    return before is None or _same(before, after) or _are_numbers(before, after)


def _items_extend(before: list[Any], after: list[Any]) -> bool:
    settled = len(before) - 1 if before else 0
    if not all(_same(*pair) for pair in zip(before[:settled], after[:settled], strict=True)):
        return False
    return not before or extends(before[-1], after[-1])


def _are_numbers(before: Any, after: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in (before, after))


def _is_hollow(value: Any) -> bool:
    """Whether a value consists of containers only."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [None]
    return all(part is not None and _is_hollow(part) for part in parts)


def _same(shown: Any, value: Any) -> bool:
    """Whether two JSON values are the same: 1 and 1.0 are, 1 and true are not."""
    if isinstance(shown, dict) and isinstance(value, dict):
        return shown.keys() == value.keys() and all(_same(shown[name], value[name]) for name in shown)
    if isinstance(shown, list) and isinstance(value, list):
        return len(shown) == len(value) and all(map(_same, shown, value))
    return isinstance(shown, bool) is isinstance(value, bool) and bool(shown == value)


def as_written(value: Any, written: Any) -> Any:
    """The value with its numbers as the model wrote them, if they are equal: partial events turn them all into floats."""
    if isinstance(value, dict) and isinstance(written, dict):
        return {name: as_written(part, written.get(name)) for name, part in value.items()}
    if isinstance(value, list) and isinstance(written, list) and len(value) == len(written):
        return [as_written(*pair) for pair in zip(value, written, strict=True)]
    return written if _are_numbers(value, written) and value == written else value


# -- one response ------------------------------------------------------------------------------------------------------

MINTED_PREFIX = "adk-"
"""The prefix of ids that google-adk, or Callstream in its place, made up. They are not sent to the model."""


def minted_id() -> str:
    """An id as google-adk would make it up."""
    return f"{MINTED_PREFIX}{uuid.uuid4()}"


_MALFORMED = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "JSON_PARSE_ERROR"})


class _Waiting(msgspec.Struct):
    """Args of a partial response that cannot be shown before it is known which call they belong to."""

    call_id: str
    name: str | None
    args: dict[str, Any]


class PartialReader:
    """Reads the responses of one call of a model. ``tools`` are the request's tools, JSON Schemas by name.

    If the model gave the chunks of a call no id, or a different one each time, the reader gives all of them the same one, so
    that google-adk's events agree with it.
    """

    def __init__(self, new_id: Callable[[], str], tools: Mapping[str, dict[str, Any]]) -> None:
        self._new_id = new_id
        self._transcript = Transcript(new_id)
        self._tools = tools
        self._calls: list[_PartialCall] = []  # not decided yet
        self._touched: list[_PartialCall] = []  # by this response
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
        return self._transcript.pop()

    # -- a preview --

    def _part(self, part: types.Part) -> None:
        if part.function_call is not None:
            self._chunk(part.function_call, signature_of(part))
        elif part.text:
            self._shown[bool(part.thought)] += part.text
            append_text(self._transcript, part.text, bool(part.thought))

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
            known.add(chunk, self._transcript)
        except WireError as error:
            self._transcript.discard_call(known.call, "malformed", str(error))

    def _find_continued(self, chunk: types.FunctionCall) -> _PartialCall | _Waiting | None:
        """The call that a chunk belongs to; None if it begins one.

        If the chunk has an id, the id decides. If not, a chunk with a name continues the last call of that name, because
        models that name one chunk name them all; one without a name continues the last call. Values by path end when they
        say so, and arguments that grow come once in each response.
        """
        named = self._named(chunk)
        if named is not None or (chunk.id and (chunk.name or provider_id_of(chunk.id))):
            return named
        candidates = [known for known in self._calls if not chunk.name or chunk.name == known.call.name]
        if chunk.args and not chunk.partial_args:
            free = [known for known in candidates if known not in self._touched]
            fitting = next((known for known in free if known.can_add(chunk)), None)
            return self._waiting_for(chunk) if free and fitting is None else fitting
        has_more = [known for known in candidates if not (known.said_end and known.dialect == "paths")]
        return has_more[-1] if has_more and has_more[-1].can_add(chunk) else None

    def _named(self, chunk: types.FunctionCall) -> _PartialCall | None:
        """The call of a chunk's id."""
        return next((known for known in self._calls if known.wire_id == chunk.id), None)

    def _waiting_for(self, chunk: types.FunctionCall) -> _Waiting:
        waiting = self._find_waiting(chunk)
        if waiting is None:
            waiting = _Waiting(self._new_id(), chunk.name, chunk.args or {})
            self._waiting.append(waiting)
        return waiting

    def _find_waiting(self, chunk: types.FunctionCall) -> _Waiting | None:
        same = (waiting for waiting in self._waiting if waiting.name == chunk.name)
        return next((waiting for waiting in same if extends(waiting.args, chunk.args or {})), None)

    def _open_call(self, name: str | None, given_id: str | None, signature: str | None) -> _PartialCall:
        provider_id = provider_id_of(given_id or "")
        call = self._transcript.open_call(name, provider_id, call_id=given_id, signature=signature)
        known = _PartialCall(call, self._tools)
        known.began_nameless = not name
        self._calls.append(known)
        return known

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
                # As on the wires: a call after which the response continued was not cut off.
                trouble = _trouble(response) if is_last else None
                self._decide_call(known, chunk, response, finish if is_normal else trouble)
        # LiteLLM sends two whole responses, the second with the calls; google-adk loses a call that began without a name.
        for known in [known for known in self._calls if chunks or not is_normal or known.began_nameless]:
            if not known.call.final:
                self._discard(known, response, "the whole response does not have this call")
            self._calls.remove(known)
        if chunks or not is_normal:
            self._waiting.clear()
        if not self._calls:
            end_response(self._transcript, response)

    def _decide_call(
        self, known: _PartialCall, chunk: types.FunctionCall, response: LlmResponse, finish: str | None
    ) -> None:
        if chunk.will_continue:
            known.add(chunk, self._transcript)
            self._discard(known, response, "the whole response has a call that was to continue")
        elif chunk.partial_args is not None and chunk.args is None:
            # Interactions: google-adk turns the pieces into arguments when the step stops.
            self._discard(known, response, "the whole response has a call that has not ended")
        elif finish not in (None, "STOP"):
            self._discard(known, response, f"the response finished with {finish}")
        elif finish is None and known.dialect in ("paths", "text") and not known.said_end:
            self._discard(known, response, "the response ended without a finish reason")
        elif not known.call.name and not chunk.name:
            self._discard(known, response, "")
        else:
            if known.call.name is None and chunk.name:
                known.add(types.FunctionCall(name=chunk.name, will_continue=True), self._transcript)
            try:
                text, chunk.args = known.rest(chunk.args or {})
                self._transcript.append_args(known.call, text)
            except WireError as error:
                self._transcript.discard_call(known.call, "malformed", str(error))
            else:
                self._transcript.complete_whole(known.call)

    def _discard(self, known: _PartialCall, response: LlmResponse, detail: str) -> None:
        reason: DiscardReason = "malformed" if _trouble(response) in _MALFORMED else "truncated"
        if known.call.name is None:
            reason, detail = "malformed", "the call never got a name"
        self._transcript.discard_call(known.call, reason, detail)

    def _find_completed(self, chunk: types.FunctionCall, *, may_be_anothers: bool) -> _PartialCall | None:
        """The call of the preview that a whole call completes: the one with its id, else the first that can become it.

        ``may_be_anothers``: there are more whole calls than the preview has, so a preview that cannot become this call
        belongs to another. Else the model took back what it had shown.
        """
        named = self._named(chunk)
        if named is not None or (chunk.id and provider_id_of(chunk.id)):
            return named
        candidates = [
            known for known in self._calls if known.call.provider_id is None and known.call.name in (chunk.name, None)
        ]
        if len(candidates) == 1 and not may_be_anothers:
            return candidates[0]
        args = chunk.args or {}
        first = None if may_be_anothers or not candidates else candidates[0]
        return next((known for known in candidates if known.can_become(args)), first)

    def _waiting_id(self, chunk: types.FunctionCall) -> str | None:
        """The id that a whole call had in the preview, if it waited for this response."""
        waiting = self._find_waiting(chunk)
        if waiting is None:
            return None
        self._waiting.remove(waiting)
        return waiting.call_id

    def _decide_text(self, parts: Sequence[types.Part]) -> None:
        """Appends text that the preview did not have, in the order of the parts. Text that it had stays as it was shown."""
        had: dict[bool, int] = {}
        for is_thought, shown in self._shown.items():
            whole = "".join(part.text for part in parts if part.text and bool(part.thought) is is_thought)
            had[is_thought] = len(shown if whole.startswith(shown) else whole)
            self._shown[is_thought] = ""
        for part in parts:
            text, is_thought = part.text or "", bool(part.thought)
            append_text(self._transcript, text[had[is_thought] :], is_thought)
            had[is_thought] = max(0, had[is_thought] - len(text))


def provider_id_of(function_call_id: str) -> str | None:
    """google-adk's id of a call, if it is the model's own; else None."""
    return None if function_call_id.startswith(MINTED_PREFIX) else function_call_id


def append_text(transcript: Transcript, text: str, is_thought: bool) -> None:
    if text and is_thought:
        transcript.append_reasoning(text)
    elif text:
        transcript.append_text(text)


def end_response(transcript: Transcript, response: LlmResponse) -> None:
    usage = response.usage_metadata.model_dump(mode="json", exclude_none=True) if response.usage_metadata else None
    transcript.end_response(response.finish_reason.name if response.finish_reason else None, usage)


def _trouble(response: LlmResponse) -> str | None:
    """The error code or unusual finish reason of a response; None if it finished normally."""
    if response.error_code:
        code = response.error_code
        return str(code.value if isinstance(code, Enum) else code)
    finish = response.finish_reason
    return finish.name if finish and finish.name != "STOP" else None


def signature_of(part: types.Part) -> str | None:
    """A part's thought signature as it is written in the journal and on the wire."""
    return base64.b64encode(part.thought_signature).decode() if part.thought_signature else None
