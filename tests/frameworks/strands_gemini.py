from __future__ import annotations

from typing import Any

WIRE = "gemini"


async def ask(base_url: str, cs: Any) -> Any:
    from google import genai
    from google.genai.types import HttpOptions
    from strands.models.gemini import GeminiModel

    from tests.frameworks.strands_openai import call_of

    options = HttpOptions(base_url=base_url, httpx_async_client=cs.httpx_client())
    client = genai.Client(api_key="none", http_options=options)
    return await call_of(GeminiModel(client=client, model_id="gemini-3-pro"))
