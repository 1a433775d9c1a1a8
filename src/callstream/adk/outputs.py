"""``output_key`` gets all text that the model wrote in the turn, and nothing that the application wrote is undone.

google-adk itself writes the text of one run of an agent. It loses some of it where the agent is the node of a Workflow,
and what came before a question to a person or a delegated task. Here the running value replaces the value that
google-adk writes, in the events in which it writes one: text of the agent's own, not partial, no thoughts. In live mode
the transcription of what the agent said aloud counts too. Each run of an agent starts empty, and in live mode each turn;
one that continues after a question starts with what it had said before. An agent with an ``output_schema`` is left alone.

A value in any other event is the application's: a tool's, another agent's, a callback's. It stays, whatever it is. So
does the text of an ``after_agent_callback``, which google-adk does not count as the agent's.
"""

from __future__ import annotations

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.sessions.session import Session
from google.adk.sessions.state import State

from callstream.adk.invocations import Invocation


class _Output:
    """What one run of an agent has said until now."""

    def __init__(self, key: str, text: str) -> None:
        self.key = key
        self.text = text


class OutputKeys:
    """The running values of the agents that run, by invocation, agent and branch."""

    def __init__(self) -> None:
        self._outputs: dict[str, dict[tuple[str, str | None], _Output]] = {}

    def agent_begins(self, invocation: Invocation, agent: BaseAgent, branch: str | None, session: Session) -> None:
        if not isinstance(agent, LlmAgent) or not agent.output_key or agent.output_schema or agent.mode == "task":
            return
        outputs = self._outputs.setdefault(invocation.invocation_id, {})
        if (agent.name, branch) in outputs:
            return  # google-adk enters an agent again after a delegated task: it has not ended
        key = agent.output_key
        said = _said_before(invocation, agent.name, branch, session, key) if invocation.is_resumed else ""
        outputs[agent.name, branch] = _Output(key, said)

    def agent_ends(self, invocation: Invocation, agent: BaseAgent, branch: str | None) -> None:
        """The model has said all that it will say in this run of the agent. google-adk waits for its events."""
        self._outputs.get(invocation.invocation_id, {}).pop((agent.name, branch), None)

    def event(self, invocation: Invocation, event: Event) -> None:
        """Writes the running value into an event in which google-adk writes what the agent said."""
        output = self._output_of(invocation, event)
        if output is None or event.partial:
            return
        written = event.actions.state_delta
        text = _text(event) if output.key in written else _spoken(event)
        if text:
            output.text += text
            written[output.key] = output.text
        elif output.text and written.get(output.key) == "" and _says_nothing(event):
            del written[output.key]

    def _output_of(self, invocation: Invocation, event: Event) -> _Output | None:
        outputs = self._outputs.get(invocation.invocation_id, {})
        output = outputs.get((event.author, event.branch))
        if output is None:
            # A Workflow shows the output of a dynamic node in the branch of the node that asked for it.
            running = [each for (author, _), each in outputs.items() if author == event.author]
            output = running[0] if len(running) == 1 else None
        return output

    def turn_begins(self, invocation: Invocation) -> None:
        """In live mode an invocation has many turns, and each starts empty."""
        for output in self._outputs.get(invocation.invocation_id, {}).values():
            output.text = ""

    def forget(self, invocation: Invocation) -> None:
        self._outputs.pop(invocation.invocation_id, None)


def _said_before(invocation: Invocation, author: str, branch: str | None, session: Session, key: str) -> str:
    """What the agent had said when it was interrupted."""
    said = ""
    for event in session.events:
        if event.invocation_id == invocation.invocation_id and event.author == author and event.branch == branch:
            if event.actions.end_of_agent:
                said = ""
            elif key in event.actions.state_delta or key.startswith(State.TEMP_PREFIX):  # those are not stored
                said += _text(event)
    return said


def _says_nothing(event: Event) -> bool:
    """Whether google-adk takes an event for the agent's answer, although there is no text in it."""
    parts = (event.content and event.content.parts) or []
    return event.node_info.message_as_output or (event.is_final_response() and any(part.text == "" for part in parts))


def _text(event: Event) -> str:
    parts = (event.content and event.content.parts) or []
    return "".join(part.text for part in parts if part.text and not part.thought)


def _spoken(event: Event) -> str:
    """What a model said aloud, in live mode: its transcription, when it is whole."""
    said = event.output_transcription
    return (said.text or "") if said is not None and said.finished else ""
