"""google-adk: every tool call live, safe and whole.

::

    cs = Callstream(journal="sqlite:///calls.db")
    agent = LlmAgent(name="writer", model=tapped("gemini-3-flash-preview", cs), tools=[write_document, approve])
    app = App(name="writer", root_agent=agent, plugins=[CallstreamPlugin(cs)])
"""

from __future__ import annotations

from callstream.errors import MissingExtra

try:
    from callstream.adk.agent import ADKAgent
    from callstream.adk.clienttools import AGUIToolset
    from callstream.adk.models import tapped
    from callstream.adk.plugin import CallstreamPlugin
    from callstream.adk.predictions import PredictStateMapping
    from callstream.adk.signatures import repair_thought_signatures
    from callstream.adk.tools import StreamingTool, mcp_progress
except ModuleNotFoundError as error:
    raise MissingExtra("callstream.adk needs google-adk 2.12 or newer and ag-ui-protocol", "adk", error) from error

__all__ = [
    "ADKAgent",
    "AGUIToolset",
    "CallstreamPlugin",
    "PredictStateMapping",
    "StreamingTool",
    "mcp_progress",
    "repair_thought_signatures",
    "tapped",
]
