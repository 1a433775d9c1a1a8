"""Arguments that nobody validated: nothing wrong runs, a sound call beside it does, and the model is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
from anthropic import AsyncAnthropic

from callstream import Callstream, tool
from callstream.testing import Finish, HttpError, ReceivedRequest, ScriptedProvider, Text, ToolCall, garble

GOOD = {"title": "Tides", "content": "The moon pulls.", "tags": ["sea", "moon"]}
BAD = {"title": "Storms", "content": "The wind blows.", "tags": ["wind"]}
SOUND = ToolCall("write", GOOD, call_id="good")


def broken(text: str) -> ToolCall:
    return ToolCall("write", text=text, call_id="bad")


# What came, why it must not run, and what the model reads of it.
MISTAKES: dict[str, tuple[list[Any], str, str]] = {
    "unquoted string": ([broken(garble(BAD, "unquoted")), SOUND], "malformed", "cannot be read"),
    "missing opening quote": ([broken(garble(BAD, "unopened")), SOUND], "malformed", "cannot be read"),
    "unquoted array in the second call": (
        [SOUND, broken(garble(BAD, "unquoted_items"))],
        "malformed",
        "cannot be read",
    ),
    "one field swallows the rest": (
        [broken(garble(BAD, "swallowed")), SOUND],
        "invalid",
        "write did not run: the argument 'content' is missing",
    ),
    "something after the end": ([broken(garble(BAD, "trailing")), SOUND], "malformed", "cannot be read"),
    "another type": (
        [broken(json.dumps({**BAD, "tags": "wind"})), SOUND],
        "invalid",
        "write did not run: the argument 'tags' should be an array or null, got the string 'wind'",
    ),
    "a name that comes twice": (
        [broken('{"title": "Storms", "content": "first", "content": "second"}'), SOUND],
        "malformed",
        "the name 'content' comes twice in an object",
    ),
    "not an object": ([broken('["Storms"]'), SOUND], "malformed", "the arguments are not an object"),
    "cut off": (
        [SOUND, ToolCall("write", BAD, call_id="bad", stop_after=4), Finish("length")],
        "truncated",
        "were cut off",
    ),
}
each_mistake = pytest.mark.parametrize("mistake", MISTAKES)


class Desk:
    """A Callstream with one tool, and what the tool ran on."""

    def __init__(self, check: Literal["end", "stream"] = "end") -> None:
        self.ran: list[dict[str, Any]] = []
        self.finished: list[str] = []
        self.aborted: list[tuple[str, str]] = []

        @tool(check=check)
        async def write(title: str, content: str, tags: list[str] | None = None) -> str:
            """Writes a document."""
            self.ran.append({"title": title, "content": content, "tags": tags})
            return "written"

        @write.on_args_complete
        async def ready(call: Any, signal: Any) -> None:
            self.finished.append(call.wire_id)

        @write.on_args_abort
        async def undo(call: Any, reason: str) -> None:
            self.aborted.append((call.wire_id, reason))

        self.write = write
        self.cs = Callstream(tools=[write])

    async def assert_only_sound_calls_ran(self, reason: str) -> None:
        assert self.ran == [GOOD]
        assert self.finished == ["good"]
        assert self.aborted == [("bad", reason)]
        calls = {call.call_id: (str(call.state), call.reason) for call in await self.cs.journal.calls()}
        assert calls == {"good": ("completed", None), "bad": ("discarded", reason)}


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    async with made.cs:
        yield made


def messages_in(request: ReceivedRequest) -> list[Any]:
    """The messages of a request, which has to be one that the API takes: a result for every call, and no other."""
    messages: list[Any] = request.json["messages"]
    blocks = [block for message in messages for block in message["content"] if isinstance(message["content"], list)]
    called = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert all(isinstance(block["input"], dict) for block in blocks if block["type"] == "tool_use")
    assert called == [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    return messages


# -- a plain SDK --


async def loop(desk: Desk, provider: ScriptedProvider, question: str, *, rejected: Any, stream: bool) -> str:
    """The loop of the quickstart."""
    messages: list[Any] = [{"role": "user", "content": question}]
    http_client = desk.cs.httpx2_client()
    async with (
        AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=http_client) as client,
        desk.cs.run("thread", rejected=rejected) as run,
    ):
        while True:
            asked: Any = {
                "model": "m",
                "max_tokens": 99,
                "messages": messages,
                "tools": [desk.write.schema("anthropic")],
            }
            if stream:
                async with client.messages.stream(**asked) as events:
                    answer = await events.get_final_message()
            else:
                answer = await client.messages.create(**asked)
            if answer.content:
                messages.append({"role": "assistant", "content": answer.content})
            results = await run.run_tools()
            if not results:
                return "".join(block.text for block in answer.content if block.type == "text")
            called = [block.id for block in answer.content if block.type == "tool_use"]
            answered = [
                {"type": "tool_result", "tool_use_id": each.wire_id, "content": each.text, "is_error": each.is_error}
                for each in results
                if each.wire_id in called
            ]
            notes = [{"type": "text", "text": each.text} for each in results if each.wire_id not in called]
            messages.append({"role": "user", "content": [*answered, *notes]})


@pytest.mark.parametrize("rejected", ["raise", "forward"])
@each_mistake
async def test_a_plain_loop(desk: Desk, mistake: str, rejected: str) -> None:
    steps, reason, told = MISTAKES[mistake]
    async with ScriptedProvider("anthropic", [steps, [Text("Done.")], [Text("And again.")]]) as provider:
        assert await loop(desk, provider, "go", rejected=rejected, stream=True) == "Done."
        await desk.assert_only_sound_calls_ran(reason)
        second = messages_in(provider.requests[1])
        assert json.dumps(second).count(told) == 1
        # A call that is JSON is told of in the provider's own way where the program wants to see it.
        is_forwarded = rejected == "forward" and reason == "invalid"
        results = [block for block in second[-1]["content"] if block["type"] == "tool_result"]
        assert [block["is_error"] for block in results].count(True) == is_forwarded
        assert await loop(desk, provider, "again", rejected=rejected, stream=True) == "And again."


@pytest.mark.parametrize("rejected", ["raise", "forward"])
@pytest.mark.parametrize("mistake", [name for name, (_, reason, _) in MISTAKES.items() if reason == "invalid"])
async def test_a_plain_loop_that_does_not_stream(desk: Desk, mistake: str, rejected: str) -> None:
    steps, reason, told = MISTAKES[mistake]
    async with ScriptedProvider("anthropic", [steps, [Text("Done.")]]) as provider:
        assert await loop(desk, provider, "go", rejected=rejected, stream=False) == "Done."
        await desk.assert_only_sound_calls_ran(reason)
        assert json.dumps(messages_in(provider.requests[1])).count(told) == 1


@pytest.mark.parametrize("rejected", ["raise", "forward"])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_tool_that_is_judged_while_it_is_written(rejected: str, stream: bool) -> None:
    """The same as at the end, for the program and for the model."""
    desk = Desk("stream")
    steps, reason, told = MISTAKES["another type"]
    async with desk.cs, ScriptedProvider("anthropic", [steps, [Text("Done.")]]) as provider:
        assert await loop(desk, provider, "go", rejected=rejected, stream=stream) == "Done."
        await desk.assert_only_sound_calls_ran(reason)
        told = told.replace("the string 'wind'", "a string")  # its first character was enough
        assert json.dumps(messages_in(provider.requests[1])).count(told) == 1


@pytest.mark.parametrize("mistake", ["unquoted string", "missing opening quote", "unquoted array in the second call"])
async def test_the_bare_sdk_raises_in_the_middle_of_the_stream(mistake: str) -> None:
    async with (
        ScriptedProvider("anthropic", MISTAKES[mistake][0]) as provider,
        AsyncAnthropic(base_url=provider.base_url, api_key="none") as client,
    ):
        with pytest.raises(ValueError, match="Unable to parse tool parameter JSON"):
            async with client.messages.stream(
                model="m", max_tokens=99, messages=[{"role": "user", "content": "go"}]
            ) as events:
                await events.get_final_message()


async def test_a_note_is_in_the_sdks_retry_too_and_then_no_more(desk: Desk) -> None:
    """A program that asks nothing of its run: the note is the tap's."""
    mistaken, _, told = MISTAKES["one field swallows the rest"]
    overloaded = [HttpError(529, "overloaded", retry_after=0.01)]
    scripts = [mistaken, overloaded, [Text("Done.")], [Text("And again.")]]
    async with (
        ScriptedProvider("anthropic", scripts) as provider,
        AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=desk.cs.httpx2_client()) as client,
        desk.cs.run("thread"),
    ):
        asked: Any = {"messages": [{"role": "user", "content": "go"}], "tools": [desk.write.schema("anthropic")]}
        for _ in range(3):
            async with client.messages.stream(model="m", max_tokens=99, **asked) as events:
                await events.get_final_message()
        assert [json.dumps(request.json).count(told) for request in provider.requests] == [0, 1, 1, 0]


# -- Pydantic AI --


@each_mistake
async def test_pydantic_ai(desk: Desk, mistake: str) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    steps, reason, told = MISTAKES[mistake]
    alone = [step for step in steps if step is not SOUND]
    scripts = [steps, [Text("Done.")], alone, [Text("Asked again.")], [Text("The next turn.")]]
    async with (
        ScriptedProvider("anthropic", scripts) as provider,
        AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=desk.cs.httpx2_client()) as client,
    ):
        model = AnthropicModel("claude-sonnet-5-5", provider=AnthropicProvider(anthropic_client=client))
        agent = pydantic_ai.Agent(model, tools=[desk.write])

        async def ask(question: str, history: Any = None) -> Any:
            async def watch(context: Any, events: Any) -> None:
                async for _ in events:
                    pass

            async with desk.cs.run("thread"):
                return await agent.run(question, message_history=history, event_stream_handler=watch)

        first = await ask("go")
        assert first.output == "Done."
        await desk.assert_only_sound_calls_ran(reason)
        assert json.dumps(messages_in(provider.requests[1])).count(told) == 1
        if reason == "truncated":
            return  # without a sound call, Pydantic AI itself ends a run in which the tokens were used up for nothing
        second = await ask("again", first.all_messages())
        assert second.output == "Asked again."
        assert desk.ran == [GOOD]
        assert json.dumps(messages_in(provider.requests[3])).count(told) == 1
        third = await ask("next", second.all_messages())
        assert third.output == "The next turn."
        assert told not in json.dumps(messages_in(provider.requests[4]))


# -- google-adk --


@pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@each_mistake
async def test_google_adk(desk: Desk, mistake: str, stream: bool) -> None:
    pytest.importorskip("google.adk")
    from google.adk.agents import LlmAgent
    from google.adk.agents.run_config import RunConfig, StreamingMode
    from google.adk.apps import App
    from google.adk.models.anthropic_llm import AnthropicLlm
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    from callstream.adk import CallstreamPlugin, tapped

    steps, reason, told = MISTAKES[mistake]
    if not stream and reason != "invalid":
        pytest.skip("an answer that is not streamed has no text that is not JSON")
    async with ScriptedProvider("anthropic", [steps, [Text("Done.")], [Text("And again.")]]) as provider:
        bare = AnthropicLlm(
            model="claude-sonnet-5-5", client=AsyncAnthropic(base_url=provider.base_url, api_key="none")
        )
        agent = LlmAgent(name="writer", model=tapped(bare, desk.cs), tools=[desk.write])
        app = App(name="app", root_agent=agent, plugins=[CallstreamPlugin(desk.cs)])
        async with InMemoryRunner(app=app) as runner:
            session = await runner.session_service.create_session(app_name="app", user_id="user")
            answers = []
            for question in ("go", "again"):
                async for event in runner.run_async(
                    user_id="user",
                    session_id=session.id,
                    new_message=types.Content(role="user", parts=[types.Part(text=question)]),
                    run_config=RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE),
                ):
                    if event.is_final_response() and event.content:
                        answers += [part.text for part in event.content.parts or () if part.text]
            assert answers == ["Done.", "And again."]
        assert provider.requests[0].json["tools"][0]["eager_input_streaming"] is True
        await desk.assert_only_sound_calls_ran(reason)
        second = json.dumps(messages_in(provider.requests[1]))
        assert told in second
        if reason == "invalid":  # the model reads its own arguments again
            assert "Storms" in second
        messages_in(provider.requests[2])
