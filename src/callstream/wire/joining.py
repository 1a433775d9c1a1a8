"""Two streamed answers as one, for an SDK that asked once: the model was asked again, because its calls were refused.

By then the first answer is already on its way to the SDK. So its end is held back, and the second answer continues the
same message: it has no start of its own, its blocks, items and calls continue the first one's numbering, and its end
counts for both. A call that was rejected after it had become whole is removed from the first (``drop``). If the model is
not asked again, the end that was held back leaves after all.

A joint sees the frames from the first refused call on, and nothing of other answers.

It can also end the first answer with a sentence instead of the removed calls, wherever these were: with the end that the
provider wrote (``say``), or with one of its own if the answer was cut (``cut``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from callstream import codec
from callstream.wire.collapsing import read_json
from callstream.wire.framing import Frame, SseFraming, plain_event


class Saying(NamedTuple):
    """Text instead of calls. ``is_last_word``: no call is left in the answer, so the turn ends with this text.

    ``follows``: the model has said something before it.
    """

    text: str
    is_last_word: bool
    follows: bool = False


class Joint(ABC):
    """Joins one pair of answers, bodies of server-sent events. A wire defines what becomes of its frames."""

    def __init__(self) -> None:
        self._framing = SseFraming()
        self._end: list[tuple[Frame, Any]] = []  # held-back frames of the first answer, and their values
        self._dropped: set[str] = set()  # the ids of calls that were removed
        self._missing: set[int] = set()  # and the numbers of their blocks or items, where the wire has any
        self._usage: dict[str, Any] = {}  # of the first answer
        self._begun: dict[str, Any] = {}  # the frame that the first answer began with, if it was cut

    def first(self, data: bytes) -> bytes:
        """Bytes of the first answer, without its end."""
        return b"".join(self._write_first(frame, read_json(frame.payload)) for frame in self._framing.feed(data))

    def drop(self, data: bytes, wire_ids: Collection[str]) -> bytes:
        """Takes whole frames of the first answer that hold calls with these ids. Returns the rest of them, for ``first``."""
        self._dropped.update(wire_ids)
        left = [(frame, self._without_dropped(read_json(frame.payload))) for frame in SseFraming().feed(data)]
        return b"".join(self._write(frame, value) for frame, value in left if value is not None)

    def unjoined(self) -> bytes:
        """The end of the first answer, where no second one follows."""
        left = [frame.raw if value is None else self._write(frame, self._unjoined(value)) for frame, value in self._end]
        return b"".join(left) + self._framing.pop_rest()

    def continue_at(self, number: int, items: Sequence[Any] = ()) -> None:
        """The first answer is over. ``number`` is the one that its next block would have had, ``items`` are its items."""
        self._framing = SseFraming()

    def second(self, data: bytes) -> bytes:
        """Bytes of the second answer."""
        return b"".join(self._write_second(frame, read_json(frame.payload)) for frame in self._framing.feed(data))

    def second_ended(self) -> bytes:
        """The bytes at the end of the second answer that are not a whole frame."""
        return self._framing.pop_rest()

    def cut(self, saying: Saying, number: int, items: Sequence[Any], passed: tuple[bytes, bytes]) -> bytes:
        """Text after a first answer that was not read to its end, and a made-up end instead of its own.

        ``passed``: its first bytes, and the last that left. ``number`` and ``items`` as for ``continue_at``.
        """
        first, last = (SseFraming().feed(data) for data in passed)
        self._begun = next((value for frame in first if isinstance(value := read_json(frame.payload), dict)), {})
        self._cut_after([value for frame in last if isinstance(value := read_json(frame.payload), dict)])
        self.continue_at(number, items)
        values = [*self._speech(self._words(saying)), *self._made_end("stop" if saying.is_last_word else "calls")]
        return _events(values) + self.made_last

    def say(self, saying: Saying, number: int) -> bytes:
        """Text after the first answer, and its end. ``number`` as for ``continue_at``."""
        rest = self._framing.pop_rest()
        self.continue_at(number)
        said = _events(self._speech(self._words(saying)))
        if saying.is_last_word:
            self._end = [(frame, None if value is None else self._turn_ended(value)) for frame, value in self._end]
        return said + self.unjoined() + rest

    @classmethod
    def say_whole(cls, body: bytes, saying: Saying) -> bytes:
        """An answer that was not streamed, with the text added."""
        answer: Any = codec.decode(body)
        cls._add_text(answer, saying)
        return codec.encode_line(answer)

    # -- what a wire defines --

    @abstractmethod
    def _speech(self, text: str) -> Iterable[dict[str, Any]]:
        """The frames of a text that the model has not written."""

    @abstractmethod
    def _made_end(self, finish: Literal["stop", "calls"]) -> Iterable[dict[str, Any]]:
        """The frames of an end that the provider has not written. Its usage is not known."""

    made_last: ClassVar[bytes] = b""
    """The bytes that follow such an end."""
    _number: ClassVar[str] = ""
    """The field with the number of a block or an item."""
    _is_one_text: ClassVar[bool] = False
    """Whether programs make one text of all that an answer says: a sentence begins a new line in it."""

    def _cut_after(self, values: Sequence[dict[str, Any]]) -> None:  # noqa: B027  # most wires number nothing
        """Takes note of the last frames that have left."""

    def _turn_ended(self, value: dict[str, Any]) -> dict[str, Any]:
        """A frame of the end, where no call is left to answer. Not every wire's finish reason mentions calls."""
        return value

    @classmethod
    @abstractmethod
    def _add_text(cls, answer: dict[str, Any], saying: Saying) -> None:
        """Adds the text to an answer that was not streamed."""

    @abstractmethod
    def _first(self, value: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Splits a frame of the first answer into the part that leaves and the part that belongs to the end."""

    def _without_dropped(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """A frame without its dropped calls; None if nothing is left, as of a block or an item, which holds one call."""
        if isinstance(number := value.get(self._number), int):
            self._missing.add(number)
        return None

    def _unjoined(self, value: dict[str, Any]) -> dict[str, Any]:
        """A frame of the end that was held back, as it leaves after all."""
        return value

    @abstractmethod
    def _second(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """A frame of the second answer; None if it does not leave."""

    # -- what they share --

    @classmethod
    def _words(cls, saying: Saying) -> str:
        return f"\n{saying.text}" if cls._is_one_text and saying.follows else saying.text

    def _missing_before(self, value: dict[str, Any]) -> int:
        """How many of the blocks or items before a frame's own were removed."""
        number = value.get(self._number)
        return sum(missing < number for missing in self._missing) if isinstance(number, int) else 0

    def _write_first(self, frame: Frame, value: Any) -> bytes:
        if frame.payload is None:
            return frame.raw
        if not isinstance(value, dict):  # chat's [DONE]
            self._end.append((frame, None))
            return b""
        after, end = self._first(value)
        if end is not None:
            self._end.append((frame, end))
        return b"" if after is None else self._write(frame, after)

    def _write_second(self, frame: Frame, value: Any) -> bytes:
        if not isinstance(value, dict):
            return frame.raw
        after = self._second(value)
        return b"" if after is None else self._write(frame, after)

    def _write(self, frame: Frame, value: dict[str, Any]) -> bytes:
        return self._framing.write(frame, codec.encode_line(value))


def _events(values: Iterable[dict[str, Any]]) -> bytes:
    """These values as server-sent events, each named after its type, where the wire has types."""
    return b"".join(plain_event(str(value.get("type", "")).encode(), codec.encode_line(value)) for value in values)


def add_usage(one: Any, other: Any) -> Any:
    """The usage of two answers: numbers are added, by name."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: add_usage(one.get(name), other.get(name)) for name in {**one, **other}}
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one + other
    return one if other is None else other
