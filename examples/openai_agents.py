"""An agent of the OpenAI Agents SDK that knows nothing of Callstream: the tap sits in its HTTP client.

Run it as it is, and a scripted provider answers; with OPENAI_API_KEY set, the real one does.
"""

from __future__ import annotations

import asyncio
import os

from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from offline import scripted, show
from openai import AsyncOpenAI

from callstream import Callstream


@function_tool
def write_document(title: str, content: str) -> str:
    """Writes a document."""
    return f"{len(content)} characters"


@function_tool
def look_up(topic: str) -> str:
    """Looks a topic up."""
    return f"what is known of {topic}"


async def main() -> None:
    set_tracing_disabled(True)
    cs = Callstream(journal="memory:")
    with scripted("openai_responses") as provider:
        live = bool(os.environ.get("OPENAI_API_KEY"))
        where = {} if live else {"base_url": provider.base_url, "api_key": "none"}
        client = AsyncOpenAI(http_client=cs.http_client(collapse="all"), **where)  # the one parameter
        model = OpenAIResponsesModel("gpt-5", openai_client=client)
        agent = Agent(name="writer", model=model, tools=[write_document, look_up])
        async with cs.run("tea"):
            answer = Runner.run_streamed(agent, "Write down how to make tea.")
            async for _ in answer.stream_events():
                pass
        print(answer.final_output)
        await client.close()
    await show(cs)
    await cs.aclose()


if __name__ == "__main__":
    asyncio.run(main())
