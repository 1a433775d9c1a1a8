"""Journal records of one turn in, chunks of the AI SDK's UI message stream out: a table over the changes of its runs' views.

A turn is everything after a user's message: one assistant message, however many runs it takes. The rules of the stream are
kept here, since a client accepts chunks that break them and shows something wrong: only open parts are continued, a call's
arguments are written within one step, and a call that broke off is never announced as available, because that runs the
tools of the browser.

A chunk is an object with a ``type``. The SDK refuses nulls and types that it does not know, so a chunk only has fields with
a value, and only types that the client's major version knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias, assert_never

import msgspec

from callstream import codec
from callstream.agui import View
from callstream.agui.messages import result_value
from callstream.agui.translator import result_text, tools_in
from callstream.calls import CallState, decision
from callstream.errors import UsageError, warn_of_name
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallFailed,
    CallReleased,
    CallReturned,
    CallStarted,
    Question,
    Record,
    RunEnded,
    RunStarted,
)
from callstream.view import (
    Asked,
    Began,
    CallView,
    Closed,
    Ended,
    Grew,
    InputCame,
    MessageBegan,
    Opened,
    Passage,
    Progressed,
    RanEarly,
    Resumed,
    RunView,
    Settled,
    Signed,
    StateMoved,
    condensed,
    message_of,
)

Chunk: TypeAlias = dict[str, Any]
Sdk: TypeAlias = Literal[5, 6, 7]
"""The major version of the client's ``ai`` package. Requests do not say it."""

HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}
DONE: Final = b"data: [DONE]\n\n"
"""The end of a stream that has ended normally."""

VOID: Final = "data-void"
"""The type of a chunk that no message keeps: something shown before is void, and the stream ends here."""

_DELTAS: Final = {
    "text-delta": ("id", "delta"),
    "reasoning-delta": ("id", "delta"),
    "tool-input-delta": ("toolCallId", "inputTextDelta"),
}
_SHARE: Final = 16
"""A delta is held back until it is one part in this many of the text that its reader has; see ``Merger``."""


def encode_sse(chunks: Iterable[Chunk]) -> bytes:
    """The chunks as server-sent events; LF only."""
    return b"".join([b"data: %b\n\n" % codec.encode(chunk) for chunk in chunks])


class Merger:
    """Joins deltas, more of them the longer the text is.

    With every delta the SDK's reader looks at all text of its part again, so a text in pieces of constant size costs it
    quadratic time: 100 KB of arguments in pieces of 8 characters take 12 seconds. Pieces that grow with the text keep the
    cost proportional to its length. Text that is held back is sent with the next chunk that is not a delta, or with
    ``flush``, which the sender of the chunks calls now and then, so that nothing is held for long.
    """

    def __init__(self) -> None:
        self._sent: dict[tuple[str, str], int] = {}
        self._held: dict[tuple[str, str], list[str]] = {}

    def feed(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """The chunks to send now."""
        ready: list[Chunk] = []
        for chunk in chunks:
            fields = _DELTAS.get(chunk["type"])
            if fields is None:
                ready += self.flush()
                ready.append(chunk)
                continue
            key = (chunk["type"], chunk[fields[0]])
            held = self._held.setdefault(key, [])
            held.append(chunk[fields[1]])
        return ready + [self._pop(key) for key in [*self._held] if self._is_long_enough(key)]

    def flush(self) -> list[Chunk]:
        """Everything that is held back."""
        return [self._pop(key) for key in [*self._held]]

    @property
    def is_empty(self) -> bool:
        return not self._held

    def _is_long_enough(self, key: tuple[str, str]) -> bool:
        return sum(map(len, self._held[key])) * _SHARE >= self._sent.get(key, 0)

    def _pop(self, key: tuple[str, str]) -> Chunk:
        kind, name = key
        text = "".join(self._held.pop(key))
        self._sent[key] = self._sent.get(key, 0) + len(text)
        named, grown = _DELTAS[kind]
        return {"type": kind, named: name, grown: text}


_ANSWERED_OTHERWISE: Final = ("input_required", "credential_required")
"""Questions that cannot be answered by yes or no: the application answers them with the tool's output."""


class _Call(msgspec.Struct, eq=False):
    """A call of the turn. Runs after its own only know that they answered it."""

    view: CallView
    pieces: list[str] = []
    """Its arguments so far, as JSON text."""
    is_held: bool = False
    """Whether it is whole, but not announced yet: for the client's own tools that waits until the answer is awaited."""
    is_answered: bool = False
    is_asked: bool = False
    """Whether a person was asked to approve it."""
    is_denied: bool = False
    about: _Call | None = None
    """The call that this one, a host's question, asks about. It is shown as a request to approve that one."""

    @property
    def is_awaiting(self) -> bool:
        return self.view.state is CallState.AWAITING and not self.is_answered

    @property
    def is_being_written(self) -> bool:
        return (self.view.is_being_written or self.is_held) and not self.is_answered


class ChunkTranslator:
    """The chunks of one turn.

    For a client that starts a run: ``skip`` the earlier runs of the turn, which the client has, and ``feed`` the records of
    the run. For one that comes back: ``replay`` all runs of the turn, then ``feed`` new records. ``message_id`` is that of
    the assistant message.
    """

    def __init__(self, message_id: str, view: View | None = None, *, sdk: Sdk = 6) -> None:
        # The AI SDK's messages have no place for the text of models that tools ask.
        self.view = msgspec.structs.replace(view or View(), nested=False)
        self._message_id = message_id
        self._sdk = sdk
        self._run = self.view.fold(is_outline=True)
        self._has_started = False
        self._metadata: dict[str, str] = {}  # sent to the client at the start of the turn
        self._is_over = False
        self._is_step_open = False
        self._shown: set[str] = set()  # messages that have parts
        self._spoke: set[str] = set()  # messages that have parts in the last step
        self._called: set[str] = set()  # calls in the last step
        self._is_step_free = False  # whether the content of the last step was void, and is gone
        self._steps: set[str] = set()
        self._announced: set[str] = set()
        self._held: list[Chunk] = []
        self._held_call: str | None = None
        self._open: dict[
            tuple[str, str], str
        ] = {}  # kind and message of each open text or reasoning, and its part's id
        self._parts = 0
        self._calls: dict[str, _Call] = {}
        self._client_tools = self.view.client_tools
        self._answered: frozenset[str] = frozenset()
        self._shown_state: Any = msgspec.UNSET
        self._has_state = False  # whether the state's part is of the last step
        self.is_lost = False
        """Whether the client shows something void that no chunk can take back. Then its stream has to break: the client
        comes back, and gets the turn without it."""

    def skip(self, runs: Sequence[RunView]) -> None:
        """Takes in the turn's earlier runs, of which the client has seen everything."""
        for run in runs:
            for record in condensed(run):
                self._chunks(record)
        self._has_started = self._is_over = self._is_step_open = False
        self._metadata = {}

    def take(self, runs: Sequence[RunView]) -> None:
        """The former name of ``skip``."""
        warn_of_name("ChunkTranslator.take", "skip")
        self.skip(runs)

    def replay(self, runs: Sequence[RunView]) -> list[Chunk]:
        """The turn so far. Calls that have an answer are not made available again: that would run browser tools twice."""
        courses = (each for run in runs for each in (*run.calls.values(), *run.answers.values()))
        self._answered = frozenset(each.call_id for each in courses if each.outcome is not None)
        if runs:
            self._metadata = {"runId": runs[-1].run_id or ""}
        last = len(runs) - 1
        chunks: list[Chunk] = []
        for number, run in enumerate(runs):
            for record in condensed(run):
                made = self._chunks(record)
                # Everything of an earlier run is sent except its end: the message is not finished.
                chunks += made[:-1] if number < last and isinstance(record.event, RunEnded) else made
            self._is_over = self._is_over and number == last
        self._answered = frozenset()
        return chunks

    def feed(self, record: Record) -> list[Chunk]:
        if self._is_over:
            raise UsageError(
                f"the last run of the turn has ended; record {record.seq} of {record.run_id!r} cannot follow"
            )
        return self._chunks(record)

    def _chunks(self, record: Record) -> list[Chunk]:
        """The chunks of a record. A call that no response of a model made is held back while it may be a host's question.

        A host writes its questions in one go: start, arguments, end, and that an answer is awaited. Any other record shows
        that the call is not a question, except for records that are not shown at all.
        """
        event = record.event
        if self._run.leaves_out(event):
            return []
        call_id = self._held_call
        match event:
            case ArgsAppended() if event.call_id == call_id and not self._calls[event.call_id].pieces:
                self._held += self._translate(record)
                return []
            case CallCompleted() if event.call_id == call_id:
                self._held += self._translate(record)
                return []
            case CallAwaiting() if event.call_id == call_id:
                made = self._translate(record)
                return [*self._release(), *made]
        released = self._release()
        made = self._translate(record)
        if isinstance(event, CallStarted) and message_of(event, record.response_id) not in self._announced:
            self._held_call, self._held = event.call_id, made
            return released
        return released + made

    def _release(self) -> list[Chunk]:
        held, self._held, self._held_call = self._held, [], None
        return held

    def _drop_held(self) -> None:
        if {"type": "start-step"} in self._held:
            self._is_step_open = False
        self._release()

    def _translate(self, record: Record) -> list[Chunk]:
        if isinstance(record.event, RunStarted):
            state = self._run.state if self._run.state_is_whole else msgspec.UNSET
            self._run = self.view.fold(state=state, is_outline=True)
        return [chunk for change in self._run.feed(record) for chunk in _TABLE[type(change)](self, change)]

    # -- the message --

    def _began(self, change: Began) -> Iterator[Chunk]:
        self._client_tools |= tools_in(change.input)
        if not self._has_started:
            self._has_started = True
            self._metadata = self._metadata or {"runId": self._run.run_id or ""}
            yield {"type": "start", "messageId": self._message_id, "messageMetadata": self._metadata}

    def _message_began(self, change: MessageBegan) -> Iterator[Chunk]:
        self._announced.add(change.message.message_id)
        yield from self._begin_step(change.message.message_id)

    def _begin_step(self, message_id: str) -> Iterator[Chunk]:
        """Each response of a model is a step: the SDK's helpers look at the calls of the last step.

        But its reader only looks in the last step for a call that is being written, so no step begins while there is one.
        """
        if message_id in self._steps:
            return
        self._steps.add(message_id)
        is_free = self._is_step_free and not self._spoke
        self._is_step_free = False
        if self._is_step_open and (is_free or any(call.is_being_written for call in self._calls.values())):
            return
        yield from self._end_step()
        yield from self._start_step()

    def _start_step(self) -> Iterator[Chunk]:
        self._is_step_open, self._has_state = True, False
        self._spoke.clear()
        self._called.clear()
        yield {"type": "start-step"}

    def _end_step(self) -> Iterator[Chunk]:
        for key in [*self._open]:
            yield from self._close(key)
        if self._is_step_open:
            self._is_step_open = False
            yield {"type": "finish-step"}

    def _opened(self, change: Opened) -> Iterator[Chunk]:
        part = change.part
        if isinstance(part, Passage):
            yield from self._begin_step(part.message_id)
            return
        if not self._is_step_open:
            yield from self._begin_step(part.message_id)
        self._steps.add(part.message_id)
        self._spoke.add(part.message_id)
        self._shown.add(part.message_id)
        self._called.add(part.call_id)
        self._calls[part.call_id] = _Call(part)
        yield {"type": "tool-input-start", "toolCallId": part.call_id, "toolName": part.name}

    def _grew(self, change: Grew) -> Iterator[Chunk]:
        part = change.part
        if isinstance(part, CallView):
            # Arguments that came whole are sent in ``tool-input-available``.
            self._calls[part.call_id].pieces.append(change.json)
            if not part.has_all_args or part.call_id in self._answered:
                yield {"type": "tool-input-delta", "toolCallId": part.call_id, "inputTextDelta": change.json}
            return
        key = (part.kind, part.message_id)
        part_id = self._open.get(key)
        if part_id is None:
            self._parts += 1
            self._spoke.add(part.message_id)
            self._shown.add(part.message_id)
            part_id = self._open[key] = f"{part.kind}-{self._parts}"
            yield {"type": f"{part.kind}-start", "id": part_id}
        yield {"type": f"{part.kind}-delta", "id": part_id, "delta": change.text}

    def _closed(self, change: Closed) -> Iterator[Chunk]:
        part = change.part
        if isinstance(part, Passage):
            yield from self._close((part.kind, part.message_id))
            return
        call = self._calls[part.call_id]
        call.is_held = True
        if part.name not in self._client_tools or part.call_id in self._answered:
            yield from self._announce(call)

    def _close(self, key: tuple[str, str]) -> Iterator[Chunk]:
        part_id = self._open.pop(key, None)
        if part_id is not None:
            yield {"type": f"{key[0]}-end", "id": part_id}

    # -- calls --

    def _announce(self, call: _Call) -> Iterator[Chunk]:
        """Announces that the call is whole, which runs its tool in a browser, unless it was announced or has its answer.

        For a tool of the browser this waits until its answer is awaited: before that, its response may still be cut.
        """
        if not call.is_held:
            return
        call.is_held = False
        text = "".join(call.pieces)
        call.pieces.clear()
        if call.view.call_id not in self._answered:
            # Unparsed, so that numbers stay exact. A strict JSON text has line ends only between values.
            line = msgspec.Raw(text.replace("\n", " ").replace("\r", " ").encode())
            about = {"toolCallId": call.view.call_id, "toolName": call.view.name}
            yield {"type": "tool-input-available", **about, "input": line}

    def _asked(self, change: Asked) -> Iterator[Chunk]:
        """A call that a person or a client has to answer. The client's own tools need no request: it has the arguments."""
        view = change.call
        call_id, call = view.call_id, self._calls[view.call_id]
        yield from self._announce(call)
        asked = view.question or Question()
        if view.is_paused or view.name in self._client_tools or self._sdk < 6:
            return
        about = self._calls.get(asked.about) if asked.about is not None else None
        if about is not None and self._held_call == call_id:
            call.about = about
            self._drop_held()
        if asked.reason in _ANSWERED_OTHERWISE:
            return
        (call.about or call).is_asked = True
        if call_id in self._answered:
            return
        shown_id = call_id if call.about is None else asked.about
        request = {"type": "tool-approval-request", "approvalId": call_id, "toolCallId": shown_id}
        yield {**request, "reason": asked.message} if asked.message else request

    def _ran_early(self, change: RanEarly) -> Iterator[Chunk]:
        call_id = change.call.call_id
        if call_id not in self._answered:
            yield {"type": "data-running-early", "id": f"early-{call_id}", "data": {"toolCallId": call_id}}

    def _progressed(self, change: Progressed) -> Iterator[Chunk]:
        call_id, data = change.call.call_id, change.data
        call = self._calls.get(call_id)
        if call is None or call_id in self._answered or call.about is not None:
            return  # the result replaces the progress
        if call.is_being_written:  # an output would end the input
            yield {"type": "data-progress", "id": call_id, "data": {"toolCallId": call_id, "progress": data}}
        else:
            yield {"type": "tool-output-available", "toolCallId": call_id, "output": data, "preliminary": True}

    def _settled(self, change: Settled) -> Iterator[Chunk]:
        outcome = change.outcome
        call = self._calls.get(outcome.call_id)
        if call is None:
            return
        is_cut_off = change.cut_off or call.is_held
        if not isinstance(outcome, CallDiscarded):
            yield from self._announce(call)
        call.is_answered = True
        if call.about is not None:
            call.about.is_denied = isinstance(outcome, CallReturned) and decision(outcome.result) is False
            return
        about = {"toolCallId": outcome.call_id}
        match outcome:
            case CallReturned(result=result):
                yield {"type": "tool-output-available", **about, "output": result}
            case CallReleased():
                output = result_value(result_text(call.view, outcome, self.view))
                yield {"type": "tool-output-available", **about, "output": output}
            case CallDiscarded() if is_cut_off:
                error = {"input": "".join(call.pieces), "errorText": error_text(call.view, outcome, self.view)}
                call.pieces.clear()
                yield {"type": "tool-input-error", **about, "toolName": call.view.name, **error}
            case CallDiscarded(reason="rejected") if call.is_asked:
                yield {"type": "tool-output-denied", **about}
            case CallDiscarded() | CallFailed() if call.is_denied:
                yield {"type": "tool-output-denied", **about}
            case CallDiscarded() | CallFailed():
                yield {"type": "tool-output-error", **about, "errorText": error_text(call.view, outcome, self.view)}
            case _:
                assert_never(outcome)

    # -- the rest --

    def _state_moved(self, change: StateMoved) -> Iterator[Chunk]:
        """The whole state as a data part, since the stream has no patches. A patch of a state that the turn has not shown
        means nothing by itself, and one that does not apply changes nothing.
        """
        if self._run.state_is_whole and (change.patch is None or change.state is not self._shown_state):
            self._has_state |= self._shown_state is msgspec.UNSET
            self._shown_state = change.state
            yield {"type": "data-state", "id": "state", "data": change.state}

    def _resumed(self, change: Resumed) -> Iterator[Chunk]:
        """Takes back the messages that the model is asked for again, if the step has no others and the client can do so.

        Otherwise no chunk can take them back, so the client has to come back: see ``is_lost``.
        """
        void = {message.message_id for message in change.void}
        is_all = bool(void) and self._is_step_open and self._spoke <= void
        if is_all and self._spoke and self._sdk >= 7:
            yield {"type": "reset-step"}
            if self._has_state:
                yield {"type": "data-state", "id": "state", "data": self._shown_state}
            self._open.clear()
            self._shown -= self._spoke
            self._spoke.clear()
            self._called.clear()
        self._is_step_free = is_all and not self._spoke
        for message in change.void:
            for call in message.calls:
                self._calls.pop(call.call_id)
        if void & self._shown:
            self.is_lost = True
            yield {"type": VOID, "data": {"runId": self._run.run_id, "attempt": self._run.attempt}, "transient": True}

    def _ended(self, change: Ended) -> Iterator[Chunk]:
        yield from self._end_step()
        self._is_over = True
        awaits = any(call.is_awaiting for call in self._calls.values())
        if self._called and not awaits:
            # A chat that sends by itself does so when all calls of the last step are answered: it would never stop.
            yield from self._start_step()
            yield {"type": "message-metadata", "messageMetadata": self._metadata}  # else its reader leaves the step out
            yield from self._end_step()
        outcome, reason = self._run.outcome, self._run.reason
        match outcome:
            case "finished":
                yield {"type": "finish", "finishReason": "tool-calls" if awaits else "stop"}
            case "cancelled":
                yield {"type": "abort"}
            case _:
                yield {"type": "error", "errorText": self.view.why_failed(reason)}

    def _nothing(self, change: InputCame | Signed) -> Iterator[Chunk]:
        return iter(())


_Row: TypeAlias = Callable[[ChunkTranslator, Any], Iterator[Chunk]]

_TABLE: Final[dict[type[Any], _Row]] = {
    Began: ChunkTranslator._began,
    MessageBegan: ChunkTranslator._message_began,
    Opened: ChunkTranslator._opened,
    Grew: ChunkTranslator._grew,
    Closed: ChunkTranslator._closed,
    RanEarly: ChunkTranslator._ran_early,
    Asked: ChunkTranslator._asked,
    Progressed: ChunkTranslator._progressed,
    Settled: ChunkTranslator._settled,
    StateMoved: ChunkTranslator._state_moved,
    Resumed: ChunkTranslator._resumed,
    Ended: ChunkTranslator._ended,
    # The chat has its own messages, and no chunk for signatures.
    InputCame: ChunkTranslator._nothing,
    Signed: ChunkTranslator._nothing,
}


# -- the texts of failures ---------------------------------------------------------------------------------------------


def error_text(call: CallView, outcome: CallDiscarded | CallFailed, view: View) -> str:
    """Why a call has no result, as far as a client may know."""
    shown = msgspec.json.decode(result_text(call, outcome, view))
    detail = shown.get("detail")
    return f"{shown['error']}: {detail}" if detail else str(shown["error"])
