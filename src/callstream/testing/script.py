"""What a provider has to answer, independent of any wire: a script is a sequence of steps.

::

    [
        Thought("Where does the user live?"),
        Text("Let me look."),
        ToolCall("get_weather", {"city": "Paris"}),
        Finish(),
    ]

``Finish``, ``Failure``, ``Truncated``, ``Cut`` and ``HttpError`` end a response; a script that has none of them ends with
``Finish()``. ``encoders`` turns a script into the bytes of each wire.

A script can be kept as JSON: a list of objects, each with the name of its step in lower case as ``step``; there a
``ToolCall`` is a ``call``, and an ``HttpError`` a ``refusal``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from callstream.errors import UsageError

Carrying: TypeAlias = Literal["first", "last"]


class _Step(msgspec.Struct, frozen=True, tag_field="step", tag=str.lower, omit_defaults=True):
    """The base of all steps."""


class Text(_Step, frozen=True):
    """Text of the answer, ``size`` characters per delta; without a size, all in one delta."""

    text: str
    size: int | None = None


class Thought(_Step, frozen=True):
    """Reasoning that the provider shows. ``signature`` is its encrypted form, where the wire has one."""

    text: str
    size: int | None = None
    signature: str | None = None


class ToolCall(_Step, frozen=True, tag="call"):
    """A tool call.

    ``call_id``: None lets the encoder number it where the wire has ids, "" leaves the id out of the bytes. ``size``:
    characters per delta. ``signature``: Gemini's thought signature, base64. ``streamed``: False sends the arguments
    whole, in the way that the wire does this. ``text`` is the argument text to send instead of ``args``: pretty-printed,
    malformed, or with ``custom`` the input of a free-text tool. ``stop_after``: only that many deltas come, and the wire
    never ends the call; the next step says whether the body just stops or the response runs out of tokens.
    ``namespace``: that of the tool, on the Responses API, which has namespaces. ``carrying``: some arguments are in the
    piece that names the call (``first``), or in the one that ends it (``last``), as far as the wire allows that.
    """

    name: str
    args: Any = {}
    call_id: str | None = None
    size: int = 8
    signature: str | None = None
    streamed: bool = True
    text: str | None = None
    custom: bool = False
    stop_after: int | None = None
    namespace: str | None = None
    carrying: Carrying | None = None


class Parallel(_Step, frozen=True):
    """Calls whose deltas alternate, on wires that can distinguish them; on others one call after another."""

    calls: Sequence[ToolCall]


class Finish(_Step, frozen=True):
    """The normal end. ``reason`` is the wire's own word; None picks the one that fits, every wire knows ``length``."""

    reason: str | None = None


class Failure(_Step, frozen=True):
    """The wire's own error object, and the end of the body. ``kind`` is the wire's name for such an error."""

    message: str
    kind: str | None = None


class Truncated(_Step, frozen=True):
    """The body ends here, properly, but without a finish."""


class Delay(_Step, frozen=True):
    """Nothing is sent for that long. For the sender of the bytes: encoders pass it on."""

    seconds: float


class Cut(_Step, frozen=True):
    """The connection breaks here. For the sender of the bytes: encoders pass it on.

    Bytes sent before it arrive, and then the connection closes in the middle of the body. With ``reset`` it is reset,
    and bytes that its reader has not taken by then may be lost, as on a real network.
    """

    reset: bool = False


class HttpError(_Step, frozen=True, tag="refusal"):
    """The request is refused: an answer with that HTTP status and the wire's error body, instead of any content.

    ``kind`` is the wire's name for the error; None picks the one that fits the status. ``retry_after`` is in seconds.
    """

    status: int
    message: str = "refused by the script"
    kind: str | None = None
    retry_after: float | None = None


Step: TypeAlias = Text | Thought | ToolCall | Parallel | Finish | Failure | Truncated | Delay | Cut | HttpError
Script: TypeAlias = Sequence[Step]
_ENDS = (Finish, Failure, Truncated, Cut, HttpError)


def calls_of(step: Step) -> Sequence[ToolCall]:
    """The calls that a step makes, usually none."""
    return [step] if isinstance(step, ToolCall) else step.calls if isinstance(step, Parallel) else ()


def with_calls(steps: Sequence[Step], change: Callable[[ToolCall], ToolCall | None]) -> list[Step]:
    """The steps with each call changed; None leaves it out."""
    made: list[Step] = []
    for step in steps:
        calls = [changed for call in calls_of(step) if (changed := change(call)) is not None]
        made += calls if isinstance(step, ToolCall) else [Parallel(calls) if isinstance(step, Parallel) else step]
    return made


def checked(script: Script) -> list[Step]:
    """The steps of a script that ends exactly once, at its end."""
    steps = list(script)
    for step in steps[:-1]:
        if isinstance(step, _ENDS):
            raise UsageError(f"{step!r} ends the response, but the script goes on after it")
    if not steps or not isinstance(steps[-1], _ENDS):
        steps.append(Finish())
    if isinstance(steps[-1], HttpError) and not all(isinstance(step, Delay) for step in steps[:-1]):
        raise UsageError(f"{steps[-1]!r} comes instead of any content, but the script has content before it")
    return steps


def scripts_in(script: Any) -> list[Script] | None:
    """The scripts of a list of scripts; None if it is one script itself."""
    if not _is_list(script) or not script:
        raise UsageError(f"expected a script (a list of steps) or a list of scripts, got {script!r:.80}")
    kinds = {isinstance(item, get_args(Step)) for item in script}
    if kinds == {True}:
        return None
    if all(_is_list(item) for item in script):
        for each in script:
            if not all(isinstance(step, get_args(Step)) for step in each):
                raise UsageError(f"expected a list of scripts, each a list of steps, got {each!r:.80} in it")
        return list(script)
    raise UsageError("expected a list of steps, or a list of lists of steps, got a list of both or of something else")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def script_to_json(script: Script | Sequence[Script]) -> bytes:
    """A script, or a list of scripts, as JSON."""
    return msgspec.json.encode(script)


def script_from_json(text: str | bytes) -> list[Step] | list[list[Step]]:
    """A script that ``script_to_json`` wrote, or that was written by hand."""
    try:
        value = msgspec.json.decode(text, type=list[Any])
        if value and isinstance(value[0], list):
            return msgspec.convert(value, list[list[Step]])
        return msgspec.convert(value, list[Step])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"expected a script, a list of steps, as JSON: {error}") from error
