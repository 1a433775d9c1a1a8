"""An answer that was not streamed, on its way to the SDK: without the calls that were not finished, or do not fit.

The laws are those of a collapser: reasoning that led to nothing but such calls is left out with them, what is left keeps its
place, and every other answer passes byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from callstream import codec
from callstream.events import CallCompleted, CallDiscarded, CallStarted, WireEvent
from callstream.wire.collapsing import Check, judge, read_json

IsLeftOut: TypeAlias = Callable[[], bool]
"""Whether the next call of a whole answer is left out. Asked once for each call, in the order of the bytes."""
Edit: TypeAlias = Callable[[dict[str, Any], IsLeftOut], None]
"""Takes calls out of a whole answer."""
T = TypeVar("T")


def kept(items: Iterable[T], is_left_out: Callable[[T], bool], is_reasoning: Callable[[T], bool]) -> Iterator[T]:
    """The items of a whole response without those that are left out, and without reasoning that led to these alone."""
    waiting: list[T] = []  # reasoning that may have led to nothing
    after_left_out = False
    for item in items:
        if is_left_out(item):
            after_left_out = True
            continue
        if not is_reasoning(item):
            yield from waiting
            yield item
            waiting = []
        elif after_left_out:
            waiting = [item]
        else:
            waiting.append(item)
        after_left_out = False
    if not after_left_out:
        yield from waiting


def discard_invalid(
    events: Iterable[WireEvent], collapse: Callable[[str], bool], check: Check | None
) -> list[WireEvent]:
    """The events of an answer that was not streamed, in which collapsed calls that do not fit are discarded."""
    started: dict[str, CallStarted] = {}
    judged: list[WireEvent] = []
    for event in events:
        if isinstance(event, CallStarted) and collapse(event.name):
            started[event.call_id] = event
        elif isinstance(event, CallCompleted) and event.call_id in started:
            event = judge(event, started[event.call_id], check) or event
        judged.append(event)
    return judged


def without_unfinished(
    body: bytes, calls: Sequence[str | None], events: Iterable[WireEvent], collapse: Callable[[str], bool], edit: Edit
) -> bytes:
    """An answer that was not streamed, without the calls that were not finished.

    ``calls`` and ``events`` are what the decoder has read in it. The stop reason stays.
    """
    names: dict[str, str] = {}
    left_out: set[str | None] = set()
    for event in events:
        if isinstance(event, CallStarted):
            names[event.call_id] = event.name
        elif isinstance(event, CallDiscarded) and (event.call_id not in names or collapse(names[event.call_id])):
            left_out.add(event.call_id)
    answer = read_json(body) if left_out else None
    if not isinstance(answer, dict):
        return body
    decisions = iter([call_id in left_out for call_id in dict.fromkeys(calls)])
    edit(answer, lambda: next(decisions, False))
    return codec.encode_line(answer)
