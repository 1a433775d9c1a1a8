"""Tools that a framework calls by itself: which of the model's calls each of them runs for, and what follows from it.

The framework is the smallest there is: it asks, runs the tools that it was given with arguments of its own making, and
tells the model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from callstream import Callstream, Reject, Streamed, tool
from callstream.errors import CallRejected
from callstream.testing import ScriptedProvider, Text, ToolCall

ARGS = {"title": "Tides ", "options": {"deep": True}}


class TooManyTurns(Exception):
    """The framework gives up."""


async def agent(
    provider: ScriptedProvider,
    cs: Callstream,
    tools: list[Any],
    *,
    normalise: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    max_turns: int = 5,
) -> str:
    known = {each.__name__: each for each in tools}
    messages: list[Any] = [{"role": "user", "content": "go"}]
    async with openai.AsyncOpenAI(
        base_url=provider.base_url, api_key="none", http_client=cs.http_client(), max_retries=0
    ) as client:
        for _ in range(max_turns):
            declared: Any = [each.schema("openai_chat") for each in tools if hasattr(each, "schema")]
            async with client.chat.completions.stream(model="m", messages=messages, tools=declared) as stream:
                answer = (await stream.get_final_completion()).choices[0].message
            if not answer.tool_calls:
                return answer.content or ""
            messages.append(answer.to_dict())
            for call in answer.tool_calls:
                try:
                    result = await known[call.function.name](**normalise(json.loads(call.function.arguments)))
                except CallRejected as rejected:
                    result = f"error: {rejected}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    raise TooManyTurns


def stripped(args: dict[str, Any]) -> dict[str, Any]:
    """As frameworks do: text without spaces around it, and defaults filled in."""
    return {**args, "title": args["title"].strip(), "options": {**args["options"], "wide": False}}


async def test_an_early_tool_runs_once_though_its_arguments_were_changed() -> None:
    ran: list[Any] = []

    @tool(start="early")
    async def write(title: str, options: dict[str, bool]) -> str:
        """Writes."""
        ran.append((title, options))
        return f"wrote {len(ran)}"

    calls = [ToolCall("write", ARGS, call_id="c1"), ToolCall("write", {**ARGS, "title": "Storms "}, call_id="c2")]
    async with Callstream(tools=[write]) as cs, ScriptedProvider("openai_chat", [calls, [Text("Done.")]]) as provider:
        async with cs.run("thread") as run:
            assert await agent(provider, cs, [write], normalise=stripped) == "Done."
        assert [title for title, _ in ran] == ["Tides ", "Storms "]
        assert [str(call.state) for call in run.calls] == ["completed", "completed"]
        told = [each["content"] for each in provider.requests[1].json["messages"] if each["role"] == "tool"]
        assert told == ["wrote 1", "wrote 2"]


async def test_a_streamed_tool_runs_once_though_its_arguments_were_changed() -> None:
    ran: list[str] = []

    @tool
    async def write(content: Streamed[str]) -> str:
        """Writes."""
        ran.append("".join([piece async for piece in content]))
        return "written"

    script = [[ToolCall("write", {"content": " The moon. "}, call_id="c1")], [Text("Done.")]]
    async with Callstream(tools=[write]) as cs, ScriptedProvider("openai_chat", script) as provider, cs.run("thread"):
        assert (
            await agent(provider, cs, [write], normalise=lambda args: {"content": args["content"].strip()}) == "Done."
        )
    assert ran == [" The moon. "]


async def test_calls_in_another_order_get_their_own_results() -> None:
    @tool(start="early")
    async def write(title: str, size: int) -> str:
        """Writes."""
        return title

    async with Callstream(tools=[write]) as cs, cs.run("thread") as run:
        response = run.response("openai_chat")
        calls = [ToolCall("write", {"title": title, "size": 1}, call_id=title) for title in ("one", "two")]
        async with ScriptedProvider("openai_chat", calls) as provider, response:
            import httpx

            async with httpx.AsyncClient() as http:
                body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "go"}]}
                answer = await http.post(f"{provider.base_url}/chat/completions", json=body)
            await response.feed(answer.content)
        assert await write(title="two", size=1) == "two"
        assert await write(title="one ", size=1) == "one"
        assert await write(title="three", size=1) == "three"


async def test_a_tool_of_a_rejected_call_refuses_to_run_where_calls_are_forwarded() -> None:
    ran: list[str] = []

    @tool
    async def write(title: str, options: dict[str, bool]) -> str:
        """Writes."""
        ran.append(title)
        return "written"

    @write.on_args_complete
    async def judge(call: Any, signal: Any) -> None:
        if call.args["title"] == "Secrets":
            raise Reject("nobody may write about secrets")

    secret = ToolCall("write", {**ARGS, "title": "Secrets"}, call_id="c1")
    script = [[secret, ToolCall("write", ARGS, call_id="c2")], [Text("Done.")]]
    async with Callstream(tools=[write]) as cs, ScriptedProvider("openai_chat", script) as provider:
        async with cs.run("thread", rejected="forward") as run:
            assert await agent(provider, cs, [write], normalise=stripped) == "Done."
        assert ran == ["Tides"]
        assert [(str(call.state), call.reason) for call in run.calls] == [
            ("discarded", "rejected"),
            ("completed", None),
        ]
        told = [each["content"] for each in provider.requests[1].json["messages"] if each["role"] == "tool"]
        assert told == ["error: nobody may write about secrets", "written"]


@pytest.mark.parametrize("is_given", [True, False], ids=["of this Callstream", "known by name"])
@pytest.mark.parametrize("error", [TooManyTurns, asyncio.CancelledError])
async def test_what_a_tool_has_done_is_not_undone(error: type[BaseException], is_given: bool) -> None:
    """The framework ran the tool; then the run ended before the next request could have told the result."""
    ran: list[str] = []
    undone: list[str] = []

    async def plain(title: str, options: dict[str, bool]) -> str:
        """Writes."""
        ran.append(title)
        if error is asyncio.CancelledError:
            raise asyncio.CancelledError
        return "written"

    plain.__name__ = "write"
    write: Any = tool(plain) if is_given else plain
    async with (
        Callstream(tools=[write] if is_given else []) as cs,
        ScriptedProvider("openai_chat", [ToolCall("write", ARGS, call_id="c1")]) as provider,
    ):
        cs.on_args_abort("write", lambda call, reason: undone.append(reason))
        with pytest.raises(error):
            async with cs.run("thread") as run:
                await agent(provider, cs, [write], normalise=stripped, max_turns=1)
        assert ran == ["Tides"]
        assert [str(call.state) for call in run.calls] == ["released"]
        assert undone == []
        kept = await cs.journal.call("c1")
        assert kept is not None
        assert str(kept.state) == "released"


async def test_what_no_tool_has_done_is_undone() -> None:
    undone: list[str] = []

    @tool
    async def write(title: str, options: dict[str, bool]) -> str:
        """Writes."""
        raise NotImplementedError

    @write.on_args_abort
    def undo(call: Any, reason: str) -> None:
        undone.append(reason)

    def fail(args: dict[str, Any]) -> dict[str, Any]:
        raise TooManyTurns  # before the tool

    async with (
        Callstream(tools=[write]) as cs,
        ScriptedProvider("openai_chat", [ToolCall("write", ARGS, call_id="c1")]) as provider,
    ):
        with pytest.raises(TooManyTurns):
            async with cs.run("thread") as run:
                await agent(provider, cs, [write], normalise=fail)
        assert [str(call.state) for call in run.calls] == ["discarded"]
        assert undone == ["interrupted"]


@pytest.mark.parametrize("start", ["end", "early"])
@pytest.mark.parametrize("way", ["framework", "run_tools"])
async def test_a_tool_can_find_out_its_own_call(way: str, start: Any) -> None:
    from callstream.tools import current_call

    found: list[Any] = []

    @tool
    def helper() -> None:
        """Helps."""
        call = current_call()
        found.append(call and call.call_id)

    @tool(start=start)
    async def write(title: str, options: dict[str, bool]) -> str:
        """Writes."""
        call = current_call()
        found.append(call and (call.call_id, call.args["title"]))
        helper()
        return "written"

    calls = [ToolCall("write", ARGS, call_id="c1"), ToolCall("write", {**ARGS, "title": "Storms"}, call_id="c2")]
    async with (
        Callstream(tools=[write, helper]) as cs,
        ScriptedProvider("openai_chat", [calls, [Text("Done.")]]) as provider,
        cs.run("thread") as run,
    ):
        if way == "framework":
            await agent(provider, cs, [write], normalise=stripped)
        else:
            with pytest.raises(TooManyTurns):
                await agent(provider, cs, [write], max_turns=0)
            async with openai.AsyncOpenAI(
                base_url=provider.base_url, api_key="none", http_client=cs.http_client()
            ) as client:
                one: Any = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
                async for _ in await client.chat.completions.create(**one, stream=True):
                    pass
            await run.run_tools()
        assert found == [("c1", "Tides "), "c1", ("c2", "Storms"), "c2"]
        assert current_call() is None
