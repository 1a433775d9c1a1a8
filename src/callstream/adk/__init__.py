"""google-adk: every tool call live, safe and whole.

::

    cs = Callstream(journal="sqlite:///calls.db")
    agent = LlmAgent(name="writer", model=tapped("gemini-3-flash-preview", cs), tools=[write_document, approve])
    app = App(name="writer", root_agent=agent, plugins=[CallstreamPlugin(cs)])

Where to look:

- The plugin: ``plugin`` has the callbacks, ``execution`` the tools, ``invocations`` one invocation and the calls of its
  model, ``partials`` the reading of partial events, ``live`` that of live mode, ``signatures`` thought signatures,
  ``outputs`` the values of ``output_key``, ``judges`` who may change an answer, ``eventtexts`` what is recorded of events.
- The agent behind AG-UI: ``agent`` is ``ADKAgent``, ``settings`` its options, ``agentrun`` one run, ``threads`` the sessions
  of clients and their state, ``presentation`` what a client is sent, ``history`` threads that are older than the journal.
- Both: ``calls`` in a session, ``answers`` to them, ``contents`` of messages, ``tools``, ``tapping`` of models and trees,
  ``services`` that no cancellation interrupts.
- A run that goes on in another process: ``resuming`` has its session, ``nodes`` the functions of a Workflow.
- ``serving`` is what a server needs of all this.

An answer's way, from a client to google-adk: ``ADKAgent.begin`` checks it (``answers.check_answers``), ``AgentRun`` has
``ClientAnswers`` find its call in the run's directory and record it, and hands google-adk what that returns.
"""

from __future__ import annotations

from callstream.errors import MissingExtra

try:
    from callstream.adk.agent import ADKAgent
    from callstream.adk.judges import AgentTextFilter, observes
    from callstream.adk.plugin import CallstreamPlugin
    from callstream.adk.presentation import PredictStateMapping
    from callstream.adk.services import shielded
    from callstream.adk.signatures import repair_thought_signatures
    from callstream.adk.tapping import tapped
    from callstream.adk.tools import AGUIToolset, StreamingTool, mcp_progress
except ModuleNotFoundError as error:
    raise MissingExtra("callstream.adk needs google-adk 2.12 or newer and ag-ui-protocol", "adk", error) from error

__all__ = [
    "ADKAgent",
    "AGUIToolset",
    "AgentTextFilter",
    "CallstreamPlugin",
    "PredictStateMapping",
    "StreamingTool",
    "mcp_progress",
    "observes",
    "repair_thought_signatures",
    "shielded",
    "tapped",
]
