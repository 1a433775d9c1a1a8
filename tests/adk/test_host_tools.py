"""Tools under google-adk: progress, results, errors, names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools import FunctionTool
from pydantic import BaseModel

from callstream import Callstream, FieldDelta, Progress, no_progress, tool
from callstream.adk import StreamingTool
from callstream.calls import CallState
from callstream.events import CallProgressed
from callstream.testing import Finish, Text, ToolCall

from .hosting import PATHS, Host, Models, agent_of, responses_in, scripted, text_of

END = [Text("Done."), Finish()]


def note(text: str) -> str:
    return text.upper()


class Parcel(BaseModel):
    weight: int


def pack(parcel: Parcel) -> Iterator[str]:
    """Packs."""
    yield f"{type(parcel).__name__} of {parcel.weight}"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", ["async", "sync", "decorated", "streaming tool", "once"])
async def test_progress_out_of_band_of_a_generator_that_yields_three_times(
    kind: str, path: str, cs: Callstream, models: Models
) -> None:
    """It is invoked once, the run goes on, and the model has all of it."""
    invoked: list[str] = []
    reported: list[Any] = []
    cs.on_tool_progress = lambda name, call_id, data: reported.append(data)

    async def count(word: str) -> AsyncIterator[dict[str, Any]]:
        """Counts."""
        invoked.append(word)
        for number in range(1, 2 if kind == "once" else 4):
            yield {"number": number}

    def count_sync(word: str) -> Iterator[dict[str, Any]]:
        """Counts."""
        invoked.append(word)
        for number in range(1, 4):
            yield {"number": number}

    async def count_decorated(word: str, progress: Progress = no_progress) -> AsyncIterator[dict[str, Any]]:
        """Counts."""
        invoked.append(word)
        for number in range(1, 4):
            progress(number, 3)
            yield {"number": number}

    count_sync.__name__ = count_decorated.__name__ = "count"
    given: Any = {
        "async": count, "sync": count_sync, "decorated": tool(count_decorated),
        "streaming tool": StreamingTool(count), "once": count,
    }[kind]  # fmt: skip
    async with scripted("gemini", [[ToolCall("count", {"word": "x"}), Finish()], END]) as provider:
        host = Host(cs, agent_of(models(provider, path), given))
        events = await host.run()
        assert "progress" not in provider.requests[0].body.decode()
    assert invoked == ["x"]
    assert "Done." in text_of(events)
    three = {"result": [{"number": 1}, {"number": 2}, {"number": 3}]}
    assert [result for _, result in responses_in(events)] == [{"number": 1} if kind == "once" else three]
    (call,) = await host.calls()
    assert call.result == ({"number": 1} if kind == "once" else three)
    assert (reported[-1:] == [{"done": 3, "total": 3, "message": None}]) is (kind == "decorated")


@pytest.mark.parametrize("wrap", [lambda made: made, StreamingTool])
async def test_a_generator_gets_the_types_that_its_module_means(wrap: Any, cs: Callstream, models: Models) -> None:
    """Its annotations are text here, as in every module that imports annotations from the future."""
    assert pack.__annotations__["parcel"] == "Parcel"
    async with scripted("gemini", [[ToolCall("pack", {"parcel": {"weight": 3}}), Finish()], END]) as provider:
        events = await Host(cs, agent_of(models(provider), wrap(pack))).run()
    assert [result for _, result in responses_in(events)] == [{"result": "Parcel of 3"}]


@pytest.mark.parametrize("raises", [False, True])
async def test_progress_out_of_band_from_a_thread(raises: bool, cs: Callstream, models: Models) -> None:
    def handler(name: str, call_id: str, data: Any) -> None:
        if raises:
            raise RuntimeError("not my day")

    cs.on_tool_progress = handler

    @tool
    def count(progress_callback: Any) -> str:
        """Counts."""
        for number in range(3):
            progress_callback({"number": number})
        return "counted"

    async with scripted("gemini", [[ToolCall("count", {}), Finish()], END]) as provider:
        host = Host(cs, agent_of(models(provider), count))
        events = await host.run()
        assert "progress_callback" not in provider.requests[0].body.decode()
    assert "Done." in text_of(events)
    progressed = [event.data for event in await host.events() if isinstance(event, CallProgressed)]
    assert progressed[-1] == {"number": 2}


@pytest.mark.parametrize("path", PATHS)
async def test_result_is_what_the_model_reads(path: str, cs: Callstream, models: Models) -> None:
    """A callback that changes the result changes what is kept; one that makes a result of an error, too."""

    def secret() -> dict[str, str]:
        """Has a secret."""
        return {"password": "hunter2"}

    def broken() -> None:
        """Breaks."""
        raise RuntimeError("out of paper")

    class Recovery(BasePlugin):
        async def on_tool_error_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, error: Any) -> Any:
            return {"status": "failed", "why": str(error)}

    def redact(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> Any:
        return {"password": "***"} if "password" in tool_response else None

    async with scripted("gemini", [[ToolCall("secret"), ToolCall("broken"), Finish()], END]) as provider:
        agent = agent_of(models(provider, path), secret, broken, after_tool_callback=redact)
        host = Host(cs, agent, plugins=[Recovery("recovery")])
        await host.run()
        assert "hunter2" not in provider.requests[1].body.decode()
    assert [call.result for call in await host.calls()] == [
        {"password": "***"},
        {"status": "failed", "why": "out of paper"},
    ]


@pytest.mark.parametrize("path", PATHS)
async def test_tool_that_raises_fails_its_call_and_the_run(path: str, cs: Callstream, models: Models) -> None:
    def broken() -> None:
        """Breaks."""
        raise RuntimeError("out of paper")

    async with scripted("gemini", [[ToolCall("broken"), Finish()]]) as provider:
        host = Host(cs, agent_of(models(provider, path), broken))
        with pytest.raises(RuntimeError, match="out of paper"):
            await host.run()
    (call,) = await host.calls()
    assert (call.state, call.error) == (CallState.FAILED, "RuntimeError: out of paper")
    assert [run.outcome for run in await cs.journal.runs()] == ["failed"]


@pytest.mark.parametrize("path", PATHS)
async def test_tool_that_does_not_exist(path: str, cs: Callstream, models: Models) -> None:
    async with scripted("gemini", [[ToolCall("nonsense", {"a": 1}), Finish()], END]) as provider:
        host = Host(cs, agent_of(models(provider, path), note))
        assert "Done." in text_of(await host.run())
    (call,) = await host.calls()
    assert call.state is CallState.FAILED
    assert "no tool with that name" in (call.error or "")


@pytest.mark.parametrize("path", PATHS)
async def test_output_schema_still_streams(path: str, cs: Callstream, models: Models) -> None:
    """google-adk's own tool for structured output is read, and not collapsed."""

    class Answer(BaseModel):
        word: str

    args = {"word": "a long answer of many pieces"}
    async with scripted("gemini", [[ToolCall("set_model_response", args), Finish()]]) as provider:
        agent = agent_of(models(provider, path, "gemini-2.5-flash"), note, output_schema=Answer)
        host = Host(cs, agent)
        events = await host.run()
    partials = [event for event in events if event.partial and event.get_function_calls()]
    assert len(partials) > 3
    (call,) = await host.calls()
    assert (call.name, call.args, call.state) == ("set_model_response", args, CallState.COMPLETED)
    assert text_of(events) == '{"word": "a long answer of many pieces"}'


async def test_function_tool_keeps_its_hooks_under_another_name(cs: Callstream, models: Models) -> None:
    seen: list[str] = []

    @tool
    async def write(content: str) -> str:
        """Writes."""
        return "ok"

    @write.on_field("content")
    async def grow(field: FieldDelta, signal: Any) -> None:
        seen.append(field.text)

    renamed = FunctionTool(write)
    renamed.name = "docs_write"
    async with scripted("gemini", [[ToolCall("docs_write", {"content": "x"}), Finish()], END]) as provider:
        host = Host(cs, agent_of(models(provider), renamed))
        await host.run()
    assert "".join(seen) == "x"


@pytest.mark.parametrize("path", PATHS)
async def test_progress_out_of_band_to_a_handler_of_the_run(path: str, cs: Callstream, models: Models) -> None:
    """Set later, and for one run: the others keep the Callstream's own."""
    told: list[tuple[str, Any]] = []

    @tool
    async def work(n: int, progress: Progress = no_progress) -> str:
        """Works."""
        await progress({"n": n})
        return "worked"

    def script(n: int) -> Any:
        return [[ToolCall("work", {"n": n}), Finish()], [Text("Done."), Finish()]]

    async with scripted("gemini", [*script(1), *script(2), *script(3)]) as provider:
        host = Host(cs, agent_of(models(provider, path), work))
        await host.run()  # nobody listens, and the tool works all the same
        cs.on_tool_progress = lambda name, call_id, data: told.append(("all", data))
        async with cs.run("session") as run:
            run.on_tool_progress = lambda name, call_id, data: told.append((run.run_id, data))
            await host.run()
        await host.run()
    assert told == [(run.run_id, {"n": 2}), ("all", {"n": 3})]
    assert {call.state for call in await host.calls()} == {CallState.COMPLETED}
