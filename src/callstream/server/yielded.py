"""What an agent yields, on its way into its run, and what it hears of it again.

An agent names its calls as it likes, and many count them from 0. Inside Callstream, and for its clients, each has a
``call_id`` of its own; the agent is told its own ids.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec
from ag_ui.core import AssistantMessage, RunAgentInput, ToolMessage
from pydantic import BaseModel

from callstream.agui import Reader
from callstream.errors import CallIdTaken, UsageError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallProgressed,
    CallReturned,
    CallSigned,
    CallStarted,
    RunEvent,
)
from callstream.runtime import Run
from callstream.runtime.directory import Directory

_NUMBERED: Final = re.compile(r".+~\d+", re.DOTALL)


async def record_yielded(run: Run, events: AsyncIterable[Any]) -> None:
    """Records AG-UI events until there are no more; None among them says nothing."""
    reader = Reader()
    call_ids: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        close = getattr(events, "aclose", None)  # generators have it, iterators need not
        if close is not None:
            stack.push_async_callback(close)
        async for event in events:
            if event is not None:
                await _record(run, reader.read(_as_dict(event)), call_ids)
    await _record(run, reader.end(), call_ids)


async def _record(run: Run, events: Sequence[RunEvent], call_ids: dict[str, str]) -> None:
    while events:
        for event in events:
            if isinstance(event, CallStarted):
                call_ids[event.call_id] = await run.free_call_id(event.call_id)
        try:
            await run.record([_renamed(event, call_ids) for event in events])
        except CallIdTaken:
            continue  # Another process was first with this id. Nothing was kept, and the next free one is tried.
        return


def _renamed(event: RunEvent, call_ids: Mapping[str, str]) -> RunEvent:
    match event:
        case (
            CallStarted()
            | CallSigned()
            | ArgsAppended()
            | CallCompleted()
            | CallDiscarded()
            | CallExecuting()
            | CallProgressed()
            | CallReturned()
        ) if event.call_id in call_ids:
            return msgspec.structs.replace(event, call_id=call_ids[event.call_id])
        case _:
            return event


async def with_wire_ids(given: RunAgentInput, directory: Directory) -> RunAgentInput:
    """The input with the agent's own ids for calls that have another name in the journal."""
    wire_ids: dict[str, str] = {}
    for call_id in {call_id for call_id in _call_ids(given) if _NUMBERED.fullmatch(call_id)}:
        call = await directory.find_by_call_id(call_id)
        if call is not None and call.provider_id is not None:
            wire_ids[call_id] = call.provider_id
    if not wire_ids:
        return given
    copied = given.model_copy(deep=True)
    for message in copied.messages:
        if isinstance(message, ToolMessage):
            message.tool_call_id = wire_ids.get(message.tool_call_id, message.tool_call_id)
        elif isinstance(message, AssistantMessage):
            for call_made in message.tool_calls or ():
                call_made.id = wire_ids.get(call_made.id, call_made.id)
    for entry in copied.resume or ():
        entry.interrupt_id = wire_ids.get(entry.interrupt_id, entry.interrupt_id)
    return copied


def _call_ids(given: RunAgentInput) -> Iterator[str]:
    for message in given.messages:
        if isinstance(message, ToolMessage):
            yield message.tool_call_id
        elif isinstance(message, AssistantMessage):
            yield from (call.id for call in message.tool_calls or ())
    yield from (entry.interrupt_id for entry in given.resume or ())


def _as_dict(event: Any) -> dict[str, Any]:
    if isinstance(event, dict):
        return event
    if isinstance(event, BaseModel):
        return event.model_dump(mode="json", by_alias=True, exclude_none=True)
    raise UsageError(f"expected the agent to yield AG-UI events, got {type(event).__name__}")
