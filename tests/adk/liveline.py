"""A live session: the agent, its queue, and the events that came."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents.live_request_queue import LiveRequestQueue
from google.adk.agents.run_config import RunConfig
from google.adk.events.event import Event
from google.adk.models import Gemini
from google.genai import types

from callstream import Callstream
from callstream.adk import tapped

from .hosting import Host
from .liveprovider import COMPLETE, LiveProvider, Turn

# The newer ones wait for the results before they say that a turn is complete; the older ones say it before.
MODELS = ("gemini-live-2.5-flash", "gemini-3.1-flash-live")
TEXT = RunConfig(response_modalities=["TEXT"])


class Line:
    """A host, a provider, and what a user sends to a live model."""

    def __init__(self, cs: Callstream, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cs = cs
        self._folder = folder
        self._monkeypatch = monkeypatch
        self.queue = LiveRequestQueue()

    def provider(self, turns: list[Turn]) -> LiveProvider:
        provider = LiveProvider(self._folder, turns)
        self._monkeypatch.setenv("SSL_CERT_FILE", str(provider.certificate))
        return provider

    def model(self, provider: LiveProvider, name: str = MODELS[1]) -> Gemini:
        options = types.HttpOptions(base_url=provider.base_url)
        made = tapped(Gemini(model=name, client_kwargs={"api_key": "none", "http_options": options}), self.cs)
        assert isinstance(made, Gemini)
        return made

    def say(self, words: str) -> None:
        self.queue.send_content(types.Content(role="user", parts=[types.Part(text=words)]))

    async def stream(self, host: Host, config: RunConfig = TEXT) -> AsyncIterator[Event]:
        events = host.runner.run_live(
            user_id="user", session_id="session", live_request_queue=self.queue, run_config=config
        )
        async with aclosing(events):
            async for event in events:
                yield event

    async def talk(self, host: Host, *words: str, config: RunConfig = TEXT) -> list[Event]:
        """Says each of the words when the turn before is over, then hangs up."""
        waiting = list(words)
        self.say(waiting.pop(0))
        seen: list[Event] = []
        goes_on = False
        async for event in self.stream(host, config):
            seen.append(event)
            if event.get_function_calls():
                goes_on = True
            elif (event.content and not event.get_function_responses() and not event.partial) or (
                event.output_transcription and event.output_transcription.finished
            ):
                goes_on = False
            if event.turn_complete and not goes_on:
                if waiting:
                    self.say(waiting.pop(0))
                else:
                    self.queue.close()
        return seen


@pytest.fixture
def line(cs: Callstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    return Line(cs, tmp_path, monkeypatch)


def asked(name: str, call_id: str | None = None, **args: Any) -> dict[str, Any]:
    return {"name": name, "args": args} | ({"id": call_id} if call_id else {})


def turn_of(model: str, *messages: Any) -> Turn:
    """A turn that ends with calls."""
    return [*messages] if model == MODELS[1] else [*messages, COMPLETE]
