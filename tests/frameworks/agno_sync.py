from __future__ import annotations

from typing import Any


def ask(base_url: str, cs: Any) -> Any:
    from agno.models.openai import OpenAIChat
    from openai import OpenAI

    from tests.frameworks.agno_claude import agent_of

    given: list[Any] = []
    client = OpenAI(base_url=base_url, api_key="none", http_client=cs.sync_http_client())
    list(agent_of(OpenAIChat(id="gpt-4o", client=client), given).run("go", stream=True))
    return given[0]
