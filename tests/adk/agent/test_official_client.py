"""The official AG-UI client takes an agent's streams without an error or a warning."""

from __future__ import annotations

import json
from typing import Any

from google.adk.tools import ToolContext

from callstream import Callstream, Progress, no_progress, tool
from callstream.adk import AGUIToolset
from callstream.testing import Finish, Text, Thought, ToolCall
from tests.adk.hosting import Models, agent_of, scripted
from tests.agui.judge import Judge
from tests.agui.test_client import accepted, calls_in

from .agents import adk_agent, gemini
from .clients import Client
from .clienttools import PAINT


async def test_official_client_accepts_an_agent(judge: Judge, cs: Callstream, models: Models) -> None:
    ran: list[str] = []

    @tool
    async def write(body: str, tool_context: ToolContext, progress: Progress = no_progress) -> str:
        """Writes."""
        await progress(1, 2, "half")
        tool_context.state["body"] = body
        ran.append(body)
        return "written"

    script = [
        [Thought("Hm."), Text("I write."), ToolCall("write", {"body": "wave 🌊 \n" * 4}), Finish()],
        [Text("I paint."), ToolCall("paint", {"color": "red", "size": 1}), Finish()],
        [Text("Done."), Finish()],
    ]
    steps: list[dict[str, Any]] = []
    async with scripted("gemini", script) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), write, AGUIToolset()))
        client = Client(agent, tools=[PAINT])
        asked = {"id": "u1", "role": "user", "content": "Go"}
        client.messages.append(asked)
        steps.append({"how": "run", "body": await body_of(client), "add": [asked]})
        (pending,) = client.pending()
        answer = {"id": "t1", "role": "tool", "toolCallId": pending, "content": "painted"}
        client.put_result(dict(answer))
        steps.append({"how": "run", "body": await body_of(client), "add": [answer]})
    verdicts = [accepted(verdict) for verdict in judge(*steps)]
    arguments = [json.loads(text) for text in calls_in(verdicts[-1]["messages"]).values()]
    assert arguments == [{"body": ran[0]}, {"color": "red", "size": 1}]
    assert verdicts[-1]["state"] == client.state == {"body": ran[0]}
    assert [(each["id"], each["role"]) for each in verdicts[-1]["messages"]] == [
        (each["id"], each["role"]) for each in client.messages
    ]


async def body_of(client: Client) -> str:
    """What the agent sends, which the strict client has taken."""
    body = b"".join([frame async for frame in client.agent.run_sse(client.input())]).decode()
    for frame in body.split("\n\n")[:-1]:
        client.take(json.loads(frame.split("data: ", 1)[1]))
    return body
