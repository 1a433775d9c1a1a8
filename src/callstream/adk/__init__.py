"""google-adk: every tool call live, safe and complete.

::

    cs = Callstream(journal="sqlite:///calls.db")
    agent = LlmAgent(name="writer", model=tapped("gemini-3-flash-preview", cs), tools=[write_document, approve])
    app = App(name="writer", root_agent=agent, plugins=[CallstreamPlugin(cs)])

Where to look:

- The plugin: ``plugin`` has the callbacks, ``execution`` runs the tools, ``invocations`` has one invocation and its model's
  calls, ``requests`` completes requests to models, ``partials`` reads partial events, ``eventtexts`` decides what of events
  is recorded, including live mode's, and which parts of an application may change them.
- The agent behind AG-UI: ``agent`` has ``ADKAgent`` and its streams to clients, ``settings`` its options, ``agentrun`` one
  run, starting with a client's input, ``threads`` the sessions of clients and their state, ``history`` conversations that
  began elsewhere.
- Both: ``calls`` in a session, ``answers`` to them, ``tools``, ``tapping`` of models and trees, ``services`` that no
  cancellation interrupts and that can resume the session of a run from another process.
- ``serving`` has what a server needs from all this.

The path of an answer from a client to google-adk: ``ADKAgent.begin`` checks it (``answers.check_answers``). ``AgentRun``
uses ``ClientAnswers`` to find its call in the run's directory and to record it, and hands the result to google-adk.
"""

from __future__ import annotations

from callstream.errors import MissingExtra

try:
    from callstream.adk.agent import ADKAgent
    from callstream.adk.eventtexts import AgentTextFilter, observes
    from callstream.adk.plugin import CallstreamPlugin
    from callstream.adk.requests import repair_thought_signatures
    from callstream.adk.services import shielded
    from callstream.adk.tapping import tapped
    from callstream.adk.tools import AGUIToolset, StreamingTool, mcp_progress
    from callstream.agui.presentation import PredictStateMapping
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
