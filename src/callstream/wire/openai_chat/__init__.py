"""OpenAI chat completions: ``POST /v1/chat/completions``, and the many servers that speak it in their own way.

Mistral's agents speak it at ``/v1/agents/completions``. This is the writing side; ``decoding`` reads the provider's bytes.
Together they would be over 800 lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from callstream.wire.collapsing import ChunkCall, ChunkCollapser, OwnedPiece, Split, changed
from callstream.wire.decoder import Decoder, Strict
from callstream.wire.framing import Frame
from callstream.wire.joining import Joint, Saying, add_usage
from callstream.wire.openai_chat.decoding import OpenAIChatDecoder, PlainChunk
from callstream.wire.provider import ChatProvider, IsLeftOut
from callstream.wire.requests import (
    Asks,
    RefusedCall,
    Request,
    all_tools,
    functions_in,
    insert_after_last,
    objects_in,
    schemas,
)
from callstream.wire.slots import Output, Passage, TextForm

# The fields that every chunk of a response repeats, or pads itself with.
_REPEATED = frozenset({"id", "object", "created", "model", "choices", "obfuscation"})
_IDENTITY = ("id", "object", "created", "model")
_CALLS, _LEGACY = "tool_calls", "function_call"
_GLM = re.compile(r"(?:^|/)glm-(?:4\.[6-9]|[5-9])", re.IGNORECASE)
"""The models whose documentation has ``tool_stream``."""
_OPENROUTER = "/api/v1/chat/completions"
_EAGER = "eager_input_streaming"

# -- collapsing --------------------------------------------------------------------------------------------------------


class _EntryCall(ChunkCall):
    """A call, and what its chunks hold beside its pieces."""

    chunk: dict[str, Any] = msgspec.field(default_factory=dict)
    choice: dict[str, Any] = msgspec.field(default_factory=dict)
    delta: dict[str, Any] = msgspec.field(default_factory=dict)  # meaningless by itself: the role, empty content
    entry: dict[str, Any] = msgspec.field(default_factory=dict)
    is_legacy: bool = False

    @property
    def index(self) -> int | None:
        return self.entry.get("index")

    def add(self, part: dict[str, Any]) -> None:
        self.chunk |= part
        for choice in part["choices"]:
            self.choice |= choice
            for field, value in _beside_calls(choice).items():
                if self.delta.get(field) is None:
                    self.delta[field] = value
            for field, entry in _entries(choice):
                self.is_legacy = field == _LEGACY
                self._add_entry(entry)

    def _add_entry(self, entry: dict[str, Any]) -> None:
        """Beside the arguments, the first value of a known field counts, and the last of an unknown one."""
        known = self.entry
        for field, value in entry.items():
            if isinstance(value, dict):
                known[field] = {**(known.get(field) or {}), **value}
            elif field not in known or (field not in ("index", "id", "type") and value is not None):
                known[field] = value

    def whole_delta(self, index: int) -> dict[str, Any]:
        if self.is_legacy:
            return {**self.delta, "function_call": {**self.entry, "name": self.name, "arguments": self.args_text}}
        kind, field = ("function", "arguments") if self.encoding == "json" else ("custom", "input")
        entry = {
            **self.entry,
            "index": index,
            "id": self.entry["id"] if str(self.entry.get("id")) == self.provider_id else self.wire_id,
            "type": self.entry.get("type") or kind,
            kind: {**(self.entry.get(kind) or {}), "name": self.name, field: self.args_text},
        }
        return {**self.delta, "tool_calls": [entry]}


def split(chunk: dict[str, Any], owned: Sequence[Sequence[OwnedPiece]]) -> Iterator[Split]:
    """The parts of a chunk. ``owned``: each choice's pieces of calls, those that leave. The usage is with the last part."""
    before = {**chunk, "usage": None} if "usage" in chunk else chunk
    passing: list[dict[str, Any]] = []  # choices
    last: _EntryCall | None = None  # the last call for which something is withheld
    for choice, pieces in zip(chunk["choices"], owned, strict=True):
        bare = {field: value if field == "index" or _is_empty(value) else None for field, value in choice.items()}
        delta = _beside_calls(choice)
        withheld: _EntryCall | None = None
        for each in pieces:
            if not each.is_withheld:
                delta = _joined(delta, each.piece)
                continue
            withheld = last = each.call
            if not each.begins:
                yield Split({"choices": [{"delta": each.piece}]}, last)
                continue
            if _speaks(delta):
                passing.append({**bare, "delta": delta})
                delta = {}
            if passing:
                yield Split({**before, "choices": passing})
            yield Split({**before, "choices": [{**bare, "delta": {**delta, **each.piece}}]}, last)
            delta, passing = {}, []
        ends = any(not _is_empty(value) for field, value in choice.items() if field not in ("index", "delta"))
        if ends or withheld is None or _speaks(delta):
            passing.append({**choice, "delta": delta})
        else:
            yield Split({"choices": [{"delta": delta}]}, withheld)
    if passing:
        yield Split({**chunk, "choices": passing})
    else:
        news = {field: value for field, value in chunk.items() if value is not None and field not in _REPEATED}
        yield Split({**news, "choices": []}, last)


class _TextDelta(Strict):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    @property
    def field(self) -> str | None:
        said = [name for name in ("content", "reasoning_content", "reasoning") if getattr(self, name) is not None]
        return said[0] if len(said) == 1 else None


class _TextChoice(Strict):
    delta: _TextDelta
    index: int = 0
    logprobs: None = None
    finish_reason: None = None


class _TextChunk(PlainChunk):
    choices: list[_TextChoice]


def _passage_of(chunk: _TextChunk) -> Passage | None:
    """The passage of a chunk with a single delta of content or reasoning."""
    field = chunk.choices[0].delta.field if len(chunk.choices) == 1 else None
    if field is None or (field == "content" and _may_begin_call(chunk.choices[0].delta.content or "")):
        return None
    return (chunk.choices[0].index, field)


def _with_text(chunk: dict[str, Any], text: str) -> dict[str, Any]:
    [choice] = chunk["choices"]
    delta = {name: text if value is not None else value for name, value in choice["delta"].items()}
    made = {**chunk, "choices": [{**choice, "delta": delta}]}
    made.pop("obfuscation", None)  # padding to the length of the delta that it came with
    return made


def _may_begin_call(text: str) -> bool:
    """Whether a reader that looks for calls in the text of single frames may find the beginning of one.

    google-adk's LiteLlm does: for JSON objects with a name and arguments, and for the marks of DeepSeek's models. Such a
    frame is not joined with others, so that the reader finds exactly what it would have found without joining.
    """
    return "{" in text or "\uff5c" in text


class _OpenAIChatCollapser(ChunkCollapser[_EntryCall]):
    """A whole call is one delta with id, name and all of its arguments, in a chunk of its own.

    That chunk has the fields of the chunk that the call began in. Calls are complete when their choice finishes, so they
    leave just before the finish reason.

    The SDK takes the index of a call for its place in the list, and mixes calls up, or fails, where a server leaves it
    out, sends 0 for all, counts from 1 or below 0. Whole calls are therefore numbered in order, which is what a server
    that counts correctly has sent anyway. Calls that are not collapsed keep their numbers unless one before them was left
    out.
    """

    _call_type = _EntryCall
    text_form = TextForm(msgspec.json.Decoder(_TextChunk), _passage_of, _with_text)

    def __init__(self, decoder: Decoder[Any], **settings: Any) -> None:
        super().__init__(decoder, **settings)
        self._role_left = False
        self._last_index: dict[int, int] = {}  # of the calls that left, by choice
        self._missing: dict[int, list[int]] = {}  # the indices of calls that were left out, by choice

    @property
    def keep_alive(self) -> bytes:
        """A chunk without choices, as servers send for usage and filters: clients that count chunks count it."""
        begun = next((call for call in reversed(self._calls.values()) if call.began_in), None)
        if begun is None:
            return super().keep_alive
        chunk = {field: begun.began_in[field] for field in _IDENTITY if field in begun.began_in}
        return self._passed(begun.frame, {**chunk, "choices": []})

    def _is_mere_delta(self, call: _EntryCall, frame: Frame, chunk: Any) -> bool:
        if not super()._is_mere_delta(call, frame, chunk) or len(chunk.choices) != 1:
            return False
        delta = chunk.choices[0].delta
        return (delta.content is None or delta.content == call.delta.get("content") == "") and (
            delta.role is None or self._role_left or "role" in call.delta
        )

    # -- places --

    def _split(self, chunk: dict[str, Any], calls: Sequence[_EntryCall | None]) -> Iterator[Split]:
        if not any(call is not None and call.collapsed for call in calls):
            return iter([Split(chunk)])
        owners = iter(calls)
        owned = [[_owned(*entry, owners) for entry in _entries(choice)] for choice in chunk["choices"]]
        return split(chunk, [[each for each in pieces if each is not None] for pieces in owned])

    # -- leaving --

    def _whole(self, call: _EntryCall) -> list[Output]:
        number = call.choice.get("index") or 0
        index = self._last_index.get(number, -1) + 1
        if not call.is_legacy:
            self._last_index[number] = index
        after = {**call.chunk, "choices": [{**call.choice, "delta": call.whole_delta(index)}]}
        return [Output(self._passed(call.frame, changed(call.began_in, after)), (call.call_id,))]

    def _left_out(self, call: _EntryCall) -> list[Output]:
        if isinstance(call.index, int):
            self._missing.setdefault(call.choice.get("index") or 0, []).append(call.index)
        if self._role_left or not call.delta.get("role"):
            return []
        rest = {**call.chunk, "choices": [{**call.choice, "delta": call.delta}]}
        return [Output(self._passed(call.frame, rest))]

    def _pass_part(self, frame: Frame, chunk: dict[str, Any], split: Split) -> list[Output]:
        after = {**split.part, "choices": [self._renumbered(choice) for choice in split.part["choices"]]}
        return [Output(self._passed(frame, changed(chunk, after)))]

    def _renumbered(self, choice: dict[str, Any]) -> dict[str, Any]:
        """A choice in which the calls that are not collapsed follow those that have left."""
        entries = (choice.get("delta") or {}).get("tool_calls")
        if not entries:
            return choice
        number = choice.get("index") or 0
        made = []
        for entry in entries:
            index = entry.get("index")
            if isinstance(index, int):
                index -= sum(missing < index for missing in self._missing.get(number, ()))
                self._last_index[number] = max(index, self._last_index.get(number, -1))
                entry = {**entry, "index": index}
            made.append(entry)
        return {**choice, "delta": {**choice["delta"], "tool_calls": made}}

    def _passed(self, frame: Frame, value: Any = None) -> bytes:
        leaving = super()._passed(frame, value)
        self._role_left = self._role_left or b'"role"' in leaving
        return leaving

    def _over(self) -> None:
        self._role_left = False
        self._last_index.clear()
        self._missing.clear()


def _owned(field: str, entry: dict[str, Any], owners: Iterator[_EntryCall | None]) -> OwnedPiece | None:
    """A piece of a call with its owner; None if it does not leave."""
    call = next(owners, None)
    if call is None or call.gone:
        return None  # a piece after an error in the middle of a chunk has no owner, and it must not be executed
    begins, call.placed = not call.placed, True
    piece = {field: entry if field == _LEGACY else [entry]}
    return OwnedPiece(piece, call, begins, is_withheld=call.collapsed)


def _entries(choice: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The pieces of calls in a choice, in the decoder's order, and the field that each is in."""
    delta = choice.get("delta") or {}
    yield from ((_CALLS, entry) for entry in delta.get(_CALLS) or ())
    if delta.get(_LEGACY) is not None:
        yield _LEGACY, delta[_LEGACY]


def _beside_calls(choice: dict[str, Any]) -> dict[str, Any]:
    """The delta of a choice without pieces of calls."""
    return {field: value for field, value in (choice.get("delta") or {}).items() if field not in (_CALLS, _LEGACY)}


def _joined(delta: dict[str, Any], piece: dict[str, Any]) -> dict[str, Any]:
    """A delta and a piece of a call as one."""
    [(field, value)] = piece.items()
    return {**delta, field: value if field == _LEGACY else [*delta.get(field, ()), *value]}


def _is_empty(value: Any) -> bool:
    return value is None or value in ("", [], {})


def _speaks(delta: dict[str, Any]) -> bool:
    """Whether a delta adds something to its message."""
    return any(not _is_empty(value) for field, value in delta.items() if field != "role")


# -- two answers as one ------------------------------------------------------------------------------------------------


class _OpenAIChatJoint(Joint):
    """The second answer's chunks get the id of the first and no role of their own: SDKs would concatenate the two roles."""

    _is_one_text = True

    def __init__(self) -> None:
        super().__init__()
        self._same: dict[str, Any] = {}  # what all chunks of an answer repeat
        self._model = ""

    def _first(self, value: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        self._same = {field: value[field] for field in ("id", "created") if field in value}
        self._model = value.get("model", self._model)
        self._usage = value.get("usage") or self._usage
        choices = value.get("choices") or []
        if not choices:
            return None, value
        going_on = [self._renumbered({**choice, "finish_reason": None}) for choice in choices]
        if not any(choice.get("finish_reason") for choice in choices):
            return {**value, "choices": going_on}, None
        if not any(_says(choice) for choice in choices):
            return None, value
        return {**value, "choices": going_on}, {
            **value,
            "choices": [{**choice, "delta": {}} for choice in choices],
        }

    def _without_dropped(self, value: dict[str, Any]) -> dict[str, Any] | None:
        choices = []
        for choice in value.get("choices") or []:
            delta = choice.get("delta") or {}
            kept = [call for call in delta.get("tool_calls") or [] if call.get("id") not in self._dropped]
            rest = {field: of for field, of in delta.items() if field not in (_CALLS, _LEGACY)}
            choices.append({**choice, "delta": {**rest, "tool_calls": kept} if kept else rest})
        return {**value, "choices": choices} if any(_says(each) or each["delta"] for each in choices) else None

    def _renumbered(self, choice: dict[str, Any]) -> dict[str, Any]:
        calls = (choice.get("delta") or {}).get("tool_calls")
        if not calls or not self._dropped:
            return choice
        moved = [
            {**call, "index": max(0, call["index"] - len(self._dropped))}
            if isinstance(call.get("index"), int)
            else call
            for call in calls
        ]
        return {**choice, "delta": {**choice["delta"], "tool_calls": moved}}

    made_last = b"data: [DONE]\n\n"

    def _speech(self, text: str) -> Iterable[dict[str, Any]]:
        yield self._chunk({"content": text}, None)

    def _made_end(self, finish: Literal["stop", "calls"]) -> Iterable[dict[str, Any]]:
        yield self._chunk({}, "stop" if finish == "stop" else _CALLS)

    def _cut_after(self, values: Sequence[dict[str, Any]]) -> None:
        self._first(self._begun)

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {**self._same, "object": "chat.completion.chunk", "model": self._model, "choices": [choice]}

    def _turn_ended(self, value: dict[str, Any]) -> dict[str, Any]:
        return {**value, "choices": [_ended(choice) for choice in value.get("choices") or []]}

    @classmethod
    def _add_text(cls, answer: dict[str, Any], saying: Saying) -> None:
        message = answer["choices"][0]["message"]
        message["content"] = (message.get("content") or "") + cls._words(saying)
        if saying.is_last_word:
            answer["choices"] = [_ended(choice) for choice in answer["choices"]]

    def _second(self, value: dict[str, Any]) -> dict[str, Any] | None:
        choices = []
        for choice in value.get("choices") or []:
            delta = choice.get("delta")
            if isinstance(delta, dict) and "role" in delta:
                choice = {**choice, "delta": {field: delta[field] for field in delta if field != "role"}}
            choices.append(choice)
        after = {**value, **self._same}
        if "choices" in value:
            after["choices"] = choices
        if value.get("usage"):
            after["usage"] = add_usage(self._usage, value["usage"])
        return after


def _ended(choice: dict[str, Any]) -> dict[str, Any]:
    return {**choice, "finish_reason": "stop"} if choice.get("finish_reason") in (_CALLS, _LEGACY) else choice


def _says(choice: dict[str, Any]) -> bool:
    return any(value for field, value in (choice.get("delta") or {}).items() if field != "role")


# -- the provider ------------------------------------------------------------------------------------------------------


class OpenAIChat(ChatProvider):
    wire = "openai_chat"
    path = re.compile(r"/(?:chat|agents)/completions$")
    decoder = OpenAIChatDecoder
    collapser = _OpenAIChatCollapser
    joint = _OpenAIChatJoint
    pieces_field = re.compile(rb"tool_stream|eager_input_streaming")

    def offered_names(self, request: Request) -> tuple[str, ...]:
        """Functions, free-text tools, and functions declared the old way, from before tools."""
        custom = [entry.get("custom") for entry in objects_in(request.fields.get("tools"))]
        others = [*objects_in(custom), *objects_in(request.fields.get("functions"))]
        return tuple({**self.declared_tools(request), **schemas((each, None) for each in others)})

    def ask_for_pieces(self, request: Request, asks: Asks = all_tools) -> Request:
        """OpenAI's own servers stream without being asked. OpenRouter hands Anthropic's field to Anthropic's models.

        GLM's switch is for the whole request, and only matters for streams.
        """
        model = request.fields.get("model")
        model = model if isinstance(model, str) else ""
        functions = functions_in(request)
        names = [str(function.get("name")) for _, function in functions]
        if _GLM.search(model) and names and request.fields.get("stream") is True:
            if "tool_stream" in request.fields or not all(map(asks, names)):
                return request
            request.fields["tool_stream"] = True
            return request.rewritten()
        if model.startswith("anthropic/") and request.path.endswith(_OPENROUTER):
            silent = [
                entry
                for (entry, function), name in zip(functions, names, strict=True)
                if _EAGER not in entry and _EAGER not in function and asks(name)
            ]
            for entry in silent:
                entry[_EAGER] = True
            return request.rewritten() if silent else request
        return request

    def ask_again(self, request: Request, said: str, refused: Sequence[RefusedCall]) -> Request | None:
        """The conversation, and after it the calls that the model made and their refusals."""
        messages = request.fields.get("messages")
        if not isinstance(messages, list):
            return None
        answer = {"role": "assistant", "content": said or None, "tool_calls": [_entry(call) for call in refused]}
        request.fields["messages"] = [*messages, answer, *map(_result, refused)]
        return request.rewritten()

    def _restore(self, request: Request, refused: RefusedCall) -> bool:
        messages = request.fields.get("messages")
        if not isinstance(messages, list):
            return False
        for place, message in enumerate(messages):
            calls = objects_in(message.get("tool_calls")) if isinstance(message, dict) else []
            if any(call.get("id") in refused.beside for call in calls):
                if not insert_after_last(messages, place + 1, _result(refused), _is_result):
                    return False
                message["tool_calls"] = [*calls, _entry(refused)]
                return True
        return False

    def leave_out(self, answer: dict[str, Any], is_left_out: IsLeftOut, *, stored: bool) -> None:
        for choice in answer["choices"]:
            message = choice.get("message") or {}
            if message.get("tool_calls"):
                message["tool_calls"] = [entry for entry in message["tool_calls"] if not is_left_out()]
                if not message["tool_calls"]:
                    del message["tool_calls"]
            if message.get("function_call") is not None and is_left_out():
                del message["function_call"]


def _entry(call: RefusedCall) -> dict[str, Any]:
    return {"id": call.wire_id, "type": "function", "function": {"name": call.name, "arguments": call.args_json}}


def _result(call: RefusedCall) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.wire_id, "content": call.text}


def _is_result(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "tool"
