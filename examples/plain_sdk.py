"""A plain SDK program: one parameter on the client makes its tool calls live, ordered and journaled.

Run it as it is, and a scripted provider answers; with ANTHROPIC_API_KEY set, the real one does.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from anthropic import AsyncAnthropic
from offline import scripted, show

from callstream import Callstream, FieldDelta, tool


@tool
async def write_document(title: str, content: str) -> dict[str, Any]:
    """Writes a document."""
    return {"title": title, "characters": len(content)}


@tool
async def look_up(topic: str) -> str:
    """Looks a topic up."""
    return f"what is known of {topic}"


@write_document.on_field("content")
async def grow(field: FieldDelta, signal: Any) -> None:
    print(field.text, end="", flush=True)


TOOLS = {"write_document": write_document, "look_up": look_up}


async def main() -> None:
    cs = Callstream(journal="memory:", tools=TOOLS.values())
    with scripted("anthropic") as provider:
        live = bool(os.environ.get("ANTHROPIC_API_KEY"))
        where = {} if live else {"base_url": provider.base_url, "api_key": "none"}
        client = AsyncAnthropic(http_client=cs.http_client(), **where)  # the one parameter
        messages: list[Any] = [{"role": "user", "content": "Write down how to make tea."}]
        while True:
            async with client.messages.stream(
                model="claude-sonnet-5-5",
                max_tokens=4000,
                messages=messages,
                tools=[made.schema("anthropic") for made in TOOLS.values()],
            ) as stream:
                answer = await stream.get_final_message()
            messages.append({"role": "assistant", "content": answer.content})
            uses = [block for block in answer.content if block.type == "tool_use"]
            if not uses:
                break
            results = [(use.id, await TOOLS[use.name](**use.input)) for use in uses]
            content = [
                {"type": "tool_result", "tool_use_id": use_id, "content": str(result)} for use_id, result in results
            ]
            messages.append({"role": "user", "content": content})
        await client.close()
    print()
    await show(cs)
    await cs.aclose()


if __name__ == "__main__":
    asyncio.run(main())
