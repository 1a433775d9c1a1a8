"""What can be set for a Callstream, and how much a model may write in one run.

Text is weighed before it is journaled, so what passes a limit is neither kept nor shown. A run that passes one fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from callstream.errors import LimitExceeded, TooMany, UsageError
from callstream.events import ArgsAppended, ReasoningAppended, RunEvent, TextAppended
from callstream.tools import ErrorPolicy, check_hook_settings

OnRejected: TypeAlias = Literal["raise", "forward", "ask"]
"""What the SDK gets of a response in which a call was rejected: ``CallRejected``; all of it, the call included; or the
response without the call, and the model's next answer if there is nothing else in it for the program to act on."""

_OTHER_TEXT: Final = (TextAppended, ReasoningAppended)


class TextLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of UTF-8; None is no limit. ``max_args_bytes`` is for one call, ``max_run_bytes`` for all that is written."""

    max_args_bytes: int | None = None
    max_run_bytes: int | None = None

    def tighten(self, other: TextLimits) -> TextLimits:
        """The stricter of both."""
        return TextLimits(
            max_args_bytes=_stricter(self.max_args_bytes, other.max_args_bytes),
            max_run_bytes=_stricter(self.max_run_bytes, other.max_run_bytes),
        )


class Settings(msgspec.Struct, frozen=True):
    """What can be set for all tools and runs of a Callstream."""

    hook_timeout: float = 30.0
    """Seconds that a hook may take before it is cancelled and counts as raised."""
    on_hook_error: ErrorPolicy = "fail_call"
    progress_interval: float = 0.1
    """Seconds between two progress records of one call. What comes in between is merged: the last of each message stays."""
    merge_progress: bool = False
    """Whether ``on_tool_progress`` hears of merged reports only, as the records have them, and not of every one."""
    max_args_bytes: int | None = None
    """Argument text that a model may write for one call; a run that passes it fails. None is no limit."""
    max_run_bytes: int | None = None
    """All text, reasoning and arguments that a model may write in one run."""
    telemetry_arguments: bool = False
    """Whether the spans of calls carry their arguments and results."""
    first_byte: float | None = None
    """Seconds until a streamed answer of a provider has to begin; then it ends with a time-out. None is no limit."""
    idle: float | None = None
    """Seconds for which a streamed answer that has begun may send nothing; then it ends with a time-out."""
    rejected: OnRejected = "raise"
    """What the SDK gets where a hook rejected a call or failed, in runs that do not say it themselves: see ``cs.run``."""
    ask_again: int = 1
    """How often the tap asks a model again that wrote nothing but calls which cannot run: cut off, not JSON, not fitting."""
    hook_grace: float = 5.0
    """Seconds that a hook past its time may take to end, before its call is given up and the abort hooks run beside it.

    A plain function has them too: it cannot be cancelled, and an abort hook should not undo what it is still writing.
    """

    def __post_init__(self) -> None:
        check_hook_settings(self.hook_timeout, self.on_hook_error)
        check_silence(self.first_byte, self.idle)
        check_rejected(self.rejected)
        check_ask_again(self.ask_again)
        times: dict[str, Any] = {"progress_interval": self.progress_interval, "hook_grace": self.hook_grace}
        for name, seconds in times.items():
            if not (isinstance(seconds, int | float) and seconds >= 0):
                raise UsageError(f"expected {name} to be a number of seconds, got {seconds!r}")
        sizes: dict[str, Any] = {"max_args_bytes": self.max_args_bytes, "max_run_bytes": self.max_run_bytes}
        for name, size in sizes.items():
            if size is not None and not isinstance(size, int):
                raise UsageError(f"expected {name} to be a number of bytes, or None, got {size!r}")


def check_rejected(rejected: Any) -> None:
    if rejected not in get_args(OnRejected):
        raise UsageError(f"expected rejected to be 'raise', 'forward' or 'ask', got {rejected!r}")


def check_ask_again(times: Any) -> None:
    if not isinstance(times, int) or isinstance(times, bool) or times < 0:
        raise UsageError(f"expected ask_again to be how often, 0 or more, got {times!r}")


def check_silence(first_byte: float | None, idle: float | None) -> None:
    limits: dict[str, Any] = {"first_byte": first_byte, "idle": idle}
    for name, seconds in limits.items():
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise UsageError(f"expected {name} to be a number of seconds above 0, or None, got {seconds!r}")


class Seats:
    """How many of something there are, and how many there may be: in all, and of one principal. None is no limit.

    A seat is taken before anything is awaited, so that requests that come together cannot all find the last one.
    ``on_change`` is called with 1 or -1 for every seat that is taken or given back.
    """

    def __init__(
        self, most: int | None = None, most_of_one: int | None = None, on_change: Callable[[int], None] | None = None
    ) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._on_change = on_change or (lambda change: None)
        self._taken: Counter[str | None] = Counter()

    def take(self, principal: str | None = None) -> Seat:
        """Raises TooMany if there is no seat left."""
        if self._most is not None and self._taken.total() >= self._most:
            raise TooMany(self._most, of_one=False)
        if self._most_of_one is not None and principal is not None and self._taken[principal] >= self._most_of_one:
            raise TooMany(self._most_of_one, of_one=True)
        self._taken[principal] += 1
        self._on_change(1)
        return Seat(self, principal)

    def give_back(self, principal: str | None) -> None:
        self._taken[principal] -= 1
        if not self._taken[principal]:
            del self._taken[principal]
        self._on_change(-1)


class Seat:
    """One that is taken. Leaving it gives it back."""

    __slots__ = ("_principal", "_seats")

    def __init__(self, seats: Seats, principal: str | None) -> None:
        self._seats = seats
        self._principal = principal

    def give_back(self) -> None:
        """Once."""
        self._seats.give_back(self._principal)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.give_back()


class Weighed(msgspec.Struct, frozen=True):
    """Bytes by call, None for what belongs to no call; with an ``error``, those of the ``fitting`` first events alone."""

    weights: dict[str | None, int]
    fitting: int
    error: LimitExceeded | None = None


class TextMeter:
    """Counts what a run's model has written. ``weigh`` before writing, ``apply`` afterwards."""

    def __init__(self, limits: TextLimits) -> None:
        self.limits = limits
        self.total = 0
        self._by_call: dict[str | None, int] = {}

    def args_bytes(self, call_id: str) -> int:
        return self._by_call.get(call_id, 0)

    def weigh(self, events: Sequence[RunEvent]) -> Weighed:
        """What the events would add, and how many of them fit."""
        weights: dict[str | None, int] = {}
        total = self.total
        for number, event in enumerate(events):
            if isinstance(event, ArgsAppended):
                call_id: str | None = event.call_id
            elif isinstance(event, _OTHER_TEXT):
                call_id = None
            else:
                continue
            text = event.text
            size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
            total += size
            weight = weights.get(call_id, 0) + size
            error = self._excess(call_id, weight, total)
            if error is not None:
                return Weighed(weights, number, error)
            weights[call_id] = weight
        return Weighed(weights, len(events))

    def apply(self, weighed: Weighed) -> None:
        for call_id, weight in weighed.weights.items():
            self.total += weight
            self._by_call[call_id] = self._by_call.get(call_id, 0) + weight

    def _excess(self, call_id: str | None, weight: int, total: int) -> LimitExceeded | None:
        most = self.limits.max_args_bytes
        if most is not None and call_id is not None and self._by_call.get(call_id, 0) + weight > most:
            return LimitExceeded(
                f"the model wrote more than {most} bytes of arguments for call {call_id!r}", "max_args_bytes"
            )
        most = self.limits.max_run_bytes
        if most is not None and total > most:
            return LimitExceeded(f"the model wrote more than {most} bytes in this run", "max_run_bytes")
        return None


def _stricter(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
