from __future__ import annotations

from typing import Any

WIRE = "gemini"


async def ask(base_url: str, cs: Any) -> Any:
    from agno.models.google import Gemini

    from tests.frameworks.agno_claude import agent_of

    given: list[Any] = []
    options = {"base_url": base_url, "httpx_async_client": cs.httpx_client()}
    model = Gemini(id="gemini-3-pro", api_key="none", client_params={"http_options": options})
    [event async for event in agent_of(model, given).arun("go", stream=True)]
    return given[0]
