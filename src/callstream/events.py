"""What can happen to a run, a message and a call.

Events are facts in the past tense: frozen, comparable, without behaviour. Decoders produce the first group, hosts and the
runtime the second; the journal numbers both and keeps them as records. An event names its call by ``call_id`` and its
message by ``message_id``; one response of a model makes one message, and its calls belong to that message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec

DiscardReason: TypeAlias = Literal["truncated", "malformed", "invalid", "rejected", "aborted", "interrupted"]
"""Why no result of a call counts.

``truncated``: the response ended before the call did. ``malformed``: the call ended, but its text is not JSON, or it
never got a name. ``invalid``: its arguments do not fit the tool. ``rejected``: a hook refused it. ``aborted``: the run was
stopped. ``interrupted``: something broke.
"""

Encoding: TypeAlias = Literal["json", "text"]
"""``json``: the argument text is a JSON document. ``text``: it is the input of a free-text tool itself."""

RunOutcome: TypeAlias = Literal["finished", "failed", "cancelled"]

ReplayRule: TypeAlias = Literal["unsafe", "safe", "reconcile", "ask"]
"""What happens to a tool that was running when its process died, if the run goes on.

``unsafe``: it is not run again, and the model is told that the outcome is unknown. ``safe``: it runs again, with the same
idempotency key. ``reconcile``: the tool's own function finds out what happened. ``ask``: a person is asked.
"""


def _tag(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


class Event(msgspec.Struct, frozen=True, tag_field="type", tag=_tag, omit_defaults=True, gc=False):
    """The base of all events. As JSON an event is an object whose ``type`` is its name in snake case.

    There are many of them and none is part of a cycle, so the garbage collector need not track them.
    """


# -- what a decoder reads from a response ------------------------------------------------------------------------------


class MessageStarted(Event, frozen=True):
    """The model began a message. It comes before the first text, reasoning or call of a response.

    ``within``: the ``call_id`` of the call whose tool asked the model, as the agent of an AgentTool does.
    """

    message_id: str
    role: str = "assistant"
    within: str | None = None


class TextAppended(Event, frozen=True):
    message_id: str
    text: str


class ReasoningAppended(Event, frozen=True):
    """Reasoning that the provider shows. Its encrypted form stays with the SDK."""

    message_id: str
    text: str


class MessageEnded(Event, frozen=True):
    message_id: str


class CallStarted(Event, frozen=True):
    """The first fact about a call, streamed or not. ``provider_id`` is the wire's own id, None where it sent none.

    ``within``: as for MessageStarted, for a call whose message has none.
    """

    call_id: str
    name: str
    provider_id: str | None = None
    signature: str | None = None
    encoding: Encoding = "json"
    message_id: str | None = None
    within: str | None = None


class CallSigned(Event, frozen=True):
    """A thought signature that came after the call's first chunk."""

    call_id: str
    signature: str


class ArgsAppended(Event, frozen=True):
    """A piece of argument text. Joined, the pieces of a call are its ``args_json`` (for free text: its input)."""

    call_id: str
    text: str


class CallCompleted(Event, frozen=True):
    """The wire ended the call's arguments and they parse strictly. ``args_json`` is the whole text as JSON.

    The journal only keeps the pieces of ``args_json``, so a record read back from it has None here.
    """

    call_id: str
    args_json: str | None = None


class CallDiscarded(Event, frozen=True):
    """The call is final and no result of it counts. Its tool never ran, unless it ran early."""

    call_id: str
    reason: DiscardReason
    detail: str | None = None


class ResponseEnded(Event, frozen=True):
    """The provider's own finish reason, None if it never sent one, and its usage figures as they came."""

    finish_reason: str | None = None
    usage: dict[str, Any] | None = None


# -- events read from a request, reported by a host or decided by the runtime ------------------------------------------


class MessageReceived(Event, frozen=True):
    """Input of the run. ``attachments`` names the kinds of the parts that are not text (``image/png``, ``file``)."""

    role: str
    text: str
    message_id: str | None = None
    attachments: tuple[str, ...] = ()


class ResultReceived(Event, frozen=True):
    """A tool result found in a request. The runtime turns it into the outcome of the call that it answers.

    ``provider_id`` is the wire's id, None where the wire has none: then the name and the order decide. ``latest`` is true
    for results of the model's last turn, which distinguishes a reused id from its earlier uses.
    """

    provider_id: str | None
    name: str | None
    content: Any
    is_error: bool = False
    latest: bool = True


class RunStarted(Event, frozen=True):
    """``exclusive``: no other exclusive run of the thread may be active meanwhile; the journal refuses a second one."""

    thread_id: str
    principal: str | None = None
    input: Any = None
    exclusive: bool = False


class RunResumed(Event, frozen=True):
    """Another process continues the run after its own died or handed it over. ``attempt``: 2 the first time.

    ``void``: the messages of responses that were cut, for which the model is asked again. Whatever was shown of them does
    not count, nor do their calls, which are discarded after this.
    """

    attempt: int
    void: tuple[str, ...] = ()


class CallExecuting(Event, frozen=True):
    """``replay``: what happens to the tool if its process dies while it runs. It is never relaxed afterwards."""

    call_id: str
    replay: ReplayRule = "unsafe"


class CallRunningEarly(Event, frozen=True):
    """The tool began before the model's response had ended: when all of its arguments were whole, or enough of them.

    ``replay``: as for CallExecuting.
    """

    call_id: str
    replay: ReplayRule = "unsafe"


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the person who answers a call is asked, if its arguments alone do not say it.

    ``reason``: what kind of answer is wanted (``confirmation``, ``input_required``, ``credential_required``).
    ``response_schema``: the JSON Schema of the answer. ``metadata``: anything else that an interface needs; ``payload``
    and ``uri`` (where to go before answering) are shown by the inspector. ``about``: the ``call_id`` of the call that is
    paused until this is answered.
    """

    reason: str = "tool_call"
    message: str | None = None
    response_schema: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    about: str | None = None


class CallAwaiting(Event, frozen=True):
    """A client or a person has to answer. Survives the run and a crash.

    ``is_paused``: the host asks about this call in another one, and that other one has to be answered.
    """

    call_id: str
    question: Question | None = None
    is_paused: bool = False


class CallReturned(Event, frozen=True):
    """The tool's result, any JSON. ``message_id`` is that of the message in which a client sent it, if one did."""

    call_id: str
    result: Any = None
    message_id: str | None = None


class CallFailed(Event, frozen=True):
    """The tool's error. ``message_id`` as for CallReturned."""

    call_id: str
    error: str
    message_id: str | None = None


class CallReleased(Event, frozen=True):
    """The call was handed to a host, and its outcome was never seen."""

    call_id: str


class CallProgressed(Event, frozen=True):
    """A running tool's report to its interface, any JSON. Never shown to the model."""

    call_id: str
    data: Any


class StateChanged(Event, frozen=True):
    """The application's shared state: a whole ``snapshot``, or a ``patch`` (RFC 6902 operations) of the one before."""

    snapshot: Any = None
    patch: list[dict[str, Any]] | None = None


class RunEnded(Event, frozen=True):
    """The last record of every run."""

    outcome: RunOutcome
    reason: str | None = None


# -- events kept so that a run can go on in another process; compaction drops them, and no interface shows them -----------


class InputKept(Event, frozen=True):
    """All input of the run. ``app``: the application that can continue it. ``build``: the build of its agent.

    ``attempts``: how many processes may try, the first included.
    """

    app: str
    data: str
    build: str | None = None
    attempts: int = 3


class SessionKept(Event, frozen=True):
    """The host's own session as it was before the run wrote to it."""

    data: str


class RequestKept(Event, frozen=True):
    """A model is about to be asked. ``request``: the digest of the request; ``parts``: the digest of each of its parts.

    ``answer_id``: the model has begun to answer, and its provider keeps the answer under that id.
    """

    request: str
    parts: dict[str, str] = {}
    answer_id: str | None = None


class ResponseKept(Event, frozen=True):
    """A response as the SDK got it, with the digest of its request. ``body``: zlib, base64.

    ``checkpoint``: there is more of the response, and a request with this token asks for it. ``body`` is then the part that
    has come from the provider since the checkpoint before.
    """

    request: str
    status: int
    headers: dict[str, str]
    body: str
    checkpoint: str | None = None


Kept: TypeAlias = RequestKept | ResponseKept
"""The events kept about an exchange with a model."""


class OutputKept(Event, frozen=True):
    """The output of a host's step that is not a tool: the ``nth`` with that name.

    Without ``data`` the step has begun, and ``replay`` says what happens to it if its process dies while it runs.
    """

    name: str
    nth: int
    data: str | None
    replay: ReplayRule = "unsafe"


WireEvent: TypeAlias = (
    MessageStarted
    | TextAppended
    | ReasoningAppended
    | MessageEnded
    | CallStarted
    | CallSigned
    | ArgsAppended
    | CallCompleted
    | CallDiscarded
    | ResponseEnded
)
KeptEvent: TypeAlias = InputKept | SessionKept | RequestKept | ResponseKept | OutputKept
RequestEvent: TypeAlias = MessageReceived | ResultReceived
RunEvent: TypeAlias = (
    WireEvent
    | MessageReceived
    | RunStarted
    | RunResumed
    | CallExecuting
    | CallRunningEarly
    | CallAwaiting
    | CallReturned
    | CallFailed
    | CallReleased
    | CallProgressed
    | StateChanged
    | RunEnded
    | KeptEvent
)


class Record(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An event as the journal keeps it: the ``seq``-th of its run, written ``at`` (seconds since the epoch).

    ``first_seq`` is less than ``seq`` if compaction folded the pieces of one call or message into this record.
    """

    run_id: str
    seq: int
    at: float
    event: RunEvent
    response_id: str | None = None
    author: str | None = None
    first_seq: int | None = None


KEPT: frozenset[type[Event]] = frozenset(get_args(KeptEvent))
PIECES_OF_TEXT: frozenset[type[Event]] = frozenset({TextAppended, ReasoningAppended})
PIECES: frozenset[type[Event]] = PIECES_OF_TEXT | {ArgsAppended}
"""The events of nearly all records: pieces of what a model writes."""


def in_order(records: Sequence[Record]) -> Sequence[Record]:
    """Records of one run in the order in which they can be folded.

    A record into which compaction folded several pieces stands where the last of them was, but belongs where the first was:
    its content began there.
    """
    if all(record.first_seq is None for record in records):
        return records
    return sorted(records, key=lambda record: record.first_seq or record.seq)
