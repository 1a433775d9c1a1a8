"""instructor."""

from __future__ import annotations

from typing import Any

from callstream.testing import ToolCall

LAST = [ToolCall("write", {"title": "Done.", "count": 1}, call_id="last")]


async def run(base_url: str, cs: Any, tools: Any) -> Any:
    """It runs no tools: the arguments are the answer. So the last word is that the right ones came."""
    import instructor
    from openai import AsyncOpenAI
    from pydantic import BaseModel

    class write(BaseModel):  # noqa: N801
        title: str
        count: int

    client = instructor.from_openai(AsyncOpenAI(base_url=base_url, api_key="none", http_client=cs.http_client()))
    asked: Any = {"model": "gpt-4o", "messages": [{"role": "user", "content": "go"}], "max_retries": 3}
    made = await client.chat.completions.create(response_model=write, **asked)
    tools.ran.append(made.model_dump())
    return "Done."
