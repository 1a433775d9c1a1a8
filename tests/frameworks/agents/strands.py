"""Strands."""

from __future__ import annotations

import inspect
from typing import Any


async def run(base_url: str, cs: Any, tools: Any) -> Any:
    import strands
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient
    from strands.models.openai import OpenAIModel

    class Kept(DefaultAsyncHttpxClient):  # type: ignore[misc, valid-type, unused-ignore]
        """Strands of a year ago takes no client of openai; of the one it makes for each request, it closes what is inside."""

        async def aclose(self) -> None:
            pass

    parameters: dict[str, Any] = {
        "base_url": base_url,
        "api_key": "none",
        "http_client": Kept(transport=cs.transport()),
    }
    takes_client = "client" in inspect.signature(OpenAIModel).parameters
    given: Any = {"client": AsyncOpenAI(**parameters)} if takes_client else {"client_args": parameters}
    agent: Any = strands.Agent(
        model=OpenAIModel(model_id="gpt-4o", **given), tools=[strands.tool(tools.write)], callback_handler=None
    )
    return str(await agent.invoke_async("go"))
