from __future__ import annotations

from typing import Any

WIRE = "anthropic"


async def ask(base_url: str, cs: Any) -> Any:
    import instructor
    from anthropic import AsyncAnthropic
    from pydantic import BaseModel

    class write(BaseModel):  # noqa: N801  # its name is the tool's
        title: str
        content: str

    client = instructor.from_anthropic(AsyncAnthropic(base_url=base_url, api_key="none", http_client=cs.http_client()))
    stream = client.create_partial(
        model="claude-sonnet-5-5", max_tokens=1000, messages=[{"role": "user", "content": "go"}], response_model=write
    )
    *_, last = [each async for each in stream]
    return "write", last.model_dump()
