"""Chat completions: a whole call is one delta with id, name and all of its arguments, in a chunk of its own.

That chunk has the fields of the chunk that the call began in. Of a chunk that holds more than pieces of the call the
rest stays where it is: content before the call, the finish reason after it. Calls are complete when their choice
finishes, so they leave just before the finish reason.

The SDK takes the index of a call for its place in the list, and mixes calls up, or fails, where a server leaves it
out, sends 0 for all, counts from 1 or below 0. Whole calls are therefore numbered in their order, which is what a
server that counts right has sent anyway. Calls that are not collapsed keep their numbers unless one before them was
left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from callstream.wire.collapsing import Collapser, Output, changed, read_json
from callstream.wire.decoder import Decoder
from callstream.wire.framing import Frame
from callstream.wire.passages import Passage, StrictText
from callstream.wire.slots import CallSlot, CollapsibleCall, Passing

# What every chunk of a response repeats, or pads itself with.
_REPEATED = frozenset({"id", "object", "created", "model", "choices", "obfuscation"})
_IDENTITY = ("id", "object", "created", "model")
_OF_A_CALL = ("tool_calls", "function_call")


class EntryCall(CollapsibleCall):
    """A call, and what its chunks hold beside its pieces."""

    def __init__(self, call_id: str, *, collapsed: bool = True) -> None:
        super().__init__(call_id, collapsed=collapsed)
        self.frame = Frame()
        self.began_in: dict[str, Any] = {}
        self.chunk: dict[str, Any] = {}
        self.choice: dict[str, Any] = {}
        self.delta: dict[str, Any] = {}  # what says nothing by itself: the role, empty content
        self.entry: dict[str, Any] = {}
        self.is_legacy = False

    @property
    def index(self) -> int | None:
        return self.entry.get("index")

    def begin(self, frame: Frame, chunk: dict[str, Any], choice: dict[str, Any]) -> None:
        self.frame = frame
        self.began_in = chunk
        self.chunk = {**chunk, "usage": None} if "usage" in chunk else dict(chunk)
        self.choice = {
            field: value if field == "index" or _is_empty(value) else None for field, value in choice.items()
        }

    def add(self, entry: dict[str, Any], *, is_legacy: bool) -> None:
        """Takes in a piece; of what servers send beside the arguments the first counts, of what is unknown the last."""
        self.is_legacy = is_legacy
        known = self.entry
        for field, value in entry.items():
            if isinstance(value, dict):
                known[field] = {**(known.get(field) or {}), **value}
            elif field not in known or (field not in ("index", "id", "type") and value is not None):
                known[field] = value

    def add_empty(self, delta: dict[str, Any]) -> None:
        for field, value in delta.items():
            if self.delta.get(field) is None:
                self.delta[field] = value

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


class Chunk(Passing):
    """A chunk of which something was withheld: ``value`` takes its place."""

    __slots__ = ("value",)

    def __init__(self, frame: Frame, value: dict[str, Any]) -> None:
        super().__init__(frame)
        self.value = value


class Observed(Passing):
    """A chunk with pieces of calls that are not collapsed. ``begun``: choice and index of those that begin in it."""

    __slots__ = ("begun",)

    def __init__(self, frame: Frame, begun: list[tuple[int, int]]) -> None:
        super().__init__(frame)
        self.begun = begun


class CutFrame:
    """A chunk that is taken apart: what leaves in parts of it, and the places of calls between them."""

    def __init__(self, frame: Frame, chunk: dict[str, Any]) -> None:
        self.frame = frame
        self.chunk = chunk
        self.slots: list[Passing | CallSlot] = []
        self._choices: list[dict[str, Any]] = []  # of the part that is being made
        self._withheld: EntryCall | None = None  # the last call of which something was
        self._choice: dict[str, Any] = {}
        self._delta: dict[str, Any] = {}

    def open(self, choice: dict[str, Any]) -> None:
        """Turns to a choice."""
        self._choice = choice
        delta = choice.get("delta") or {}
        self._delta = {field: value for field, value in delta.items() if field not in _OF_A_CALL}

    def keep(self, entry: dict[str, Any], *, is_legacy: bool) -> None:
        if is_legacy:
            self._delta["function_call"] = entry
        else:
            self._delta.setdefault("tool_calls", []).append(entry)

    def withhold(self, call: EntryCall, entry: dict[str, Any], *, is_legacy: bool) -> None:
        call.add(entry, is_legacy=is_legacy)
        self._withheld = call
        if call.placed:
            return
        call.begin(self.frame, self.chunk, self._choice)
        if _speaks(self._delta):
            self._choices.append({**call.choice, "delta": self._delta})
        else:
            call.add_empty(self._delta)
        self._delta = {}
        if self._choices:
            self.slots.append(Chunk(self.frame, {**call.chunk, "choices": self._choices}))
            self._choices = []
        call.placed = True
        self.slots.append(CallSlot(call))

    def close(self, withheld: EntryCall | None) -> None:
        """The choice has no more pieces of calls. ``withheld``: the last call of which it had one that was withheld."""
        ends = any(not _is_empty(value) for field, value in self._choice.items() if field not in ("index", "delta"))
        if ends or withheld is None or _speaks(self._delta):
            self._choices.append({**self._choice, "delta": self._delta})
        else:
            withheld.add_empty(self._delta)

    def end(self) -> list[Passing | CallSlot]:
        if self._choices:
            self.slots.append(Chunk(self.frame, {**self.chunk, "choices": self._choices}))
        else:
            assert self._withheld is not None
            self._withheld.chunk |= {
                field: value for field, value in self.chunk.items() if value is not None and field not in _REPEATED
            }
        return self.slots


class ChatText:
    """A chunk whose one delta is content or reasoning."""

    class Delta(StrictText):
        content: str | None = None
        reasoning_content: str | None = None
        reasoning: str | None = None

        @property
        def field(self) -> str | None:
            said = [name for name in ("content", "reasoning_content", "reasoning") if getattr(self, name) is not None]
            return said[0] if len(said) == 1 else None

    class Choice(StrictText):
        delta: ChatText.Delta
        index: int = 0
        logprobs: None = None
        finish_reason: None = None

    class Chunk(StrictText):
        choices: list[ChatText.Choice]
        id: Any = None
        object: Any = None
        created: Any = None
        model: Any = None
        system_fingerprint: Any = None
        service_tier: Any = None
        usage: None = None
        obfuscation: Any = None

    def passage_of(self, payload: bytes) -> Passage | None:
        try:
            chunk = _TEXT_CHUNKS.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        field = chunk.choices[0].delta.field if len(chunk.choices) == 1 else None
        return None if field is None else (chunk.choices[0].index, field)

    def with_text(self, payload: dict[str, Any], text: str) -> dict[str, Any]:
        [choice] = payload["choices"]
        delta = {name: text if value is not None else value for name, value in choice["delta"].items()}
        made = {**payload, "choices": [{**choice, "delta": delta}]}
        made.pop("obfuscation", None)  # padding to the length of the delta that it came with
        return made


_TEXT_CHUNKS = msgspec.json.Decoder(ChatText.Chunk)


class OpenAIChatCollapser(Collapser[EntryCall]):
    _call_type = EntryCall
    text_form = ChatText()

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

    def _is_mere_delta(self, call: EntryCall, frame: Frame, chunk: Any) -> bool:
        if not super()._is_mere_delta(call, frame, chunk) or len(chunk.choices) != 1:
            return False
        delta = chunk.choices[0].delta
        return (delta.content is None or delta.content == call.delta.get("content") == "") and (
            delta.role is None or self._role_left or "role" in call.delta
        )

    # -- places --

    def _take(self, frame: Frame, chunk: Any, pieces: Sequence[str | None]) -> None:
        value = read_json(frame.payload) if pieces else None
        if value is None:
            self._slots.append(Passing(frame))
            return
        calls = [self._calls[piece] for piece in pieces]
        if not any(call.collapsed for call in calls):
            self._slots.append(Observed(frame, self._begun(value, calls)))
            return
        cut = CutFrame(frame, value)
        owners = iter(calls)
        for choice in value["choices"]:
            withheld = None
            cut.open(choice)
            for entry, is_legacy in _entries(choice):
                # After an error in the middle of a chunk the rest has no owner, and it must not be executed.
                call = next(owners, None)
                if call is not None and not call.collapsed:
                    cut.keep(entry, is_legacy=is_legacy)
                elif call is not None and not call.gone:
                    cut.withhold(call, entry, is_legacy=is_legacy)
                    withheld = call
            cut.close(withheld)
        self._slots += cut.end()

    def _begun(self, chunk: dict[str, Any], calls: list[EntryCall]) -> list[tuple[int, int]]:
        begun = []
        owners = iter(calls)
        for choice in chunk["choices"]:
            for (entry, _), call in zip(_entries(choice), owners, strict=False):
                if not call.placed and isinstance(entry.get("index"), int):
                    begun.append((choice.get("index") or 0, entry["index"]))
                call.placed = True
        return begun

    # -- leaving --

    def _whole(self, call: EntryCall) -> list[Output]:
        number = call.choice.get("index") or 0
        index = self._last_index.get(number, -1) + 1
        if not call.is_legacy:
            self._last_index[number] = index
        after = {**call.chunk, "choices": [{**call.choice, "delta": call.whole_delta(index)}]}
        return [Output(self._passed(call.frame, changed(call.began_in, after)), (call.call_id,))]

    def _left_out(self, call: EntryCall) -> list[Output]:
        if isinstance(call.index, int):
            self._missing.setdefault(call.choice.get("index") or 0, []).append(call.index)
        if self._role_left or not call.delta.get("role"):
            return []
        rest = {**call.chunk, "choices": [{**call.choice, "delta": call.delta}]}
        return [Output(self._passed(call.frame, rest))]

    def _passes_slot(self, slot: Passing) -> list[Output]:
        if isinstance(slot, Observed):
            if self._missing:
                return self._passes_slot(Chunk(slot.frame, read_json(slot.frame.payload)))
            for number, index in slot.begun:
                self._last_index[number] = max(index, self._last_index.get(number, -1))
        elif isinstance(slot, Chunk):
            renumbered = [self._renumbered(choice) for choice in slot.value["choices"]]
            return [Output(self._passed(slot.frame, {**slot.value, "choices": renumbered}))]
        return super()._passes_slot(slot)

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


def _entries(choice: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """The pieces of calls in a choice, in the decoder's order; true for one in the legacy form."""
    delta = choice.get("delta") or {}
    yield from ((entry, False) for entry in delta.get("tool_calls") or ())
    if delta.get("function_call") is not None:
        yield delta["function_call"], True


def _is_empty(value: Any) -> bool:
    return value is None or value in ("", [], {})


def _speaks(delta: dict[str, Any]) -> bool:
    """Whether a delta adds something to its message."""
    return any(not _is_empty(value) for field, value in delta.items() if field != "role")
