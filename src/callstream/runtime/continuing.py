"""What lets a run go on in another process: what is kept while it works, and what is given back when it works again.

A run that goes on runs its agent again, from the input that it was started with. Nothing that has happened happens twice:
a request that was answered gets that answer, bytes as they were, without asking; a call that has its result gives that
result; what the host records again is in the journal already. The first request that was not answered is asked for real.

``Keeping`` is of every run that can go on, ``Replay`` of one that does. A request is known by the digest of what it says,
within its run and agent, in order among equals. One that is not the next answered one differs: the agent is another, or
what it asks depends on the time, on chance, or on something that is not in the journal. Then the run fails, and says
where the requests differ, or the model is asked (``on_divergence``).
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
"""The result of a tool of which it is not known whether it has run to its end, for the model."""

_HEADERS = ("content-type", "request-id", "x-request-id")
"""What SDKs look at. Nothing else of a response's head is kept."""
_LEVEL = 1
_WINDOW, _MEMORY = 14, 6
"""Each response that is being read has a compressor. This one takes 96 KiB, the usual one 256 for up to 10 % fewer bytes."""
_TRACE = "callstream trace"
ASKED_AS = "asked_as"
"""Under this name a call that is paused has the id of the question about it."""
_QUESTION = "question: "
"""The beginning of the names under which the ids of a host's questions are kept."""


def pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, _LEVEL)).decode()


def unpack(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))


class KeptBody:
    """The body of one response as it goes to the SDK, until the response is over. It is compressed as it comes.

    ``is_nameless``: the provider keeps it as well, and has not named it yet. ``checkpoint`` matches a place in it, if it
    may have such, from which on the provider can be asked for the rest.
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
        self._is_whole = False  # what was kept has the end

    def read(self, data: bytes) -> None:
        """These bytes have come from the provider."""
        if self._checkpoint is not None:
            self._since += data

    def beside(
        self, events: Sequence[WireEvent], passed: Sequence[bytes], decoder: Decoder[Any]
    ) -> Sequence[WireEvent | Kept]:
        """The events with what is recorded beside them: in the same append as the end, the response as the SDK gets it.

        ``passed``: what the SDK gets of what was read. Some wires say more after the end: then it is kept again.
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
        """What is recorded of an answer that was not streamed."""
        self.add(body)
        return self.event()

    def add(self, data: bytes) -> None:
        if made := self._compressor.compress(data):
            self._parts.append(made)

    def named(self, answer_id: str | None) -> list[RequestKept]:
        """What is recorded when the name is known under which the provider keeps it: once."""
        if not self._is_nameless or answer_id is None:
            return []
        self._is_nameless = False
        return [RequestKept(self._request, answer_id=answer_id)]

    def checked(self, token: str | None) -> list[ResponseKept]:
        """What is recorded of a new checkpoint, whose token is the last that was read."""
        if token == self._token or self._checkpoint is None:
            return []
        self._token = token
        end = max((found.end() for found in self._checkpoint.finditer(self._since)), default=0)
        body = pack(bytes(self._since[:end]))
        del self._since[:end]
        return [ResponseKept(self._request, self._status, self._headers, body, token)] if end else []

    def event(self) -> ResponseKept:
        """What came until now. More may follow."""
        body = b"".join([*self._parts, self._compressor.copy().flush()])
        return ResponseKept(self._request, self._status, self._headers, base64.b64encode(body).decode())


class KeptTurn(msgspec.Struct, eq=False):
    """A response of the earlier attempts, as far as it came. ``call_ids``: its calls, in order.

    ``request``: the digest of what was asked, ``asked_parts`` of each part of that; None if no model was. ``answer_id``:
    under which its provider keeps it. ``checkpoint``: what a request brings that asks for what follows the ``body``.
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
        """More of it, up to a checkpoint, or all of it. Some wires say more after the end: then all is kept again."""
        if kept.checkpoint is None:
            self.is_whole, self.status, self.headers, self.packed = True, kept.status, kept.headers, [kept.body]
        elif not self.is_whole:
            self.checkpoint = kept.checkpoint
            self.packed.append(kept.body)


class Coming(msgspec.Struct, frozen=True):
    """A response that is to come. ``half``: what an earlier attempt has read of it, where its provider may have the rest."""

    response_id: str
    half: KeptTurn | None = None


class Replay:
    """What the earlier attempts of a run have left: each answer, each result, each record is given back once."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.attempt = 1
        """The last one."""
        self.input: InputKept | None = None
        self.session: SessionKept | None = None
        self.rules: dict[str, ReplayRule] = {}
        """What was in force for each tool when it began."""
        self.outputs: dict[tuple[str, int], str] = {}
        """What steps have given, by name and number."""
        self.progressed: set[str] = set()
        """The calls that have reported progress."""
        self.asked: dict[str, str] = {}
        """The questions about tools that were running, by the calls that wait for their answers."""
        self._running: dict[tuple[str, int], ReplayRule] = {}
        """Steps that have begun and given nothing."""
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
                    # One that an earlier attempt asked for, and that was cut, is asked for again by this.
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
        """Requests whose responses were cut, and what there is of each, in order."""
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
        """The messages of answers that are not asked for any more, since the agent asks something else."""
        self.begun: set[str] = set()
        """The calls whose tools run again."""

    def _is_dropped(self, turn: KeptTurn) -> bool:
        """Whether an earlier attempt has gone on without the response: all that was shown of it is void."""
        return bool(turn.message_ids) and self._is_void.issuperset(turn.message_ids)

    @property
    def run_input(self) -> bytes:
        """What the run was asked for."""
        return b"" if self.input is None else unpack(self.input.data)

    def has(self, call_id: str) -> bool:
        """Whether an earlier attempt has made or taken up this call, and nothing has become of it in this one yet."""
        is_known = call_id in self._own or call_id in self.rules
        return is_known and call_id not in self.given and call_id not in self.begun

    def hides(self, call_id: str) -> bool:
        """Whether the call is one of a turn that was not given back yet, so that its program does not know it."""
        return call_id in self._own and call_id not in self.delivered

    def obstacle(self, calls: Iterable[Call]) -> str | None:
        """Why the run cannot go on; None if it can. ``calls``: all of the run."""
        if self.input is None:
            return "its input was not kept"
        if self._has_told:
            return "its agent has said something that no model wrote"
        for (name, _), replay in self._running.items():
            if replay != "safe":
                return f"{name} was running, and nobody can know what it has done"
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
        """The response to that request; None if it has to be asked for. Raises Diverged if another one was expected."""
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
        """What there is of a response to that request that was cut. Each is given once."""
        left = self._cut.get((author, digest.whole))
        return left.pop(0) if left else None

    def unknown(self, events: Sequence[RunEvent]) -> list[RunEvent]:
        """The events without those that the journal has: each counts once."""
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
    """Of a run that can go on. ``record`` records events of the run."""

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
        """Tools that do not run here, but at the client."""
        self.trace: str | None = None
        """The span of this attempt (``traceparent``), if it is traced."""
        self._steps: Counter[str] = Counter()

    @property
    def attempt(self) -> int:
        return 1 if self.replay is None else self.replay.attempt + 1

    @property
    def earlier_traces(self) -> list[str]:
        """The spans of the attempts before."""
        outputs = {} if self.replay is None else self.replay.outputs
        return [traced for (name, _), traced in outputs.items() if name == _TRACE]

    def traced(self) -> list[RunEvent]:
        """What is kept of this attempt's span."""
        return [] if self.trace is None else [OutputKept(_TRACE, self.attempt, self.trace)]

    async def ask(self, digest: Digest, author: str | None) -> KeptTurn | Coming:
        """The answer that an earlier attempt got to the request; else the response that is to come."""
        if self.replay is not None and (turn := self.replay.answer(digest, author, self._on_divergence)) is not None:
            return turn
        if self.replay is not None and self.replay.dropped:
            void, self.replay.dropped = self.replay.dropped, ()
            await self._record([RunResumed(self.attempt, void)])
        response_id = self._new_response_id()
        await self._record([RequestKept(digest.whole, digest.parts)], response_id=response_id, author=author)
        return Coming(response_id, None if self.replay is None else self.replay.cut_answer(digest, author))

    def next_step(self, name: str) -> tuple[int, bytes | None]:
        """The number of a step of the host's that is about to run, and what it gave in an earlier attempt."""
        nth = self._steps[name]
        self._steps[name] += 1
        kept = None if self.replay is None else self.replay.outputs.get((name, nth))
        return nth, None if kept is None else unpack(kept)

    async def begin_step(self, name: str, nth: int, replay: ReplayRule) -> None:
        """``replay``: whether it may run again if the process dies meanwhile."""
        await self._record([OutputKept(name, nth, None, replay)])

    async def end_step(self, name: str, nth: int, output: bytes) -> None:
        await self._record([OutputKept(name, nth, pack(output))])

    def repeat_step(self, name: str) -> None:
        """The last step of that name has failed. If the host has it run again, that is the same step."""
        self._steps[name] -= 1

    async def name_question(self, what: str, rename: Callable[[str | None], str]) -> None:
        """The host asks a person. ``rename`` is given the id with which it asked before, and returns the one it uses."""
        name = f"{_QUESTION}{what}"
        nth, kept = self.next_step(name)
        used = rename(None if kept is None else kept.decode())
        if kept is None:
            await self.end_step(name, nth, used.encode())

    async def give_up(self, why: str) -> None:
        """The run cannot go on elsewhere from now on: something happens in it that is not kept."""
        if not self.is_given_up:
            self.is_given_up = True
            await self._record([InputKept("", "", attempts=0)])
            logger.info("the run cannot go on in another process: %s", why)
