from __future__ import annotations

from typing import Any


async def ask(base_url: str, cs: Any) -> Any:
    import instructor
    from openai import AsyncOpenAI
    from pydantic import BaseModel

    class write(BaseModel):  # noqa: N801  # its name is the tool's
        title: str
        content: str

    client = instructor.from_openai(AsyncOpenAI(base_url=base_url, api_key="none", http_client=cs.http_client()))
    partials = client.create_partial(model="gpt", messages=[{"role": "user", "content": "go"}], response_model=write)
    *_, last = [each async for each in partials]
    return "write", last.model_dump()
