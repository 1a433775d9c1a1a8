"""google-adk: every tool call live, safe and whole.

::

    cs = Callstream(journal="sqlite:///calls.db")
    agent = LlmAgent(name="writer", model=tapped("gemini-3-flash-preview", cs), tools=[write_document, approve])
    app = App(name="writer", root_agent=agent, plugins=[CallstreamPlugin(cs)])

Where to look:

- The plugin: ``plugin`` has the callbacks, ``execution`` the tools, ``invocations`` one invocation and the calls of its
  model, ``requests`` what a model is asked, ``partials`` the reading of partial events, ``eventtexts`` what is recorded of
  events, live mode's too, and who may change them.
- The agent behind AG-UI: ``agent`` is ``ADKAgent`` and what clients are sent, ``settings`` its options, ``agentrun`` one run
  from a client's input on, ``threads`` the sessions of clients and their state, ``history`` what began elsewhere.
- Both: ``calls`` in a session, ``answers`` to them, ``tools``, ``tapping`` of models and trees, ``services`` that no
  cancellation interrupts, and that know a run which goes on in another process.
- ``serving`` is what a server needs of all this.

An answer's way, from a client to google-adk: ``ADKAgent.begin`` checks it (``answers.check_answers``), ``AgentRun`` has
``ClientAnswers`` find its call in the run's directory and record it, and hands google-adk what that returns.
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
