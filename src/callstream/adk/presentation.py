"""What a client of ``ADKAgent`` is sent of the translator's events: what the options add to them and hold back.

Most of it is predicted state, which a client may show before it is there: an argument of a tool that will become a key
of the state.

``AgentStream`` is what ``ADKAgent.run`` yields: a run that is begun, and followed in the journal to its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
from ag_ui.core import Message

from callstream.agui import AguiEvent, Conversation, Translator
from callstream.agui.events import (
    MessagesSnapshot,
    ReasoningStart,
    RunError,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)
from callstream.agui.messages import AssistantMessage, Metadata, result_value
from callstream.calls import decision
from callstream.errors import AnswerRefused, JournalError, TooMany
from callstream.events import Record, RunEnded
from callstream.journal import Journal
from callstream.runtime import Driver

CONFIRM_TOOL: Final = "confirm_changes"
"""The call that asks the client's user whether what was shown may stay. The model knows nothing of it."""


@dataclass
class PredictStateMapping:
    """While ``tool`` is being called, the client shows its ``tool_argument`` as ``state_key``.

    ``emit_confirm_tool``: a run in which the tool has returned ends with a ``confirm_changes`` call, which asks the
    client's user whether the changes may stay. The tool's own result is then not sent to the client.
    """

    state_key: str
    tool: str
    tool_argument: str
    emit_confirm_tool: bool = True

    def to_payload(self) -> dict[str, str]:
        return {"state_key": self.state_key, "tool": self.tool, "tool_argument": self.tool_argument}


class CustomEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="CUSTOM"):
    """AG-UI's event for what an application adds to the protocol."""

    name: str
    value: Any
    metadata: Metadata


class Predictions:
    """The mappings of an agent, and what they add to a run."""

    def __init__(self, mappings: PredictStateMapping | Iterable[PredictStateMapping] | None) -> None:
        self._mappings = (mappings,) if isinstance(mappings, PredictStateMapping) else tuple(mappings or ())

    def payloads(self, tool_name: str) -> list[dict[str, str]]:
        """A tool's mappings as the client gets them; empty if nothing is predicted from its calls."""
        return [mapping.to_payload() for mapping in self._mappings if mapping.tool == tool_name]

    def asks_about(self, tool_name: str) -> bool:
        return any(mapping.tool == tool_name and mapping.emit_confirm_tool for mapping in self._mappings)


def decision_text(content: str) -> str:
    """What a client's user said to ``confirm_changes``, as a sentence for the model."""
    match decision(result_value(content)):
        case True:
            return "The user accepted the changes."
        case False:
            return "The user rejected the changes."
    return f"The user answered the question about the changes: {content}"


ShownEvent: TypeAlias = AguiEvent | CustomEvent


_LOOKED_AT: Final = frozenset(
    {ToolCallArgs, ToolCallStart, MessagesSnapshot, ToolCallResult, ToolCallEnd, TextMessageStart, ReasoningStart}
)


class Presentation:
    """One stream's. ``answered``: the calls for which the client has a result already; a second would confuse it. ``known``:
    those that are in its messages: where it answers one from elsewhere, the run takes that in before the agent says
    anything, with those beside it, and for the client none of them begins.

    The result of a tool whose changes the client's user has to confirm is held back: the client shows the changes
    already, and a result says that they are made.
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

    def show(self, events: Iterable[AguiEvent]) -> list[ShownEvent]:
        made: list[ShownEvent] = []
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

    def _announcement(self, started: ToolCallStart) -> list[ShownEvent]:
        """Tells the client which state a tool's arguments will become, once, before it sees the first call."""
        name = started.tool_call_name
        if self._predictions.asks_about(name):
            self._held_back.add(started.tool_call_id)
        payloads = self._predictions.payloads(name)
        if not payloads or name in self._announced:
            return []
        self._announced |= {name}
        return [CustomEvent(name="PredictState", value=payloads, metadata=started.metadata)]

    def _look_for_calls(self, snapshot: MessagesSnapshot) -> None:
        """A client that joins learns of calls by a snapshot, and of their results later. What it has not is void."""
        messages = [message for message in snapshot.messages if isinstance(message, AssistantMessage)]
        calls = {call.id: call.function.name for message in messages for call in message.tool_calls or ()}
        self._held = {call_id: held for call_id, held in self._held.items() if call_id in calls}
        self._held_back |= {call_id for call_id, name in calls.items() if self._predictions.asks_about(name)}


# -- what ADKAgent.run yields ------------------------------------------------------------------------------------------

logger = logging.getLogger("callstream")

_LAST_RECORD_SECONDS = 1.0
"""How long a record may take that was written before the journal failed."""

EventBatches: TypeAlias = AsyncGenerator[tuple[list[ShownEvent], int | None], None]
"""The events of each record, with its number; None for those that are of no record."""


class AgentStream:
    """The events of one run. ``thread_at``: its thread up to a record. ``own``: the messages that the client has sent.

    ``ends_with_snapshot``: whether a snapshot of the thread, if it has any messages, is the last event before the run's
    end.
    """

    def __init__(
        self,
        journal: Journal,
        driver: Driver,
        translator: Translator,
        presentation: Presentation,
        thread_at: Callable[[Record], Awaitable[Conversation]],
        own: Sequence[Message],
        *,
        ends_with_snapshot: bool,
    ) -> None:
        self._journal = journal
        self._driver = driver
        self._translator = translator
        self._presentation = presentation
        self._thread_at = thread_at
        self._own = own
        self._ends_with_snapshot = ends_with_snapshot

    async def batches(self, thread_id: str, begin: Callable[[], Awaitable[str]]) -> EventBatches:
        """Iterating this owns the run: closing it stops the run."""
        try:
            run_id = await begin()
        except TooMany as full:
            why = f"There are {full.most} runs already; try again later." if full.most else "No runs are taken here."
            yield _refusal("too_many_runs", why)
            return
        except AnswerRefused as refused:
            yield _refusal("answer_refused", str(refused))
            return
        except Exception:  # the journal's, or whatever a session service raises
            logger.exception("a run of thread %s could not be started", thread_id)
            yield _refusal("failed", "The run could not be started.")
            return
        async with self._driver.watch(run_id) as task:
            try:
                async with aclosing(self._journal.follow(run_id)) as records:  # type: ignore[type-var]
                    while (record := await _next(records, task)) is not None:
                        yield self._presentation.show(await self._translate(record)), record.seq
                # A stream that merely stops looks like success.
                if unfinished := self._translator.end():
                    yield self._presentation.show(unfinished), None
            except JournalError:
                yield self._presentation.show(self._translator.end()), None
                raise
            if task is not None:
                await asyncio.wait({task})

    async def _translate(self, record: Record) -> list[AguiEvent]:
        events = self._translator.feed(record)
        if isinstance(record.event, RunEnded) and self._ends_with_snapshot:
            snapshot = (await self._thread_at(record)).snapshot()
            if snapshot.messages:
                events.insert(-1, snapshot)
        elif self._translator.snapshot_at is not None:
            own = [message.model_dump(mode="json", by_alias=True, exclude_none=True) for message in self._own]
            events.insert(self._translator.snapshot_at, (await self._thread_at(record)).snapshot(own))
        return events


def _refusal(code: str, message: str) -> tuple[list[ShownEvent], None]:
    return [RunError(message=message, code=code, metadata=Metadata(0))], None


async def _next(records: AsyncIterator[Record], task: asyncio.Task[None] | None) -> Record | None:
    """The next record of a run. JournalError if the journal has not taken the run's end, so that none can come."""
    if task is None:
        return await anext(records, None)
    limit = asyncio.timeout(None)

    def give_up(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and isinstance(done.exception(), JournalError):
            limit.reschedule(asyncio.get_running_loop().time() + _LAST_RECORD_SECONDS)

    try:
        async with limit:
            task.add_done_callback(give_up)
            return await anext(records, None)
    except TimeoutError:
        raise JournalError("the journal did not take the end of the run") from None
    finally:
        task.remove_done_callback(give_up)
