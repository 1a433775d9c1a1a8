"""What there is to see of a run in a terminal: its view, and the arguments of its calls while they are being written."""

from __future__ import annotations

import json
from typing import Any

from callstream.calls import AT_REST
from callstream.errors import WireError
from callstream.events import CallFailed, CallReturned, Record
from callstream.jsontext.stream import JsonStream
from callstream.view import AnswerView, CallView, Grew, Item, Opened, Passage, RunView


class Preview:
    """The arguments of a call while they arrive: how many, how fast, and what they say so far."""

    def __init__(self, *, is_text: bool) -> None:
        self.first_at: float | None = None
        self.chars = 0
        self.deltas = 0
        self._stream = None if is_text else JsonStream(unique_names=True)

    def append(self, text: str, at: float) -> None:
        """A piece of argument text, or all of it."""
        self.first_at = self.first_at or at
        self.chars += len(text)
        self.deltas += 1
        if self._stream is not None:
            try:
                self._stream.feed(text)
            except WireError:
                self._stream = None  # it is shown as it came

    def fields(self, call: CallView) -> list[tuple[str, str]]:
        """Names and values as text; what is no object has no names."""
        value = self._stream.value if self._stream is not None else call.args_text
        if isinstance(value, dict):
            return [(name, as_text(each)) for name, each in value.items()]
        return [("", as_text(value))] if self.chars else []


class Scene:
    """A run as it is until now."""

    def __init__(self) -> None:
        self.view = RunView()
        self.previews: dict[str, Preview] = {}

    def feed(self, record: Record) -> None:
        for change in self.view.feed(record):
            match change:
                case Opened(part=CallView() as call):
                    self.previews[call.call_id] = Preview(is_text=call.encoding == "text")
                case Grew(part=CallView() as call, text=text) if text:
                    self.previews[call.call_id].append(text, record.at)
                case _:
                    pass

    def is_settled(self, item: Item) -> bool:
        """Whether nothing more will happen to an item."""
        match item:
            case Passage(end_seq=end_seq):
                return end_seq is not None
            case CallView(state=state):
                return state in AT_REST
            case AnswerView(outcome=outcome):
                return outcome is not None or self.view.outcome is not None
            case _:
                return True


def heading_of(passage: Passage) -> str:
    """Who says it, and whether that is reasoning."""
    if passage.kind == "text":
        return passage.author or "model"
    return "reasoning" if passage.author is None else f"reasoning of {passage.author}"


def answer_text(answer: AnswerView) -> str:
    match answer.outcome:
        case CallReturned(result=result):
            return as_text(result)
        case CallFailed(error=error):
            return error
        case None:
            return as_text(answer.progress)
        case _:
            return str(answer.as_json()["state"])


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


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
