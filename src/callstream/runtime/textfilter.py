"""Filters of text: what of a model's text may be shown, decided while the model writes it.

A filter gets text as it grows and says what of it may be shown. What it has not judged yet is held back: a secret may be cut
in two by the stream, and what was shown cannot be taken back. So the journal never has what a filter took out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, Self, TypeAlias

from callstream.errors import UsageError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallSigned,
    ReasoningAppended,
    TextAppended,
    WireEvent,
)

Judge: TypeAlias = Callable[[str, bool], tuple[str, str]]
"""Given text that was not judged yet, and whether the passage ends with it. Returns what may be shown in its place, and the
end of the text that is held back: it is given again, with what follows."""

_WITHIN_A_PASSAGE: Final = (ArgsAppended, CallSigned, CallCompleted, CallDiscarded)
"""Of calls that are written beside a text."""


class _Passage(Protocol):
    """The filtering of one passage: text or reasoning of one message, up to the next call or the message's end."""

    def feed(self, text: str, is_end: bool) -> str:
        """Accepts more text. Returns what may be shown now."""


class TextFilter:
    """Decides what of a model's text and reasoning is shown and journaled.

    ``TextFilter(judge)``, or above a function, ``@TextFilter``: see ``Judge``. What is shown must not depend on how the text
    was cut. ``TextFilter.redacting(…)`` makes one of secrets or a regular expression.
    """

    def __init__(self, judge: Judge) -> None:
        self._new_passage: Callable[[], _Passage] = lambda: _Judged(judge)

    @classmethod
    def redacting(
        cls,
        secrets: re.Pattern[str] | str | Iterable[str],
        by: str | Callable[[re.Match[str]], str] = "[redacted]",
        *,
        hold: int | None = None,
    ) -> Self:
        """Shows ``by`` in the place of these secrets, or of whatever a compiled pattern matches.

        ``hold``: how many characters are held back, so that a match is recognized before any of it is shown. It has to be
        as many as a match can need to be recognized, with all that the pattern looks ahead for. A pattern needs it; for
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
        made._new_passage = lambda: _Redacted(pattern, by, held)
        return made

    def passage(self) -> _Passage:
        return self._new_passage()

    def whole(self, text: str) -> str:
        """What is shown of a text that is whole."""
        return self._new_passage().feed(text, True)


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
        """What is held back, and before it what a pattern may look back at."""
        self._place = 0
        """Where that which is held back begins."""

    def feed(self, text: str, is_end: bool) -> str:
        self._text += text
        settled = len(self._text) if is_end else len(self._text) - self._hold
        """Before here no match begins or ends that is not found now."""
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
    """The events of one response, with what filters show of its text. Several filters apply in their order."""

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
