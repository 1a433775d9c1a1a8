"""How tools, hooks and Callstream look to a type checker. Checked by test_typing.py; never run.

A line that must be refused carries an ignore comment, and the checker complains where that is not needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

from anthropic import Anthropic, AsyncAnthropic
from google.genai import types as genai_types
from google.genai.client import AsyncClient
from openai import AsyncOpenAI, OpenAI

from callstream import Callstream, Run, Streamed, SyncRun
from callstream.calls import Call
from callstream.hooks.deltas import ArgsDelta, FieldDelta
from callstream.tools import AbortSignal, Hooks, Progress, Tool, is_tool, no_progress, tool


@tool
async def write(title: str, size: int = 1, progress: Progress = no_progress) -> dict[str, int]:
    await progress(1, 2, "half")
    return {title: size}


@tool(name="count", hook_timeout=2.0, on_hook_error="isolate")
def count(limit: int) -> Iterator[int]:
    yield limit


@tool
async def stream(limit: int) -> AsyncIterator[int]:
    yield limit


@tool(start="early")
async def read(title: str, content: Streamed[str]) -> int:
    async for piece in content:
        assert_type(piece, str)
    return len(content.text)


@tool
def turn_pages(pages: Streamed[list[int]]) -> int:
    for page in pages:
        assert_type(page, int)
    return len(pages.items)


async def calls() -> None:
    assert_type(await read("a", Streamed.of("b")), int)
    assert_type(turn_pages(Streamed.of(1, 2)), int)
    assert_type(await write("a"), dict[str, int])
    assert_type(await write("a", size=2, progress=no_progress), dict[str, int])
    assert_type(count(3), Iterator[int])
    assert_type(stream(3), AsyncIterator[int])
    await write(3)  # type: ignore[arg-type]
    await write()  # type: ignore[call-arg]
    count("x")  # type: ignore[arg-type]


write.schema("other")  # type: ignore[arg-type]
tool(start="other")  # type: ignore[call-overload]
tool(check="other")  # type: ignore[call-overload]
tool(on_hook_error="other")  # type: ignore[call-overload]


@write.on_args_delta
async def preview(delta: ArgsDelta, signal: AbortSignal) -> None:
    assert_type(delta.text, str)
    assert_type(await signal.wait(), str)


@write.on_field("content")
def grow(field: FieldDelta, signal: AbortSignal) -> None:
    assert_type(field.complete, bool)


@write.on_args_complete
async def ready(call: Call, signal: AbortSignal) -> None: ...


@write.on_args_abort
async def undo(call: Call, reason: str) -> None: ...


async def registered_hooks_stay_what_they_were(call: Call, signal: AbortSignal) -> None:
    assert_type(await undo(call, "stopped"), None)
    await undo(call, signal)  # type: ignore[arg-type]


write.on_args_delta(undo)  # type: ignore[type-var]
write.on_args_abort(ready)  # type: ignore[type-var]


@write.on_args_delta  # type: ignore[type-var]
async def too_few(delta: ArgsDelta) -> None: ...


def takes_any_tool(made: Tool[Any], hooks: Hooks, thing: object) -> None:
    hooks.on_args_delta(preview)
    if is_tool(thing):
        assert_type(thing.hooks, Hooks)


takes_any_tool(write, write.hooks, count)

# Tools of different kinds, in one list
several = [write, count, stream]
by_name = {"write": write, "count": count}
Callstream(tools=several)
Callstream(tools=by_name.values())
for each in several:
    assert_type(each.hooks, Hooks)  # pyright: ignore[reportAssertTypeFailure]  # it gives up on three functions
    takes_any_tool(each, each.hooks, each)


async def declares_tools_to_sdks(cs: Callstream) -> str:
    """An SDK takes what ``schema`` gives, its client ``http_client()``, and a run does not swallow what is raised."""
    claude = AsyncAnthropic(http_client=cs.http_client())
    async with cs.run("thread", rejected="forward") as run:
        assert_type(run, Run)
        tools = [each.schema("anthropic") for each in several]
        await claude.messages.create(model="m", max_tokens=1, messages=[], tools=tools)
        assert_type(run.refusals()[0].text, str)
        return "so nothing is missing after this"


def declares_tools_to_sync_sdks(cs: Callstream) -> str:
    claude = Anthropic(http_client=cs.sync_http_client())
    with cs.run("thread") as run:
        assert_type(run, SyncRun)
        claude.messages.create(
            model="m", max_tokens=1, messages=[], tools=[each.schema("anthropic") for each in several]
        )
        assert_type(run.run_tools()[0].text, str)
        return "so nothing is missing after this"


async def declares_tools_to_every_sdk(
    claude: AsyncAnthropic, gpt: AsyncOpenAI, sync_gpt: OpenAI, gemini: AsyncClient
) -> None:
    """What ``schema`` gives is what each SDK's ``tools`` takes, in each of the forms that it takes."""
    for_claude = [write.schema("anthropic"), count.schema("anthropic")]
    await claude.messages.create(model="m", max_tokens=1, messages=[], tools=for_claude)
    await claude.beta.messages.create(model="m", max_tokens=1, messages=[], tools=for_claude)
    for_chat = [write.schema("openai"), count.schema("openai_chat")]
    await gpt.chat.completions.create(model="m", messages=[], tools=for_chat)
    sync_gpt.chat.completions.create(model="m", messages=[], tools=for_chat, stream=True)
    await gpt.responses.create(model="m", input="go", tools=[write.schema("openai_responses")])
    declared = genai_types.Tool(function_declarations=[write.schema("gemini")])
    await gemini.models.generate_content(
        model="m", contents="go", config=genai_types.GenerateContentConfig(tools=[declared])
    )
    await gemini.models.generate_content(
        model="m", contents="go", config={"tools": [{"function_declarations": [write.schema("gemini")]}]}
    )


def hears_by_position(name: str, call_id: str, data: Any) -> None: ...
async def hears_by_name(*, tool_name: str, function_call_id: str, data: Any) -> None: ...
def hears_too_little(data: Any) -> None: ...


Callstream(on_tool_progress=hears_by_position)
Callstream(on_tool_progress=hears_by_name)
Callstream(on_tool_progress=hears_too_little)  # type: ignore[arg-type]

Callstream("sqlite:///calls.db", [write, count], on_tool_progress=lambda name, call_id, data: None)
Callstream(journal=3)  # type: ignore[arg-type]
Callstream(tool=[write])  # type: ignore[call-arg]
