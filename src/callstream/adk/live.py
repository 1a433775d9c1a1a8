"""Live mode: what a model says over a connection that stays open.

``run_live`` calls no plugin around a model's answer; a plugin sees the events that google-adk makes of it, each before a
tool of it runs, and what a user wrote or said, before the model gets it. Calls come whole. Text comes in pieces and then
whole; speech as a transcription, in pieces and then whole. A turn is over when the model says so after its last word, or
when a user speaks again; one that ends with calls continues with their results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from callstream.adk.contents import message_received
from callstream.adk.invocations import Invocation, OnTruncated, Speaker, Step, guard
from callstream.runtime import TextFilter
from callstream.runtime.run import ModelCall
from callstream.tools import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class LiveTranscript:
    """Reads the events of one live invocation into its run."""

    def __init__(self, invocation: Invocation, new_call_id: Callable[[], str]) -> None:
        self._invocation = invocation
        self._new_call_id = new_call_id
        self._written: Step | None = None
        self._spoken: Step | None = None
        self._goes_on = False
        self.is_new_turn = True
        """Whether what is said next begins a turn."""
        self._asked: set[str] = set()
        self.tools: dict[str, dict[str, Tool[Any]]] = {}
        """The functions of each agent's tools, by the names that its model uses."""

    def agent_begins(self, agent: LlmAgent, tools: dict[str, Tool[Any]]) -> None:
        """Some agents of a live workflow are asked in the ordinary way; their answers are read like those of any agent.

        ``tools``: the functions of its tools. Those of toolsets are known when a user has said something.
        """
        self.tools[agent.name] = tools
        if agent.mode == "single_turn":
            self._asked.add(agent.name)

    def is_asked(self, agent_name: str) -> bool:
        return agent_name in self._asked

    async def hear(self, content: types.Content) -> None:
        """A user wrote or said something."""
        self.is_new_turn = True
        await self._invocation.run.record([message_received(content.parts or ())])

    def says(self, event: Event) -> bool:
        """Whether an event has words or calls of the model."""
        said = event.output_transcription is not None or _has_words_or_calls(event)
        return said and event.author not in ("user", *self._asked) and not _is_of_a_tool(event)

    async def read(
        self, event: Event, on_truncated: OnTruncated, *, withholds: bool, text_filters: Sequence[TextFilter]
    ) -> Step | None:
        """Takes in what an event says of the model. Refuses, like all paths, calls that are not whole.

        ``withholds``: the application may still change it, so nothing of it is recorded yet. ``text_filters`` decide what of
        its text is recorded; google-adk, which calls no callback for it, keeps all in the session.
        """
        step = None
        if self.says(event):
            step = await self._read(event, on_truncated, withholds=withholds, text_filters=text_filters)
            if not event.partial:
                self.is_new_turn = False
        if event.turn_complete and not self._goes_on:
            self.is_new_turn = True
        return step

    async def _read(
        self, event: Event, on_truncated: OnTruncated, *, withholds: bool, text_filters: Sequence[TextFilter]
    ) -> Step:
        self._goes_on = bool(event.get_function_calls())
        if said := event.output_transcription:
            part = types.Part(text=said.text or "")
            answer = LlmResponse(content=types.Content(role="model", parts=[part]), partial=not said.finished)
            self._spoken = step = self._spoken or self._step(event, withholds=withholds, text_filters=text_filters)
            await step.read(answer)
            if said.finished:
                self._spoken = None
        else:
            self._written = step = self._written or self._step(event, withholds=withholds, text_filters=text_filters)
            await step.read(event)
            if not event.partial:
                self._written = None
                guard(self._invocation, step, event, on_truncated)
        return step

    def _step(self, event: Event, *, withholds: bool, text_filters: Sequence[TextFilter]) -> Step:
        call = ModelCall(
            self._invocation.run,
            author=event.author,
            new_call_id=self._new_call_id,
            withholds=withholds,
            tools=self.tools.get(event.author),
        )
        call.text_filters = text_filters
        return Step(call, LlmRequest(), event.actions, Speaker.of(event))


def _has_words_or_calls(event: Event) -> bool:
    """Whether an event of live mode has words or calls of a model; audio, usage and signs of life have none."""
    return any(part.text or part.function_call for part in (event.content and event.content.parts) or ())


def _is_of_a_tool(event: Event) -> bool:
    """Whether a tool, and not the model, put it there: a result, or a message to the user."""
    return event.content is not None and event.content.role == "user"
