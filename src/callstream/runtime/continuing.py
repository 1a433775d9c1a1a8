"""What lets a run go on in another process: what is kept while it works, and what is given back when it works again.

A run that goes on runs its agent again, from the input that it was started with. Nothing that has happened happens twice:
a request that was answered gets the same answer, byte for byte, without asking the model; a call that has a result gives
that result; events that the host records again are recognized as already in the journal. The first request that was not
answered is sent for real.

Every run that can go on has a ``Keeping``, and one that does go on a ``Replay``. A request is recognized by the digest of
its content, within its run and agent, and equal ones by their order. If answered requests are left and a request matches
none of them, the run diverges: the agent has changed, or its requests depend on the time, on chance, or on something that
is not in the journal. Then the run fails, and says where the requests differ, or the model is asked (``on_divergence``).
"""

from __future__ import annotations

import base64
import logging
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from callstream import codec
from callstream.calls import Call, CallState
from callstream.errors import Diverged, UsageError
from callstream.events import (
    CallAwaiting,
    CallExecuting,
    CallProgressed,
    CallRunningEarly,
    CallStarted,
    InputKept,
    Kept,
    MessageReceived,
    MessageStarted,
    OutputKept,
    Question,
    Record,
    ReplayRule,
    RequestKept,
    ResponseEnded,
    ResponseKept,
    RunEvent,
    RunResumed,
    SessionKept,
    StateChanged,
    WireEvent,
)
from callstream.wire.decoder import Decoder
from callstream.wire.requests import Digest

logger = logging.getLogger("callstream")

OnDivergence: TypeAlias = Literal["fail", "ask"]
_Asked: TypeAlias = tuple[str | None, str]
"""A request: who asked, and its digest."""


def check_on_divergence(value: Any) -> None:
    if value not in get_args(OnDivergence):
        raise UsageError(f"expected on_divergence to be 'fail' or 'ask', got {value!r}")


INTERRUPTED = (
    "interrupted: the process stopped while this tool ran. It may or may not have taken effect: check before you call it "
    "again."
)
"""The result, for the model, of a tool that may or may not have run to its end."""

_HEADERS = ("content-type", "request-id", "x-request-id")
"""The headers that SDKs look at. Nothing else of a response's head is kept."""
_LEVEL = 1
_WINDOW, _MEMORY = 14, 6
"""Each response being read has a compressor. With these it takes 96 KiB, by default 256 for up to 10 % fewer bytes."""
_TRACE = "callstream trace"
ASKED_AS = "asked_as"
"""The key under which a paused call has the id of the question about it."""
_QUESTION = "question: "
"""Prefix of the names under which the ids of a host's questions are kept."""


def pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, _LEVEL)).decode()


def unpack(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


class KeptBody:
    """The body of one response as it goes to the SDK, until the response is over. It is compressed as it comes.

    ``is_nameless``: the provider keeps the response as well, and has not named it yet. ``checkpoint``, if its body may have
    such, matches a place from which on the provider can be asked for the rest.
    """

    def __init__(
        self,
        request: str,
        status: int,
        headers: Any,
        *,
        is_nameless: bool = False,
        checkpoint: re.Pattern[bytes] | None = None,
    ) -> None:
        self._request = request
        self._is_nameless = is_nameless
        self._checkpoint = checkpoint
        self._since = bytearray()  # what came since the last checkpoint
        self._token: str | None = None
        self._status = status
        self._headers = {name: headers[name] for name in _HEADERS if name in headers}
        self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY)
        self._parts: list[bytes] = []
        self._is_whole = False  # the end has been kept

    def read(self, data: bytes) -> None:
        """Takes bytes as they came from the provider."""
        if self._checkpoint is not None:
            self._since += data

    def beside(
        self, events: Sequence[WireEvent], passed: Sequence[bytes], decoder: Decoder[Any]
    ) -> Sequence[WireEvent | Kept]:
        """The events with what is recorded beside them: with the end, in the same append, the response as the SDK gets it.

        ``passed``: the bytes that the SDK gets for these events. Some wires send more after the end: then the response is
        kept again.
        """
        for data in passed:
            self.add(data)
        follows = bool(passed) and self._is_whole
        ends = any(isinstance(event, ResponseEnded) and event.finish_reason is not None for event in events)
        self._is_whole |= ends
        more: list[Kept] = [*self.named(decoder.answer_id), *self.checked(decoder.checkpoint)]
        if ends or follows:
            return [*more, *events, self.event()]
        return [*more, *events] if more else events

    def whole(self, body: bytes) -> ResponseKept:
        """What is recorded for an answer that was not streamed."""
        self.add(body)
        return self.event()

    def add(self, data: bytes) -> None:
        if made := self._compressor.compress(data):
            self._parts.append(made)

    def named(self, answer_id: str | None) -> list[RequestKept]:
        """What is recorded, once, when the name becomes known under which the provider keeps the response."""
        if not self._is_nameless or answer_id is None:
            return []
        self._is_nameless = False
        return [RequestKept(self._request, answer_id=answer_id)]

    def checked(self, token: str | None) -> list[ResponseKept]:
        """What is recorded for a new checkpoint, whose token is the last that was read."""
        if token == self._token or self._checkpoint is None:
            return []
        self._token = token
        end = max((found.end() for found in self._checkpoint.finditer(self._since)), default=0)
        body = pack(bytes(self._since[:end]))
        del self._since[:end]
        return [ResponseKept(self._request, self._status, self._headers, body, token)] if end else []

    def event(self) -> ResponseKept:
        """What has come so far. More may follow."""
        body = b"".join([*self._parts, self._compressor.copy().flush()])
        return ResponseKept(self._request, self._status, self._headers, base64.b64encode(body).decode())


class KeptTurn(msgspec.Struct, eq=False):
    """A response of an earlier attempt, as far as it came. ``call_ids``: its calls, in order.

    ``request``: the digest of the request, or None if no model was asked. ``asked_parts``: the digests of the request's
    parts. ``answer_id``: the name under which its provider keeps it. ``checkpoint``: the token with which a request asks for
    what follows the ``body``.
    """

    response_id: str | None = None
    author: str | None = None
    attempt: int = 1
    request: str | None = None
    asked_parts: dict[str, str] = {}
    answer_id: str | None = None
    checkpoint: str | None = None
    is_whole: bool = False
    status: int = 0
    headers: dict[str, str] = {}
    packed: list[str] = []
    call_ids: list[str] = []
    message_ids: list[str] = []

    @property
    def body(self) -> bytes:
        return b"".join(map(unpack, self.packed))

    def keep(self, kept: ResponseKept) -> None:
        """Adds more of it, up to a checkpoint, or all of it. Some wires send more after the end: then all is kept again."""
        if kept.checkpoint is None:
            self.is_whole, self.status, self.headers, self.packed = True, kept.status, kept.headers, [kept.body]
        elif not self.is_whole:
            self.checkpoint = kept.checkpoint
            self.packed.append(kept.body)


class Coming(msgspec.Struct, frozen=True):
    """A response to come. ``half``: what an earlier attempt has read of it, if its provider may have the rest."""

    response_id: str
    half: KeptTurn | None = None


class Replay:
    """What the earlier attempts of a run have left. Each answer, each result and each record is given back once."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.attempt = 1
        """The number of the last one."""
        self.input: InputKept | None = None
        self.session: SessionKept | None = None
        self.rules: dict[str, ReplayRule] = {}
        """The rule that was in force for each tool when it began, by call."""
        self.outputs: dict[tuple[str, int], str] = {}
        """The outputs of steps, by name and number."""
        self.progressed: set[str] = set()
        """The calls that have reported progress."""
        self.asked: dict[str, str] = {}
        """The questions about tools that were running, by the calls that wait for their answers."""
        self._running: dict[tuple[str, int], ReplayRule] = {}
        """Steps that have begun and have no output."""
        self._known: Counter[bytes] = Counter()
        self._is_void: set[str] = set()
        turns: defaultdict[str | None, KeptTurn] = defaultdict(KeptTurn)
        again: dict[_Asked, list[KeptTurn]] = {}  # the responses to equal requests
        for record in records:
            event, turn = record.event, turns[record.response_id]
            match event:
                case RequestKept(answer_id=str(answer_id)):
                    turn.answer_id = answer_id
                case RequestKept(request, asked_parts):
                    turn.response_id, turn.author, turn.attempt = record.response_id, record.author, self.attempt
                    turn.request, turn.asked_parts = request, asked_parts
                    equal = again.setdefault((record.author, request), [])
                    # If an earlier attempt's response to an equal request was cut, this request asks for it again.
                    cut_before = [each for each in equal if each.attempt < self.attempt and not each.is_whole]
                    again[record.author, request] = [*(each for each in equal if each not in cut_before[:1]), turn]
                case ResponseKept():
                    turn.keep(event)
                case CallStarted():
                    turn.call_ids.append(event.call_id)
                case MessageStarted():
                    turn.message_ids.append(event.message_id)
                case CallExecuting() | CallRunningEarly():
                    self.rules[event.call_id] = event.replay
                case CallAwaiting(call_id, Question(metadata=dict(said))) if ASKED_AS in said:
                    self.asked[call_id] = said[ASKED_AS]
                case CallProgressed():
                    self.progressed.add(event.call_id)
                case MessageReceived() | StateChanged():
                    self._known[codec.encode(event)] += 1
                case OutputKept(name, nth, None, replay):
                    self._running[name, nth] = replay
                case OutputKept(name, nth, str(data)):
                    self.outputs[name, nth] = data
                    self._running.pop((name, nth), None)
                case InputKept():
                    self.input = event
                case SessionKept():
                    self.session = event
                case RunResumed():
                    self.attempt = event.attempt
                    self._is_void |= set(event.void)
                case _:
                    pass
        asked = [turn for turn in turns.values() if turn.request is not None]
        cut = [turn for turn in asked if not turn.is_whole]
        made = [turn for turn in turns.values() if turn.request is None]  # by no model
        self._turns = [turn for turn in asked if turn.is_whole and not self._is_dropped(turn)]
        self._cut = {
            key: [turn for turn in equal if not turn.is_whole]
            for key, equal in again.items()
            if any((turn.author, turn.request) == key for turn in cut)
        }
        """Requests whose responses were cut, and what has come of each, in order."""
        messages = [message_id for turn in cut for message_id in turn.message_ids]
        self.void = tuple(message_id for message_id in messages if message_id not in self._is_void)
        """Messages of responses that were cut, and were not void before."""
        self.void_calls = [call_id for turn in cut for call_id in turn.call_ids]
        self._own = {call_id for turn in turns.values() for call_id in turn.call_ids}
        self._has_told = any(turn.message_ids for turn in made)
        self._reported = {call_id for turn in made for call_id in turn.call_ids}
        self.delivered: set[str] = set()
        """The calls of turns that were given back."""
        self.given: set[str] = set()
        """The calls whose outcome was given back."""
        self.dropped: tuple[str, ...] = ()
        """The messages of answers that will not be asked for again, since the agent asks something else."""
        self.begun: set[str] = set()
        """The calls whose tools run again."""

    def _is_dropped(self, turn: KeptTurn) -> bool:
        """Whether an earlier attempt has gone on without the response: everything shown of it is void."""
        return bool(turn.message_ids) and self._is_void.issuperset(turn.message_ids)

    @property
    def run_input(self) -> bytes:
        """What the run was asked for."""
        return b"" if self.input is None else unpack(self.input.data)

    def has(self, call_id: str) -> bool:
        """Whether an earlier attempt made or took up this call, and this attempt has neither given back nor rerun it yet."""
        is_known = call_id in self._own or call_id in self.rules
        return is_known and call_id not in self.given and call_id not in self.begun

    def hides(self, call_id: str) -> bool:
        """Whether the call belongs to a turn that was not given back yet, so the program does not know it."""
        return call_id in self._own and call_id not in self.delivered

    def obstacle(self, calls: Iterable[Call]) -> str | None:
        """Why the run cannot go on; None if it can. ``calls``: all calls of the run."""
        if self.input is None:
            return "its input was not kept"
        if self._has_told:
            return "its agent has said something that no model wrote"
        for (name, _), replay in self._running.items():
            if replay != "safe":
                return f"{name} was running, and it is not known what it has done"
        void = set(self.void_calls)
        asked = {unpack(data).decode() for (name, _), data in self.outputs.items() if name.startswith(_QUESTION)}
        for call in calls:
            if call.wire_id in asked:
                continue
            is_kept = (call.call_id, 1) in self.outputs or call.call_id in self.asked
            if call.call_id in self._own and call.state is CallState.AWAITING and not is_kept:
                return f"call {call.call_id} awaits an answer, with which the thread goes on"
            if call.call_id in void and call.state not in _UNTOUCHED and self.rules.get(call.call_id) != "safe":
                return f"tool {call.name} ran before the model's response was whole"
            if call.call_id in self._reported:
                return f"call {call.call_id} was made by no model"
        return None

    def answer(self, digest: Digest, author: str | None, on_divergence: OnDivergence) -> KeptTurn | None:
        """The response to that request; None if the model has to be asked. Raises Diverged if another request was due."""
        left = [turn for turn in self._turns if turn.author == author]
        turn = next((turn for turn in left if turn.request == digest.whole), None)
        if turn is not None:
            self._turns.remove(turn)
            self.delivered.update(turn.call_ids)
            return turn
        if not left or (author, digest.whole) in self._cut:
            return None
        path = digest.first_difference(left[0].asked_parts)
        if on_divergence == "fail":
            raise Diverged(author, path)
        logger.warning("%s; the model is asked", Diverged(author, path))
        self._turns = [turn for turn in self._turns if turn.author != author]
        self.dropped = tuple(message_id for turn in left for message_id in turn.message_ids)
        return None

    def cut_answer(self, digest: Digest, author: str | None) -> KeptTurn | None:
        """What has come of a response to that request that was cut. Each is returned once."""
        left = self._cut.get((author, digest.whole))
        return left.pop(0) if left else None

    def unknown(self, events: Sequence[RunEvent]) -> list[RunEvent]:
        """The events without those that the journal has already. Each recorded event accounts for one."""
        left = []
        for event in events:
            key = codec.encode(event) if isinstance(event, MessageReceived | StateChanged) else None
            if key is not None and self._known[key]:
                self._known[key] -= 1
            else:
                left.append(event)
        return left


_UNTOUCHED = (CallState.STARTED, CallState.ARGS_STREAMING, CallState.ARGS_COMPLETE, CallState.DISCARDED)


class Keeping:
    """Keeps what a run needs to go on elsewhere. ``record`` records events of the run."""

    def __init__(
        self,
        record: Callable[..., Awaitable[None]],
        new_response_id: Callable[[], str],
        *,
        replay: Replay | None = None,
        on_divergence: OnDivergence = "fail",
    ) -> None:
        self._record = record
        self._new_response_id = new_response_id
        self._on_divergence = on_divergence
        self.replay = replay
        self.is_given_up = False
        self.elsewhere: frozenset[str] = frozenset()
        """Tools that run at the client, not here."""
        self.trace: str | None = None
        """The span of this attempt (``traceparent``), if it is traced."""
        self._steps: Counter[str] = Counter()

    @property
    def attempt(self) -> int:
        return 1 if self.replay is None else self.replay.attempt + 1

    @property
    def earlier_traces(self) -> list[str]:
        """The spans of the earlier attempts."""
        outputs = {} if self.replay is None else self.replay.outputs
        return [traced for (name, _), traced in outputs.items() if name == _TRACE]

    def traced(self) -> list[RunEvent]:
        """What to keep about this attempt's span."""
        return [] if self.trace is None else [OutputKept(_TRACE, self.attempt, self.trace)]

    async def ask(self, digest: Digest, author: str | None) -> KeptTurn | Coming:
        """The answer that an earlier attempt got to the request, or else the response that is to come."""
        if self.replay is not None and (turn := self.replay.answer(digest, author, self._on_divergence)) is not None:
            return turn
        if self.replay is not None and self.replay.dropped:
            void, self.replay.dropped = self.replay.dropped, ()
            await self._record([RunResumed(self.attempt, void)])
        response_id = self._new_response_id()
        await self._record([RequestKept(digest.whole, digest.parts)], response_id=response_id, author=author)
        return Coming(response_id, None if self.replay is None else self.replay.cut_answer(digest, author))

    def next_step(self, name: str) -> tuple[int, bytes | None]:
        """The number of a step of the host's that is about to run, and its output in an earlier attempt."""
        nth = self._steps[name]
        self._steps[name] += 1
        kept = None if self.replay is None else self.replay.outputs.get((name, nth))
        return nth, None if kept is None else unpack(kept)

    async def begin_step(self, name: str, nth: int, replay: ReplayRule) -> None:
        """Records that a step begins. ``replay``: whether it may run again if the process dies meanwhile."""
        await self._record([OutputKept(name, nth, None, replay)])

    async def end_step(self, name: str, nth: int, output: bytes) -> None:
        await self._record([OutputKept(name, nth, pack(output))])

    def repeat_step(self, name: str) -> None:
        """The last step of that name has failed. If the host has it run again, that is the same step."""
        self._steps[name] -= 1

    async def name_question(self, what: str, rename: Callable[[str | None], str]) -> None:
        """Called when the host asks a person. ``rename`` is given the id used before, and returns the one to use."""
        name = f"{_QUESTION}{what}"
        nth, kept = self.next_step(name)
        used = rename(None if kept is None else kept.decode())
        if kept is None:
            await self.end_step(name, nth, used.encode())

    async def give_up(self, why: str) -> None:
        """Notes that from now on the run cannot go on elsewhere: something happens in it that is not kept."""
        if not self.is_given_up:
            self.is_given_up = True
            await self._record([InputKept("", "", attempts=0)])
            logger.info("the run cannot go on in another process: %s", why)
