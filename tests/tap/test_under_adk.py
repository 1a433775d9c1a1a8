"""google-adk above the tap, and nothing of Callstream in it but the client: unfinished calls never run there."""

from __future__ import annotations

from typing import Any

import pytest

from callstream import CallState, Callstream, Settings
from callstream.testing import Finish, ScriptedProvider, Text, ToolCall, Truncated
from tests.adk.hosting import WIRES

pytest.importorskip("google.adk")
# google-adk warns of features of its own that it uses itself.
pytestmark = pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]")

ARGS = {"title": "Notes", "content": "one\ntwo ☃ three"}


def model(wire: str, provider: ScriptedProvider, cs: Callstream) -> Any:
    """google-adk's own model class of the wire; the tap is in its client."""
    match wire:
        case "gemini":
            from google.adk.models import Gemini
            from google.genai import types

            client = cs.httpx_client(collapse="all")
            options = types.HttpOptions(base_url=provider.base_url, httpx_async_client=client)
            return Gemini(model="gemini-3-flash-preview", client_kwargs={"http_options": options, "api_key": "none"})
        case "anthropic":
            from anthropic import AsyncAnthropic
            from google.adk.models.anthropic_llm import AnthropicLlm

            made = AsyncAnthropic(
                base_url=provider.base_url, api_key="none", http_client=cs.httpx2_client(collapse="all")
            )
            return AnthropicLlm(model="claude-sonnet-5-5", client=made)
        case _:
            from google.adk.integrations.openai import OpenAILlm, OpenAIResponsesLlm
            from openai import AsyncOpenAI

            asked = AsyncOpenAI(base_url=provider.base_url, api_key="none", http_client=cs.httpx_client(collapse="all"))
            return (OpenAILlm if wire == "openai_chat" else OpenAIResponsesLlm)(model="gpt-5", client=asked)


class Host:
    """An agent with one tool, and what its tool was called with."""

    def __init__(self, wire: str, provider: ScriptedProvider, cs: Callstream) -> None:
        from google.adk.agents import LlmAgent
        from google.adk.runners import InMemoryRunner

        self.executed: list[dict[str, Any]] = []

        def write(title: str = "default", content: str = "default") -> str:
            """Writes."""
            self.executed.append({"title": title, "content": content})
            return "written"

        agent = LlmAgent(name="writer", model=model(wire, provider, cs), tools=[write])
        self.runner = InMemoryRunner(agent=agent, app_name="app")
        self.cs = cs
        self.session_id: str | None = None

    async def turn(self, text: str) -> str:
        from google.adk.agents.run_config import RunConfig, StreamingMode
        from google.genai import types

        if self.session_id is None:
            session = await self.runner.session_service.create_session(app_name="app", user_id="user")
            self.session_id = session.id
        said = types.Content(role="user", parts=[types.Part(text=text)])
        answer = ""
        async with self.cs.run(self.session_id):
            async for event in self.runner.run_async(
                user_id="user",
                session_id=self.session_id,
                new_message=said,
                run_config=RunConfig(streaming_mode=StreamingMode.SSE),
            ):
                if not event.partial and event.content:
                    answer += "".join(part.text or "" for part in event.content.parts or ())
        return answer


CUTS: dict[str, list[Any]] = {
    "length": [Text("Writing. "), ToolCall("write", ARGS, stop_after=2), Finish("length")],
    "truncated": [Text("Writing. "), ToolCall("write", ARGS, stop_after=2), Truncated()],
    "blank": [Text("Writing. "), ToolCall("write", ARGS, stop_after=0), Finish("length")],
    "malformed": [Text("Writing. "), ToolCall("write", text='{"title": 1,}')],
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("wire", WIRES)
async def test_truncated_never_runs_and_the_model_is_asked_again(cs: Callstream, wire: str, cut: str) -> None:
    if wire == "gemini" and cut == "malformed":
        pytest.skip("Gemini sends arguments as values: they cannot be malformed text")
    scripts = [CUTS[cut], [ToolCall("write", ARGS)], [Text("Done.")], [Text("And again.")]]
    async with ScriptedProvider(wire, scripts, stream_args_unasked=True) as provider:
        host = Host(wire, provider, cs)
        assert (await host.turn("go")).endswith("Done.")
        assert host.executed == [ARGS]
        assert await host.turn("again") == "And again."
        await host.runner.close()
    assert [call.state for call in await cs.journal.calls()] == [CallState.DISCARDED, CallState.COMPLETED]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("wire", WIRES)
async def test_truncated_never_runs_and_the_next_turn_works(wire: str, cut: str) -> None:
    """In a program that wants no asking."""
    if wire == "gemini" and cut == "malformed":
        pytest.skip("Gemini sends arguments as values: they cannot be malformed text")
    scripts = [CUTS[cut], [ToolCall("write", ARGS)], [Text("Done.")]]
    cs = Callstream(settings=Settings(ask_again=0))
    async with cs, ScriptedProvider(wire, scripts, stream_args_unasked=True) as provider:
        host = Host(wire, provider, cs)
        await host.turn("go")
        assert host.executed == []
        (call,) = await cs.journal.calls()
        assert call.state is CallState.DISCARDED
        assert call.reason == ("malformed" if cut == "malformed" else "truncated")
        assert await host.turn("again") == "Done."
        assert host.executed == [ARGS]
        await host.runner.close()
        assert [call.state for call in await cs.journal.calls()] == [CallState.DISCARDED, CallState.COMPLETED]
