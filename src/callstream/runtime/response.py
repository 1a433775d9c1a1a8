"""One response of a model, on its way from the provider's bytes into a run."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context, copy_context
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypeAlias, assert_never

import msgspec

from callstream.calls import CALL_EVENTS, Call, Ledger, number_id
from callstream.errors import CallIdTaken, CallRejected, RunOver, TransitionError, UsageError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallSigned,
    CallStarted,
    DiscardReason,
    Kept,
    MessageEnded,
    MessageStarted,
    ReasoningAppended,
    RequestKept,
    ResponseEnded,
    ResponseKept,
    RunEvent,
    RunOutcome,
    TextAppended,
    WireEvent,
)
from callstream.runtime.barrier import rejection
from callstream.runtime.core import RunCore
from callstream.runtime.log import EventsThen, Then, submitted
from callstream.tools.tool import check_takes
from callstream.wire import decoder_for
from callstream.wire.transcript import ArgumentText

logger = logging.getLogger("callstream")

Judge: TypeAlias = Callable[[str, bool], tuple[str, str]]
"""Given text that has not been judged yet, and whether the passage ends with it. Returns the text to show instead, and the
end of the given text, to be held back: it is given again, with what follows."""

_WITHIN_A_PASSAGE: Final = (ArgsAppended, CallSigned, CallCompleted, CallDiscarded)
"""Events of calls that are written beside a text: they do not end its passage."""


class _Passage(Protocol):
    """The filtering of one passage: text or reasoning of one message, up to the next call or the message's end."""

    def feed(self, text: str, is_end: bool) -> str:
        """Accepts more text. Returns what may be shown now."""


class TextFilter:
    """Decides which of a model's text and reasoning is shown and journaled, while the model writes it.

    Text that a filter has not judged yet is held back: the stream may cut a secret in two, and shown text cannot be taken
    back. So the journal never has text that a filter removed.

    ``TextFilter(judge)``, or above a function, ``@TextFilter``: see ``Judge``. What is shown must not depend on how the text
    was cut. ``TextFilter.redacting(…)`` makes a filter from secrets or a regular expression.
    """

    def __init__(self, judge: Judge) -> None:
        expected = "a filter that takes (text, is_end)"
        if not callable(judge):
            raise UsageError(f"expected {expected}, got {judge!r}")
        check_takes(judge, 2, expected)
        self.passage: Callable[[], _Passage] = lambda: _Judged(judge)
        """Begins a passage."""

    @classmethod
    def redacting(
        cls,
        secrets: re.Pattern[str] | str | Iterable[str],
        by: str | Callable[[re.Match[str]], str] = "[redacted]",
        *,
        hold: int | None = None,
    ) -> Self:
        """Shows ``by`` instead of these secrets, or of whatever a compiled pattern matches.

        ``hold``: how many characters are held back, so that a match is recognized before any of it is shown. It has to cover
        the most text that recognizing a match can take, including any lookahead of the pattern. A pattern needs it; for
        secrets it is the length of the longest.
        """
        if not isinstance(secrets, re.Pattern):
            known = sorted({secrets} if isinstance(secrets, str) else set(secrets), key=len, reverse=True)
            if not known or not known[-1]:
                raise UsageError("expected secrets that are not empty")
            hold = max(hold or 0, len(known[0]))
            secrets = re.compile("|".join(map(re.escape, known)))
        if hold is None or hold < 1:
            raise UsageError("a pattern needs hold=, the number of characters that it takes to recognize a match")
        if secrets.search("") is not None:
            raise UsageError(f"the pattern {secrets.pattern!r} matches the empty text")
        pattern, held = secrets, hold
        made = cls(lambda text, is_end: (text, ""))
        made.passage = lambda: _Redacted(pattern, by, held)
        return made

    def whole(self, text: str) -> str:
        """What is shown of a complete text."""
        return self.passage().feed(text, True)


class _Judged:
    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._held = ""

    def feed(self, text: str, is_end: bool) -> str:
        shown, self._held = self._judge(self._held + text, is_end)
        return shown


class _Redacted:
    def __init__(self, pattern: re.Pattern[str], by: str | Callable[[re.Match[str]], str], hold: int) -> None:
        self._pattern = pattern
        self._by = by
        self._hold = hold
        self._text = ""
        """The text held back, preceded by what a pattern may look back at."""
        self._place = 0
        """Where the text held back begins."""

    def feed(self, text: str, is_end: bool) -> str:
        self._text += text
        settled = len(self._text) if is_end else len(self._text) - self._hold
        """Matches that begin or end before this place are all found now."""
        shown: list[str] = []
        for match in self._pattern.finditer(self._text, self._place):
            if match.end() > settled:
                settled = min(settled, match.start())
                break
            if match.end() > match.start():
                shown += self._text[self._place : match.start()], self._replacement(match)
                self._place = match.end()
        if settled > self._place:
            shown.append(self._text[self._place : settled])
            self._place = settled
        unseen = max(self._place - self._hold, 0)
        self._text, self._place = self._text[unseen:], self._place - unseen
        return "".join(shown)

    def _replacement(self, match: re.Match[str]) -> str:
        return self._by if isinstance(self._by, str) else self._by(match)


class FilteredText:
    """Filters the text in the events of one response. Several filters apply in their order."""

    def __init__(self, filters: Sequence[TextFilter]) -> None:
        self._filters = filters
        self._last: TextAppended | ReasoningAppended | None = None
        self._passages: list[_Passage] = []

    def apply(self, events: Sequence[WireEvent]) -> list[WireEvent]:
        shown: list[WireEvent] = []
        for event in events:
            if isinstance(event, TextAppended | ReasoningAppended):
                last = self._last
                if last is None or type(last) is not type(event) or last.message_id != event.message_id:
                    self._end_passage(shown)
                    self._passages = [each.passage() for each in self._filters]
                self._last = event
                self._feed(event, event.text, False, shown)
                continue
            if not isinstance(event, _WITHIN_A_PASSAGE):
                self._end_passage(shown)
            shown.append(event)
        return shown

    def _end_passage(self, shown: list[WireEvent]) -> None:
        if self._last is not None:
            self._feed(self._last, "", True, shown)
            self._last = None

    def _feed(self, event: TextAppended | ReasoningAppended, text: str, is_end: bool, shown: list[WireEvent]) -> None:
        for passage in self._passages:
            text = passage.feed(text, is_end)
        if text:
            shown.append(type(event)(event.message_id, text))


class WithheldRun:
    """Stands in for a run, with a ledger of its own, for a response that must not be shown yet: its host will show what the
    application makes of it.

    The response is decoded, collapsed and checked like any other, so that no tool runs on arguments that are unfinished or
    do not fit. But nothing of it is journaled, and no hook is notified of it.
    """

    def __init__(self, run: RunCore) -> None:
        self.run_id = run.run_id
        self.loop = run.loop
        self.schedule = run.schedule
        self.on_stop = run.on_stop
        self.on_failure = run.on_failure
        self.must_judge = run.must_judge
        self._run = run
        self._ledger = Ledger()

    @property
    def outcome(self) -> RunOutcome | None:
        return self._run.outcome

    @property
    def calls(self) -> list[Call]:
        return list(self._ledger)

    def call(self, call_id: str) -> Call:
        return self._ledger[call_id]

    def name_call(self, wanted: str) -> str:
        return self._ledger.name_for(wanted)

    def submit(
        self,
        events: Sequence[RunEvent] | EventsThen,
        then: Then,
        *,
        response_id: str | None = None,
        author: str | None = None,
        context: Context | None = None,
    ) -> None:
        error: Exception | None = None
        try:
            for event in events() if callable(events) else events:
                if isinstance(event, CALL_EVENTS):
                    self._ledger.apply(event)
        except TransitionError as raised:
            error = raised
        self.loop.call_soon(then, error)

    async def settled(self, call_id: str) -> Call:
        return self._ledger[call_id]

    def rejection(self, call_id: str) -> CallRejected | RunOver:
        return rejection(self._ledger[call_id], None)


ReadingRun: TypeAlias = RunCore | WithheldRun
"""What a response is read into."""


class GivenResponse:
    """A response of an earlier attempt of a run that is given to the SDK again. All of it is in the journal."""

    def __init__(self, run: ReadingRun, call_ids: Sequence[str]) -> None:
        self.run = run
        self.call_ids = {call_id: call_id for call_id in call_ids}
        self.nameless: list[CallDiscarded] = []


class Response:
    """Decodes bytes and records their events. Ids are made unique on the way: the decoder's own ids stay inside.

    ``feed`` returns when the events are durable and the hooks have been notified; it does not wait for hooks. If reading
    breaks off, the open calls are discarded (interrupted) and the error is raised unchanged. Leaving the context ends the
    body. ``expect`` is notified of each call before it starts: its ``call_id``, its text while that is being read, and the
    ``call_id`` under which it was expected before, if that was taken.
    """

    def __init__(
        self,
        run: ReadingRun,
        wire: str,
        response_id: str,
        *,
        new_call_id: Callable[[], str],
        tools: Mapping[str, dict[str, Any]] | None = None,
        author: str | None = None,
        within: str | None = None,
        expect: Callable[[CallStarted, str, ArgumentText | None, str | None], None] | None = None,
        text_filters: Sequence[TextFilter] = (),
    ) -> None:
        self.run = run
        self._expect = expect
        self._filtered = FilteredText(text_filters) if text_filters else None
        self.response_id = response_id
        self.call_ids: dict[str, str] = {}
        """The ``call_id`` of each call, by the id that its decoder gave it."""
        self.nameless: list[CallDiscarded] = []
        """Calls that never got a name. They have not started, so the journal does not have them."""
        self.decoder = decoder_for(wire, new_id=new_call_id, tools=tools)
        self._author = author
        self._within = within
        self.context = copy_context()
        """The request's context, in which hooks and tools begin that the response starts."""
        self._message_ids: dict[str, str] = {}
        self._ended = False
        self._is_interrupted = False
        self.has_text = False
        """Whether the model has said something beside its calls and reasoning."""
        self.is_over = False
        """Whether the wire has ended the response, and how."""
        self.finish_reason: str | None = None
        self.was_interrupted = False
        """Whether a call in it was interrupted: its readable part ended within the call."""
        self._recorded: list[RunEvent] = []
        self._renaming: asyncio.Task[None] | None = None

    @property
    def is_paused(self) -> bool:
        """Whether its body has ended but the rest may come in another body. ``end`` gives that up."""
        return self.decoder.is_paused and not self._ended

    async def feed(self, data: bytes) -> list[RunEvent]:
        """Reads bytes of a streamed answer. Returns the events as they were recorded."""
        return await self.record(self.decoder.feed(data))

    async def end(self) -> list[RunEvent]:
        """The body has ended: open calls are discarded as truncated."""
        if self._ended:
            return []
        self._ended = True
        return await self.record(self.decoder.end())

    async def whole(self, body: bytes) -> list[RunEvent]:
        """Reads an answer that was not streamed."""
        self._ended = True
        return await self.record(self.decoder.whole(body))

    async def record(self, events: Sequence[WireEvent | Kept]) -> list[RunEvent]:
        """Records what a decoder has read, for callers that decode themselves. Returns the events as they were recorded."""
        await submitted(partial(self.submit, events))
        return self._recorded

    def submit(self, events: Sequence[WireEvent | Kept], then: Then) -> None:
        """``record`` without waiting: ``then`` is called later, with the error, or None. One at a time."""
        if self._filtered is not None:
            try:
                events = self._filtered.apply([event for event in events if not isinstance(event, Kept)])
            except Exception as error:  # noqa: BLE001  # a filter is the program's; nothing that it has not judged is shown
                self.run.loop.call_soon(then, error)
                return
        self._submit(events, then)

    def _submit(self, events: Sequence[WireEvent | Kept], then: Then) -> None:
        recorded: list[RunEvent] = []
        starts_call = False
        for event in events:
            if type(event) is ArgsAppended and self.call_ids.get(event.call_id) == event.call_id:
                recorded.append(event)  # most are like this
                continue
            if type(event) is CallStarted:
                starts_call = True
                if event.call_id not in self.call_ids:
                    self._expect_call(event, self.run.name_call(event.call_id))
            translated = self._translate(event)
            if translated is not None:
                recorded.append(translated)
        self._recorded = recorded
        self.run.submit(
            recorded,
            partial(self._started, events, then) if starts_call else then,
            response_id=self.response_id,
            author=self._author,
            context=self.context,
        )

    def _started(self, events: Sequence[WireEvent | Kept], then: Then, error: Exception | None) -> None:
        if isinstance(error, CallIdTaken) and not self._is_interrupted:
            # An earlier run, or another process, has a call with this id. Nothing was kept, so a free id is looked for.
            self._renaming = self.run.loop.create_task(self._rename(error.call_id, events, then), context=self.context)
        else:
            then(error)

    async def _rename(self, taken: str, events: Sequence[WireEvent | Kept], then: Then) -> None:
        run = self.run
        assert isinstance(run, RunCore), "a withheld response is not journaled, so none of its ids can be taken"
        try:
            for event in events:
                if isinstance(event, CallStarted):
                    call_id = self.call_ids[event.call_id]
                    if call_id == taken or not await run.is_free(call_id):
                        self._expect_call(event, await run.free_call_id(event.call_id))
        except Exception as error:  # noqa: BLE001  # the submitter gets it
            then(error)
        else:
            self._submit(events, then)

    def _expect_call(self, started: CallStarted, call_id: str) -> None:
        former = self.call_ids.get(started.call_id)
        self.call_ids[started.call_id] = call_id
        if self._expect is not None:
            self._expect(started, call_id, self.decoder.text_of(started.call_id), former)

    async def interrupt(self, reason: DiscardReason = "interrupted", detail: str | None = None) -> None:
        """Reading cannot continue: the open calls of this response are discarded."""
        self._ended = self._is_interrupted = True
        if self.run.outcome is None:
            discarding = partial(self._discarding, reason, detail)
            await submitted(partial(self.run.submit, discarding, response_id=self.response_id))

    def _discarding(self, reason: DiscardReason, detail: str | None) -> list[RunEvent]:
        mine = set(self.call_ids.values())
        return [
            CallDiscarded(call.call_id, reason, detail)
            for call in self.run.calls
            if call.call_id in mine and call.is_being_written
        ]

    async def __aenter__(self) -> Response:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Literal[False]:
        if error is None:
            await self.end()
        else:
            try:
                await self.interrupt(detail=type(error).__name__)
            except RunOver:
                pass  # the run's own end has discarded them
        return False

    def _translate(self, event: WireEvent | Kept) -> RunEvent | None:
        match event:
            case TextAppended() | ReasoningAppended() | MessageEnded():
                self.has_text |= type(event) is TextAppended
                message_id = self._message_ids.get(event.message_id) or self._message_id(event.message_id)
                return msgspec.structs.replace(event, message_id=message_id)
            case ResponseKept() | RequestKept():
                return event
            case ResponseEnded():
                self.is_over, self.finish_reason = True, event.finish_reason
                return event
            case MessageStarted():
                return msgspec.structs.replace(
                    event, message_id=self._message_id(event.message_id), within=self._within
                )
            case CallStarted():
                return msgspec.structs.replace(
                    event,
                    call_id=self.call_ids[event.call_id],
                    message_id=event.message_id and self._message_id(event.message_id),
                    within=self._within if event.message_id is None else None,
                )
            case CallSigned() | ArgsAppended() | CallCompleted() | CallDiscarded():
                self.was_interrupted |= isinstance(event, CallDiscarded) and event.reason == "interrupted"
                call_id = self.call_ids.get(event.call_id)
                if call_id is None:
                    # It never got a name, so it never started.
                    logger.warning("run %s: a call without a name was dropped", self.run.run_id)
                    if isinstance(event, CallDiscarded):
                        self.nameless.append(event)
                    return None
                return event if call_id == event.call_id else msgspec.structs.replace(event, call_id=call_id)
            case _:
                assert_never(event)

    def _message_id(self, local: str) -> str:
        """One name per message in the whole journal: the provider's may come twice."""
        if local not in self._message_ids:
            self._message_ids[local] = number_id(self.response_id, len(self._message_ids) + 1)
        return self._message_ids[local]
