"""google-adk: every tool call live, safe and whole.

::

    cs = Callstream(journal="sqlite:///calls.db")
    agent = LlmAgent(name="writer", model=tapped("gemini-3-flash-preview", cs), tools=[write_document, approve])
    app = App(name="writer", root_agent=agent, plugins=[CallstreamPlugin(cs)])
"""

from __future__ import annotations

from callstream.adk.models import tapped
from callstream.adk.plugin import CallstreamPlugin
from callstream.adk.signatures import repair_thought_signatures
from callstream.adk.tools import StreamingTool, mcp_progress

__all__ = ["CallstreamPlugin", "StreamingTool", "mcp_progress", "repair_thought_signatures", "tapped"]
