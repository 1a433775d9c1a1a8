"""Which conversation a request belongs to, from what programs send anyway, and the turns of conversations, which are runs.

``conversation_of`` reads the ids in a request; the first one found counts. For programs that send no id, ``_Conversations``
recognises a conversation by earlier requests. An id belongs to the credential that sent it, since names collide between
customers.

A turn begins with a request that ends in a user's message and lasts until an answer that calls no tool: ``Turns``. Requests
that bring results continue the run whose calls they answer. Calls that are not answered in time are released.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from callstream import Callstream
from callstream.calls import LACKS_OUTCOME, CallState
from callstream.errors import CallstreamError
from callstream.events import MessageReceived, ResultReceived
from callstream.runtime import Run
from callstream.runtime.engine import OnRejected
from callstream.wire.requests import MODEL, last_turn
from callstream.wire.requests import RequestTurn as Said

_THREAD_HEADERS: Final = (
    "x-opencode-session",
    "x-session-affinity",
    "x-session-id",
    "x-conversation-id",
    "x-openwebui-chat-id",
    "x-interaction-id",
    "x-kilocode-taskid",
    "x-mux-workspace-id",
    "helicone-session-id",
    "x-bf-session-id",
    "x-portkey-trace-id",
    "x-litellm-session-id",
    "x-litellm-trace-id",
)
_VENDOR: Final = re.compile(r"x-(?!parent-)(?:[a-z0-9]+-(?!parent-))+session-id")
"""The header of any vendor's session, but not of a parent session."""
_TRACE: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_LEGACY_USER: Final = re.compile(r"_session_([0-9a-f-]{8,})$")
_SHORTEST: Final = 8
"""A shorter id does not tell two conversations apart."""
_LONGEST: Final = 200
_CREDENTIALS: Final = ("authorization", "x-api-key", "x-goog-api-key", "api-key")
_COMING_BACK: Final = ("claude-cli", "claude-code", "codex")
"""Parts of the user agents of programs that retry by themselves after their connection broke."""


class ConversationIds(msgspec.Struct, frozen=True):
    """What a request says about the conversation it belongs to; None where it says nothing.

    ``previous``: the provider's id of the answer that it continues. ``group``: a last resort if nothing else identifies
    the conversation; several conversations may share it.
    """

    thread_id: str | None = None
    turn_id: str | None = None
    previous: str | None = None
    group: str | None = None


def conversation_of(headers: Mapping[str, str], body: Any) -> ConversationIds:
    """``headers`` with lower-case names; ``body`` as decoded JSON, None if it is not JSON."""
    body = body if isinstance(body, dict) else {}
    own = _id(headers.get("callstream-thread"))
    if own is not None:
        return ConversationIds(own, _id(headers.get("callstream-run")))
    return (
        _claude_code(headers, body)
        or _codex(headers, body)
        or ConversationIds(
            _by_header(headers) or _id(body.get("conversation"), _member(body.get("conversation"), "id")),
            previous=_id(body.get("previous_response_id"), body.get("previous_interaction_id")),
            group=_id(body.get("prompt_cache_key"), _trace(headers), body.get("user")),
        )
    )


def _claude_code(headers: Mapping[str, str], body: dict[str, Any]) -> ConversationIds | None:
    session = _id(headers.get("x-claude-code-session-id"), _session_of_user(body))
    if session is None:
        return None
    agent = _id(headers.get("x-claude-code-agent-id"))
    return ConversationIds(session if agent is None else f"{session}/{agent}")


def _session_of_user(body: dict[str, Any]) -> Any:
    """Claude Code's session in ``metadata.user_id``: JSON text, or in older versions the end of a name."""
    user_id = _member(body.get("metadata"), "user_id")
    if not isinstance(user_id, str):
        return None
    try:
        return _member(json.loads(user_id), "session_id")
    except ValueError:
        legacy = _LEGACY_USER.search(user_id)
        return None if legacy is None else legacy[1]


def _codex(headers: Mapping[str, str], body: dict[str, Any]) -> ConversationIds | None:
    if "codex" not in headers.get("user-agent", "").lower() and "codex" not in headers.get("originator", "").lower():
        return None
    named = _id(*map(headers.get, ("thread-id", "conversation_id", "session-id", "session_id")))
    if named is None:
        return None
    parent = _id(headers.get("x-codex-parent-thread-id"))
    if parent is not None:  # a sub-agent's thread; all threads of a session are listed next to each other
        named = f"{_id(headers.get('session-id'), parent)}/{named}"
    return ConversationIds(named, _id(_member(body.get("client_metadata"), "turn_id")))


def _by_header(headers: Mapping[str, str]) -> str | None:
    vendors = [headers[name] for name in headers if _VENDOR.fullmatch(name)]
    return _id(*vendors, *map(headers.get, _THREAD_HEADERS), shortest=_SHORTEST)


def _trace(headers: Mapping[str, str]) -> str | None:
    found = _TRACE.fullmatch(headers.get("traceparent", ""))
    return None if found is None else found[1]


def _id(*candidates: Any, shortest: int = 1) -> str | None:
    """The first id that can be shown and stored; None if there is none."""
    for each in candidates:
        if isinstance(each, str) and shortest <= len(each) <= _LONGEST and each.isprintable():
            return each
    return None


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def principal_of(headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
    """Who sent a request: a hash of the credential, which itself is not stored anywhere. None if there is no credential."""
    found = next((headers[name] for name in _CREDENTIALS if headers.get(name)), None) or query.get("key")
    return None if found is None else f"key-{hashlib.sha256(found.encode()).hexdigest()[:24]}"


def comes_back(headers: Mapping[str, str]) -> bool:
    """Whether the program retries by itself when its connection breaks."""
    agent = headers.get("user-agent", "").lower()
    return any(name in agent for name in _COMING_BACK)


# -- conversations without an id --


class _Known(msgspec.Struct):
    """The thread that a beginning belongs to: None if several threads had the same beginning at the same time."""

    thread_id: str | None
    is_continued: bool = False


class _Conversations:
    """The threads of recently answered requests, by credential.

    A request continues an earlier one if it begins with everything that the earlier one said, and adds to it after the
    model's answer. If several conversations have that beginning, it continues the one that no request has continued yet; if
    there are two of those, it gets a thread of its own.
    """

    def __init__(self, *, most: int = 20_000) -> None:
        self._most = most
        self._known: OrderedDict[tuple[str | None, str], _Known] = OrderedDict()

    def find(self, principal: str | None, names: Iterable[str]) -> str | None:
        """The thread of the first known name; a name is that of an answer or of a beginning."""
        for name in names:
            known = self._known.get((principal, name))
            if known is not None and known.thread_id is not None:
                known.is_continued = True
                return known.thread_id
        return None

    def remember(self, principal: str | None, thread_id: str, said: Sequence[Said], answer_id: str | None) -> None:
        """A request of the thread was answered. ``answer_id``: the provider's id of the answer, if it has one."""
        whole = [*_beginnings([*said, Said(MODEL, [])])] if said and said[-1].role != MODEL else []
        for name in (*whole[-1:], *(() if answer_id is None else (answer_id,))):
            self._keep((principal, name), thread_id)

    def _keep(self, name: tuple[str | None, str], thread_id: str) -> None:
        before = self._known.pop(name, None)
        is_shared = before is not None and before.thread_id != thread_id and not before.is_continued
        self._known[name] = _Known(None if is_shared else thread_id)
        while len(self._known) > self._most:
            self._known.popitem(last=False)


def _beginnings(said: Sequence[Said]) -> Iterator[str]:
    """A name for each beginning of a conversation that the model has answered, the shortest first.

    It is made from the user's messages and the tools' results only: the model's may come back in another form.
    """
    digest = hashlib.sha256()
    is_new = False
    for entry in said:
        if entry.role != MODEL:
            digest.update(msgspec.json.encode([entry.role, *map(_said, entry.events)]))
            is_new = True
        elif is_new:
            yield digest.hexdigest()
            is_new = False


def _said(event: MessageReceived | ResultReceived) -> list[Any]:
    if isinstance(event, MessageReceived):
        return [event.text, event.attachments]
    return [event.provider_id, str(event.content)]


# -- equal requests --

_NOT_COMPARED: Final = frozenset(
    {"stream", "stream_options", "metadata", "client_metadata", "user", "prompt_cache_key", "safety_identifier"}
)


def request_key(principal: str | None, upstream: str, path: str, body: Any) -> str | None:
    """A key shared by requests that ask for the same; None if the request cannot be compared.

    It does not depend on how the answer is to be sent, or on what programs add for bookkeeping.
    """
    if not isinstance(body, dict):
        return None
    compared = {name: value for name, value in body.items() if name not in _NOT_COMPARED}
    path = path.replace(":streamGenerateContent", ":generateContent")
    text = json.dumps([principal, upstream, path, compared], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# -- turns --

_UNANSWERED = LACKS_OUTCOME - {CallState.AWAITING}
_PATIENCE = 3600.0
"""How long a turn waits for the results of its calls: a person may have to approve them."""


class Turn(msgspec.Struct, eq=False):
    """A run, and the number of its answers that are under way."""

    run: Run
    turn_id: str | None
    principal: str | None
    answers: int = 0
    error: BaseException | None = None
    timer: asyncio.TimerHandle | None = None

    def has_any(self, wire_ids: Collection[str]) -> bool:
        """Whether any of these calls was made in it."""
        return any(call.wire_id in wire_ids for call in self.run.calls)

    def may_wait_for(self, result: ResultReceived) -> bool:
        """Whether a call of that tool lacks its result, and either the call or the result has no provider's id."""
        return any(
            call.name == result.name and call.state in _UNANSWERED and None in (call.provider_id, result.provider_id)
            for call in self.run.calls
        )


class Turns:
    """The turns of one gateway that have not ended."""

    def __init__(self, callstream: Callstream) -> None:
        self._callstream = callstream
        self._rejected: OnRejected = "say" if callstream.engine.guards else "forward"
        self._conversations = _Conversations()
        self._turns: list[Turn] = []
        self._endings: set[asyncio.Task[None]] = set()

    async def begin(
        self, ids: ConversationIds, principal: str | None, said: Sequence[Said], rest_of: str | None = None
    ) -> Turn:
        """The turn of a request, which now has one more answer under way. ``rest_of``: see ``Provider.continued``."""
        turn = self._going_on(ids, principal, said, rest_of)
        if turn is None:
            thread_id = ids.thread_id or await self._thread_of(ids, principal, said)
            turn = None if ids.turn_id is not None else self._answered_by_name(thread_id, principal, said)
            if turn is None:
                await self._end_left(thread_id, principal, said)
                turn = await self._start(thread_id, ids.turn_id, principal)
        turn.answers += 1
        if turn.timer is not None:
            turn.timer.cancel()
            turn.timer = None
        return turn

    async def _start(self, thread_id: str, turn_id: str | None, principal: str | None) -> Turn:
        run_id = None if turn_id is None else await self._callstream.free_run_id(turn_id)
        run = await self._callstream.start(
            thread_id, run_id, principal=principal, rejected=self._rejected, as_current=False
        )
        turn = Turn(run, turn_id, principal)
        self._turns.append(turn)
        return turn

    async def _thread_of(self, ids: ConversationIds, principal: str | None, said: Sequence[Said]) -> str:
        """The thread of a request that names none: found by the answer that it continues, by the calls that it answers, or
        by the longest of its beginnings that is known.
        """
        found = None if ids.previous is None else self._conversations.find(principal, [ids.previous])
        for wire_id in () if found is not None else _answered_ids(said):
            # A call of a run that has ended, or of another process.
            rows = await self._callstream.journal.calls(provider_id=wire_id, principal=principal, limit=1, newest=True)
            found = next((row.thread_id for row in rows), None)
            if found is not None:
                break
        found = found or self._conversations.find(principal, reversed([*_beginnings(said)]))
        return found or ids.group or self._callstream.new_id("thread")

    def remember(self, turn: Turn, said: Sequence[Said], answer_id: str | None) -> None:
        """A request of the turn was answered completely."""
        self._conversations.remember(turn.principal, turn.run.thread_id, said, answer_id)

    async def answered(self, turn: Turn, error: BaseException | None) -> None:
        """An answer of the turn has ended. Ends the turn if no calls are open, else lets it wait for their results."""
        turn.answers -= 1
        turn.error = error
        if turn.answers:
            return
        if turn.run.unfinished or any(call.state in _UNANSWERED for call in turn.run.calls):
            turn.timer = turn.run.loop.call_later(_PATIENCE, self._give_up, turn)
        else:
            await self._end(turn)

    async def aclose(self) -> None:
        for turn in [*self._turns]:
            await self._end(turn)
        await asyncio.gather(*self._endings, return_exceptions=True)

    def _going_on(
        self, ids: ConversationIds, principal: str | None, said: Sequence[Said], rest_of: str | None
    ) -> Turn | None:
        here = self._open(principal)
        for turn in here:
            if rest_of in turn.run.unfinished:
                return turn
        if ids.thread_id is not None:
            here = [turn for turn in here if turn.run.thread_id == ids.thread_id]
        if ids.turn_id is not None:
            return next((turn for turn in here if turn.turn_id == ids.turn_id), None)
        wire_ids = _answered_ids(said)
        return next((turn for turn in reversed(here) if turn.has_any(wire_ids)), None)

    def _answered_by_name(self, thread_id: str, principal: str | None, said: Sequence[Said]) -> Turn | None:
        """The turn of a thread that waits for results that name a tool but no call; None if several do."""
        here = [turn for turn in self._open(principal) if turn.run.thread_id == thread_id]
        waiting = [turn for turn in here if any(map(turn.may_wait_for, _results_of(said)))]
        return waiting[0] if len(waiting) == 1 else None

    def _open(self, principal: str | None) -> list[Turn]:
        return [turn for turn in self._turns if turn.principal == principal and turn.run.outcome is None]

    async def _end_left(self, thread_id: str, principal: str | None, said: Sequence[Said]) -> None:
        """Ends the turns whose calls are already part of the past in a request: no more answers to them will come.

        Turns that the request does not mention are left alone: meanwhile, programs make other requests in the name of the
        same conversation, for a title for example.
        """
        behind = {wire_id for entry in said for wire_id, _ in entry.calls if wire_id is not None}
        for turn in [*self._turns]:
            is_here = turn.principal == principal and turn.run.thread_id == thread_id and not turn.answers
            if is_here and turn.has_any(behind):
                await self._end(turn)

    def _give_up(self, turn: Turn) -> None:
        ending = asyncio.ensure_future(self._end(turn))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _end(self, turn: Turn) -> None:
        if turn not in self._turns:
            return
        self._turns.remove(turn)
        if turn.timer is not None:
            turn.timer.cancel()
        error = turn.error if isinstance(turn.error, Exception) else None
        try:
            await (
                turn.run.stop("the client left") if turn.error is not None and error is None else turn.run.end(error)
            )
        except CallstreamError:
            pass  # the journal ends the run later


def _results_of(said: Sequence[Said]) -> list[ResultReceived]:
    """The results that a request brings."""
    return [event for event in last_turn(said) if isinstance(event, ResultReceived) and event.latest]


def _answered_ids(said: Sequence[Said]) -> list[str]:
    """The calls whose results a request brings."""
    return [event.provider_id for event in _results_of(said) if event.provider_id is not None]
