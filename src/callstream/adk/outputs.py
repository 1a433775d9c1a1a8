"""``output_key`` gets all text that the model wrote in the turn.

google-adk itself keeps the text of one run of an agent, and loses some of it where the agent is the node of a Workflow,
and what came before a question to a person. Here the running value is written into the state of every event that has
text of the agent: text of its own, not partial, no thoughts; in live mode the transcription of what it said aloud too.
Each run of an agent starts empty, and in live mode each turn; one that goes on after a question starts with what it had
said before. An agent with an ``output_schema`` is left alone.
"""

from __future__ import annotations

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.sessions.session import Session

from callstream.adk.invocations import Invocation


class _Output:
    """What one run of an agent has said until now. ``last`` is what it said last."""

    def __init__(self, key: str, text: str) -> None:
        self.key = key
        self.text = text
        self.last = ""


class OutputKeys:
    """The running values of the agents that run, by invocation, agent and branch."""

    def __init__(self) -> None:
        self._outputs: dict[str, dict[tuple[str, str | None], _Output]] = {}

    def agent_begins(self, invocation: Invocation, agent: BaseAgent, branch: str | None, session: Session) -> None:
        if not isinstance(agent, LlmAgent) or not agent.output_key or agent.output_schema or agent.mode == "task":
            return
        said = _said_before(invocation, agent.name, branch, session) if invocation.is_resumed else ""
        outputs = self._outputs.setdefault(invocation.invocation_id, {})
        outputs[agent.name, branch] = _Output(agent.output_key, said)

    def event(self, invocation: Invocation, event: Event) -> None:
        """Writes the running value into an event that has text of an agent, or in which google-adk sets the key itself."""
        if event.partial:
            return
        outputs = self._outputs.get(invocation.invocation_id, {})
        output = outputs.get((event.author, event.branch))
        text = _text(event) or _spoken(event)
        if output is not None and text:
            output.text, output.last = output.text + text, text
            event.actions.state_delta[output.key] = output.text
            return
        # A Workflow writes what its node said last, when the node is done.
        written = event.actions.state_delta
        for output in outputs.values():
            if output.text and written.get(output.key) in ("", output.last):
                written[output.key] = output.text

    def turn_begins(self, invocation: Invocation) -> None:
        """In live mode an invocation has many turns, and each starts empty."""
        for output in self._outputs.get(invocation.invocation_id, {}).values():
            output.text = output.last = ""

    def forget(self, invocation: Invocation) -> None:
        self._outputs.pop(invocation.invocation_id, None)


def _said_before(invocation: Invocation, author: str, branch: str | None, session: Session) -> str:
    """What the agent had said when it was interrupted."""
    said = ""
    for event in session.events:
        if event.invocation_id == invocation.invocation_id and event.author == author and event.branch == branch:
            said = "" if event.actions.end_of_agent else said + _text(event)
    return said


def _text(event: Event) -> str:
    parts = (event.content and event.content.parts) or []
    return "".join(part.text for part in parts if part.text and not part.thought)


def _spoken(event: Event) -> str:
    """What a model said aloud, in live mode: its transcription, when it is whole."""
    said = event.output_transcription
    return (said.text or "") if said is not None and said.finished else ""
