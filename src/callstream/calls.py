"""The states of a call, and the ledger that keeps a run's calls in them.

::

    started ──▶ args_streaming ──▶ args_complete ──▶ executing ──▶ completed | failed
                                        ├──▶ awaiting ──▶ executing | completed | failed | discarded
                                        ├──▶ completed | failed      (the result was first seen in a request)
                                        └──▶ released                (handed to a host, outcome never seen)
    started, args_streaming, args_complete, awaiting ──▶ discarded
    args_streaming, args_complete ──▶ running_early ──▶ completed | failed | discarded

A tool that is set to start early begins before the response has ended (``running_early``). Its arguments go on arriving in
that state, and end in it; there is no result before they have. ``TRANSITIONS`` is that drawing as a table, and the only
place that decides: any transition that is not in it raises ``TransitionError``. ``completed``, ``failed``, ``released`` and
``discarded`` are final. ``awaiting`` outlives its run.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator
from enum import StrEnum
from itertools import count
from typing import Any, Final, Protocol, TypeAlias, get_args

import msgspec

from callstream.codec import from_utf8, utf8
from callstream.errors import TransitionError, UsageError
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
    CallRunningEarly,
    CallSigned,
    CallStarted,
    DiscardReason,
    Encoding,
    Event,
)


class CallState(StrEnum):
    """Where a call is. ``TRANSITIONS`` says which events lead from state to state, ``FINAL`` which states are final."""

    STARTED = "started"
    ARGS_STREAMING = "args_streaming"
    ARGS_COMPLETE = "args_complete"
    RUNNING_EARLY = "running_early"
    EXECUTING = "executing"
    AWAITING = "awaiting"
    COMPLETED = "completed"
    FAILED = "failed"
    RELEASED = "released"
    DISCARDED = "discarded"


_S = CallState
BEING_WRITTEN = frozenset({_S.STARTED, _S.ARGS_STREAMING})
"""The model is still writing the arguments. It may also be in ``running_early``: see ``Call.is_being_written``."""
TAKES_PIECES = frozenset({_S.ARGS_STREAMING, _S.RUNNING_EARLY})
"""Argument text may follow, and only the log changes."""
BEFORE_EXECUTING = BEING_WRITTEN | {_S.ARGS_COMPLETE}
HAS_OUTCOME = frozenset({_S.COMPLETED, _S.FAILED})
"""There is a result or an error for the model."""
FINAL = HAS_OUTCOME | {_S.RELEASED, _S.DISCARDED}
AT_REST = FINAL | {_S.AWAITING}
"""Nothing more happens to the call by itself: the states in which a run may leave its calls."""
LACKS_OUTCOME = frozenset({_S.ARGS_COMPLETE, _S.RUNNING_EARLY, _S.EXECUTING, _S.AWAITING})
"""A result is still to come. The arguments are whole, except perhaps in ``running_early``."""

CANCELLED: Final = "The user cancelled this."
"""The error of a call whose interrupt was cancelled instead of answered."""
DENIED: Final = "The user denied this."
"""The error of a call whose approval was denied by a client of the AI SDK."""
REFUSED: Final = (
    "interrupted: the process stopped while this tool ran. It may or may not have taken effect, and a person has decided "
    "that it is not run again."
)
"""The result of such a tool, for the model."""
DECLINED: Final = frozenset({CANCELLED, DENIED, REFUSED, "This tool call is rejected."})
"""The errors of calls to which a person said no, the last in google-adk's words. They are ``failed``, but no tool failed."""

TRANSITIONS: dict[tuple[CallState, type[Event]], CallState] = {
    (_S.STARTED, CallSigned): _S.STARTED,
    (_S.STARTED, ArgsAppended): _S.ARGS_STREAMING,
    (_S.STARTED, CallCompleted): _S.ARGS_COMPLETE,
    (_S.STARTED, CallDiscarded): _S.DISCARDED,
    (_S.ARGS_STREAMING, CallSigned): _S.ARGS_STREAMING,
    (_S.ARGS_STREAMING, ArgsAppended): _S.ARGS_STREAMING,
    (_S.ARGS_STREAMING, CallCompleted): _S.ARGS_COMPLETE,
    (_S.ARGS_STREAMING, CallRunningEarly): _S.RUNNING_EARLY,
    (_S.ARGS_STREAMING, CallDiscarded): _S.DISCARDED,
    (_S.ARGS_COMPLETE, CallSigned): _S.ARGS_COMPLETE,
    (_S.ARGS_COMPLETE, CallRunningEarly): _S.RUNNING_EARLY,
    (_S.ARGS_COMPLETE, CallExecuting): _S.EXECUTING,
    (_S.ARGS_COMPLETE, CallAwaiting): _S.AWAITING,
    (_S.ARGS_COMPLETE, CallReturned): _S.COMPLETED,
    (_S.ARGS_COMPLETE, CallFailed): _S.FAILED,
    (_S.ARGS_COMPLETE, CallReleased): _S.RELEASED,
    (_S.ARGS_COMPLETE, CallDiscarded): _S.DISCARDED,
    (_S.RUNNING_EARLY, CallSigned): _S.RUNNING_EARLY,
    (_S.RUNNING_EARLY, ArgsAppended): _S.RUNNING_EARLY,
    (_S.RUNNING_EARLY, CallCompleted): _S.RUNNING_EARLY,
    (_S.RUNNING_EARLY, CallProgressed): _S.RUNNING_EARLY,
    (_S.RUNNING_EARLY, CallReturned): _S.COMPLETED,
    (_S.RUNNING_EARLY, CallFailed): _S.FAILED,
    (_S.RUNNING_EARLY, CallDiscarded): _S.DISCARDED,
    (_S.EXECUTING, CallProgressed): _S.EXECUTING,
    (_S.EXECUTING, CallAwaiting): _S.AWAITING,
    (_S.EXECUTING, CallReturned): _S.COMPLETED,
    (_S.EXECUTING, CallFailed): _S.FAILED,
    (_S.AWAITING, CallProgressed): _S.AWAITING,
    (_S.AWAITING, CallExecuting): _S.EXECUTING,
    (_S.AWAITING, CallReturned): _S.COMPLETED,
    (_S.AWAITING, CallFailed): _S.FAILED,
    (_S.AWAITING, CallDiscarded): _S.DISCARDED,
}


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known about one call: the journal's row, and the object that hooks and interfaces get.

    ``args_json`` is the whole argument text (for a call that never completed, the part that came). Journal listings leave
    it None, because it is only stored in the log. ``ran_early``: its tool began before the response had ended; if the call
    is discarded, the tool was notified and its result does not count.
    """

    call_id: str
    name: str
    state: CallState
    run_id: str | None = None
    thread_id: str | None = None
    provider_id: str | None = None
    message_id: str | None = None
    signature: str | None = None
    encoding: Encoding = "json"
    args_json: str | None = None
    reason: DiscardReason | None = None
    detail: str | None = None
    result: Any = None
    error: str | None = None
    ran_early: bool = False
    started_at: float | None = None
    updated_at: float | None = None

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def is_being_written(self) -> bool:
        """Whether the model is still writing the arguments. For a run's own calls, which get their text once it is whole."""
        return self.state in BEING_WRITTEN or (self.state is CallState.RUNNING_EARLY and self.args_json is None)

    @property
    def wire_id(self) -> str:
        """The call's id outside Callstream: the provider's, or ours if it sent none."""
        return self.provider_id or self.call_id

    @property
    def idempotency_key(self) -> str:
        """The same every time that the tool of this call runs, even if its run goes on in another process."""
        return f"{self.run_id}/{self.call_id}"

    @property
    def args(self) -> Any:
        """The arguments as values; None while they are not complete. Free text is a string here.

        A call that was complete when it was refused keeps them; other discarded calls only have ``args_json``.
        """
        if self.args_json is None:
            return None
        if self.state is CallState.DISCARDED:
            return self._whole_args(self.args_json) if self.reason in ("rejected", "invalid") else None
        if self.state is CallState.RUNNING_EARLY:
            return self._whole_args(self.args_json)
        return None if self.state in BEING_WRITTEN else json.loads(self.args_json)

    def _whole_args(self, text: str) -> Any:
        # The text may be only a beginning. An object can only be read once its last brace has come.
        try:
            args = json.loads(text)
        except ValueError:
            return None
        return args if isinstance(args, dict if self.encoding == "json" else str) else None


class Refusal(msgspec.Struct, frozen=True):
    """Why the tool of a call will not run. ``text`` is a sentence for the model, and what ``str()`` returns."""

    call_id: str
    name: str
    provider_id: str | None
    reason: DiscardReason
    text: str

    @property
    def wire_id(self) -> str:
        """Like that of a Call: the id by which the SDK knows it."""
        return self.provider_id or self.call_id

    def __str__(self) -> str:
        return self.text


class ToolResult(msgspec.Struct, frozen=True):
    """What to tell the model about a call: what its tool returned, or why there is no result.

    ``wire_id`` is the id by which the SDK knows the call, ``text`` the result as text: JSON, unless it is text already.
    ``value`` is what the tool returned.
    """

    call_id: str
    name: str
    wire_id: str
    text: str
    is_error: bool = False
    value: Any = None


def fate(tool: str, *, ran_early: bool) -> str:
    """What a call's discard means for its tool, in words for clients and models."""
    return f"the result of {tool} does not count" if ran_early else f"{tool} did not run"


def refusal(call: Call) -> str:
    """Why a discarded call has no result, in a sentence for the model.

    Details are internal to the application, such as a hook's error, unless they say what is wrong with the arguments.
    """
    detail = f" ({call.detail})" if call.detail else ""
    consequence = "its result does not count" if call.ran_early else "it did not run"
    what = fate(call.name, ran_early=call.ran_early)
    match call.reason:
        case "rejected":
            return call.detail or "the call was rejected"
        case "truncated":
            return (
                f"the arguments of {call.name} were cut off{detail}, so {consequence}; call it again, with shorter "
                "arguments if they were long"
            )
        case "invalid":
            return f"{what}: {call.detail or 'its arguments do not fit'}"
        case "malformed":
            return f"the arguments of {call.name} cannot be read{detail}, so {consequence}; call it again"
        case _:
            return f"{what}: the call was interrupted"


_YES: Final = frozenset({"yes", "true", "accept", "accepted", "approve", "approved", "confirm", "confirmed"})
_NO: Final = frozenset(
    {"no", "false", "reject", "rejected", "deny", "denied", "decline", "declined", "cancel", "cancelled"}
)


def decision(answer: Any) -> bool | None:
    """Yes or no, in whatever form the answer to a question says it; None if it says neither."""
    if isinstance(answer, dict):
        answer = next((answer[key] for key in ("confirmed", "approved", "accepted", "result") if key in answer), None)
    if isinstance(answer, str):
        word = answer.strip().lower()
        return True if word in _YES else False if word in _NO else None
    return answer if isinstance(answer, bool) else None


CallEvent: TypeAlias = (
    ArgsAppended
    | CallStarted
    | CallSigned
    | CallCompleted
    | CallDiscarded
    | CallExecuting
    | CallRunningEarly
    | CallAwaiting
    | CallReturned
    | CallFailed
    | CallReleased
    | CallProgressed
)
CALL_EVENTS: Final = get_args(CallEvent)


def opened(
    event: CallStarted, *, run_id: str | None = None, thread_id: str | None = None, at: float | None = None
) -> Call:
    """The row that a call begins with."""
    return Call(
        call_id=event.call_id,
        name=event.name,
        state=CallState.STARTED,
        run_id=run_id,
        thread_id=thread_id,
        provider_id=event.provider_id,
        message_id=event.message_id,
        signature=event.signature,
        encoding=event.encoding,
        started_at=at,
        updated_at=at,
    )


def next_state(call: Call, event: CallEvent) -> CallState:
    """The state that the event leads to, by the table."""
    state = TRANSITIONS.get((call.state, type(event)))
    if state is None:
        raise TransitionError(f"call {call.call_id!r} is {call.state}; {type(event).__name__} is not allowed then")
    return state


def advanced(call: Call, event: CallEvent, *, at: float | None = None) -> Call:
    """The row after the event. Argument text is not collected here: it is in the log."""
    changes: dict[str, Any] = {"state": next_state(call, event), "updated_at": at}
    match event:
        case CallSigned(signature=signature):
            changes["signature"] = signature
        case CallRunningEarly():
            changes["ran_early"] = True
        case CallDiscarded(reason=reason, detail=detail):
            changes |= {"reason": reason, "detail": detail}
        case CallReturned(result=result):
            changes["result"] = result
        case CallFailed(error=error):
            changes["error"] = error
        case _:
            pass
    return msgspec.structs.replace(call, **changes)


def number_id(wanted: str, number: int) -> str:
    """The ids for several that want the same one: ``id`` for the first, then ``id~2``, ``id~3``, …"""
    return wanted if number == 1 else f"{wanted}~{number}"


def numbered(wanted: str, taken: Container[str]) -> str:
    """The id itself if it is free, otherwise the first free one of ``id~2``, ``id~3``, …"""
    return next(free for number in count(1) if (free := number_id(wanted, number)) not in taken)


class KnownText(Protocol):
    """The argument text of a call, as far as it has come."""

    def join(self) -> str: ...


class _OwnText:
    """The text of recorded pieces."""

    __slots__ = ("_text",)

    def __init__(self) -> None:
        self._text = bytearray()

    def append(self, piece: str) -> None:
        self._text += utf8(piece)

    def join(self) -> str:
        return from_utf8(self._text)


class _LentText:
    """The same, where the text that is recorded in pieces is kept whole elsewhere, so that long texts are not kept twice."""

    __slots__ = ("_length", "_text")

    def __init__(self, text: KnownText) -> None:
        self._text = text
        self._length = 0

    def append(self, piece: str) -> None:
        self._length += len(piece)

    def join(self) -> str:
        return self._text.join()[: self._length]


class Ledger:
    """The calls of one run, by id. It applies events by the table, and holds the argument text of open calls.

    ``used`` are ids that may not be assigned again. ``name_for`` assigns each provider's id a ``call_id`` of its own.
    """

    def __init__(self, used: Iterable[str] = ()) -> None:
        self._used = set(used)
        self.any_discarded = False
        """Whether pieces that do not count may still come."""
        self._calls: dict[str, Call] = {}
        self._texts: dict[str, _OwnText | _LentText] = {}

    def __getitem__(self, call_id: str) -> Call:
        try:
            return self._calls[call_id]
        except KeyError:
            raise UsageError(f"no call {call_id!r} in this run; it has {sorted(self._calls) or 'none'}") from None

    def __contains__(self, call_id: object) -> bool:
        return call_id in self._calls

    def get(self, call_id: str) -> Call | None:
        return self._calls.get(call_id)

    def __iter__(self) -> Iterator[Call]:
        return iter(list(self._calls.values()))

    def name_for(self, wanted: str) -> str:
        """A ``call_id`` that no other call has, made from the wanted one. It is taken from now on."""
        call_id = numbered(wanted, self._used)
        self._used.add(call_id)
        return call_id

    def lend(self, call_id: str, text: KnownText) -> None:
        """The pieces of a call that is about to start will be pieces of this text, in order."""
        self._texts[call_id] = _LentText(text)

    def apply(self, event: CallEvent, *, run_id: str | None = None, thread_id: str | None = None) -> Call:
        """Applies the event and returns the call after it."""
        call_id = event.call_id
        if isinstance(event, ArgsAppended):
            call = self._calls.get(call_id) or self[call_id]
            if call.state not in TAKES_PIECES:
                call = self._calls[call_id] = advanced(call, event)
            self._open_text(event).append(event.text)
            return call
        if isinstance(event, CallStarted):
            if call_id in self._calls:
                raise TransitionError(f"call {call_id!r} has started already")
            self._used.add(call_id)
            self._texts.setdefault(call_id, _OwnText())
            call = opened(event, run_id=run_id, thread_id=thread_id)
        else:
            call = advanced(self[call_id], event)
            self.any_discarded |= call.state is CallState.DISCARDED
            if isinstance(event, CallCompleted):
                self._open_text(event)
            text = self._texts.pop(call_id, None) if isinstance(event, CallCompleted | CallDiscarded) else None
            if text is not None:
                whole = event.args_json if isinstance(event, CallCompleted) else None
                call = msgspec.structs.replace(call, args_json=text.join() if whole is None else whole)
        self._calls[call_id] = call
        return call

    def _open_text(self, event: ArgsAppended | CallCompleted) -> _OwnText | _LentText:
        """The text so far. Raises if the arguments have ended, which the state of a call that runs early does not show."""
        text = self._texts.get(event.call_id)
        if text is None:
            raise TransitionError(
                f"the arguments of call {event.call_id!r} have ended; {type(event).__name__} came after"
            )
        return text

    def adopt(self, call: Call) -> None:
        """Takes in a call of an earlier run, because this run brings its answer."""
        self._used.add(call.call_id)
        self._calls.setdefault(call.call_id, call)
        self.any_discarded |= call.state is CallState.DISCARDED

    def open_calls(self) -> list[Call]:
        """The calls that are neither final nor awaiting an answer."""
        return [call for call in self._calls.values() if call.state not in AT_REST]
