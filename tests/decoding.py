"""Decoding in tests: bodies cut in many ways, and what the events amount to."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from callstream.errors import WireError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallSigned,
    CallStarted,
    MessageEnded,
    MessageStarted,
    ReasoningAppended,
    ResponseEnded,
    TextAppended,
    WireEvent,
)
from callstream.wire import Decoder, decoder_for


class Folded(msgspec.Struct):
    """A call as its events tell it. ``outcome`` is ``completed``, a discard reason, or ``open``."""

    name: str
    provider_id: str | None
    text: str = ""
    args_json: str | None = None
    outcome: str = "open"
    detail: str | None = None
    signature: str | None = None
    encoding: str = "json"
    message_id: str | None = None

    @property
    def args(self) -> Any:
        assert self.args_json is not None, f"{self.name} is {self.outcome} ({self.detail})"
        return json.loads(self.args_json, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


class Outcome(msgspec.Struct):
    """Everything that a decoder said: events with adjacent pieces merged, and the error that it ended with."""

    events: list[WireEvent]
    error: str | None = None


def sse(*payloads: Any, event: bool = False, done: bool = False) -> bytes:
    """Payloads as server-sent events, with their type as the event's name where ``event`` is set."""
    frames = []
    for payload in payloads:
        text = payload if isinstance(payload, str) else json.dumps(payload)
        name = f"event: {payload['type']}\n" if event else ""
        frames.append(f"{name}data: {text}\n\n")
    return ("".join(frames) + ("data: [DONE]\n\n" if done else "")).encode("utf-8", "surrogatepass")


def merged(events: Iterable[WireEvent]) -> list[WireEvent]:
    """The events with adjacent pieces of the same text made one, because chunk boundaries mean nothing."""
    out: list[WireEvent] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, TextAppended | ReasoningAppended | ArgsAppended) and type(last) is type(event):
            owner = "call_id" if isinstance(event, ArgsAppended) else "message_id"
            if getattr(last, owner) == getattr(event, owner):
                out[-1] = msgspec.structs.replace(last, text=last.text + event.text)
                continue
        out.append(event)
    return out


def fed(decoder: Decoder[Any], pieces: Iterable[bytes]) -> tuple[list[WireEvent], WireError | None]:
    """All events of the pieces and of the end of the body, and the error that came after them, if one did."""
    events: list[WireEvent] = []
    try:
        for piece in pieces:
            events += decoder.feed(piece)
        events += decoder.end()
        decoder.feed(b"")  # a decoder that broke at the end says so now
    except WireError as error:
        return events, error
    return events, None


def outcome(wire: str, pieces: Iterable[bytes], **settings: Any) -> Outcome:
    events, error = fed(decoder_for(wire, **settings), pieces)
    check_order(events)
    return Outcome(merged(events), str(error) if error is not None else None)


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]


def splits(data: bytes, *, count: int = 20, seed: int = 0) -> Iterator[list[bytes]]:
    """The body whole, byte by byte, and at random places: few pieces and many."""
    yield [data]
    yield bytewise(data)
    chance = random.Random(seed)
    for number in range(count):
        pieces = min(len(data), 2 + number * number)
        yield cut(data, (chance.randint(0, len(data)) for _ in range(pieces)))


def decode(wire: str, data: bytes, **settings: Any) -> list[WireEvent]:
    """The merged events of a body that must not fail, after trying that every split gives the same."""
    result = outcome_at_any_split(wire, data, **settings)
    assert result.error is None, result.error
    return result.events


def outcome_at_any_split(wire: str, data: bytes, **settings: Any) -> Outcome:
    expected = outcome(wire, [data], **settings)
    for pieces in splits(data, count=6):
        assert outcome(wire, pieces, **settings) == expected
    return expected


def failure(wire: str, data: bytes, **settings: Any) -> tuple[list[WireEvent], str]:
    """The events before the error of a body that must fail, and the error, after trying every split."""
    result = outcome_at_any_split(wire, data, **settings)
    assert result.error is not None, result.events
    return result.events, result.error


def whole(wire: str, answer: Any, **settings: Any) -> list[WireEvent]:
    """The merged events of an answer that was not streamed."""
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    events = decoder_for(wire, **settings).whole(body)
    check_order(events)
    return merged(events)


def calls(events: Iterable[WireEvent]) -> list[Folded]:
    """The calls that the events tell of, in the order in which they started."""
    found: dict[str, Folded] = {}
    for event in events:
        match event:
            case CallStarted():
                found[event.call_id] = Folded(
                    event.name,
                    event.provider_id,
                    signature=event.signature,
                    encoding=event.encoding,
                    message_id=event.message_id,
                )
            case CallSigned():
                found[event.call_id].signature = event.signature
            case ArgsAppended():
                found[event.call_id].text += event.text
            case CallCompleted():
                found[event.call_id].outcome = "completed"
                found[event.call_id].args_json = event.args_json
            case CallDiscarded() if event.call_id in found:
                found[event.call_id].outcome = event.reason
                found[event.call_id].detail = event.detail
            case _:
                pass
    return list(found.values())


def only_call(events: Sequence[WireEvent]) -> Folded:
    found = calls(events)
    assert len(found) == 1, found
    return found[0]


def text(events: Iterable[WireEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextAppended))


def reasoning(events: Iterable[WireEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ReasoningAppended))


def ended(events: Iterable[WireEvent]) -> list[ResponseEnded]:
    return [event for event in events if isinstance(event, ResponseEnded)]


def check_order(events: Iterable[WireEvent]) -> None:
    """The laws that hold for the events of every decoder, whatever the bytes were."""
    messages: set[str] = set()
    state: dict[str, str] = {}
    for event in events:
        match event:
            case MessageStarted():
                assert event.message_id not in messages
                messages.add(event.message_id)
            case MessageEnded():
                messages.remove(event.message_id)
            case TextAppended() | ReasoningAppended():
                assert event.message_id in messages
                assert event.text
                event.text.encode()  # no half of a character is ever shown
            case CallStarted():
                assert event.call_id not in state
                assert event.message_id in messages
                assert event.name
                state[event.call_id] = "open"
            case CallSigned():
                assert event.call_id in state
            case ArgsAppended():
                assert state[event.call_id] == "open"
                assert event.text
                event.text.encode()
            case CallCompleted() | CallDiscarded():
                # What never got a name is discarded without having started.
                assert state.get(event.call_id, "open") == "open"
                state[event.call_id] = "final"
            case ResponseEnded():
                assert not messages
                assert "open" not in state.values()
