"""Agents behind AG-UI, and the models that they ask."""

from __future__ import annotations

from typing import Any

from google.adk.agents import LlmAgent

from callstream import Callstream
from callstream.adk import ADKAgent
from callstream.testing import Finish, Text
from tests.adk.hosting import Models

END = [Text("Done."), Finish()]


def adk_agent(cs: Callstream, agent: LlmAgent, **options: Any) -> ADKAgent:
    return ADKAgent(adk_agent=agent, app_name="app", user_id="user", callstream=cs, **options)


def gemini(models: Models, provider: Any) -> Any:
    """A model that nobody has tapped yet."""
    return models._untapped(provider, "tap", None)


def texts_in(body: Any) -> list[str]:
    return [part["text"] for content in body["contents"] for part in content["parts"] if part.get("text")]
