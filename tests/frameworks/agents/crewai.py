"""CrewAI."""

from __future__ import annotations

import os
from typing import Any

IS_SYNC = True


def run(base_url: str, cs: Any, tools: Any) -> Any:
    os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}
    import crewai
    import httpx
    from crewai.tools import tool

    client = httpx.Client(transport=cs.transport())
    given: dict[str, Any] = {"model": "openai/gpt-4o", "base_url": base_url, "api_key": "none"}
    try:
        # Of a year ago: its one client of openai is a sync one.
        model: Any = crewai.LLM(**given, client_params={"http_client": client}, stream=True)
    except ImportError:  # which is what it makes of any error here
        # Now it makes an async client from the same parameters. Through LiteLLM, it loses the ids of streamed calls.
        import litellm

        litellm.client_session = client
        model = crewai.LLM(**given, is_litellm=True)

    @tool("write")
    def write(title: str, count: int) -> Any:
        """Writes a document."""
        return tools.write_now(title, count)

    agent: Any = crewai.Agent(role="writer", goal="Write.", backstory="A writer.", llm=model, tools=[write])
    return agent.kickoff("go").raw
