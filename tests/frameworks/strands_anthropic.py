from __future__ import annotations

from typing import Any

WIRE = "anthropic"


async def ask(base_url: str, cs: Any) -> Any:
    from strands.models.anthropic import AnthropicModel

    from tests.frameworks.strands_openai import call_of

    client = {"base_url": base_url, "api_key": "none", "http_client": cs.httpx_client()}
    return await call_of(AnthropicModel(client_args=client, model_id="claude-sonnet-5-5", max_tokens=1000))
