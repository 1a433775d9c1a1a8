from __future__ import annotations

import json
from typing import Any


def ask(base_url: str, cs: Any) -> Any:
    from smolagents import OpenAIModel, tool

    @tool
    def write(title: str, content: str) -> str:
        """Writes.

        Args:
            title: the title
            content: the content
        """
        return title + content

    model: Any = OpenAIModel(
        model_id="gpt", api_base=base_url, api_key="none", client_kwargs={"http_client": cs.sync_http_client()}
    )
    name, text = "", ""
    for delta in model.generate_stream([{"role": "user", "content": "go"}], tools_to_call_from=[write]):
        for piece in delta.tool_calls or ():
            name += piece.function.name or ""
            text += piece.function.arguments or ""
    return name, json.loads(text)
