"""The way back: AG-UI events of an agent that knows nothing about a journal, as events of a run.

So any agent that speaks AG-UI gets a journal, and its clients can come and go. Chunk events are read as the events that they
stand for. The server handles the start and the end of the run itself; a RUN_ERROR is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from callstream import codec
from callstream.agui.translator import TOOL_PROGRESS
from callstream.errors import CallstreamError, UsageError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallProgressed,
    CallReturned,
    CallSigned,
    CallStarted,
    MessageEnded,
    MessageStarted,
    ReasoningAppended,
    RunEvent,
    StateChanged,
    TextAppended,
)


class AgentError(CallstreamError):
    """The agent sent RUN_ERROR."""


class Reader:
    """Reads one run's events, each a dict as AG-UI writes it: ``{"type": "TEXT_MESSAGE_START", "messageId": …}``."""

    def __init__(self) -> None:
        self._text: str | None = None  # the message that chunks have opened, and the call
        self._call: str | None = None
        self._open: set[str] = set()
        self._args: dict[str, list[str]] = {}
        self._complete: set[str] = set()  # calls that may be reported as executing

    def read(self, event: dict[str, Any]) -> list[RunEvent]:
        """The run events in an AG-UI event; none for those that do not concern the run (STEP_STARTED, RAW, CUSTOM, …)."""
        kind = event.get("type")
        if not isinstance(kind, str):
            raise UsageError(f"expected an AG-UI event, an object with a type; got {str(event)[:100]!r}")
        handler = _HANDLERS.get(kind)
        if handler is not None:
            _check(kind, event)
        try:
            closing = list(self._end_chunks()) if kind not in _CHUNKS else []
            return [*closing, *(handler(self, event) if handler is not None else ())]
        except KeyError as error:
            raise UsageError(f"expected the AG-UI event {kind} to have {error.args[0]!r}") from None

    def end(self) -> list[RunEvent]:
        """The agent has sent everything: an open chunk ends here."""
        return list(self._end_chunks())

    # -- text --

    def _message_started(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        if event["messageId"] not in self._open:
            self._open.add(event["messageId"])
            yield MessageStarted(event["messageId"])

    def _appended(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        yield from self._message_started(event)
        kind = TextAppended if event["type"].startswith("TEXT_") else ReasoningAppended
        yield kind(event["messageId"], event["delta"])

    def _message_ended(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        if event["messageId"] in self._open:
            self._open.discard(event["messageId"])
            yield MessageEnded(event["messageId"])

    def _message_chunk(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        message_id = event.get("messageId") or self._text
        if message_id is None:
            raise KeyError("messageId")
        if message_id != self._text:
            yield from self._end_chunks()
        self._text = message_id
        yield from self._appended({**event, "messageId": message_id, "delta": event.get("delta") or ""})

    # -- calls --

    def _call_started(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        call_id = event["toolCallId"]
        if call_id in self._args:
            raise UsageError(f"expected TOOL_CALL_END of call {call_id!r} before it starts again")
        self._args[call_id] = []
        yield CallStarted(call_id, event["toolCallName"], provider_id=call_id, message_id=event.get("parentMessageId"))

    def _args_appended(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        call_id = event["toolCallId"]
        if call_id not in self._args:
            raise UsageError(f"expected TOOL_CALL_START of call {call_id!r} before its arguments")
        if event["delta"]:
            self._args[call_id].append(event["delta"])
            yield ArgsAppended(call_id, event["delta"])

    def _call_ended(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        call_id = event["toolCallId"]
        pieces = self._args.pop(call_id, None)
        if pieces is None:
            raise UsageError(f"expected TOOL_CALL_START of call {call_id!r} before its end")
        text = "".join(pieces)
        try:
            codec.decode_strict(text or "{}")
        except ValueError as error:
            yield CallDiscarded(call_id, "malformed", str(error))
        else:
            self._complete.add(call_id)
            yield CallCompleted(call_id, text or "{}")

    def _call_chunk(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        call_id = event.get("toolCallId") or self._call
        if call_id is None:
            raise KeyError("toolCallId")
        if call_id != self._call:
            yield from self._end_chunks()
            yield from self._call_started({**event, "toolCallId": call_id})
        self._call = call_id
        yield from self._args_appended({"toolCallId": call_id, "delta": event.get("delta") or ""})

    def _returned(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        content = event["content"]
        try:
            result = msgspec.json.decode(content) if isinstance(content, str) else content
        except msgspec.DecodeError:
            result = content
        yield CallReturned(event["toolCallId"], result)

    def _signed(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        if event.get("subtype") == "tool-call":
            yield CallSigned(event["entityId"], event["encryptedValue"])

    def _activity(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        match event:
            case {"activityType": str(kind), "content": {"toolCallId": str(call_id), "progress": data}}:
                if kind == TOOL_PROGRESS:
                    if call_id in self._complete:  # AG-UI has no word for it
                        self._complete.discard(call_id)
                        yield CallExecuting(call_id)
                    yield CallProgressed(call_id, data)

    def _end_chunks(self) -> Iterator[RunEvent]:
        """Chunks have no end of their own: any other event ends them."""
        text, call, self._text, self._call = self._text, self._call, None, None
        if text is not None:
            yield from self._message_ended({"messageId": text})
        if call is not None:
            yield from self._call_ended({"toolCallId": call})

    # -- the rest --

    def _state(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        yield StateChanged(event["snapshot"])

    def _patch(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        yield StateChanged(patch=event["delta"])

    def _error(self, event: dict[str, Any]) -> Iterator[RunEvent]:
        raise AgentError(str(event.get("message") or "the agent reported an error"))


def _check(kind: str, event: dict[str, Any]) -> None:
    """Refuses events that the journal would store but could not read back."""
    for name in _TEXTS:
        if kind == "STATE_DELTA" and name == "delta":
            continue
        value = event.get(name, "")
        if not isinstance(value, str) and not (value is None and (kind in _CHUNKS or name == "parentMessageId")):
            raise UsageError(f"expected {kind}'s {name!r} to be text, got {type(value).__name__}")
    if kind == "STATE_DELTA" and not (
        isinstance(event.get("delta"), list) and all(isinstance(each, dict) for each in event["delta"])
    ):
        raise UsageError("expected STATE_DELTA's 'delta' to be a list of operations (RFC 6902)")


_TEXTS: Final = (
    "messageId",
    "delta",
    "toolCallId",
    "toolCallName",
    "parentMessageId",
    "entityId",
    "encryptedValue",
)
_CHUNKS: Final = ("TEXT_MESSAGE_CHUNK", "REASONING_MESSAGE_CHUNK", "TOOL_CALL_CHUNK")
_HANDLERS: Final[dict[str, Callable[[Reader, dict[str, Any]], Iterator[RunEvent]]]] = {
    "TEXT_MESSAGE_START": Reader._message_started,
    "TEXT_MESSAGE_CONTENT": Reader._appended,
    "TEXT_MESSAGE_END": Reader._message_ended,
    "TEXT_MESSAGE_CHUNK": Reader._message_chunk,
    "REASONING_MESSAGE_START": Reader._message_started,
    "REASONING_MESSAGE_CONTENT": Reader._appended,
    "REASONING_MESSAGE_END": Reader._message_ended,
    "REASONING_MESSAGE_CHUNK": Reader._message_chunk,
    "REASONING_ENCRYPTED_VALUE": Reader._signed,
    "TOOL_CALL_START": Reader._call_started,
    "TOOL_CALL_ARGS": Reader._args_appended,
    "TOOL_CALL_END": Reader._call_ended,
    "TOOL_CALL_CHUNK": Reader._call_chunk,
    "TOOL_CALL_RESULT": Reader._returned,
    "ACTIVITY_SNAPSHOT": Reader._activity,
    "STATE_SNAPSHOT": Reader._state,
    "STATE_DELTA": Reader._patch,
    "RUN_ERROR": Reader._error,
}
