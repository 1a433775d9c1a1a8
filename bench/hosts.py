"""One google-adk agent behind AG-UI, by Callstream and by ag_ui_adk: the import is all that differs.

A program: it runs one turn for each line that it is given, ``{"wire": …, "base_url": …}``, and writes what the client
saw and what the tools were run with.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import logging
import sys
import uuid
import warnings
from typing import Any

from ag_ui.core import RunAgentInput
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, Gemini
from google.adk.models.anthropic_llm import AnthropicLlm
from google.genai import types

from callstream.testing.shapes import ShapeTools

HOSTS = {
    "tap": "callstream.ag_ui_adk",
    "partial events": "callstream.ag_ui_adk",
    "ag_ui_adk": "ag_ui_adk",
    "ag_ui_adk, whole": "ag_ui_adk",
}
"""Who serves the agent, and where his ``ADKAgent`` and ``add_adk_fastapi_endpoint`` come from."""
WIRES = ("gemini", "anthropic", "openai_chat", "openai_responses")
"""Those that google-adk has a model for."""
LIMIT = 20.0


class Untapped(BaseLlm):
    """A model that takes no client, so that Callstream reads its partial events."""

    inner: BaseLlm

    def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        return self.inner.generate_content_async(llm_request, stream)


def model_of(wire: str, base_url: str) -> BaseLlm:
    """google-adk's own model of the wire."""
    if wire == "gemini":
        options = types.HttpOptions(base_url=base_url, retry_options=types.HttpRetryOptions(attempts=1))
        return Gemini(model="gemini-3-flash-preview", client_kwargs={"api_key": "none", "http_options": options})
    if wire == "anthropic":
        from anthropic import AsyncAnthropic

        client = AsyncAnthropic(api_key="none", base_url=base_url, max_retries=0)
        return AnthropicLlm(model="claude-scripted", client=client)
    from google.adk.integrations.openai import OpenAILlm, OpenAIResponsesLlm
    from openai import AsyncOpenAI

    other = AsyncOpenAI(api_key="none", base_url=base_url, max_retries=0)
    if wire == "openai_chat":
        return OpenAILlm(model="gpt-4o", client=other)
    return OpenAIResponsesLlm(model="gpt-5", store=False, client=other)


def agent_of(host: str, wire: str, base_url: str, tools: list[Any]) -> Any:
    """An ``ADKAgent`` of that host, with arguments streamed, or whole where it says so."""
    model = model_of(wire, base_url)
    if host == "partial events":
        model = Untapped(model=model.model, inner=model)
    agent = LlmAgent(name="writer", model=model, tools=tools)
    made = importlib.import_module(HOSTS[host]).ADKAgent
    streamed = not host.endswith("whole")
    return made(adk_agent=agent, app_name="app", user_id="user", streaming_function_call_arguments=streamed)


async def turn(host: str, wire: str, base_url: str) -> dict[str, Any]:
    tools = ShapeTools()
    agent = agent_of(host, wire, base_url, tools.functions())
    # ag_ui_adk keeps the sessions of all agents of a process together, so every turn is a thread of its own.
    number = str(uuid.uuid4())
    message = {"id": f"message-{number}", "role": "user", "content": "Go"}
    given = {
        "threadId": f"thread-{number}",
        "runId": f"run-{number}",
        "messages": [message],
        "tools": [],
        "state": {},
        "context": [],
    }
    events: list[dict[str, Any]] = []
    error: str | None = None
    try:
        async with asyncio.timeout(LIMIT):
            async for event in agent.run(RunAgentInput.model_validate({**given, "forwardedProps": {}})):
                events.append(event.model_dump(mode="json", by_alias=True, exclude_none=True))
    except Exception as raised:  # noqa: BLE001  # it is what is being looked at
        error = f"{type(raised).__name__}: {raised}"
    await agent.close()
    return {"ran": tools.ran, "events": events, "error": error}


async def serve(host: str) -> None:
    for line in sys.stdin:  # nothing else goes on meanwhile
        asked = json.loads(line)
        sys.stdout.write(json.dumps(await turn(host, asked["wire"], asked["base_url"])) + "\n")
        sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", choices=HOSTS, required=True)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    asyncio.run(serve(parser.parse_args().host))
    return 0


if __name__ == "__main__":
    sys.exit(main())
