"""The plugin as ``ADKAgent`` uses it: the run is the agent's, with the client's messages in it already.

No model takes a request in which calls have no answer. So a turn that awaits some goes no further; and where a person has
said something else meanwhile, the request says that the answers have not come yet. The session is left as it is, so they
may still come.
"""

from __future__ import annotations

from typing import Any, Self

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.sessions.session import Session
from google.genai import types

from callstream.adk.clienttools import current_input
from callstream.adk.plugin import CallstreamPlugin
from callstream.runtime import Callstream


class HostedPlugin(CallstreamPlugin):
    @classmethod
    def like(cls, other: CallstreamPlugin, callstream: Callstream) -> Self:
        """With the settings of a plugin that the application registered itself."""
        settings = other.settings
        return cls(
            callstream,
            name=other.name,
            on_truncated=settings.on_truncated,
            repair_signatures=settings.repair_signatures,
        )

    async def on_user_message_callback(
        self, *, invocation_context: InvocationContext, user_message: types.Content
    ) -> types.Content | None:
        return None

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> types.Content | None:
        ended = await super().before_run_callback(invocation_context=invocation_context)
        invocation = self.invocation(invocation_context.invocation_id)
        message = invocation_context.user_content
        given = current_input.get()
        agent = invocation_context.agent
        if invocation is not None and given is not None and agent is not None and given.agent_name == agent.name:
            invocation.given_up = list(given.given_up)
        if invocation is not None and message is not None:
            invocation.is_resumed = any(part.function_response is not None for part in message.parts or ())
        return ended

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        if _lacks_answers(llm_request.contents):
            return LlmResponse(turn_complete=True)
        _fill_in(llm_request.contents, callback_context.session)
        given = current_input.get()
        if given is not None and given.instructions and given.agent_name == callback_context.agent_name:
            llm_request.append_instructions([given.instructions])
        return await super().before_model_callback(callback_context=callback_context, llm_request=llm_request)


def _fill_in(contents: list[types.Content], session: Session) -> None:
    """Puts a word in the place of every answer that has not come.

    Or the answer, if the session has it: google-adk leaves out what came between a call and its answer, and that may be
    the answer to a call of an earlier turn.
    """
    known = _Answers(session)
    for place in range(len(contents) - 1, -1, -1):
        calls = [part.function_call for part in contents[place].parts or () if part.function_call is not None]
        if not calls:
            continue
        after = contents[place + 1] if place + 1 < len(contents) else None
        responses = [part.function_response for part in (after.parts if after else None) or ()]
        given = [response for response in responses if response is not None]
        missing = [call for call in calls if not _take(given, call)]
        words = [
            types.Part(
                function_response=types.FunctionResponse(id=call.id, name=call.name, response=known.answer_to(call))
            )
            for call in missing
        ]
        if after is not None and any(response is not None for response in responses):
            contents[place + 1] = types.Content(role=after.role, parts=[*(after.parts or ()), *words])
        elif words:
            contents.insert(place + 1, types.Content(role="user", parts=words))


class _Answers:
    """What a session has as answers to its calls. Asked for the calls of a request, the last one first."""

    def __init__(self, session: Session) -> None:
        responses = {
            response.id: response.response
            for event in session.events
            for response in event.get_function_responses()
            if response.id
        }
        calls = [call for event in session.events for call in event.get_function_calls() if call.id in responses]
        self._answered = [(call, responses[call.id or ""]) for call in calls]

    def answer_to(self, call: types.FunctionCall) -> dict[str, Any]:
        """Ids that google-adk minted are not in a request: there, name and arguments tell."""
        for pair in reversed(self._answered):
            known, answer = pair
            if known.name == call.name and (known.id == call.id if call.id else known.args == call.args):
                self._answered.remove(pair)
                return answer or {}
        return {"status": "no answer yet"}


def _take(responses: list[types.FunctionResponse], call: types.FunctionCall) -> bool:
    """Takes the answer to a call out of a list. Calls whose ids google-adk minted have none here: names tell."""
    for response in responses:
        if response.id == call.id and response.name == call.name:
            responses.remove(response)
            return True
    return False


def _lacks_answers(contents: list[types.Content]) -> bool:
    """Whether the model's last calls have fewer answers than they are, and nobody has said anything since."""
    answers = 0
    for content in reversed(contents):
        parts = content.parts or []
        calls = sum(part.function_call is not None for part in parts)
        if calls:
            return answers < calls
        answers += sum(part.function_response is not None for part in parts)
        if any(part.text or part.inline_data or part.file_data for part in parts):
            return False
    return False
