"""A LangChain chat model and its tools, with the tap in the model's HTTP client.

Needs `pip install langchain-openai`. Run it as it is, and a scripted provider answers; with OPENAI_API_KEY set, the real one
does.
"""

from __future__ import annotations

import asyncio
import os

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from offline import scripted, show

from callstream import Callstream, FieldDelta


@tool
def write_document(title: str, content: str) -> str:
    """Writes a document."""
    return f"{len(content)} characters"


@tool
def look_up(topic: str) -> str:
    """Looks a topic up."""
    return f"what is known of {topic}"


async def grow(field: FieldDelta, signal) -> None:
    print(field.text, end="", flush=True)  # while the model writes it


async def main() -> None:
    cs = Callstream(journal="memory:")
    cs.on_field("write_document", "content", grow)  # LangChain owns the tool, so its hooks are registered by name
    tools = {each.name: each for each in (write_document, look_up)}
    with scripted("openai_chat") as provider:
        live = bool(os.environ.get("OPENAI_API_KEY"))
        where = {} if live else {"base_url": provider.base_url, "api_key": "none"}
        client = cs.http_client(collapse="all")
        chat = ChatOpenAI(model="gpt-5", streaming=True, http_async_client=client, **where)  # the one parameter
        model = chat.bind_tools(list(tools.values()))
        messages = [HumanMessage("Write down how to make tea.")]
        async with cs.run("tea"):
            while True:
                answer = await model.ainvoke(messages)
                messages.append(answer)
                if not answer.tool_calls:
                    break
                messages += [await tools[call["name"]].ainvoke(call) for call in answer.tool_calls]
        print(answer.text)
        await client.aclose()
    await show(cs)
    await cs.aclose()


if __name__ == "__main__":
    asyncio.run(main())
