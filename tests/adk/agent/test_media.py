"""Images, sound and files: in what a client says, in what it answers, and in what tools return."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from ag_ui.core import Tool
from google.adk.sessions import InMemorySessionService
from google.adk.tools import LongRunningFunctionTool

from callstream import Callstream
from callstream.adk import AGUIToolset
from callstream.testing import Finish, Parallel, ToolCall
from tests.adk.hosting import WIRES, Models, agent_of, scripted

from .agents import END, adk_agent, gemini
from .clients import Client, kinds

PIXEL = base64.b64encode(b"\x89PNG not really").decode()
LOOK = Tool(name="look", description="Looks.", parameters={"type": "object", "properties": {"at": {"type": "string"}}})


def data(kind: str, mime_type: str) -> dict[str, Any]:
    return {"type": kind, "source": {"type": "data", "value": PIXEL, "mimeType": mime_type}}


def url(kind: str, address: str, **rest: str) -> dict[str, Any]:
    return {"type": kind, "source": {"type": "url", "value": address, **rest}}


def parts_in(body: bytes, number: int = -1) -> list[dict[str, Any]]:
    return list(json.loads(body)["contents"][number]["parts"])


def blob_in(part: dict[str, Any]) -> dict[str, Any]:
    """google-genai writes some names as Python has them."""
    return dict(part.get("inlineData") or part["inline_data"])


def mime_type_of(blob: dict[str, Any]) -> str | None:
    return blob.get("mimeType") or blob.get("mime_type")


@pytest.mark.parametrize(
    ("kind", "mime_type"),
    [("image", "image/png"), ("audio", "audio/wav"), ("video", "video/mp4"), ("document", "application/pdf")],
)
async def test_media_reach_the_model(kind: str, mime_type: str, cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [END, END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider))))
        await client.send([{"type": "text", "text": "What is it?"}, data(kind, mime_type)])
        await client.send("And now?")
        first, second = provider.requests
        text, blob = parts_in(first.body)
        assert text == {"text": "What is it?"}
        assert (blob["inlineData"]["data"], mime_type_of(blob["inlineData"])) == (PIXEL, mime_type)
        # It stays in the conversation, once.
        assert parts_in(second.body, 0) == [text, blob]
        assert second.body.count(PIXEL.encode()) == 1


@pytest.mark.parametrize(
    ("part", "mime_type"),
    [
        (url("image", "https://example.org/a.jpg"), "image/jpeg"),
        (url("image", "https://example.org/a", mimeType="image/webp"), "image/webp"),
        (url("document", "https://example.org/a"), "application/pdf"),
        (url("audio", "gs://bucket/a.mp3"), "audio/mpeg"),
    ],
)
async def test_media_by_address_reach_the_model(
    part: dict[str, Any], mime_type: str, cs: Callstream, models: Models
) -> None:
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider))))
        await client.send([part])
        (made,) = parts_in(provider.requests[0].body)
    file = made["fileData"]
    assert (file.get("fileUri") or file.get("file_uri")) == part["source"]["value"]
    assert mime_type_of(file) == mime_type


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "gemini"])
async def test_images_reach_other_models(wire: str, cs: Callstream, models: Models) -> None:
    async with scripted(wire, [END]) as provider:
        client = Client(adk_agent(cs, agent_of(models(provider, "none"))))
        await client.send([{"type": "text", "text": "What is it?"}, data("image", "image/png")])
        body = provider.requests[0].body.decode()
    assert PIXEL in body
    assert "image/png" in body
    assert client.text() == "Done."


async def test_media_that_are_none_fail_the_run(cs: Callstream, models: Models) -> None:
    broken = {"type": "image", "source": {"type": "data", "value": "no base64!", "mimeType": "image/png"}}
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider)), show_errors=True))
        events = await client.send([broken])
        assert provider.requests == []
    assert kinds(events)[-1] == "RUN_ERROR"
    assert "expected base64" in events[-1]["message"]


async def test_media_are_journaled_by_their_kind(cs: Callstream, models: Models) -> None:
    """The journal tells that there was an image; the image is the session's."""
    sessions = InMemorySessionService()
    async with scripted("gemini", [END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider)), session_service=sessions))
        await client.send([{"type": "text", "text": "See"}, data("image", "image/png")])
    (run,) = await cs.journal.runs()
    received = [r.event async for r in cs.journal.read(run.run_id) if type(r.event).__name__ == "MessageReceived"]
    assert [(event.text, event.attachments) for event in received] == [("See", ("image/png",))]  # type: ignore[union-attr]
    session = await sessions.get_session(app_name="app", user_id="user", session_id="thread")
    assert session is not None
    assert session.events[0].content.parts[1].inline_data.data == base64.b64decode(PIXEL)  # type: ignore


async def test_media_in_a_client_s_answer(cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[ToolCall("look", {"at": "it"}), Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset())), tools=[LOOK])
        await client.send()
        (call_id,) = client.pending()
        content = [{"type": "text", "text": '{"seen": true}'}, data("image", "image/png")]
        client.messages.append({"id": "answer", "role": "tool", "toolCallId": call_id, "content": content})
        await client.run()
        (part,) = parts_in(provider.requests[1].body)
    response = part["functionResponse"]
    assert response["response"] == {"seen": True}
    blob = blob_in(response["parts"][0])
    assert (blob["data"], mime_type_of(blob)) == (PIXEL, "image/png")
    assert client.text() == "Done."


async def test_media_in_an_answer_that_had_to_wait(cs: Callstream, models: Models) -> None:
    """The other call's answer comes with another run; the image of the first is still there."""
    calls = Parallel([ToolCall("look", {"at": "a"}), ToolCall("look", {"at": "b"})])
    async with scripted("gemini", [[calls, Finish()], END]) as provider:
        client = Client(adk_agent(cs, agent_of(gemini(models, provider), AGUIToolset())), tools=[LOOK])
        await client.send()
        first, second = client.pending()
        client.messages.append(
            {"id": "one", "role": "tool", "toolCallId": first, "content": [data("image", "image/png")]}
        )
        await client.run()
        assert len(provider.requests) == 1
        await client.answer({second: "nothing"})
        responses = [part["functionResponse"] for part in parts_in(provider.requests[1].body)]
    assert [len(response.get("parts") or ()) for response in responses] == [1, 0]
    assert blob_in(responses[0]["parts"][0])["data"] == PIXEL


async def test_media_in_the_answer_to_a_long_running_tool(cs: Callstream, models: Models) -> None:
    def photograph(what: str) -> None:
        """Asks a person for a photograph."""

    async with scripted("gemini", [[ToolCall("photograph", {"what": "it"}), Finish()], END]) as provider:
        root = agent_of(gemini(models, provider), LongRunningFunctionTool(photograph))
        client = Client(adk_agent(cs, root))
        await client.send()
        (call_id,) = client.pending()
        content = [{"type": "text", "text": "there"}, data("image", "image/png"), url("image", "https://example.org/a")]
        client.messages.append({"id": "answer", "role": "tool", "toolCallId": call_id, "content": content})
        await client.run()
        (part,) = parts_in(provider.requests[1].body)
    # A function response takes no addresses.
    assert part["functionResponse"]["response"] == {"result": "there"}
    assert len(part["functionResponse"]["parts"]) == 1


@pytest.mark.parametrize("streaming", [True, False])
async def test_bytes_in_a_tool_s_result(streaming: bool, cs: Callstream, models: Models) -> None:
    """The client is shown them as base64, and the model gets what google-adk makes of them."""

    def draw() -> dict[str, Any]:
        """Draws."""
        return {"name": "a.png", "image": base64.b64decode(PIXEL)}

    async with scripted("gemini", [[ToolCall("draw", {}), Finish()], END]) as provider:
        agent = adk_agent(cs, agent_of(gemini(models, provider), draw), streaming_function_call_arguments=streaming)
        client = Client(agent)
        await client.send()
        assert len(provider.requests) == 2
    (call,) = client.calls()
    assert base64.urlsafe_b64decode(json.loads(call["result"])["image"]) == base64.b64decode(PIXEL)
    assert client.text() == "Done."
