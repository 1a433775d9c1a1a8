"""Journal records of one turn in, chunks of the AI SDK's UI message stream out.

A turn is what follows a user's message: one assistant message, however many runs it takes. The rules of the stream are kept
here, since the client accepts what breaks them and shows something else: nothing is continued that is not open, a call's
arguments are written within one step, and what broke off is never announced as available, because that runs the tools of
the browser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Any, Final, assert_never

import msgspec

from callstream import codec, events
from callstream.agui import View
from callstream.agui.given import result_value
from callstream.agui.shown import result_text
from callstream.agui.translator import tools_in
from callstream.errors import UsageError
from callstream.jsontext.patch import apply_patch
from callstream.uistream.chunks import Chunk, Sdk
from callstream.uistream.results import error_text, says_no
from callstream.view import Outcome, RunView, condensed, message_of

_ANSWERED_OTHERWISE: Final = ("input_required", "credential_required")
"""Questions to which yes or no is no answer: the application answers them with the tool's output."""


class _Stage(Enum):
    WRITING = auto()
    """``tool-input-start`` was sent and ``tool-input-available`` was not."""
    WRITTEN = auto()
    AWAITING = auto()
    ANSWERED = auto()


class _Call:
    __slots__ = ("about", "is_asked", "is_denied", "is_text", "name", "pieces", "stage")

    def __init__(self, started: events.CallStarted) -> None:
        self.name = started.name
        self.is_text = started.encoding == "text"
        self.pieces: list[str] = []
        self.stage = _Stage.WRITING
        self.is_asked = False
        """Whether somebody was asked to approve of it."""
        self.is_denied = False
        self.about: _Call | None = None
        """The call that this one, a host's question, asks about. It is shown as a request to approve of that one."""


class ChunkTranslator:
    """The chunks of one turn.

    For a client that asks for a run: ``take`` the runs of the turn before it, which the client has, and ``feed`` the
    records of the run. For one that comes back: ``replay`` all runs of the turn, then ``feed`` what comes. ``message_id`` is
    that of the assistant message.
    """

    def __init__(self, message_id: str, view: View | None = None, *, sdk: Sdk = 6) -> None:
        self.view = view or View()
        self._message_id = message_id
        self._sdk = sdk
        self._run_id: str | None = None
        self._has_started = False
        self._metadata: dict[str, str] = {}
        self._is_over = False
        self._is_step_open = False
        self._has_calls = False  # of the last step
        self._steps: set[str] = set()
        self._announced: set[str] = set()
        self._held: list[Chunk] = []
        self._held_call: str | None = None
        self._open: dict[tuple[str, str], str] = {}  # kind and message of what is being said, and its part's id
        self._parts = 0
        self._calls: dict[str, _Call] = {}
        self._client_tools = self.view.client_tools
        self._answered: frozenset[str] = frozenset()
        self._state: Any = msgspec.UNSET

    def take(self, runs: Sequence[RunView]) -> None:
        """Learns of the turn's earlier runs, of which the client has seen everything."""
        for run in runs:
            for record in condensed(run):
                self._chunks(record)
        self._has_started = self._is_over = self._is_step_open = False

    def replay(self, runs: Sequence[RunView]) -> list[Chunk]:
        """The turn so far. Calls that have an answer are not made available again: that would run browser tools twice."""
        ended = [outcome for run in runs for outcome in _outcomes(run)]
        self._answered = frozenset(outcome.call_id for outcome in ended)
        if runs:
            self._run_id = runs[-1].run_id
        last = len(runs) - 1
        chunks: list[Chunk] = []
        for number, run in enumerate(runs):
            for record in condensed(run):
                told = self._chunks(record)
                # Of an earlier run, everything is told but its end: the message is not finished.
                chunks += told[:-1] if number < last and isinstance(record.event, events.RunEnded) else told
            self._is_over = self._is_over and number == last
        self._answered = frozenset()
        return chunks

    def feed(self, record: events.Record) -> list[Chunk]:
        if self._is_over:
            raise UsageError(
                f"the last run of the turn has ended; record {record.seq} of {record.run_id!r} cannot follow"
            )
        return self._chunks(record)

    def _chunks(self, record: events.Record) -> list[Chunk]:
        """What is to be told of a record. A call that no response of a model made is held back while it may be a question.

        A host writes its questions whole: start, arguments, end, and that an answer is awaited. Anything else shows that
        it is none.
        """
        event = record.event
        call_id = self._held_call
        match event:
            case events.ArgsAppended() if event.call_id == call_id and not self._calls[event.call_id].pieces:
                self._held += self._tell(record)
                return []
            case events.CallCompleted() if event.call_id == call_id:
                self._held += self._tell(record)
                return []
            case events.CallAwaiting() if event.call_id == call_id:
                told = list(self._tell(record))
                return [*self._release(), *told]
        released = self._release()
        told = list(self._tell(record))
        if isinstance(event, events.CallStarted) and message_of(event, record.response_id) not in self._announced:
            self._held_call, self._held = event.call_id, told
            return released
        return released + told

    def _release(self) -> list[Chunk]:
        held, self._held, self._held_call = self._held, [], None
        return held

    def _drop_held(self) -> None:
        if {"type": "start-step"} in self._held:
            self._is_step_open = False
        self._release()

    def _tell(self, record: events.Record) -> Iterator[Chunk]:
        match record.event:
            # A run is made of these two mostly, so they are asked for first.
            case events.ArgsAppended(call_id=call_id, text=text):
                yield from self._write(call_id, text)
            case events.TextAppended(message_id=message_id, text=text):
                yield from self._say("text", message_id, text)
            case events.ReasoningAppended(message_id=message_id, text=text):
                if self.view.reasoning:
                    yield from self._say("reasoning", message_id, text)
            case events.RunStarted(input=run_input):
                yield from self._start(record.run_id, run_input)
            case events.MessageStarted(message_id=message_id):
                self._announced.add(message_id)
                yield from self._begin_step(message_id)
            case events.MessageEnded(message_id=message_id):
                yield from self._close(message_id)
            case events.CallStarted() as started:
                yield from self._begin_call(started, message_of(started, record.response_id))
            case events.CallCompleted(call_id=call_id, args_json=whole):
                yield from self._complete(call_id, self._calls[call_id], whole)
            case events.CallAwaiting(call_id=call_id, question=question, is_paused=is_paused):
                if call_id in self._calls:
                    self._calls[call_id].stage = _Stage.AWAITING
                    if not is_paused:
                        yield from self._ask(call_id, self._calls[call_id], question)
            case events.CallProgressed() | events.CallRunningEarly() as news:
                if news.call_id in self._calls:
                    yield from self._report(news, self._calls[news.call_id])
            case (
                events.CallReturned() | events.CallFailed() | events.CallDiscarded() | events.CallReleased() as outcome
            ):
                if outcome.call_id in self._calls:
                    yield from self._end_call(outcome, self._calls[outcome.call_id])
            case events.StateChanged(snapshot=snapshot, patch=patch):
                yield from self._change_state(snapshot, patch)
            case events.RunEnded() as ended:
                yield from self._end(ended)
            case events.MessageReceived() | events.ResponseEnded() | events.CallExecuting() | events.CallSigned():
                pass
            case _:
                assert_never(record.event)

    # -- the message --

    def _start(self, run_id: str, run_input: Any) -> Iterator[Chunk]:
        self._client_tools |= tools_in(run_input)
        if not self._has_started:
            self._has_started = True
            self._metadata = {"runId": self._run_id or run_id}
            yield {"type": "start", "messageId": self._message_id, "messageMetadata": self._metadata}

    def _begin_step(self, message_id: str) -> Iterator[Chunk]:
        """Each response of a model is a step: the SDK's helpers look at the calls of the last one.

        But its reader looks for a call that is being written in the last step only, so none begins while one is.
        """
        if message_id in self._steps:
            return
        self._steps.add(message_id)
        if self._is_step_open and any(call.stage is _Stage.WRITING for call in self._calls.values()):
            return
        yield from self._end_step()
        yield from self._start_step()

    def _start_step(self) -> Iterator[Chunk]:
        self._is_step_open, self._has_calls = True, False
        yield {"type": "start-step"}

    def _end_step(self) -> Iterator[Chunk]:
        yield from self._close()
        if self._is_step_open:
            self._is_step_open = False
            yield {"type": "finish-step"}

    def _say(self, kind: str, message_id: str, text: str) -> Iterator[Chunk]:
        if not text:
            return
        yield from self._begin_step(message_id)
        other = "reasoning" if kind == "text" else "text"
        yield from self._close_one((other, message_id))
        part_id = self._open.get((kind, message_id))
        if part_id is None:
            self._parts += 1
            part_id = self._open[kind, message_id] = f"{kind}-{self._parts}"
            yield {"type": f"{kind}-start", "id": part_id}
        yield {"type": f"{kind}-delta", "id": part_id, "delta": text}

    def _close(self, message_id: str | None = None) -> Iterator[Chunk]:
        for key in [*self._open]:
            if message_id is None or key[1] == message_id:
                yield from self._close_one(key)

    def _close_one(self, key: tuple[str, str]) -> Iterator[Chunk]:
        part_id = self._open.pop(key, None)
        if part_id is not None:
            yield {"type": f"{key[0]}-end", "id": part_id}

    # -- calls --

    def _begin_call(self, started: events.CallStarted, message_id: str) -> Iterator[Chunk]:
        if not self._is_step_open:
            yield from self._begin_step(message_id)
        self._steps.add(message_id)
        self._has_calls = True
        yield from self._close(message_id)
        self._calls[started.call_id] = _Call(started)
        yield {"type": "tool-input-start", "toolCallId": started.call_id, "toolName": started.name}

    def _write(self, call_id: str, text: str) -> Iterator[Chunk]:
        """Argument text. The input of a free-text tool goes out as a JSON string, which every version can read."""
        call = self._calls[call_id]
        if call.is_text:
            text = codec.encode(text).decode()[1:-1]
            text = text if call.pieces else f'"{text}'
        if text:
            call.pieces.append(text)
            yield {"type": "tool-input-delta", "toolCallId": call_id, "inputTextDelta": text}

    def _complete(self, call_id: str, call: _Call, whole: str | None) -> Iterator[Chunk]:
        rest = ""
        if not call.pieces:  # it came whole
            rest = whole or ('""' if call.is_text else "{}")
        elif call.is_text:
            rest = '"'
        text = "".join([*call.pieces, rest])
        call.pieces.clear()
        call.stage = _Stage.WRITTEN
        if call_id not in self._answered:
            yield self._available(call_id, call, text)
        elif rest:
            yield {"type": "tool-input-delta", "toolCallId": call_id, "inputTextDelta": rest}

    def _available(self, call_id: str, call: _Call, text: str) -> Chunk:
        # As it is, so that numbers stay exact. A strict JSON text has line ends between values only.
        line = msgspec.Raw(text.replace("\n", " ").replace("\r", " ").encode())
        return {"type": "tool-input-available", "toolCallId": call_id, "toolName": call.name, "input": line}

    def _ask(self, call_id: str, call: _Call, question: events.Question | None) -> Iterator[Chunk]:
        """A call that a person or a client has to answer. The client's own tools need no word: it has the arguments."""
        asked = question or events.Question()
        if call.name in self._client_tools or self._sdk < 6:
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

    def _report(self, news: events.CallProgressed | events.CallRunningEarly, call: _Call) -> Iterator[Chunk]:
        call_id = news.call_id
        if call_id in self._answered or call.about is not None:
            return  # the result replaces it
        if isinstance(news, events.CallRunningEarly):
            yield {"type": "data-running-early", "id": f"early-{call_id}", "data": {"toolCallId": call_id}}
            return
        data = news.data
        if call.stage is _Stage.WRITING:  # an output would end the input
            yield {"type": "data-progress", "id": call_id, "data": {"toolCallId": call_id, "progress": data}}
        else:
            yield {"type": "tool-output-available", "toolCallId": call_id, "output": data, "preliminary": True}

    def _end_call(self, outcome: Outcome, call: _Call) -> Iterator[Chunk]:
        was, call.stage = call.stage, _Stage.ANSWERED
        if call.about is not None:
            call.about.is_denied = isinstance(outcome, events.CallReturned) and says_no(outcome.result)
            return
        about = {"toolCallId": outcome.call_id}
        match outcome:
            case events.CallReturned(result=result):
                yield {"type": "tool-output-available", **about, "output": result}
            case events.CallReleased():
                yield {
                    "type": "tool-output-available",
                    **about,
                    "output": result_value(result_text(outcome, self.view)),
                }
            case events.CallDiscarded() if was is _Stage.WRITING:
                text = "".join(call.pieces)
                call.pieces.clear()
                error = {"input": text, "errorText": error_text(outcome, self.view)}
                yield {"type": "tool-input-error", **about, "toolName": call.name, **error}
            case events.CallDiscarded(reason="rejected") if call.is_asked:
                yield {"type": "tool-output-denied", **about}
            case events.CallDiscarded() | events.CallFailed() if call.is_denied:
                yield {"type": "tool-output-denied", **about}
            case events.CallDiscarded() | events.CallFailed():
                yield {"type": "tool-output-error", **about, "errorText": error_text(outcome, self.view)}
            case _:
                assert_never(outcome)

    # -- the rest --

    def _change_state(self, snapshot: Any, patch: list[dict[str, Any]] | None) -> Iterator[Chunk]:
        """The whole state as a data part, since the stream has no patches. A patch of a state that the turn has not shown
        says nothing by itself, and one that does not apply changes nothing.
        """
        if patch is None:
            self._state = snapshot
        elif self._state is msgspec.UNSET:
            return
        else:
            try:
                self._state = apply_patch(self._state, patch)
            except UsageError:
                return
        yield {"type": "data-state", "id": "state", "data": self._state}

    def _end(self, ended: events.RunEnded) -> Iterator[Chunk]:
        for call_id, call in self._calls.items():
            # A journal closes every call before its run; should one be left, the client must not take it for pending.
            if call.stage in (_Stage.WRITING, _Stage.WRITTEN):
                yield from self._end_call(events.CallDiscarded(call_id, "interrupted"), call)
        yield from self._end_step()
        self._is_over = True
        awaits = any(call.stage is _Stage.AWAITING for call in self._calls.values())
        if self._has_calls and not awaits:
            # A chat that sends by itself does so when all calls of the last step are answered: it would do so for ever.
            yield from self._start_step()
            yield {"type": "message-metadata", "messageMetadata": self._metadata}  # else its reader leaves the step out
            yield from self._end_step()
        match ended.outcome:
            case "finished":
                yield {"type": "finish", "finishReason": "tool-calls" if awaits else "stop"}
            case "cancelled":
                yield {"type": "abort"}
            case "failed":
                told = f": {ended.reason}" if self.view.errors and ended.reason else "."
                yield {"type": "error", "errorText": f"The run failed{told}"}
            case _:
                assert_never(ended.outcome)


def _outcomes(run: RunView) -> list[Outcome]:
    own, others = run.calls.values(), run.answers.values()
    ended = [call.outcome for call in own] + [answer.outcome for answer in others]
    return [outcome for outcome in ended if outcome is not None]
