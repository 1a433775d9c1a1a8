"""Streamed parameters where nobody but the tap knows of the call: under the plain SDKs, and under frameworks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI

from callstream import ArgumentsAborted, CallState, Callstream, Streamed, tool
from callstream.errors import CallRejected
from callstream.testing import Finish, ScriptedProvider, Text, ToolCall, Truncated
from tests.gated import GatedProvider

ARGS = {"title": "Tides", "content": "It rises and it falls, twice a day, for ever."}
RESULT = {"characters": len(ARGS["content"])}
SCRIPT = [[ToolCall("write_document", ARGS, call_id="c1", size=4)], [Text("Done.")]]
MESSAGES: Any = [{"role": "user", "content": "Write."}]


class Desk:
    def __init__(self) -> None:
        self.runs = 0
        self.pieces: list[str] = []
        self.aborted: list[str] = []
        self.provider: GatedProvider | None = None

    def see(self, piece: str) -> None:
        self.pieces.append(piece)
        if self.provider is not None:
            self.provider.open()

    def async_tool(self) -> Any:
        @tool
        async def write_document(title: str, content: Streamed[str], style: str = "plain") -> dict[str, int]:
            """Writes a document.

            Args:
                title: Its title.
                content: Its text.
                style: How it looks.
            """
            self.runs += 1
            try:
                async for piece in content:
                    self.see(piece)
            except ArgumentsAborted as error:
                self.aborted.append(error.reason)
                raise
            return {"characters": len(content.text)}

        return write_document

    def sync_tool(self) -> Any:
        @tool
        def write_document(title: str, content: Streamed[str], style: str = "plain") -> dict[str, int]:
            """Writes a document."""
            self.runs += 1
            for piece in content:
                self.see(piece)
            return {"characters": len(content.text)}

        return write_document

    def check(self) -> None:
        assert self.provider is None or self.provider.was_opened
        assert self.runs == 1
        assert "".join(self.pieces) == ARGS["content"]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture(params=["async", "sync"])
async def cs(request: pytest.FixtureRequest, desk: Desk) -> AsyncIterator[Callstream]:
    made = desk.async_tool() if request.param == "async" else desk.sync_tool()
    async with Callstream(tools=[made]) as callstream:
        yield callstream


async def check_call(cs: Callstream) -> None:
    [call] = await cs.journal.calls()
    assert (call.state, call.result, call.ran_early) == (CallState.COMPLETED, RESULT, True)


async def test_a_plain_sdk(cs: Callstream, desk: Desk) -> None:
    with GatedProvider("anthropic", SCRIPT, held=4) as desk.provider:
        async with AsyncAnthropic(
            base_url=desk.provider.base_url, api_key="none", http_client=cs.http_client()
        ) as client:
            schemas = [cs.tools["write_document"].schema("anthropic")]
            async with cs.run("thread") as run:
                async with client.messages.stream(
                    model="claude", max_tokens=99, messages=MESSAGES, tools=schemas
                ) as stream:
                    message = await stream.get_final_message()
                [result] = await run.run_tools()
    assert message.content[0].input == ARGS  # type: ignore[union-attr]
    assert result.value == RESULT
    desk.check()
    await check_call(cs)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_sync_program(desk: Desk, kind: str) -> None:
    made = desk.async_tool() if kind == "async" else desk.sync_tool()
    with Callstream(tools=[made]) as cs, GatedProvider("anthropic", SCRIPT, held=4) as desk.provider:
        with Anthropic(base_url=desk.provider.base_url, api_key="none", http_client=cs.sync_http_client()) as client:
            with cs.run("thread") as run:
                with client.messages.stream(
                    model="claude", max_tokens=99, messages=MESSAGES, tools=[made.schema("anthropic")]
                ) as stream:
                    stream.get_final_message()
                [result] = run.run_tools()
    assert result.value == RESULT
    desk.check()


async def test_without_a_run_the_tool_waits_for_its_caller(cs: Callstream, desk: Desk) -> None:
    """Nobody would be there to wait for it."""
    with ScriptedProvider("openai_chat", SCRIPT) as provider:
        async with AsyncOpenAI(base_url=provider.base_url, api_key="none", http_client=cs.http_client()) as client:
            schemas = [cs.tools["write_document"].schema("openai")]
            stream = await client.chat.completions.create(model="gpt", messages=MESSAGES, tools=schemas, stream=True)
            async for _ in stream:
                pass
    assert desk.runs == 0
    [call] = await cs.journal.calls()
    assert not call.ran_early


@pytest.mark.parametrize("end", [Truncated(), Finish("length")])
@pytest.mark.parametrize("stop_after", [3, 6, 9, 12, 15])
async def test_cut_off_it_is_aborted_inside_and_has_no_result(desk: Desk, end: Any, stop_after: int) -> None:
    async with Callstream(tools=[desk.async_tool()]) as cs:
        call = ToolCall("write_document", ARGS, size=4, stop_after=stop_after)
        with ScriptedProvider("openai_chat", [[call, end], [Text("Sorry.")]]) as provider:
            async with AsyncOpenAI(
                base_url=provider.base_url, api_key="none", http_client=cs.http_client(), max_retries=0
            ) as client:
                async with cs.run("thread") as run:
                    stream = await client.chat.completions.create(
                        model="gpt",
                        messages=MESSAGES,
                        tools=[cs.tools["write_document"].schema("openai")],
                        stream=True,
                    )
                    async for _ in stream:
                        pass
                    assert all(result.is_error for result in await run.run_tools())
        [kept] = await cs.journal.calls()
        assert (kept.state, kept.result) == (CallState.DISCARDED, None)
    assert len(desk.aborted) == desk.runs <= 1


# -- frameworks: they call the tool at the end, and get the result of the running one --


async def test_pydantic_ai(cs: Callstream, desk: Desk) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    with GatedProvider("anthropic", SCRIPT, held=4) as desk.provider:
        async with AsyncAnthropic(
            base_url=desk.provider.base_url, api_key="none", http_client=cs.http_client()
        ) as client:
            model = AnthropicModel("claude-sonnet-5-5", provider=AnthropicProvider(anthropic_client=client))
            agent = pydantic_ai.Agent(model, tools=[cs.tools["write_document"]])
            async with cs.run("thread"):
                async with agent.run_stream("Write.") as answer:
                    assert await answer.get_output() == "Done."
    desk.check()
    await check_call(cs)
    sent = desk.provider.requests[-1].json["messages"][-1]["content"]
    assert str(RESULT["characters"]) in str(sent)


@pytest.mark.parametrize("kind", ["streamed", "early"])
async def test_a_tool_that_takes_the_context_of_its_framework_waits_for_it(kind: str) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    async def read(context: Any, city: str) -> str:
        """Reads."""
        return f"{city} {type(context).__name__}"

    async def stream(context: Any, city: Streamed[str]) -> str:
        """Reads."""
        return f"{''.join([piece async for piece in city])} {type(context).__name__}"

    function: Any = read if kind == "early" else stream
    function.__annotations__["context"] = pydantic_ai.RunContext[None]
    made = tool(start="early")(function)
    script = [[ToolCall(made.__name__, {"city": "Paris"}, size=3)], [Text("Done.")]]
    async with Callstream(tools=[made]) as cs, ScriptedProvider("anthropic", script) as provider:
        async with AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=cs.http_client()) as client:
            model = AnthropicModel("claude-sonnet-5-5", provider=AnthropicProvider(anthropic_client=client))
            agent = pydantic_ai.Agent(model, tools=[made])
            async with cs.run("thread"), agent.run_stream("Look.") as answer:
                assert await answer.get_output() == "Done."
        [kept] = await cs.journal.calls()
    assert (kept.state, kept.ran_early) == (CallState.COMPLETED, False)
    assert "Paris RunContext" in str(kept.result)


async def test_openai_agents(cs: Callstream, desk: Desk) -> None:
    agents = pytest.importorskip("agents")
    from agents import OpenAIChatCompletionsModel, RunConfig, Runner

    strict = {"title": ARGS["title"], "style": "plain", "content": ARGS["content"]}  # strict schemas leave nothing out
    with GatedProvider(
        "openai_chat", [[ToolCall("write_document", strict, size=4)], SCRIPT[1]], held=4
    ) as desk.provider:
        async with AsyncOpenAI(base_url=desk.provider.base_url, api_key="none", http_client=cs.http_client()) as client:
            model = OpenAIChatCompletionsModel("gpt-5", client)
            agent = agents.Agent(name="writer", model=model, tools=[agents.function_tool(cs.tools["write_document"])])
            async with cs.run("thread"):
                answer = Runner.run_streamed(agent, "Write.", run_config=RunConfig(tracing_disabled=True))
                async for _ in answer.stream_events():
                    pass
    assert answer.final_output == "Done."
    desk.check()
    await check_call(cs)


async def test_a_framework_is_told_why_there_is_no_result(desk: Desk) -> None:
    """The call reaches it where rejected calls are forwarded; the tool that it calls says so."""
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    late = ToolCall("write_document", text='{"title": "Tides", "content": "one", "style": "bold"}', size=4)
    async with Callstream(tools=[desk.async_tool()]) as cs:
        with ScriptedProvider("anthropic", [[late], [Text("Done.")]]) as provider:
            async with AsyncAnthropic(
                base_url=provider.base_url, api_key="none", http_client=cs.http_client()
            ) as client:
                model = AnthropicModel("claude-sonnet-5-5", provider=AnthropicProvider(anthropic_client=client))
                agent = pydantic_ai.Agent(model, tools=[cs.tools["write_document"]])

                async def ask() -> None:
                    async with cs.run("thread", rejected="forward"), agent.run_stream("Write.") as answer:
                        await answer.get_output()

                with pytest.raises(CallRejected, match="came after the tool had started"):
                    await ask()
    assert len(desk.aborted) == desk.runs <= 1
    assert set(desk.aborted) <= {"invalid"}
