"""What there is to see of a run: a fold of its records, for terminals.

Pure: records in, items out. An item is something said or a call; it is settled when nothing more will happen to it.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from callstream.calls import AT_REST, CallState
from callstream.errors import WireError
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallProgressed,
    CallReleased,
    CallReturned,
    CallStarted,
    MessageEnded,
    MessageReceived,
    ReasoningAppended,
    Record,
    RunEnded,
    RunStarted,
    TextAppended,
)
from callstream.jsontext.stream import JsonStream


class Said:
    """Something that was said: by ``user``, ``assistant`` or another role, or ``reasoning``."""

    def __init__(self, role: str, text: str = "", *, settled: bool = False) -> None:
        self.role = role
        self._pieces = [text] if text else []
        self.is_settled = settled

    @property
    def text(self) -> str:
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def append(self, text: str) -> None:
        self._pieces.append(text)


class Called:
    """A call. ``fields`` are its arguments as far as they are known, name by name."""

    def __init__(self, call_id: str, name: str, at: float, *, is_text: bool = False) -> None:
        self.call_id = call_id
        self.name = name
        self.state = CallState.STARTED
        self.started_at = at
        self.first_at: float | None = None
        self.changed_at = at
        self.chars = 0
        self.deltas = 0
        self.progress: Any = None
        self.result: Any = None
        self.error: str | None = None
        self.reason: str | None = None
        self.is_text = is_text
        self._raw: list[str] = []
        self._stream = None if is_text else JsonStream()

    @property
    def is_settled(self) -> bool:
        return self.state in AT_REST

    def append(self, text: str, at: float) -> None:
        """A piece of argument text, or all of it."""
        self.first_at = self.first_at or at
        self.changed_at = at
        self.chars += len(text)
        self.deltas += 1
        self._raw.append(text)
        if self._stream is not None:
            try:
                self._stream.feed(text)
            except WireError:
                self._stream = None  # it is shown as it came

    def fields(self) -> list[tuple[str, str]]:
        """Names and values as text; what is no object has no names."""
        value = self._stream.value if self._stream is not None else "".join(self._raw)
        if isinstance(value, dict):
            return [(name, _text(each)) for name, each in value.items()]
        return [("", _text(value))] if self.chars else []


Item: TypeAlias = Said | Called


class Scene:
    """A run as it is until now. ``items`` are in the order in which they began."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.thread_id: str | None = None
        self.outcome: str | None = None
        self.reason: str | None = None
        self._open: dict[tuple[str, str], Said] = {}
        self._calls: dict[str, Called] = {}

    def take(self, record: Record) -> None:
        event, at = record.event, record.at
        match event:
            case RunStarted(thread_id=thread_id):
                self.thread_id = thread_id
            case MessageReceived(role=role, text=text):
                self.items.append(Said(role, text, settled=True))
            case TextAppended(message_id=message_id, text=text):
                self._said(message_id, "assistant").append(text)
            case ReasoningAppended(message_id=message_id, text=text):
                self._said(message_id, "reasoning").append(text)
            case MessageEnded(message_id=message_id):
                self._settle(message_id)
            case CallStarted(call_id=call_id, name=name, encoding=encoding, message_id=message_id):
                self._settle(message_id)
                called = self._calls[call_id] = Called(call_id, name, at, is_text=encoding == "text")
                self.items.append(called)
            case RunEnded(outcome=outcome, reason=reason):
                self.outcome, self.reason = outcome, reason
                for said in self._open.values():
                    said.is_settled = True
            case _:
                self._take_of_call(event, at)

    def _take_of_call(self, event: Any, at: float) -> None:
        called = self._calls.get(getattr(event, "call_id", ""))
        if called is None:
            if isinstance(event, CallReturned | CallFailed):  # it answers a call of an earlier run
                told = event.result if isinstance(event, CallReturned) else event.error
                self.items.append(Said("answer", _text(told), settled=True))
            return
        called.changed_at = at
        match event:
            case ArgsAppended(text=text):
                called.state = CallState.ARGS_STREAMING
                called.append(text, at)
            case CallCompleted(args_json=whole):
                called.state = CallState.ARGS_COMPLETE
                if whole is not None and not called.deltas:  # it came without pieces
                    called.append(json.loads(whole) if called.is_text else whole, at)
            case CallExecuting():
                called.state = CallState.EXECUTING
            case CallAwaiting():
                called.state = CallState.AWAITING
            case CallProgressed(data=data):
                called.progress = data
            case CallReturned(result=result):
                called.state, called.result = CallState.COMPLETED, result
            case CallFailed(error=error):
                called.state, called.error = CallState.FAILED, error
            case CallDiscarded(reason=reason, detail=detail):
                called.state = CallState.DISCARDED
                called.reason = f"{reason}: {detail}" if detail else reason
            case CallReleased():
                called.state = CallState.RELEASED
            case _:
                pass

    def _said(self, message_id: str, role: str) -> Said:
        key = (message_id, role)
        said = self._open.get(key)
        if said is None:
            self._settle(message_id)
            said = self._open[key] = Said(role)
            self.items.append(said)
        return said

    def _settle(self, message_id: str | None) -> None:
        """What a message says after something else begins a paragraph of its own."""
        for key in [key for key in self._open if key[0] == message_id]:
            self._open.pop(key).is_settled = True


def bar_of(progress: Any, width: int = 30) -> str | None:
    """A report of a tool as a bar, where it tells how far of what; None where it does not."""
    if not isinstance(progress, dict):
        return None
    done, total, message = progress.get("done"), progress.get("total"), progress.get("message")
    if done is None or total is None or not (_is_number(done) and _is_number(total)) or total <= 0:
        return None
    filled = min(width, max(0, round(width * done / total)))
    return f"[{'#' * filled}{'.' * (width - filled)}] {done:g}/{total:g}" + (f" {message}" if message else "")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
