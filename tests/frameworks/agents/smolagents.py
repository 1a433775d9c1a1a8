"""smolagents."""

from __future__ import annotations

from typing import Any

from callstream.testing import ToolCall

IS_SYNC = True
LAST = [ToolCall("final_answer", {"answer": "Done."}, call_id="last")]


def run(base_url: str, cs: Any, tools: Any) -> Any:
    import smolagents
    from openai import DefaultHttpxClient

    class Write(smolagents.Tool):  # type: ignore[misc, name-defined, unused-ignore]
        name = "write"
        description = "Writes a document."
        inputs = {
            "title": {"type": "string", "description": "What it is called."},
            "count": {"type": "integer", "description": "How many pages it has."},
        }
        output_type = "string"

        def forward(self, title: str, count: int) -> Any:
            return tools.write_now(title, count)

    client = DefaultHttpxClient(transport=cs.transport())
    model: Any = smolagents.OpenAIModel(
        "gpt-4o", api_base=base_url, api_key="none", client_kwargs={"http_client": client}
    )
    agent: Any = smolagents.ToolCallingAgent(tools=[Write()], model=model, stream_outputs=True, verbosity_level=0)
    return agent.run("go")
