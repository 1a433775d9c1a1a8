"""Calls of tools that the request never declared: they reach the SDK as a known tool's calls do, and are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from callstream import CallRejected, CallState, Callstream, tool
from callstream.events import ResultReceived
from callstream.testing import Finish, ScriptedProvider, Text, ToolCall
from tests.sdks.bedrock import bedrock_client, converse_events, fold_converse
from tests.tap import sync_clients
from tests.tap.clients import WIRES, ask

ARGS = {"title": "Tides", "content": "The moon pulls."}
ANSWERS: dict[str, list[Any]] = {
    "whole": [Text("So."), ToolCall("wrote", ARGS, size=4)],
    "cut off": [Text("So."), ToolCall("wrote", ARGS, size=4, stop_after=3), Finish("length")],
    "not JSON": [Text("So."), ToolCall("wrote", text='{"title": "Tides", content: 3}', size=4)],
    "not an object": [Text("So."), ToolCall("wrote", text='["Tides"]', size=4)],
    "beside a known one": [ToolCall("write", ARGS, size=4), ToolCall("wrote", ARGS, size=4)],
}
NAMES = {"whole": ["wrote"], "beside a known one": ["write", "wrote"]}
each_answer = pytest.mark.parametrize("kind", ANSWERS)


@tool
async def write(title: str, content: str) -> str:
    """Writes."""
    return "written"


@pytest.fixture
def cs() -> Iterator[Callstream]:
    with Callstream(tools=[write]) as made:
        yield made


def serving(wire: str, kind: str) -> ScriptedProvider:
    if kind.startswith("not") and wire == "gemini":
        pytest.skip("arguments are always an object on this wire")
    return ScriptedProvider(wire, ANSWERS[kind], stream_args_unasked=True)


def shown(answer: Any) -> Any:
    """What the SDK got, but for ids that were made up."""
    calls = [(name, args) for _, name, args in answer.calls]
    return answer.text, calls, answer.finish, answer.pieces, all(call_id for call_id, _, _ in answer.calls)


@each_answer
@pytest.mark.parametrize("wire", WIRES)
async def test_it_arrives_as_if_every_call_were_collapsed(cs: Callstream, wire: str, kind: str) -> None:
    async with serving(wire, kind) as provider:
        collapsed = await ask(wire, provider, cs, collapse="all", ask_again=0)
        assert shown(await ask(wire, provider, cs, ask_again=0)) == shown(collapsed)
        assert [name for _, name, _ in collapsed.calls] == NAMES.get(kind, [])


@pytest.mark.parametrize("wire", WIRES)
def test_with_a_sync_client(cs: Callstream, wire: str) -> None:
    with serving(wire, "cut off") as provider:
        with sync_clients.sdk(wire, provider, cs, collapse="all", ask_again=0) as client:
            collapsed = sync_clients.ask_client(wire, client)
        with sync_clients.sdk(wire, provider, cs, ask_again=0) as client:
            assert shown(sync_clients.ask_client(wire, client)) == shown(collapsed)


@each_answer
def test_with_boto3(cs: Callstream, kind: str) -> None:
    with serving("bedrock_converse", kind) as provider:
        collapsed, known = (
            fold_converse(converse_events(cs.tap_boto(bedrock_client(provider.base_url), collapse=each)))
            for each in ("all", "known")
        )
        assert shown(known) == shown(collapsed)


async def test_it_passes_in_pieces_if_no_tool_of_the_request_is_callstreams() -> None:
    async with Callstream() as cs, serving("anthropic", "whole") as provider:
        assert (await ask("anthropic", provider, cs)).pieces > 1


async def test_it_is_refused_by_the_run(cs: Callstream) -> None:
    """Whichever way the program asks, and also where Callstream has a tool that was not declared this time."""

    @tool(start="early")
    async def wrote(title: str, content: str) -> str:
        raise AssertionError("the model was not offered this tool")

    cs.add_tool(wrote)
    sentence = "there is no tool wrote; the tools are: write, other, slow, fast"
    async with serving("anthropic", "whole") as provider, cs.run("thread") as run:
        for _ in range(2):
            await ask("anthropic", provider, cs)
        assert [refused.text for refused in run.refusals()] == [sentence] * 2
        with pytest.raises(CallRejected, match=sentence):
            await run.invoke(run.calls[0].call_id)
        [told] = [result.text for result in await run.run_tools() if result.call_id == run.calls[1].call_id]
        assert told == sentence


async def test_its_refusal_stays_when_the_program_has_answered_it(cs: Callstream) -> None:
    """Programs count the refusals that they have told the model of."""
    async with serving("anthropic", "whole") as provider, cs.run("thread") as run:
        await ask("anthropic", provider, cs)
        [refused] = run.refusals()
        await run.receive([ResultReceived(refused.wire_id, "wrote", refused.text, latest=True)])
        assert run.calls[0].state == CallState.COMPLETED
        assert run.refusals() == [refused]


@pytest.mark.parametrize("kind", ["cut off", "not JSON"])
async def test_a_note_tells_the_model_if_the_program_does_not(cs: Callstream, kind: str) -> None:
    async with (
        ScriptedProvider("anthropic", [ANSWERS[kind], [Text("Done.")], [Text("Done.")]]) as provider,
        AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=cs.http_client(ask_again=0)) as client,
        cs.run("thread"),
    ):
        for _ in range(3):
            async with client.messages.stream(
                model="m", max_tokens=9, messages=[{"role": "user", "content": "go"}], tools=[write.schema("anthropic")]
            ) as stream:
                await stream.get_final_message()
        assert [json.dumps(request.json).count("the arguments of wrote") for request in provider.requests] == [0, 1, 0]


# -- google-adk --


@pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]")
async def test_google_adk_answers_it_itself_and_one_that_was_cut_off_never_reaches_it(cs: Callstream) -> None:
    pytest.importorskip("google.adk")
    from google.adk.agents import LlmAgent
    from google.adk.agents.run_config import RunConfig, StreamingMode
    from google.adk.apps import App
    from google.adk.models.anthropic_llm import AnthropicLlm
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    from callstream.adk import CallstreamPlugin, tapped

    async def turn(client: AsyncAnthropic, *, bare: bool) -> list[str | None]:
        model = AnthropicLlm(model="claude-sonnet-5-5", client=client)
        agent = LlmAgent(name="writer", model=model if bare else tapped(model, cs), tools=[write])
        app = App(name="app", root_agent=agent, plugins=[] if bare else [CallstreamPlugin(cs)])
        async with InMemoryRunner(app=app) as runner:
            session = await runner.session_service.create_session(app_name="app", user_id="user")
            events = runner.run_async(
                user_id="user",
                session_id=session.id,
                new_message=types.Content(role="user", parts=[types.Part(text="go")]),
                run_config=RunConfig(streaming_mode=StreamingMode.SSE),
            )
            last = [event.content async for event in events][-1]
            return [part.text for part in (last and last.parts) or []]

    whole, cut_off, done = ANSWERS["whole"], ANSWERS["cut off"], [Text("Done.")]
    scripts = [whole, done, whole, done, cut_off, cut_off, done]
    async with (
        ScriptedProvider("anthropic", scripts) as provider,
        AsyncAnthropic(base_url=provider.base_url, api_key="none") as client,
    ):
        assert await turn(client, bare=True) == await turn(client, bare=False) == ["Done."]
        answers = [provider.requests[number].json["messages"][-1]["content"][0]["content"] for number in (1, 3)]
        assert answers[0] == answers[1]
        assert "no tool with that name" in str(answers[0])
        with pytest.raises(ValueError, match="Invalid JSON"):
            await turn(client, bare=True)
        await turn(client, bare=False)
        calls = await cs.journal.calls()
        assert sorted((str(call.state), call.reason) for call in calls) == [
            ("discarded", "truncated"),
            ("failed", None),
        ]
