"""A google-adk agent that knows nothing of Callstream: the tap sits in its model's HTTP client.

Run it as it is, and a scripted provider answers; with GEMINI_API_KEY set, the real one does.
"""

from __future__ import annotations

import asyncio
import os

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models import Gemini
from google.adk.runners import InMemoryRunner
from google.genai import types
from offline import scripted, show

from callstream import Callstream


def write_document(title: str, content: str) -> dict[str, int]:
    """Writes a document."""
    return {"characters": len(content)}


def look_up(topic: str) -> str:
    """Looks a topic up."""
    return f"what is known of {topic}"


async def main() -> None:
    cs = Callstream(journal="memory:")
    with scripted("gemini") as provider:
        live = bool(os.environ.get("GEMINI_API_KEY"))
        where = {} if live else {"base_url": provider.base_url}
        options = types.HttpOptions(httpx_async_client=cs.http_client(collapse="all"), **where)  # the one parameter
        keys = {} if live else {"api_key": "none"}
        model = Gemini(model="gemini-3-flash-preview", client_kwargs={"http_options": options, **keys})
        agent = LlmAgent(name="writer", model=model, tools=[write_document, look_up])
        runner = InMemoryRunner(agent=agent, app_name="tea")
        session = await runner.session_service.create_session(app_name="tea", user_id="user")
        asked = types.Content(role="user", parts=[types.Part(text="Write down how to make tea.")])
        async with cs.run(session.id):
            async for event in runner.run_async(
                user_id="user",
                session_id=session.id,
                new_message=asked,
                run_config=RunConfig(streaming_mode=StreamingMode.SSE),
            ):
                if event.is_final_response() and event.content and event.content.parts:
                    print(event.content.parts[0].text)
        await runner.close()
    await show(cs)
    await cs.aclose()


if __name__ == "__main__":
    asyncio.run(main())
