"""What becomes of a response in which the model did not finish a call.

The call's tool does not run, whatever the model class: the call is discarded, and the barrier before the tool refuses
it. Here google-adk is made to go on: the call is put into the response, so that the refusal reaches the model as its
result, or the response becomes an error that ends the invocation.
"""

from __future__ import annotations

import base64
from typing import Literal, TypeAlias

from google.adk.models.llm_response import LlmResponse
from google.genai import types

from callstream.adk.invocations import Invocation, Step
from callstream.calls import Call, CallState, refusal

OnTruncated: TypeAlias = Literal["tell_model", "fail"]

MAX_CUT_OFFS = 3
"""How often in an invocation a model is told; one that never finishes a call would go on for ever."""


def guarded(invocation: Invocation, step: Step, response: LlmResponse, on_truncated: OnTruncated) -> None:
    """Says which calls a whole response means, and deals with those that were not finished. Changes the response."""
    parts = list((response.content and response.content.parts) or ())
    told = set(step.shown)
    invocation.bind(step, parts)
    lost = [call for call in step.calls() if _is_lost(call) and call.call_id not in told]
    if not lost:
        return
    invocation.cut_offs += 1
    if on_truncated == "fail" or invocation.cut_offs > MAX_CUT_OFFS:
        said = refusal(lost[0])
        invocation.failure = said
        kept = [part for part in parts if part.function_call is None]
        response.content = types.Content(role="model", parts=kept) if kept else None
        response.error_code = f"{lost[0].reason}_tool_call".upper()
        response.error_message = said
        response.turn_complete = True
        return
    missing = [call for call in lost if call.call_id not in step.shown]
    added = [_part(call) for call in missing]
    if added:
        response.content = types.Content(role="model", parts=[*parts, *added])
        invocation.bind(step, added)


def _is_lost(call: Call) -> bool:
    return call.state is CallState.DISCARDED and call.reason in ("truncated", "malformed")


def _part(call: Call) -> types.Part:
    part = types.Part(function_call=types.FunctionCall(id=call.wire_id, name=call.name, args={}))
    if call.signature is not None:
        part.thought_signature = base64.b64decode(call.signature)
    return part
