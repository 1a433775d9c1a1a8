"""Threads that are older than the journal: a session's events as one run of the journal.

A thread is imported when it is first used: in one append, under an id that is derived from the thread and its owner. So it
is imported completely or not at all, and only once, however many processes use it at the same time. Calls of an old thread
that still await an answer can be answered afterwards like any others. A thread whose runs the journal has had and erased is
not imported: forgotten data stays forgotten, and a call that failed then does not await an answer again.

A conversation that began elsewhere is put into a new session, and a session that the journal does not know can be shown as
AG-UI's messages.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from ag_ui.core import AssistantMessage, Message, ToolMessage, UserMessage
from google.adk.events.event import Event
from google.adk.sessions.session import Session
from google.genai import types
from pydantic_core import to_jsonable_python

from callstream.adk.answers import answer_in, parts_of, response_part
from callstream.adk.calls import (
    CONFIRM_TOOL,
    CREDENTIAL,
    CREDENTIAL_RECEIVED,
    HOST_QUESTIONS,
    SessionCalls,
    message_received,
    outcome,
    paused_call_id,
    present_question,
    question_in,
    whole_call,
)
from callstream.adk.partials import MINTED_PREFIX, provider_id_of, signature_of
from callstream.adk.threads import CONFIRMATIONS_KEY, public_state
from callstream.agui import messages as agui
from callstream.agui.translator import thought_id
from callstream.calls import Ledger, number_id
from callstream.errors import CallIdTaken, LeaseLost, UsageError
from callstream.events import (
    CallAwaiting,
    CallFailed,
    CallReleased,
    CallReturned,
    CallStarted,
    MessageEnded,
    MessageStarted,
    Question,
    ReasoningAppended,
    RunEnded,
    RunEvent,
    RunStarted,
    StateChanged,
    TextAppended,
)
from callstream.journal import Entry, Journal
from callstream.wire.transcript import json_text


async def import_session(
    journal: Journal, session: Session, thread_id: str, server_tools: frozenset[str] = frozenset()
) -> None:
    """Writes the content of a session as one run of the thread, unless that was done before.

    ``server_tools``: tools that no client may answer for. If a call of such a tool has no result, it will never get one.
    """
    taken: set[str] = set()
    while (run_id := await _import_run_id(journal, session, thread_id)) is not None:
        history = _History(session, server_tools, taken)
        names = {wanted: await journal.free_call_id(wanted) for wanted in history.wanted_ids()}
        started = RunStarted(thread_id, session.user_id, {"app": session.app_name})
        entries = [Entry(started), *history.entries(names), Entry(RunEnded("finished"))]
        try:
            await journal.append(run_id, entries, after=0)
        except CallIdTaken as refused:
            taken.add(refused.call_id)  # another thread has it; the next one is tried
        except (LeaseLost, UsageError):
            if not await journal.runs(run_id=run_id, limit=1):
                raise
            # Another process has imported it meanwhile, or another run has taken the id.


async def _import_run_id(journal: Journal, session: Session, thread_id: str) -> str | None:
    """A free id for the run; None if the thread has been imported.

    It is the same in every process and different for every thread of every user, so that a thread is imported only once.
    Clients choose ids of runs and can work this one out, so a run with that id counts only if it is the thread's own.
    """
    whose = "\0".join((session.app_name, session.user_id, thread_id))
    wanted = f"import_{hashlib.sha256(whose.encode()).hexdigest()[:32]}"
    for number in count(1):
        run_id = number_id(wanted, number)
        rows = await journal.runs(run_id=run_id, limit=1)
        if not rows:
            return run_id
        if (rows[0].thread_id, rows[0].principal) == (thread_id, session.user_id):
            return None
    return None  # pragma: no cover


class _History:
    """A session's events as entries of a run. ``taken``: call ids that cannot be used."""

    def __init__(self, session: Session, server_tools: frozenset[str], taken: set[str]) -> None:
        self._session = session
        self._server_tools = server_tools
        self._ledger = Ledger()
        for call_id in taken:
            self._ledger.name_for(call_id)
        self._named: dict[str, str] = {}  # call_ids by the session's ids; if several calls share one, the newest
        self._open_questions: dict[str, Question] = {}
        self._awaited = set(self._awaiting_ids())
        self._pending_questions = [str(each) for each in session.state.get(CONFIRMATIONS_KEY) or ()]
        """Questions about predicted state that ag_ui_adk left open. They are not in any event."""

    def wanted_ids(self) -> set[str]:
        of_calls = (
            _id_of(call, event, place)
            for event in self._session.events
            for place, call in enumerate(event.get_function_calls())
        )
        return {*of_calls, *self._pending_questions}

    def entries(self, names: dict[str, str]) -> Iterator[Entry]:
        """``names``: a free ``call_id`` for each of the wanted ids."""
        for event in self._session.events:
            for made in self._events_in(event, names):
                yield Entry(made, event.id, None if event.author == "user" else event.author)
        asked_about = {paused_call_id(question) for question in SessionCalls(self._session).questions()}
        paused = {call_id for named, call_id in self._named.items() if named in asked_about}
        awaited = {call_id for named, call_id in self._named.items() if named in self._awaited}
        for call_id in [call.call_id for call in self._ledger.open_calls()]:
            awaiting = CallAwaiting(call_id, self._open_questions.get(call_id), call_id in paused)
            yield Entry(awaiting if call_id in awaited else CallReleased(call_id))
        for call_id in [self._ledger.name_for(names[named]) for named in self._pending_questions]:
            for made in (*whole_call(CallStarted(call_id, CONFIRM_TOOL), {}), CallAwaiting(call_id)):
                yield Entry(made)
        state = public_state(self._session.state)
        if state:
            yield Entry(StateChanged(snapshot=state))

    def _events_in(self, event: Event, names: dict[str, str]) -> Iterator[RunEvent]:
        if event.partial or event.content is None:
            return
        parts = event.content.parts or []
        calls = [part for part in parts if part.function_call is not None]
        if event.author == "user":
            message = message_received(parts, event.id)
            if message.text or message.attachments:
                yield message
        elif calls or any(part.text for part in parts):
            yield MessageStarted(event.id)
            for part in parts:
                if part.text:
                    yield (ReasoningAppended if part.thought else TextAppended)(event.id, part.text)
                elif part in calls:
                    yield from self._call(event, calls.index(part), part, names)
            yield MessageEnded(event.id)
        for response in event.get_function_responses():
            yield from self._answer(response)

    def _call(self, event: Event, place: int, part: types.Part, names: dict[str, str]) -> Iterator[RunEvent]:
        function_call = part.function_call
        assert function_call is not None
        known = _id_of(function_call, event, place)
        call_id = self._ledger.name_for(names[known])
        self._named[known] = call_id
        if function_call.name in HOST_QUESTIONS:
            about = self._named.get(paused_call_id(function_call) or "")
            about = None if about == call_id else about
            function_call = present_question(function_call, about)
            self._open_questions[call_id] = question_in(function_call, about)
        name, provider_id = function_call.name or "", provider_id_of(known)
        started = CallStarted(call_id, name, provider_id, signature_of(part), message_id=event.id)
        for made in whole_call(started, function_call.args or {}):
            self._ledger.apply(made)
            yield made

    def _answer(self, response: types.FunctionResponse) -> Iterator[RunEvent]:
        call_id = self._named.get(response.id or "")
        if call_id is None or response.id in self._awaited or self._ledger[call_id].is_final:
            return
        result, error = outcome(to_jsonable_python(response.response, bytes_mode="base64", fallback=repr))
        if response.name == CREDENTIAL:
            result, error = CREDENTIAL_RECEIVED, None
        made = CallReturned(call_id, result) if error is None else CallFailed(call_id, error)
        self._ledger.apply(made)
        yield made

    def _awaiting_ids(self) -> Iterator[str]:
        """Ids of calls that can still be answered.

        These are: calls of long-running tools that no client has answered (the tool's own return value is only a message to
        the model); google-adk's own questions and the calls that they are about; and other calls without a response after
        which no text came, unless their tool is the server's.
        """
        events, responded = self._session.events, SessionCalls(self._session).responded
        by_users = (event.get_function_responses() for event in events if event.author == "user")
        answered = {response.id for responses in by_users for response in responses}
        has_text = [any(part.text for part in (event.content and event.content.parts) or ()) for event in events]
        spoken = max((number for number, is_text in enumerate(has_text) if is_text), default=0)
        for number, event in enumerate(events):
            for call in event.get_function_calls():
                if call.name in HOST_QUESTIONS and call.id not in answered and (about := paused_call_id(call)):
                    yield about
                if call.id and call.id not in answered:
                    is_marked = call.id in (event.long_running_tool_ids or ()) or call.name in HOST_QUESTIONS
                    is_last = number >= spoken and call.id not in responded and call.name not in self._server_tools
                    if is_marked or is_last:
                        yield call.id


def _id_of(call: types.FunctionCall, event: Event, place: int) -> str:
    return call.id or f"{MINTED_PREFIX}{event.id}-{place}"


# -- a conversation from elsewhere as a session, and a session as a conversation --


def history_events(messages: Iterable[Message], author: str) -> Iterator[Event]:
    """The messages of a conversation that began elsewhere, as events of a session. Not all kinds have an event."""
    names: dict[str, str] = {}  # of tools, by call
    for message in messages:
        event = _history_event(message, author, names)
        if event is not None:
            yield event


def _history_event(message: Message, author: str, names: dict[str, str]) -> Event | None:
    match message:
        case UserMessage(content=content):
            return _event("user", "user", parts_of(content))
        case AssistantMessage():
            parts = parts_of(message.content or "")
            for call in message.tool_calls or ():
                if call.function.name in HOST_QUESTIONS:
                    continue  # a client that could forge a question could approve anything
                names[call.id] = call.function.name
                args = _object(call.function.arguments)
                function_call = types.FunctionCall(id=call.id, name=call.function.name, args=args)
                parts.append(types.Part(function_call=function_call))
            return _event(author, "model", parts)
        case ToolMessage(tool_call_id=named) if named in names:
            return _event(author, "user", [response_part(answer_in(message), named, names[named])])
        case _:
            return None


def _event(author: str, role: str, parts: list[types.Part]) -> Event | None:
    return Event(author=author, content=types.Content(role=role, parts=parts)) if parts else None


def _object(text: str) -> dict[str, Any]:
    try:
        value = agui.result_value(text)
    except UsageError:
        return {}
    return value if isinstance(value, dict) else {}


def messages_in(session: Session) -> list[dict[str, Any]]:
    """A session as AG-UI's messages: for threads that the journal does not know."""
    found = [message for event in session.events if not event.partial for message in _messages(event)]
    shown: list[dict[str, Any]] = json.loads(json_text(found))
    return shown


def _messages(event: Event) -> Iterator[agui.Message]:
    parts = list(event.content.parts or ()) if event.content is not None else []
    text = "".join(part.text for part in parts if part.text and not part.thought)
    thought = "".join(part.text for part in parts if part.text and part.thought)
    calls = tuple(
        agui.MessageToolCall(id=call.id or f"{event.id}-{place}", function=_called(call))
        for place, call in enumerate(event.get_function_calls())
        if call.name not in HOST_QUESTIONS
    )
    if event.author == "user":
        attached = [media for part in parts if (media := _attached(part)) is not None]
        said = [{"type": "text", "text": text}] if text else []
        if text or attached:
            yield agui.UserMessage(id=event.id, content=[*said, *attached] if attached else text)
    else:
        if thought:
            yield agui.ReasoningMessage(id=thought_id(event.id), content=thought)
        if text or calls:
            name = None if event.author == "model" else event.author or None
            yield agui.AssistantMessage(id=event.id, name=name, content=text or None, tool_calls=calls or None)
    for response in event.get_function_responses():
        if response.name not in HOST_QUESTIONS and response.id:
            result = json.dumps(response.response, ensure_ascii=False)
            yield agui.ToolMessage(id=f"result-{response.id}", tool_call_id=response.id, content=result)


def _attached(part: types.Part) -> dict[str, Any] | None:
    """An attachment of a user's message, in AG-UI's form; None if the part is not an attachment."""
    if part.inline_data is not None and part.inline_data.data:
        kind, value = part.inline_data.mime_type, base64.b64encode(part.inline_data.data).decode()
        source = {"type": "data", "value": value, "mimeType": kind or "application/octet-stream"}
    elif part.file_data is not None and part.file_data.file_uri:
        kind = part.file_data.mime_type
        source = {"type": "url", "value": part.file_data.file_uri, **({"mimeType": kind} if kind else {})}
    else:
        return None
    family = (kind or "").split("/")[0]
    return {"type": family if family in ("image", "audio", "video") else "document", "source": source}


def _called(call: types.FunctionCall) -> agui.CalledFunction:
    return agui.CalledFunction(name=call.name or "", arguments=json.dumps(call.args or {}, ensure_ascii=False))
