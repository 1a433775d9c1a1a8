"""Two turns with a real Gemini 3, on Vertex or with an API key: ``make live``.

What no scripted provider can show: that the API takes the history back, with the signatures that it sent itself.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from callstream import Callstream
from callstream.adk import CallstreamPlugin, tapped
from callstream.adk.requests import SENTINEL
from callstream.calls import CallState
from tests.adk.hosting import STREAMED

pytestmark = [
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore"),  # Google's libraries have warnings of their own about environments
]

MODEL = os.environ.get("CALLSTREAM_LIVE_MODEL", "gemini-3-flash-preview")


def is_vertex() -> bool:
    return os.environ.get("GOOGLE_GENAI_USE_VERTEXAI", "").lower() in ("1", "true")


def missing() -> str | None:
    """What there is too little of to call a real model; None if there is enough."""
    if is_vertex():
        absent = [name for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION") if not os.environ.get(name)]
        return f"GOOGLE_GENAI_USE_VERTEXAI is set, but not {' and '.join(absent)}" if absent else None
    if os.environ.get("GEMINI_API_KEY") or os.environ.get("GOOGLE_API_KEY"):
        return None
    return (
        "no credentials for a real Gemini: set GEMINI_API_KEY, or GOOGLE_GENAI_USE_VERTEXAI=true with "
        "GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION"
    )


class SignaturesSeen(BasePlugin):
    """Keeps the signatures of the calls in each request, as the model gets them."""

    def __init__(self) -> None:
        super().__init__(name="signatures_seen")
        self.requests: list[list[bytes | None]] = []

    async def before_model_callback(self, *, callback_context: Any, llm_request: LlmRequest) -> None:
        parts = [part for content in llm_request.contents for part in content.parts or ()]
        self.requests.append([part.thought_signature for part in parts if part.function_call is not None])


@pytest.mark.skipif(missing() is not None, reason=missing() or "")
async def test_two_turns_with_signatures() -> None:
    ran: list[dict[str, str]] = []

    def write_document(title: str, content: str) -> dict[str, int]:
        """Writes a document and keeps it.

        Args:
            title: A title of a few words.
            content: The text, about eighty words.
        """
        ran.append({"title": title, "content": content})
        return {"words": len(content.split())}

    deltas: list[str] = []
    async with Callstream() as cs:
        cs.on_args_delta("write_document", lambda delta, signal: deltas.append(delta.text))
        agent = LlmAgent(
            name="writer",
            model=tapped(MODEL, cs),
            instruction="Write what you are asked for with write_document, once a request. Then say how long it is.",
            tools=[write_document],
        )
        seen = SignaturesSeen()
        app = App(name="live", root_agent=agent, plugins=[CallstreamPlugin(cs), seen])
        async with Runner(app=app, session_service=InMemorySessionService(), auto_create_session=True) as runner:
            for request in ("Write about the tides.", "Now write about the wind."):
                message = types.Content(role="user", parts=[types.Part(text=request)])
                events = runner.run_async(user_id="u", session_id="s", new_message=message, run_config=STREAMED)
                errors = [event.error_message async for event in events if event.error_code]
                assert errors == []
            calls = [call for listed in await cs.journal.calls() if (call := await cs.journal.call(listed.call_id))]
            runs = await cs.journal.runs()
    assert [run.outcome for run in runs] == ["finished", "finished"]
    assert len(ran) >= 2
    assert [call.args for call in calls] == ran
    assert [call.state for call in calls] == [CallState.COMPLETED] * len(ran)
    assert "".join(deltas) == "".join(call.args_json or "" for call in calls)
    assert all(json.loads(call.args_json or "") == args for call, args in zip(calls, ran, strict=True))
    assert calls[0].signature is not None
    assert len(deltas) > len(calls) or not is_vertex()  # the API without Vertex does not stream arguments
    assert seen.requests[-1][0] not in (None, SENTINEL)
