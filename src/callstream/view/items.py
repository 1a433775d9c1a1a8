"""The parts of a run: its input, text and reasoning, calls and answers."""

from __future__ import annotations

import json
from typing import Any, Final, Literal, TypeAlias

import msgspec

from callstream import codec
from callstream.calls import BEING_WRITTEN, CallState
from callstream.events import (
    CallDiscarded,
    CallFailed,
    CallReleased,
    CallReturned,
    CallStarted,
    MessageReceived,
    Question,
    Record,
)

Outcome: TypeAlias = CallReturned | CallFailed | CallDiscarded | CallReleased
"""The event that ended a call."""

_MANY = 1024


class _Text:
    """A text that grows. Small pieces are joined now and then, so that they take no more memory than the text itself."""

    __slots__ = ("_chunks", "_pieces")

    def __init__(self) -> None:
        self._chunks: list[str] = []
        self._pieces: list[str] = []

    def append(self, piece: str) -> None:
        self._pieces.append(piece)
        if len(self._pieces) == _MANY:
            self._chunks.append("".join(self._pieces))
            self._pieces.clear()

    def __str__(self) -> str:
        if self._pieces or len(self._chunks) > 1:
            self._chunks = ["".join([*self._chunks, *self._pieces])]
            self._pieces.clear()
        return self._chunks[0] if self._chunks else ""


class InputView(msgspec.Struct, frozen=True, eq=False):
    """A message of the run's input, or one that was read from a request to the provider."""

    received: MessageReceived
    author: str | None
    at: float
    seq: int

    def as_json(self) -> dict[str, Any]:
        received = self.received
        message = {"type": "input", "role": received.role, "text": received.text, "message_id": received.message_id}
        attachments = list(received.attachments) or None
        return _without_none({**message, "attachments": attachments, "author": self.author, "at": self.at})


class Passage:
    """Text or reasoning of one message, up to the point where something else in that message began.

    ``first_seq`` and ``seq`` are the numbers of the first and the last record that added to it, ``end_seq`` that of the
    record that ended it, None while it is open.
    """

    __slots__ = ("_text", "at", "author", "end_seq", "first_seq", "kind", "message_id", "seq", "within")

    def __init__(
        self, kind: Literal["text", "reasoning"], message: MessageView, record: Record, *, is_outline: bool = False
    ) -> None:
        self.kind = kind
        self.message_id = message.message_id
        self.within = message.within
        self.author = record.author
        self.at = record.at
        self.first_seq = record.first_seq or record.seq
        self.seq = record.seq
        self.end_seq: int | None = None
        self._text = None if is_outline else _Text()

    @property
    def text(self) -> str:
        return str(self._text or "")

    def append(self, text: str, seq: int) -> None:
        if self._text is not None:
            self._text.append(text)
        self.seq = seq

    def as_json(self) -> dict[str, Any]:
        passage = {"type": self.kind, "message_id": self.message_id, "text": self.text, "is_open": self.end_seq is None}
        return _without_none({**passage, "author": self.author, "within": self.within, "at": self.at})


class _Course:
    """The course of a call: its last progress report, and the event that ended it."""

    __slots__ = (
        "at",
        "call_id",
        "changed_at",
        "outcome",
        "outcome_seq",
        "progress",
        "progress_first_seq",
        "progress_seq",
        "ran_early",
    )

    def __init__(self, call_id: str, record: Record) -> None:
        self.call_id = call_id
        self.ran_early = False
        """Whether the tool began before the response had ended."""
        self.at = self.changed_at = record.at
        self.progress: Any = None
        self.progress_first_seq = self.progress_seq = 0
        self.outcome: Outcome | None = None
        self.outcome_seq = 0

    def report(self, data: Any, record: Record) -> None:
        self.progress = data
        self.progress_first_seq = self.progress_first_seq or record.seq
        self.progress_seq, self.changed_at = record.seq, record.at


class CallView(_Course):
    """A call that a model made in the run.

    Numbers of records: ``first_seq``: where it started; ``args_seq``: the last one of its arguments, including the one that
    ended them; ``pieces_seq``: the last one before the end, if the arguments are whole; ``progress_first_seq`` and
    ``progress_seq``: the first and the last report; ``outcome_seq``: the one that ended the call. A number is 0 if there is
    no such record.
    """

    kind: Final = "call"
    __slots__ = (
        "_text",
        "_whole",
        "args_seq",
        "author",
        "encoding",
        "first_seq",
        "has_all_args",
        "has_pieces",
        "is_paused",
        "message_id",
        "name",
        "pieces_seq",
        "provider_id",
        "question",
        "signature",
        "state",
        "within",
    )

    def __init__(self, started: CallStarted, message: MessageView, record: Record, *, is_outline: bool = False) -> None:
        super().__init__(started.call_id, record)
        self.name = started.name
        self.provider_id = started.provider_id
        self.signature = started.signature
        self.encoding = started.encoding
        self.message_id = message.message_id
        self.within = message.within
        self.author = record.author
        self.state = CallState.STARTED
        self.first_seq = self.args_seq = record.seq
        self.pieces_seq = 0
        self.has_pieces = False
        """Whether the arguments came piece by piece."""
        self.has_all_args = False
        """Whether the provider ended the arguments."""
        self.question: Question | None = None
        """What the person or program that has to answer the call is asked."""
        self.is_paused = False
        """Whether another call asks about this one, and that other call has to be answered."""
        self._text = None if is_outline else _Text()
        self._whole: str | None = None

    @property
    def args_json(self) -> str:
        """The arguments so far, as JSON text. For a free-text tool, a JSON string, which is closed when they end."""
        if not self.has_pieces:
            nothing = '""' if self.encoding == "text" else "{}"
            return (self._whole or nothing) if self.has_all_args else ""
        text = str(self._text or "")
        if self.encoding == "json":
            return text
        return _json_string(text) if self.has_all_args else _json_string(text)[:-1]

    @property
    def args_text(self) -> str:
        """The arguments so far: JSON text, or the input itself of a free-text tool."""
        if self.encoding == "text" and (self.has_pieces or not self._whole):
            return str(self._text or "")
        return str(json.loads(self.args_json)) if self.encoding == "text" else self.args_json

    @property
    def is_being_written(self) -> bool:
        return self.state in BEING_WRITTEN or (self.state is CallState.RUNNING_EARLY and not self.has_all_args)

    @property
    def result(self) -> Any:
        """What the tool returned; None if it has not returned."""
        return self.outcome.result if isinstance(self.outcome, CallReturned) else None

    def as_json(self) -> dict[str, Any]:
        call = {name: getattr(self, name) for name in _CALL_FIELDS}
        question = None if self.question is None else msgspec.to_builtins(self.question)
        ran_early = self.ran_early or None
        return _without_none(
            {**call, "type": self.kind, "ran_early": ran_early, "question": question, **_outcome_json(self.outcome)}
        )

    def append(self, text: str, record: Record) -> str:
        """Returns the JSON text that the piece adds to the arguments."""
        if not self.ran_early:
            self.state = CallState.ARGS_STREAMING
        if self.encoding == "json":
            added = text
        else:  # even an empty piece begins the string of a free-text tool
            added = _json_string(text)[1:-1] if self.has_pieces else _json_string(text)[:-1]
        if text or added:
            self.has_pieces = True
            if self._text is not None:
                self._text.append(text)
            self.args_seq, self.changed_at = record.seq, record.at
        return added

    def complete(self, whole: str | None, record: Record) -> tuple[str, str]:
        """Returns the part not written before, as text and as JSON: everything, for a call that came without pieces."""
        self._whole = whole
        self.has_all_args = True
        if not self.ran_early:
            self.state = CallState.ARGS_COMPLETE
        self.pieces_seq = self.args_seq
        self.args_seq, self.changed_at = record.seq, record.at
        if self.has_pieces:
            return ("", '"') if self.encoding == "text" else ("", "")
        came = self.args_text, self.args_json
        if self._text is None:
            self._whole = None
        return came

    def end(self, outcome: Outcome, record: Record) -> bool:
        """Returns whether that cut its arguments off."""
        is_cut_off = self.is_being_written
        if is_cut_off:
            self.args_seq = record.seq
        self.state = _STATE_AFTER[type(outcome)]
        self.outcome, self.outcome_seq, self.changed_at = outcome, record.seq, record.at
        return is_cut_off


class AnswerView(_Course):
    """The course that a call of an earlier run took in this run, which continued it or brought its answer."""

    __slots__ = ()

    def end(self, outcome: Outcome, record: Record) -> bool:
        """Returns False: its arguments were written in an earlier run."""
        self.outcome, self.outcome_seq = outcome, record.seq
        return False

    def as_json(self) -> dict[str, Any]:
        answer = {"type": "answer", "call_id": self.call_id, "at": self.at, "progress": self.progress}
        return _without_none({**answer, **_outcome_json(self.outcome)})


Part: TypeAlias = Passage | CallView


class MessageView(msgspec.Struct, eq=False):
    """A message of a model: passages and calls, in the order in which they began.

    ``is_announced``: whether it began with its own record. The message of a call that a host makes by itself did not.
    ``within``: the ``call_id`` of the call whose tool asked the model. ``attempt``: in which of the run's processes it came.
    """

    message_id: str
    within: str | None
    attempt: int
    author: str | None
    at: float
    first_seq: int
    is_announced: bool = False
    parts: list[Part] = []

    @property
    def text(self) -> str:
        return "".join([passage.text for passage in self.passages("text")])

    @property
    def reasoning(self) -> str:
        return "".join([passage.text for passage in self.passages("reasoning")])

    def passages(self, kind: Literal["text", "reasoning"]) -> list[Passage]:
        return [part for part in self.parts if isinstance(part, Passage) and part.kind == kind]

    @property
    def calls(self) -> list[CallView]:
        return [part for part in self.parts if isinstance(part, CallView)]

    @property
    def spoken(self) -> list[Part]:
        """Its text and its calls."""
        return [part for part in self.parts if part.kind != "reasoning"]

    @property
    def open_passage(self) -> Passage | None:
        last = self.parts[-1] if self.parts else None
        return last if isinstance(last, Passage) and last.end_seq is None else None

    def as_json(self) -> dict[str, Any]:
        parts = [part.as_json() for part in self.parts]
        return {"message_id": self.message_id, "attempt": self.attempt, "at": self.at, "items": parts}


Item: TypeAlias = InputView | Passage | CallView | AnswerView


def message_of(started: CallStarted, response_id: str | None) -> str:
    """The id of the message that a call belongs to."""
    return started.message_id or response_id or f"message-{started.call_id}"


_CALL_FIELDS = (
    "call_id",
    "message_id",
    "name",
    "state",
    "provider_id",
    "signature",
    "encoding",
    "author",
    "within",
    "at",
    "changed_at",
    "args_json",
    "has_all_args",
    "progress",
)
_STATE_AFTER: dict[type[Outcome], CallState] = {
    CallReturned: CallState.COMPLETED,
    CallFailed: CallState.FAILED,
    CallDiscarded: CallState.DISCARDED,
    CallReleased: CallState.RELEASED,
}


def _outcome_json(outcome: Outcome | None) -> dict[str, Any]:
    if outcome is None:
        return {}
    said = msgspec.structs.asdict(outcome)
    del said["call_id"]
    said.pop("message_id", None)
    return {"state": _STATE_AFTER[type(outcome)], **said}


def _json_string(text: str) -> str:
    return codec.encode(text).decode()


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
