"""The errors, by whose fault they are.

Every error that Callstream raises on purpose is one of these; any other exception from Callstream is a bug in it.

- ``WireError``: the provider sent something that its wire does not allow, or reported an error itself.
- ``UsageError``: the calling program asked for something impossible.
- ``JournalError``: the store could not keep or find something.
- ``AnswerRefused``: a client's answer does not fit the question.
- ``Reject``, ``CallRejected`` and ``InvalidArguments``: a call must not run. The fault is the model's, if it is one.
- ``ArgumentsAborted``: raised inside a tool that runs early, when the rest of its arguments will not arrive.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any


def message_of(error: BaseException) -> str:
    """The text of an exception. The exception may be foreign, so its ``__str__`` may fail."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # that failure must not replace the exception
        return "<exception str() failed>"


class CallstreamError(Exception):
    """The base of all errors that Callstream raises on purpose."""


class WireError(CallstreamError):
    """The provider's fault: bytes that are not the wire, or an error object inside the stream.

    ``position`` counts characters (JSON text) or bytes (a response body) from the beginning, where it is known.
    ``provider_message`` is the provider's own sentence when the provider reported the error itself.
    """

    def __init__(self, message: str, *, position: int | None = None, provider_message: str | None = None) -> None:
        super().__init__(message if position is None else f"{message} (at position {position})")
        self.position = position
        self.provider_message = provider_message


class UsageError(CallstreamError, ValueError):
    """The calling program's fault: a wrong argument, a wrong order of calls, a missing extra.

    It is also a ValueError, because that is what Python programs catch where an argument may be wrong.
    """


class MissingExtra(UsageError, ImportError):
    """Packages of an extra are not installed. It is also an ImportError, for programs that can do without the module."""

    def __init__(self, what: str, extra: str, error: ImportError) -> None:
        super().__init__(f"{what}: pip install 'callstream[{extra}]' ({error})")


class TransitionError(UsageError):
    """A call was asked to make a transition that the table of states does not allow."""


class JournalError(CallstreamError):
    """The store's fault: it could not be opened, read or written. What was acknowledged before is still there."""


class LeaseLost(JournalError):
    """Another process took over the run: this writer is refused permanently."""


class Compacted(JournalError):
    """The requested place in the log lies inside a range that compaction has folded into one record.

    Read from ``first`` - 1 to get the folded record whole.
    """

    def __init__(self, run_id: str, after: int, first: int, last: int) -> None:
        super().__init__(
            f"run {run_id!r} cannot be followed from record {after}: records {first} to {last} were folded into one; "
            f"read from {first - 1}, or join anew"
        )
        self.run_id = run_id
        self.after = after
        self.first = first
        self.last = last


class Reject(CallstreamError):
    """Raised by a hook: this call must not run, and the model gets the reason.

    ``cut``: the rest of the response need not be written, if there is nothing else in it; see ``Settings.cut_refused``.
    """

    def __init__(self, reason: str, *, cut: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cut = cut


class CallRejected(CallstreamError):
    """A call was discarded, so its tool must not run. The text is a sentence for the model: the call's result.

    ``reason`` is the call's own (``rejected``, ``truncated``, ``malformed``, …) and ``detail`` anything else that is known,
    which is for the program and not for the model. An error raised by a hook is its ``__cause__``.
    """

    def __init__(
        self, call_id: str, name: str, text: str, *, reason: str = "rejected", detail: str | None = None
    ) -> None:
        super().__init__(text)
        self.add_note(f"call {call_id!r} of tool {name!r} was discarded ({reason})")
        self.call_id = call_id
        self.name = name
        self.reason = reason
        self.detail = detail


class InvalidArguments(CallstreamError, ValueError):
    """Arguments do not fit a tool's annotations, so it was not called. The text is a sentence for the model per fault.

    ``faults`` lists each misfit with its ``path``, what was ``expected`` there, and what came (``got``). It is also a
    ValueError, because that is what frameworks expect from a function that was called with wrong values.
    """

    def __init__(self, tool_name: str, detail: str, faults: Sequence[Any]) -> None:
        super().__init__(f"{tool_name} did not run: {detail}")
        self.tool_name = tool_name
        self.detail = detail
        self.faults = tuple(faults)


class ArgumentsAborted(CallstreamError):
    """Raised inside a tool that began while its arguments were being written: they will not arrive whole and valid.

    ``reason`` is that of the discarded call: ``truncated``, ``malformed``, ``invalid``, ``rejected``, ``aborted`` or
    ``interrupted``. ``detail`` says what was wrong, if that is known. From now on the tool's result does not count; undoing
    what it began is up to the tool.
    """

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class CallIdTaken(JournalError):
    """The journal already has a call with that id; ``free_call_id`` finds another id."""

    def __init__(self, call_id: str) -> None:
        super().__init__(f"the journal already has a call {call_id!r}")
        self.call_id = call_id


class ThreadBusy(JournalError):
    """The thread has an active exclusive run: ``run_id``."""

    def __init__(self, thread_id: str, run_id: str) -> None:
        super().__init__(f"thread {thread_id!r} has an active run, {run_id!r}")
        self.thread_id = thread_id
        self.run_id = run_id


class TooMany(CallstreamError):
    """The limit of runs or streams is reached: ``most``, in total or (``of_one``) for one principal."""

    def __init__(self, most: int, *, of_one: bool) -> None:
        super().__init__(f"there are {most} already{' of this principal' if of_one else ''}, the limit")
        self.most = most
        self.of_one = of_one


class ShuttingDown(CallstreamError):
    """No new runs are started, because their host is about to shut down."""


class AnswerRefused(CallstreamError):
    """A client's answer cannot be taken: nothing was recorded, and the call still awaits one. The text is for the client."""

    def __init__(self, call_id: str, message: str) -> None:
        super().__init__(message)
        self.call_id = call_id


class CannotGoOn(CallstreamError):
    """A run whose process died cannot go on in another one. It has ended as interrupted."""

    def __init__(self, run_id: str, why: str) -> None:
        super().__init__(f"run {run_id!r} cannot go on: {why}")


class Diverged(CallstreamError):
    """A run that goes on in another process asks its model something other than before. ``path``: where it differs."""

    def __init__(self, author: str | None, path: str) -> None:
        who = "the run" if author is None else f"agent {author!r}"
        super().__init__(
            f"{who} asks its model something other than before it was interrupted; the first difference: {path}"
        )
        self.author = author
        self.path = path


class ToolFailed(CallstreamError):
    """A tool failed in an earlier attempt of a continued run, and does not run again. The text is that of its error."""

    def __init__(self, tool_name: str, error: str) -> None:
        super().__init__(error)
        self.tool_name = tool_name


class RunOver(UsageError):
    """An operation was requested of a run that has ended, or is being ended."""


class RunIdTaken(UsageError):
    """A run with that id has begun already, in this process or in another one that is alive."""


class LimitExceeded(CallstreamError):
    """Something exceeded its limit, and whatever it was part of cannot continue. ``limit`` names the setting."""

    def __init__(self, message: str, limit: str) -> None:
        super().__init__(f"{message}, the limit ({limit})")
        self.limit = limit


def warn_of_name(old: str, new: str) -> None:
    """Warns that a public name has changed. The old one works for one more version.

    To be called by the function behind the old name (a module's ``__getattr__``, a method): the warning names its caller.
    """
    warnings.warn(f"{old} is called {new} now", DeprecationWarning, stacklevel=3)
