from __future__ import annotations

from typing import Any


def ask(base_url: str, cs: Any) -> Any:
    import instructor
    from openai import OpenAI
    from pydantic import BaseModel

    class write(BaseModel):  # noqa: N801  # its name is the tool's
        title: str
        content: str

    client = instructor.from_openai(OpenAI(base_url=base_url, api_key="none", http_client=cs.sync_http_client()))
    *_, last = client.create_partial(model="gpt", messages=[{"role": "user", "content": "go"}], response_model=write)
    return "write", last.model_dump()
