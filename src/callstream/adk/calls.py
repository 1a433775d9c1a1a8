"""The calls in a session: those of the model, and those with which google-adk itself asks a person.

A long-running tool that returns nothing asks: only the first answer counts. One that returns something has begun a job: as
in google-adk, every later response reaches the model. The job continues as long as a response says so (``will_continue``),
or has the same ``status`` that the tool itself returned.

Each question of google-adk is a call of its own, which the model never sees. Callstream journals it like other calls that
await an answer, under google-adk's name and with its arguments, so that front ends written for those names find it. A
confirmation or a credential request is about one of the model's calls, which is paused until the answer arrives. A
credential that a client sends is handed to google-adk and not kept in the journal.

A call that google-adk knows and the journal does not is recorded whole.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

from google.adk.events.event import Event
from google.adk.sessions.session import Session
from google.genai import types
from jsonschema.exceptions import best_match  # type: ignore[import-untyped]
from jsonschema.validators import validator_for  # type: ignore[import-untyped]
from pydantic_core import to_jsonable_python

from callstream.adk.partials import provider_id_of
from callstream.calls import Call, CallState, decision
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallProgressed,
    CallStarted,
    MessageReceived,
    Question,
)
from callstream.runtime import Run
from callstream.tools import Tool
from callstream.wire.transcript import json_text

CONFIRMATION: Final = "adk_request_confirmation"
"""Asks whether one of the model's calls may run."""
CREDENTIAL: Final = "adk_request_credential"
"""Asks for a credential that a tool, a toolset or a node of a workflow needs."""
INPUT: Final = "adk_request_input"
"""A question of a workflow's node."""
HOST_QUESTIONS: Final = frozenset({CONFIRMATION, CREDENTIAL, INPUT})
"""The names of such calls."""
CREDENTIAL_RECEIVED: Final = {"status": "credential received"}
"""What the journal keeps instead of a credential."""


CONFIRM_TOOL: Final = "confirm_changes"
"""The call that asks the client's user whether predicted changes may stay. The model does not know about it."""

_CONFIRMED: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"confirmed": {"type": "boolean"}, "payload": {}},
    "required": ["confirmed"],
}


# -- questions --


def paused_call_id(question: types.FunctionCall) -> str | None:
    """The id of the call for which a confirmation or a credential is needed."""
    args = question.args or {}
    original = args.get("originalFunctionCall")
    call_id = original.get("id") if isinstance(original, dict) else args.get("functionCallId")
    return call_id if isinstance(call_id, str) else None


def present_question(question: types.FunctionCall, paused: str | None = None) -> types.FunctionCall:
    """The question as it is journaled and shown. ``paused``: the ``call_id`` of the call that it is about."""
    args: dict[str, Any] = to_jsonable_python(question.args or {}, by_alias=True, bytes_mode="base64", fallback=repr)
    if paused is not None and question.name == CONFIRMATION:
        args["originalFunctionCall"] = {**args["originalFunctionCall"], "id": paused}
    elif paused is not None:
        args["functionCallId"] = paused
    return types.FunctionCall(id=question.id, name=question.name, args=args)


def question_in(call: types.FunctionCall, about: str | None = None) -> Question:
    """The ``Question`` to the person, from google-adk's as it is shown. ``about``: the ``call_id`` of the paused call."""
    args = call.args or {}
    metadata: dict[str, Any] = {"adk": args}
    match call.name:
        case "adk_request_confirmation":
            asked = _object(args.get("toolConfirmation"))
            original = _object(args.get("originalFunctionCall"))
            if asked.get("payload") is not None:
                metadata["payload"] = asked["payload"]
            message = asked.get("hint") or f"May {original.get('name', 'the tool')} run?"
            return Question("confirmation", str(message), _CONFIRMED, metadata, about)
        case "adk_request_credential":
            uri = _oauth2(args, "exchangedAuthCredential").get("authUri")
            if isinstance(uri, str):
                metadata["uri"] = uri
            message = args.get("message") or "A credential is needed."
            return Question("credential_required", str(message), None, metadata, about)
        case _:
            if args.get("payload") is not None:
                metadata["payload"] = args["payload"]
            schema = args.get("response_schema")
            return Question(
                "input_required",
                str(args.get("message") or "An answer is needed."),
                schema if isinstance(schema, dict) else None,
                metadata,
            )


def _oauth2(args: dict[str, Any], kind: str) -> dict[str, Any]:
    return _object(_object(_object(args.get("authConfig")).get(kind)).get("oauth2"))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# -- answers to questions --


def misfit(question: types.FunctionCall, response: dict[str, Any]) -> str | None:
    """Why an answer is not the one that google-adk asked for; None if it is. A workflow would permanently fail on it."""
    if question.name == CONFIRMATION:
        return None if decision(response) is not None else 'expected {"confirmed": true} or {"confirmed": false}'
    if question.name == CREDENTIAL:
        return (
            None
            if _has_state(question, response)
            else "expected an address with the state of the login that was asked for"
        )
    schema = _schema(question)
    if question.name != INPUT or schema is None or (schema.get("type") == "string" and set(response) == {"result"}):
        return None
    value = response["result"] if set(response) == {"result"} else response
    # Not with tools.check, which ignores keywords that cannot be decided early (unevaluatedProperties, propertyNames): here
    # the answer is complete, any draft may be used, and google-adk depends on jsonschema. tools.check has figures for both.
    try:
        error = best_match(validator_for(schema)(schema).iter_errors(value))
    except Exception:  # noqa: BLE001  # google-adk accepts schemas that are not JSON Schema, and then does not check
        return None
    return None if error is None else error.message


def _has_state(question: types.FunctionCall, response: dict[str, Any]) -> bool:
    """Whether the address to which a browser was sent back has the state of the login request, if both are known.

    google-adk gets no token for any other state, and would run the tool without one.
    """
    asked = _oauth2(question.args or {}, "exchangedAuthCredential").get("authUri")
    returned = _oauth2({"authConfig": credential(question, response)}, "exchangedAuthCredential").get("authResponseUri")
    if not isinstance(asked, str) or not isinstance(returned, str):
        return True
    expected = _states(asked)
    return not expected or _states(returned) == expected


def _states(uri: str) -> list[str]:
    return parse_qs(uri.partition("?")[2].partition("#")[0]).get("state", [])


def adapt_input(question: types.FunctionCall, response: dict[str, Any]) -> dict[str, Any]:
    """An answer as google-adk expects it: a workflow parses text as JSON, so if it asks for a string, the text is quoted."""
    is_workflows = "interruptId" in (question.args or {})  # else a model asked, using google-adk's tool
    if not is_workflows or set(response) != {"result"} or (_schema(question) or {}).get("type") != "string":
        return response
    value = response["result"]
    return {"result": json.dumps(value if isinstance(value, str) else json.dumps(value))}


def _schema(question: types.FunctionCall) -> dict[str, Any] | None:
    schema = (question.args or {}).get("response_schema")
    return schema if isinstance(schema, dict) else None


def confirmation(response: dict[str, Any]) -> dict[str, Any]:
    """A decision as google-adk expects it, with the payload and nothing else: it fails on any other key."""
    payload = {"payload": response["payload"]} if "payload" in response else {}
    return {"confirmed": decision(response) is True, **payload}


def credential(question: types.FunctionCall, response: dict[str, Any]) -> dict[str, Any]:
    """A credential as google-adk expects it.

    A client sends the question's ``authConfig`` back, filled in, or one of google-adk's credentials. It may also send only
    what the person has: the address to which the authorization server sent the browser, or an API key.
    """
    config = copy.deepcopy(_object((question.args or {}).get("authConfig")))
    said = response.get("authResponseUri", response.get("result"))
    if not isinstance(said, str):
        sent = response.get("authConfig")
        return sent if isinstance(sent, dict) else response
    exchanged = _object(config.get("exchangedAuthCredential"))
    if "oauth2" in exchanged:
        exchanged["oauth2"]["authResponseUri"] = said
        return config
    kind = _object(config.get("rawAuthCredential")).get("authType") or exchanged.get("authType")
    return {"authType": "apiKey", "apiKey": said} if kind in (None, "apiKey") else response


def calls_around(event: Event) -> list[str]:
    """google-adk's ids of the calls whose tools are Workflows around the node that made the event, the outermost first."""
    parts = (event.branch or "").split(".")
    return [call_id for _, at, call_id in (part.partition("@") for part in parts) if at]


# -- the calls of a session --


class SessionCalls:
    """Iterating gives the calls in order. The session is read once: events appended later are not seen.

    ``together`` has the calls of each event, ``responded`` the ids of calls that have a response, and ``asked_within`` the
    ids of calls whose tool is a Workflow in which a node has asked a person: it continues by itself once it has the answer.
    """

    def __init__(self, session: Session) -> None:
        self._events = list(session.events)
        self.together = [event.get_function_calls() for event in self._events]
        self._calls = [call for calls in self.together for call in calls]
        self._named: dict[str | None, types.FunctionCall] = {call.id: call for call in reversed(self._calls)}
        self._questions = [call for call in self._calls if call.name in HOST_QUESTIONS]
        self._answers = Counter(each.id for event in self._events for each in event.get_function_responses())
        self.responded = set(self._answers)
        self.asked_within = {
            named
            for event in self._events
            if any(call.name in HOST_QUESTIONS for call in event.get_function_calls())
            for named in calls_around(event)
        }

    def __iter__(self) -> Iterator[types.FunctionCall]:
        return iter(self._calls)

    def id_of(self, call: Call) -> str:
        """The id by which google-adk knows a call: its wire id, unless a concurrent call of another agent has the same."""
        return call.call_id if self.named(call.call_id) is not None else call.wire_id

    def asked_in(self, wire_id: str | None) -> Event | None:
        """The event with the call of this id, the latest if there are several."""
        pairs = zip(reversed(self._events), reversed(self.together), strict=True)
        return next((event for event, calls in pairs if any(call.id == wire_id for call in calls)), None)

    def named(self, wire_id: str) -> types.FunctionCall | None:
        """The first call of this id."""
        return self._named.get(wire_id)

    def questions(self) -> list[types.FunctionCall]:
        """The open questions of google-adk itself. One that is asked again under its id is open again."""
        answered = self._answers.copy()
        still_open: list[types.FunctionCall] = []
        for question in self._questions:
            if answered[question.id]:
                answered[question.id] -= 1
            elif question.id:
                still_open.append(question)
        return still_open

    def question(self, wire_id: str) -> types.FunctionCall | None:
        """The latest of google-adk's questions that has this id, open or not."""
        return next((call for call in reversed(self._questions) if call.id == wire_id), None)

    def question_about(self, wire_id: str) -> types.FunctionCall | None:
        """The open question about the call with this id."""
        return next((question for question in self.questions() if paused_call_id(question) == wire_id), None)

    def is_asked_about(self, wire_id: str) -> bool:
        """Whether google-adk has ever asked about the call with this id."""
        return any(paused_call_id(question) == wire_id for question in self._questions)

    # -- jobs --

    def is_long_running(self, wire_id: str | None) -> bool:
        """Whether google-adk has marked the call as one that is answered later."""
        return any(wire_id in (event.long_running_tool_ids or ()) for event in self._events)

    def is_news(self, response: types.FunctionResponse) -> bool:
        """Whether it is a response to a job, and differs from the one before."""
        if self._first_response(response.id) is None:
            return False
        earlier = [each.response for _, each in self._responses(response.id)]
        return earlier[-1] != response.response

    def lacks(self, response: types.FunctionResponse) -> bool:
        """Whether the session has no response to that call, or, if it is a job, none with this content."""
        if response.id not in self.responded:
            return True
        said = [each.response for _, each in self._responses(response.id)]
        return self._first_response(response.id) is not None and response.response not in said

    def goes_on(self, response: types.FunctionResponse) -> bool:
        """Whether more responses will follow this one."""
        if response.will_continue:
            return True
        first = self._first_response(response.id)
        status = (first or {}).get("status")
        return status is not None and (response.response or {}).get("status") == status

    def _first_response(self, wire_id: str | None) -> dict[str, Any] | None:
        """What the tool itself returned for a long-running call."""
        if not self.is_long_running(wire_id):
            return None
        return next((each.response for author, each in self._responses(wire_id) if author != "user"), None)

    def _responses(self, wire_id: str | None) -> Iterator[tuple[str, types.FunctionResponse]]:
        for event in self._events:
            for response in event.get_function_responses():
                if response.id == wire_id:
                    yield event.author, response


# -- into the journal --


async def import_call(
    run: Run,
    function_call_id: str,
    name: str,
    args: dict[str, Any],
    *,
    author: str | None = None,
    function: Tool[Any] | None = None,
) -> str:
    """Records a whole call that google-adk knows and the run does not. Returns its ``call_id``.

    ``function``: the function that its tool runs, if it was made with ``@tool``.
    """
    own = None if function is None else {name: function}
    response = run.response("gemini", author=author, early="never", own_tools=own)
    await response.record(whole_call(CallStarted(function_call_id, name, provider_id_of(function_call_id)), args))
    return response.call_ids[function_call_id]


def whole_call(started: CallStarted, args: dict[str, Any]) -> tuple[CallStarted, ArgsAppended, CallCompleted]:
    """The events of a call that came in one piece."""
    text = json_text(args)
    return started, ArgsAppended(started.call_id, text), CallCompleted(started.call_id, text)


def outcome(response: Any) -> tuple[Any, str | None]:
    """The content of a function response: a result, or an error in the form that google-adk uses for the model."""
    if isinstance(response, dict) and set(response) == {"error"}:
        error = response["error"]
        return None, error if isinstance(error, str) else json_text(error)
    return response, None


async def record_update(run: Run, named: str, response: Any) -> None:
    """Records a response to a call that still awaits its result."""
    call = await run.resume(named)
    if call is not None:
        await run.record([CallProgressed(call.call_id, response)])


async def take_in(run: Run, asked: types.FunctionCall) -> str:
    """Records a call of the session that awaits an answer and that the journal does not know. Returns its ``call_id``."""
    is_question = asked.name in HOST_QUESTIONS
    asked = present_question(asked) if is_question else asked
    call_id = await import_call(run, asked.id or "", asked.name or "", asked.args or {})
    await run.record([CallAwaiting(call_id, question_in(asked) if is_question else None)])
    return call_id


def message_received(parts: Sequence[types.Part], message_id: str | None = None) -> MessageReceived:
    """A user's message as the journal keeps it: the text, and the kinds of the parts that are not text."""
    text = "".join(part.text for part in parts if part.text and not part.thought)
    blobs = [blob for part in parts if (blob := part.inline_data or part.file_data) is not None]
    return MessageReceived("user", text, message_id, tuple(blob.mime_type or "file" for blob in blobs))


# -- turns that a program has rewound ----------------------------------------------------------------------------------

REWOUND = "the conversation was rewound to before this call"


async def give_up_rewound(run: Run, session: Session) -> None:
    """Discards calls of rewound turns (``Runner.rewind_async``) that await an answer.

    google-adk keeps such turns in the session, followed by an event that says from where on they no longer count, and calls
    no plugin. Their questions can no longer be answered, so the next run of the thread gives up their calls.
    """
    rewound = rewound_calls(session)
    if not rewound:
        return
    awaiting = await run.directory.journal.calls(
        thread_id=run.thread_id, principal=run.principal, states=[CallState.AWAITING]
    )
    calls = SessionCalls(session)
    for call in awaiting:
        if calls.id_of(call) in rewound and await run.resume(call.call_id) is not None:
            await run.record([CallDiscarded(call.call_id, "aborted", REWOUND)])


def rewound_calls(session: Session) -> set[str]:
    """google-adk's ids of the calls that exist only in rewound turns."""
    if not any(event.actions.rewind_before_invocation_id for event in session.events):
        return set()
    live = _live(session.events)
    kept = {id(event) for event in live}
    return _ids_in([event for event in session.events if id(event) not in kept]) - _ids_in(live)


def _live(events: list[Event]) -> list[Event]:
    """The events that count, the last first: a rewind event drops everything from the turn that it names up to itself."""
    first: dict[str, int] = {}
    for number, event in enumerate(events):
        first.setdefault(event.invocation_id, number)
    live: list[Event] = []
    at = len(events) - 1
    while at >= 0:
        before = events[at].actions.rewind_before_invocation_id
        if before:
            at = min(at, first.get(before, at))
        else:
            live.append(events[at])
        at -= 1
    return live


def _ids_in(events: list[Event]) -> set[str]:
    return {call.id for event in events for call in event.get_function_calls() if call.id}
