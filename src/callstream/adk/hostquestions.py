"""Questions that google-adk itself asks a person: each is a call of google-adk's own, which the model never sees.

Callstream journals them like other calls that await an answer, under google-adk's names and with its arguments, so that a
front end written for those names finds them. A confirmation and a credential are about a call of the model's, which is
paused until the answer comes.

A credential that a client sends is handed to google-adk and not kept in the journal.
"""

from __future__ import annotations

import copy
import json
from typing import Any, Final

from google.genai import types
from jsonschema.exceptions import best_match  # type: ignore[import-untyped]
from jsonschema.validators import validator_for  # type: ignore[import-untyped]
from pydantic_core import to_jsonable_python

from callstream.events import Question

CONFIRMATION: Final = "adk_request_confirmation"
"""Whether a call of the model's may run."""
CREDENTIAL: Final = "adk_request_credential"
"""For a credential that a tool, a toolset or a node of a workflow needs."""
INPUT: Final = "adk_request_input"
"""What a node of a workflow asks."""
HOST_QUESTIONS: Final = frozenset({CONFIRMATION, CREDENTIAL, INPUT})
"""The names of such calls."""
CREDENTIAL_RECEIVED: Final = {"status": "credential received"}
"""What the journal keeps in place of a credential."""

_CONFIRMED: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"confirmed": {"type": "boolean"}, "payload": {}},
    "required": ["confirmed"],
}
_YES: Final = ("yes", "true", "approved", "confirmed")


def asked_about(question: types.FunctionCall) -> str | None:
    """The id of the call that a confirmation or a credential is needed for."""
    args = question.args or {}
    original = args.get("originalFunctionCall")
    call_id = original.get("id") if isinstance(original, dict) else args.get("functionCallId")
    return call_id if isinstance(call_id, str) else None


def shown(question: types.FunctionCall, paused: str | None = None) -> types.FunctionCall:
    """The question as it is journalled and shown. ``paused``: the ``call_id`` of the call that it is about."""
    args: dict[str, Any] = to_jsonable_python(question.args or {}, by_alias=True, bytes_mode="base64", fallback=repr)
    if paused is not None and question.name == CONFIRMATION:
        args["originalFunctionCall"] = {**args["originalFunctionCall"], "id": paused}
    elif paused is not None:
        args["functionCallId"] = paused
    return types.FunctionCall(id=question.id, name=question.name, args=args)


def question_in(call: types.FunctionCall, about: str | None = None) -> Question:
    """What the person is asked, of a question as it is shown. ``about``: the ``call_id`` of the call that is paused."""
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


# -- answers --


def misfit(question: types.FunctionCall, response: dict[str, Any]) -> str | None:
    """Why an answer is not the one that a workflow asked for; None if it is. google-adk would fail for good on it."""
    schema = _schema(question)
    if question.name != INPUT or schema is None or (schema.get("type") == "string" and set(response) == {"result"}):
        return None
    value = response["result"] if set(response) == {"result"} else response
    try:
        error = best_match(validator_for(schema)(schema).iter_errors(value))
    except Exception:  # noqa: BLE001  # google-adk takes schemas that are not JSON Schema, and does not check them then
        return None
    return None if error is None else error.message


def given_input(question: types.FunctionCall, response: dict[str, Any]) -> dict[str, Any]:
    """An answer as google-adk takes it: a workflow reads text as JSON, so where it asks for a string it is quoted."""
    is_workflows = "interruptId" in (question.args or {})  # else a model has asked, with google-adk's tool
    if not is_workflows or set(response) != {"result"} or (_schema(question) or {}).get("type") != "string":
        return response
    value = response["result"]
    return {"result": json.dumps(value if isinstance(value, str) else json.dumps(value))}


def _schema(question: types.FunctionCall) -> dict[str, Any] | None:
    schema = (question.args or {}).get("response_schema")
    return schema if isinstance(schema, dict) else None


def confirmation(response: dict[str, Any]) -> dict[str, Any]:
    """Yes or no, however the client says it."""
    said = next((response[key] for key in ("confirmed", "approved", "accepted", "result") if key in response), False)
    confirmed = said is True or (isinstance(said, str) and said.strip().lower() in _YES)
    return {**response, "confirmed": confirmed} if "confirmed" in response else {"confirmed": confirmed}


def credential(question: types.FunctionCall, response: dict[str, Any]) -> dict[str, Any]:
    """A credential as google-adk takes it.

    A client sends the question's ``authConfig`` back, filled in, or a credential of google-adk's. It may also send only
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
