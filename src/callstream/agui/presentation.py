"""The events of a run that one client gets: shown or held back, merged if the client is behind, as server-sent events.

``Presentation`` adds to the translator's events, and holds some back, according to an agent's options. Most of that is
predicted state: an argument of a tool that is shown before it becomes a key of the state. ``OlderClient`` leaves out events
that clients before 1.0 refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from callstream import codec
from callstream.agui.events import (
    ActivitySnapshot,
    AguiEvent,
    Cancelled,
    Custom,
    MessagesSnapshot,
    ReasoningMessageContent,
    ReasoningStart,
    RunFinished,
    Success,
    TextMessageContent,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)
from callstream.agui.messages import AssistantMessage
from callstream.errors import UsageError


class Presenter(Protocol):
    """Decides what becomes of the translator's events on one stream."""

    def show(self, events: Sequence[Any]) -> Sequence[Any]: ...


@dataclass
class PredictStateMapping:
    """While ``tool`` is being called, the client shows its ``tool_argument`` as ``state_key``.

    ``emit_confirm_tool``: a run in which the tool has returned ends with a ``confirm_changes`` call, which asks the
    client's user whether to keep the changes. The tool's own result is then not sent to the client.
    """

    state_key: str
    tool: str
    tool_argument: str
    emit_confirm_tool: bool = True

    def to_payload(self) -> dict[str, str]:
        return {"state_key": self.state_key, "tool": self.tool, "tool_argument": self.tool_argument}


class Predictions:
    """The mappings of an agent, and what they add to a run."""

    def __init__(self, mappings: PredictStateMapping | Iterable[PredictStateMapping] | None) -> None:
        self._mappings = (mappings,) if isinstance(mappings, PredictStateMapping) else tuple(mappings or ())
        for mapping in self._mappings:
            if not isinstance(mapping, PredictStateMapping):
                raise UsageError(f"expected predict_state to be PredictStateMappings, got {mappings!r}")

    def payloads(self, tool_name: str) -> list[dict[str, str]]:
        """A tool's mappings as the client gets them; empty if nothing is predicted from its calls."""
        return [mapping.to_payload() for mapping in self._mappings if mapping.tool == tool_name]

    def asks_about(self, tool_name: str) -> bool:
        return any(mapping.tool == tool_name and mapping.emit_confirm_tool for mapping in self._mappings)


_LOOKED_AT: Final = frozenset(
    {ToolCallArgs, ToolCallStart, MessagesSnapshot, ToolCallResult, ToolCallEnd, TextMessageStart, ReasoningStart}
)


class Presentation:
    """The presentation of one stream. ``answered``: calls for which the client already has a result; a second one would
    confuse it. ``known``: calls in its messages. If the client answers such a call that was made elsewhere, the run takes
    in that call and those beside it before the agent says anything; the client must not see any of them begin again.

    The result of a tool whose changes the client's user has to confirm is held back: the client already shows the changes,
    and a result would say that they have been made.
    """

    _announced: frozenset[str] = frozenset()

    def __init__(
        self,
        predictions: Predictions,
        *,
        streams_arguments: bool,
        answered: frozenset[str],
        known: frozenset[str] = frozenset(),
    ) -> None:
        self._held_back = set(answered)
        self._known = known
        self._predictions = predictions
        self._streams = streams_arguments
        self._held: dict[str, list[str]] = {}

    def show(self, events: Iterable[AguiEvent]) -> list[AguiEvent]:
        made: list[AguiEvent] = []
        for event in events:
            if type(event) not in _LOOKED_AT:
                pass
            elif isinstance(event, TextMessageStart | ReasoningStart):
                self._known = frozenset()
            elif isinstance(event, ToolCallStart | ToolCallArgs | ToolCallEnd) and event.tool_call_id in self._known:
                continue
            elif isinstance(event, ToolCallArgs):
                if not self._streams:
                    self._held.setdefault(event.tool_call_id, []).append(event.delta)
                    continue
            elif isinstance(event, ToolCallStart):
                made += self._announcement(event)
            elif isinstance(event, MessagesSnapshot):
                self._look_for_calls(event)
            elif isinstance(event, ToolCallResult) and event.tool_call_id in self._held_back:
                continue
            elif isinstance(event, ToolCallEnd) and (held := self._held.pop(event.tool_call_id, None)):
                whole = "".join(held)
                made.append(
                    ToolCallArgs(
                        tool_call_id=event.tool_call_id,
                        delta=whole,
                        metadata=event.metadata,
                        subagent_run_id=event.subagent_run_id,
                    )
                )
            made.append(event)
        return made

    def _announcement(self, started: ToolCallStart) -> list[AguiEvent]:
        """Tells the client once, before its first call, which state a tool's arguments will become."""
        name = started.tool_call_name
        if self._predictions.asks_about(name):
            self._held_back.add(started.tool_call_id)
        payloads = self._predictions.payloads(name)
        if not payloads or name in self._announced:
            return []
        self._announced |= {name}
        return [Custom(name="PredictState", value=payloads, metadata=started.metadata)]

    def _look_for_calls(self, snapshot: MessagesSnapshot) -> None:
        """A client that joins learns about calls from a snapshot, and about results later. Calls not in it are void."""
        messages = [message for message in snapshot.messages if isinstance(message, AssistantMessage)]
        calls = {call.id: call.function.name for message in messages for call in message.tool_calls or ()}
        self._held = {call_id: held for call_id, held in self._held.items() if call_id in calls}
        self._held_back |= {call_id for call_id, name in calls.items() if self._predictions.asks_about(name)}


# -- clients before 1.0 --
#
# They declare no protocol version, and refuse what they do not know: events of agents that tools run, and most of a run's
# outcome. CopilotKit's runtime is one of them. What the outcome no longer says, it works out itself: a call of a tool that
# it brought, without a result, waits for it.


class OlderClient:
    """A stream for a client of AG-UI before 1.0."""

    def __init__(self, presentation: Presenter | None) -> None:
        self._presentation = presentation

    def show(self, events: Sequence[Any]) -> Sequence[Any]:
        return for_older_client(events if self._presentation is None else self._presentation.show(events))


def for_older_client(events: Iterable[Any]) -> list[Any]:
    """The events as such a client accepts them, without those of agents that tools run."""
    known = (event for event in events if getattr(event, "subagent_run_id", None) is None)
    return [_without_news(event) for event in known]


def _without_news(event: Any) -> Any:
    match event:
        case RunFinished(outcome=Success()):
            return msgspec.structs.replace(event, outcome=Success())
        case RunFinished(outcome=Cancelled()):
            return msgspec.structs.replace(event, outcome=None)
        case MessagesSnapshot(messages=messages):
            kept = tuple(message for message in messages if getattr(message, "subagent_run_id", None) is None)
            return msgspec.structs.replace(event, messages=kept)
        case _:
            return event


# -- writing --


def encode_sse(
    events: Sequence[AguiEvent], seq: int | None = None, *, first: int | None = None, skip: int = 0
) -> bytes:
    """The events of one record, or of those from ``first`` to ``seq`` sent as one, as server-sent events; LF only.

    Every event has an ``id``, the ``Position`` of a client that has read it. Without ``seq`` they have none: they do not
    come from the run's records, so a client that returns has to be sent them again, or something else. ``skip`` events at
    the beginning are left out, because the client has them.
    """
    if seq is None:
        return b"".join([b"data: %b\n\n" % codec.encode(event) for event in events])
    last = len(events)
    place = "" if first is None or first == seq else f".{first}"
    frames = []
    for number, event in enumerate(events, start=1):
        position = f"{seq}.{number}{place}" if number < last else f"{seq}"
        frames.append(b"id: %b\ndata: %b\n\n" % (position.encode(), codec.encode(event)))
    return b"".join(frames[skip:])


class Position(msgspec.Struct, frozen=True):
    """How far a client has read a run: the meaning of an SSE ``id``.

    ``7`` is everything up to record 7. ``7.2`` is everything up to record 6 and the first two events of record 7. ``7.2.4``
    is everything up to record 3 and the first two of the events into which records 4 to 7 were merged.
    """

    seq: int
    events: int | None = None
    """How many events of the last group were read; None for all."""
    first: int | None = None

    @property
    def whole(self) -> int:
        """The last record that was read completely."""
        return self.seq if self.events is None else (self.first or self.seq) - 1

    @classmethod
    def parse(cls, text: str) -> Position | None:
        """The position that an id stands for; None if it is not an id of ours."""
        if _POSITION.fullmatch(text) is None:
            return None
        seq, events, first = [*map(int, text.split(".")), None, None][:3]
        assert seq is not None
        return cls(seq, events, first) if first is None or 0 < first <= seq else None


_POSITION: Final = re.compile(r"\d{1,18}(\.[1-9]\d{0,8}(\.\d{1,18})?)?", re.ASCII)


def is_delta(event: AguiEvent) -> bool:
    """Whether ``merge`` may join the event with others."""
    return _merge_key(event) is not None


def merge(events: Iterable[AguiEvent]) -> list[AguiEvent]:
    """The same events with fewer deltas, for a reader that is behind: they fold to the same result.

    Deltas of one call or message are joined if there are only other deltas between them, and stand where the last of them
    was, with its ``seq``; of one call's progress reports in such a stretch the last is kept. Nothing else is moved, and no
    two calls' first progress reports change places.
    """
    merged: list[AguiEvent] = []
    waiting: dict[tuple[type, str], list[_Mergeable]] = {}
    for event in events:
        key = _merge_key(event)
        is_second_activity = isinstance(event, ActivitySnapshot) and any(
            kind is ActivitySnapshot and key != (kind, name) for kind, name in waiting
        )
        if key is None or is_second_activity:
            merged += map(_join, waiting.values())
            waiting.clear()
        if key is None:
            merged.append(event)
        else:
            group = waiting.pop(key, [])
            group.append(event)  # type: ignore[arg-type]  # it has a key
            waiting[key] = group
    merged += map(_join, waiting.values())
    return merged


_Mergeable: TypeAlias = TextMessageContent | ReasoningMessageContent | ToolCallArgs | ActivitySnapshot


def _merge_key(event: AguiEvent) -> tuple[type, str] | None:
    match event:
        case TextMessageContent() | ReasoningMessageContent() | ActivitySnapshot():
            return type(event), event.message_id
        case ToolCallArgs():
            return type(event), event.tool_call_id
        case _:
            return None


def _join(group: list[_Mergeable]) -> AguiEvent:
    last = group[-1]
    if len(group) == 1 or isinstance(last, ActivitySnapshot):
        return last
    return msgspec.structs.replace(last, delta="".join([event.delta for event in group]))  # type: ignore[union-attr]
