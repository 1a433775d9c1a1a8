"""A thread as its clients see it: the fold of the records of its runs, and the prelude for a client that joins.

``Conversation`` holds the messages and the state of a client that saw every run from its beginning: it folds the
translator's own events as the official client would, so the two cannot disagree. A client that comes later gets the
prelude: RUN_STARTED, a snapshot of the messages with the arguments of open calls as far as they are known, the state,
START again for what is open; after that, only what is new.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

import msgspec

from callstream.agui.events import (
    AguiEvent,
    MessagesSnapshot,
    RunError,
    RunFinished,
    StateSnapshot,
    ToolCallResult,
)
from callstream.agui.messages import (
    Attached,
    DeveloperMessage,
    Message,
    Metadata,
    SystemMessage,
    UserMessage,
)
from callstream.agui.reducer import Reducer
from callstream.agui.results import result_text
from callstream.agui.translator import TOOL_PROGRESS, Translator
from callstream.agui.view import View
from callstream.errors import UsageError
from callstream.events import CallFailed, CallReturned, MessageReceived, MessageStarted, Record, RunEvent, RunStarted

_INSTRUCTIONS: Final[dict[str, type[SystemMessage | DeveloperMessage]]] = {
    "system": SystemMessage,
    "developer": DeveloperMessage,
}
# The snapshot says all there is to say about progress; activities that an application shows by itself are its own.
_OWNED: Final = {"authoritativeActivityTypes": [TOOL_PROGRESS]}


class Onlooker:
    """A run as a client is told it that did not ask for it: what the translator says, and what else a client sent.

    Which of the run's input is shown: all that has a ``message_id``, because a client sent it. Of the rest, which was
    read from a provider's request, user messages only, and only before the run has input with an id, an answer to an
    earlier call or a response, because frameworks write messages of their own into requests. The parts of a message
    that is more than text are taken from the run's input, where that is AG-UI's (an object with ``messages``); else
    their kinds are named in its metadata.

    ``known``: the ids of messages that were sent before this run. No text is kept here.
    """

    def __init__(self, view: View | None = None, known: set[str] | None = None) -> None:
        self.view = view or View()
        self._translator = Translator(self.view)
        self._run_id: str | None = None
        self._has_input = False
        self._parts: dict[str, list[Any]] = {}
        self._known = set() if known is None else known

    @property
    def seq(self) -> int:
        """The number of the last record taken in."""
        return self._translator.seq

    def feed(self, record: Record) -> tuple[list[AguiEvent], Message | None]:
        """What a client is to be told of the record, or a message of somebody else's, for which there are no events.

        It is to be told of such a message with a snapshot of them all.
        """
        events = [*self._translator.feed(record), *self._answers(record.event)]
        match record.event:
            case RunStarted(input=run_input):
                self._run_id, self._parts = record.run_id, _parts_in(run_input)
            case MessageStarted() | CallReturned() | CallFailed():
                self._has_input = True
            case MessageReceived() as received:
                message = self._input(received)
                if message is not None and message.id not in self._known:
                    self._known.add(message.id)
                    return events, message
        return events, None

    def reopening(self) -> list[AguiEvent]:
        """See ``Translator.reopening``."""
        return self._translator.reopening()

    def end(self) -> list[AguiEvent]:
        """For a stream that has to end before its run; see ``Translator.end``."""
        return self._translator.end()

    def _answers(self, event: RunEvent) -> list[AguiEvent]:
        """An answer that only the client has which sent it. Without metadata, for there it has none either."""
        match event:
            case CallReturned(message_id=str(message_id)) | CallFailed(message_id=str(message_id)):
                if self._translator.knows(event.call_id):
                    return []  # it was told to all
                content = result_text(event, self.view)
                return [ToolCallResult(message_id=message_id, tool_call_id=event.call_id, content=content)]
            case _:
                return []

    def _input(self, received: MessageReceived) -> Message | None:
        message_id = received.message_id
        if message_id is not None:
            self._has_input = True
            if received.role in _INSTRUCTIONS:
                return _INSTRUCTIONS[received.role](id=message_id, content=received.text)
        if received.role != "user" or (message_id is None and self._has_input):
            return None
        if message_id is not None and message_id in self._parts:
            return UserMessage(id=message_id, content=self._parts[message_id])
        return UserMessage(
            id=message_id or f"input-{self._run_id}-{self.seq}",
            content=received.text,
            metadata=Attached(received.attachments) if received.attachments else None,
        )


class Conversation:
    """Records of a thread's runs in, one run after the other; ``messages``, ``state`` and a prelude out.

    ``onlooker`` goes on with the last run for a client that got the prelude, and keeps none of its text.
    """

    def __init__(self, view: View | None = None) -> None:
        self.view = view or View()
        self.onlooker = Onlooker(self.view)
        self._reducer = Reducer()
        self._known: set[str] = set()
        self._started: AguiEvent | None = None
        self._ended: AguiEvent | None = None
        self.run_id: str | None = None
        """The last run."""

    @classmethod
    def of(cls, records: Iterable[Record], view: View | None = None) -> Conversation:
        """The conversation after these records. Those of compacted runs are welcome: they are put in order.

        Of messages in compacted runs the ``metadata.seq`` may be another than it was; all else is the same.
        """
        conversation = cls(view)
        for _, run in groupby(records, key=lambda record: record.run_id):
            conversation.take(sorted(run, key=lambda record: record.first_seq or record.seq))
        return conversation

    @property
    def seq(self) -> int:
        """The number of the last record taken in, in its run."""
        return self.onlooker.seq

    @property
    def has_ended(self) -> bool:
        """Whether the last run is over."""
        return self._ended is not None

    @property
    def messages(self) -> tuple[Message, ...]:
        return self._reducer.messages

    @property
    def state(self) -> Any:
        """The shared state; None where nothing has set it."""
        return None if self._reducer.state is msgspec.UNSET else self._reducer.state

    def feed(self, record: Record) -> list[AguiEvent]:
        """Takes a record in, and gives what a client that got the prelude is to be told of it."""
        events, message = self._take(record)
        return events if message is None else [self.snapshot()]

    def take(self, records: Iterable[Record]) -> None:
        """Takes records in. Each costs the same, however many came before it."""
        for record in records:
            self._take(record)

    def _take(self, record: Record) -> tuple[list[AguiEvent], Message | None]:
        is_start = isinstance(record.event, RunStarted)
        if is_start:
            self.onlooker = Onlooker(self.view, self._known)
            self.run_id, self._ended = record.run_id, None
        elif record.run_id != self.run_id:
            raise UsageError(f"expected a record of run {self.run_id!r} or a run's first, got {record!r:.200}")
        events, message = self.onlooker.feed(record)
        for event in events:
            self._reducer.apply(event)
            if isinstance(event, RunFinished | RunError):
                self._ended = event
        if is_start:
            [self._started] = events
        if message is not None:
            self._reducer.add(message)
        return events, message

    def snapshot(self) -> MessagesSnapshot:
        """All messages of the thread."""
        return self._snapshot(self.messages)

    def _snapshot(self, messages: tuple[Message, ...]) -> MessagesSnapshot:
        return MessagesSnapshot(messages=messages, metadata=Metadata(self.seq, _OWNED))

    def prelude(self) -> list[AguiEvent]:
        """What a client needs that knows nothing of the thread, or has lost its way; ``feed`` gives the rest.

        If the last run has ended, its end is the last event.
        """
        if self._started is None:
            raise UsageError("expected the records of at least one run, to join it; got none")
        # A client that kept its messages puts those of a snapshot which it lacks at the end. That is their place, but
        # for results that came late: these are left out and told again, and it puts them behind their calls.
        late = self._reducer.late_results
        is_late = {result.message_id for result in late}
        snapshot = self._snapshot(tuple(message for message in self.messages if message.id not in is_late))
        events: list[AguiEvent] = [self._started, snapshot, *late]
        if self._reducer.state is not msgspec.UNSET:
            events.append(StateSnapshot(snapshot=self._reducer.state, metadata=Metadata(self.seq)))
        events += self.onlooker.reopening()
        return events if self._ended is None else [*events, self._ended]

    def end(self) -> list[AguiEvent]:
        """For a stream that has to end before its run; see ``Translator.end``."""
        return self.onlooker.end()


def _parts_in(run_input: Any) -> dict[str, list[Any]]:
    """The messages of an AG-UI input that have parts, by their ids."""
    match run_input:
        case {"messages": list(messages)}:
            return {
                message["id"]: message["content"]
                for message in messages
                if isinstance(message, dict) and "id" in message and isinstance(message.get("content"), list)
            }
        case _:
            return {}
