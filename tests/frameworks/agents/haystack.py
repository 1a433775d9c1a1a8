"""Haystack."""

from __future__ import annotations

from typing import Any

IS_SYNC = True


def run(base_url: str, cs: Any, tools: Any) -> Any:
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function
    from haystack.utils import Secret

    generator: Any = OpenAIChatGenerator(
        api_key=Secret.from_token("none"),
        model="gpt-4o",
        api_base_url=base_url,
        http_client_kwargs={"transport": cs.transport()},
        streaming_callback=lambda chunk: None,
    )
    agent: Any = Agent(chat_generator=generator, tools=[create_tool_from_function(tools.write_now, name="write")])
    return agent.run(messages=[ChatMessage.from_user("go")])["messages"][-1].text
