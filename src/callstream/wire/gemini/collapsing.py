"""Gemini: a whole call is one ``functionCall`` part with ``args``, its id and its signature, in a chunk of its own.

That chunk is made of the fields of the chunks that the call came in. Of a chunk that holds more than pieces of the
call the rest stays where it is. A call that the provider sent whole stays in its chunk; where the provider gave it no
id, the decoder's is added, so that every call has one id on all ways.

Only the first of several calls carries a signature, and a history without it is refused. So the signature of a call
that is left out goes to the next call of the candidate that is forwarded and has none, whether it is collapsed or not;
if there is no such call, it is lost. One that comes after its call was forwarded leaves on an empty text part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from callstream.wire.collapsing import Collapser, Output, read_json
from callstream.wire.decoder import Decoder
from callstream.wire.framing import Frame
from callstream.wire.gemini.requests import SIGNATURE
from callstream.wire.passages import Passage, StrictText
from callstream.wire.slots import CallSlot, CollapsibleCall, Passing

_PIECES = ("partialArgs", "willContinue", "args")


class PartCall(CollapsibleCall):
    """A call, and what its chunks hold beside its pieces."""

    def __init__(self, call_id: str, *, collapsed: bool = True) -> None:
        super().__init__(call_id, collapsed=collapsed)
        self.choice = 0
        self.frame = Frame()
        self.chunk: dict[str, Any] = {}
        self.candidate: dict[str, Any] = {}
        self.content: dict[str, Any] = {}
        self.part: dict[str, Any] = {}
        self.has_args = False  # one that came whole may have none

    def begin(self, frame: Frame, chunk: dict[str, Any], candidate: dict[str, Any]) -> None:
        self.frame = frame
        self.choice = candidate.get("index") or 0
        self.chunk = _without(chunk, "candidates", "usageMetadata")
        self.candidate = {"index": candidate["index"]} if "index" in candidate else {}
        self.content = _without(candidate["content"], "parts")

    def add(self, part: dict[str, Any]) -> None:
        known = self.part.get("functionCall", {})
        self.part.update(part)
        self.has_args = self.has_args or not _is_whole(part["functionCall"]) or "args" in part["functionCall"]
        self.part["functionCall"] = known | _without(part["functionCall"], *_PIECES)

    def whole_chunk(self, signature: str | None) -> dict[str, Any]:
        function_call: dict[str, Any] = {"name": self.name, "id": self.wire_id}
        if self.has_args or self.args_json != "{}":
            function_call["args"] = msgspec.Raw(self.args_json.encode())
        part = {**self.part, "functionCall": self.part["functionCall"] | function_call}
        if signature is not None:
            part[SIGNATURE] = signature
        return {**self.chunk, "candidates": [{**self.candidate, "content": {**self.content, "parts": [part]}}]}


class Chunk(Passing):
    """A chunk in which calls begin, or of which something was withheld.

    ``value`` takes the place of the frame's where ``changed``. ``begun``: the first part of each call that begins in
    it, with its candidate; ``call_ids``: those of them that are collapsed and whole.
    """

    __slots__ = ("begun", "call_ids", "changed", "value")

    def __init__(self, frame: Frame, value: dict[str, Any]) -> None:
        super().__init__(frame)
        self.value = value
        self.changed = False
        self.begun: list[tuple[int, dict[str, Any]]] = []
        self.call_ids: list[str] = []


class CutFrame:
    """A chunk that is taken apart: what leaves in it or in parts of it, and the places of calls between them."""

    def __init__(self, frame: Frame, chunk: dict[str, Any]) -> None:
        self.frame = frame
        self.chunk = chunk
        self.slots: list[Passing | CallSlot] = []
        self._rest = Chunk(frame, {**chunk, "candidates": []})
        self._withheld: PartCall | None = None
        self._candidate: dict[str, Any] = {}
        self._parts: list[dict[str, Any]] = []
        self._kept: list[dict[str, Any]] = []

    def open(self, candidate: dict[str, Any]) -> list[dict[str, Any]]:
        """Turns to a candidate. Returns its parts."""
        self._candidate = candidate
        self._parts = (candidate.get("content") or {}).get("parts") or []
        self._kept = []
        return self._parts

    def keep(self, part: dict[str, Any], *, begins: bool = False) -> None:
        self._kept.append(part)
        if begins:
            self._rest.begun.append((self._candidate.get("index") or 0, part))

    def keep_whole(self, call: PartCall, part: dict[str, Any]) -> None:
        if not part["functionCall"].get("id"):
            part = {**part, "functionCall": {**part["functionCall"], "id": call.wire_id}}
            self._rest.changed = True
        self._rest.call_ids.append(call.call_id)
        self.keep(part, begins=True)

    def drop(self) -> None:
        self._rest.changed = True

    def sign_late(self, part: dict[str, Any]) -> None:
        self.drop()
        if SIGNATURE in part:
            self._kept.append({"text": "", SIGNATURE: part[SIGNATURE]})

    def withhold(self, call: PartCall, part: dict[str, Any]) -> None:
        call.add(part)
        self._rest.changed = True
        self._withheld = call
        if call.placed:
            return
        if self._kept:
            self._rest.value["candidates"].append(_bare(self._candidate, self._kept))
            self._kept = []
        if self._rest.value["candidates"]:
            self._rest.value.pop("usageMetadata", None)  # it leaves with the last part of the chunk
            self.slots.append(self._rest)
            self._rest = Chunk(self.frame, {**self.chunk, "candidates": []})
            self._rest.changed = True
        call.begin(self.frame, self.chunk, self._candidate)
        call.placed = True
        self.slots.append(CallSlot(call))

    def close(self) -> None:
        """The candidate has no more parts."""
        candidates = self._rest.value["candidates"]
        if not self._parts:
            candidates.append(self._candidate)
        elif self._kept:
            content = {**self._candidate["content"], "parts": self._kept}
            candidates.append({**self._candidate, "content": content})
        elif self._candidate.get("finishReason"):
            candidates.append({**self._candidate, "content": _without(self._candidate["content"], "parts")})
        elif self._withheld is not None:
            self._withheld.candidate |= _without(self._candidate, "content", "index")

    def end(self) -> list[Passing | CallSlot]:
        if self._rest.value["candidates"]:
            self.slots.append(self._rest)
        elif self._withheld is not None:
            self._withheld.chunk |= _without(self.chunk, "candidates")
        return self.slots


class GeminiText:
    """A chunk with one part of text or thought, and nothing that ends or cites."""

    class Part(StrictText):
        text: str
        thought: bool = False

    class Content(StrictText):
        parts: list[GeminiText.Part]
        role: str | None = None

    class Candidate(StrictText):
        content: GeminiText.Content
        index: int | None = None

    class Chunk(StrictText, rename="camel"):
        candidates: list[GeminiText.Candidate]
        usage_metadata: Any = None
        model_version: Any = None
        response_id: Any = None
        create_time: Any = None

    def passage_of(self, payload: bytes) -> Passage | None:
        try:
            chunk = _TEXT_CHUNKS.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if len(chunk.candidates) != 1 or len(chunk.candidates[0].content.parts) != 1:
            return None
        [candidate] = chunk.candidates
        return (candidate.index, candidate.content.parts[0].thought)

    def with_text(self, payload: dict[str, Any], text: str) -> dict[str, Any]:
        [candidate] = payload["candidates"]
        [part] = candidate["content"]["parts"]
        content = {**candidate["content"], "parts": [{**part, "text": text}]}
        return {**payload, "candidates": [{**candidate, "content": content}]}


_TEXT_CHUNKS = msgspec.json.Decoder(GeminiText.Chunk)


class GeminiCollapser(Collapser[PartCall]):
    _call_type = PartCall
    text_form = GeminiText()

    def __init__(self, decoder: Decoder[Any], **settings: Any) -> None:
        super().__init__(decoder, **settings)
        self._signatures: dict[int, str] = {}  # of calls that were left out, by candidate

    def _is_mere_delta(self, call: PartCall, frame: Frame, chunk: Any) -> bool:
        if not super()._is_mere_delta(call, frame, chunk):
            return False
        if chunk.usage_metadata:
            call.chunk["usageMetadata"] = chunk.usage_metadata
        return True

    def _take(self, frame: Frame, chunk: Any, pieces: Sequence[str | None]) -> None:
        value = read_json(frame.payload) if pieces else None
        if value is None:
            self._slots.append(Passing(frame))
            return
        cut = CutFrame(frame, value)
        owners = iter(pieces)
        for candidate in value["candidates"]:
            for part in cut.open(candidate):
                if part.get("functionCall") is None:
                    cut.keep(part)
                    continue
                for piece in owners:
                    self._call_part(cut, part, self._calls.get(piece))
                    break
                else:
                    cut.drop()  # after an error in the middle of a chunk it has no owner, and it must not be executed
            cut.close()
        self._slots += cut.end()

    def _call_part(self, cut: CutFrame, part: dict[str, Any], call: PartCall | None) -> None:
        if call is None:
            cut.keep(part)
        elif not call.collapsed:
            cut.keep(part, begins=not call.placed)
            call.placed = True
        elif call.gone:  # an end that came twice
            cut.sign_late(part)
        elif not call.placed and call.state == "completed" and _is_whole(part["functionCall"]):
            call.placed = call.gone = True
            cut.keep_whole(call, part)
        else:
            cut.withhold(call, part)

    def _whole(self, call: PartCall) -> list[Output]:
        moved = self._signatures.pop(call.choice, None)
        return [Output(self._passed(call.frame, call.whole_chunk(call.signature or moved)), (call.call_id,))]

    def _left_out(self, call: PartCall) -> list[Output]:
        if call.signature is not None:
            self._signatures.setdefault(call.choice, call.signature)
        return []

    def _passes_slot(self, slot: Passing) -> list[Output]:
        if not isinstance(slot, Chunk):
            return super()._passes_slot(slot)
        for choice, part in slot.begun:
            moved = self._signatures.pop(choice, None)
            if moved is not None and not part.get(SIGNATURE):
                part[SIGNATURE] = moved
                slot.changed = True
        return [Output(self._passed(slot.frame, slot.value if slot.changed else None), tuple(slot.call_ids))]

    def _over(self) -> None:
        self._signatures.clear()


def _is_whole(function_call: dict[str, Any]) -> bool:
    return "partialArgs" not in function_call and not function_call.get("willContinue")


def _without(value: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {field: value[field] for field in value if field not in fields}


def _bare(candidate: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A candidate with some of its parts, and nothing that belongs to its end."""
    content = {**candidate["content"], "parts": parts}
    return {"index": candidate["index"], "content": content} if "index" in candidate else {"content": content}
