"""What an application takes out is shown to nobody and journaled nowhere, whichever extension point takes it out."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent, SequentialAgent
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.adk.planners import BasePlanner, BuiltInPlanner, PlanReActPlanner
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.logging_plugin import LoggingPlugin
from google.genai import types

from callstream import Call, CallState, Callstream, tool
from callstream.adk import ADKAgent, observes
from callstream.testing import Finish, Text, Thought, ToolCall
from tests.adk.hosting import PATHS, STREAMED, WHOLE, Host, Models, agent_of, responses_in, scripted

from .clients import Client, kinds

SECRET = "s3cr3t"
HIDDEN = "******"
CALL = ToolCall("keep", {"word": SECRET, "number": 7})
IN_PIECES = [Text("The word is s3c"), Text("r3t, I think.")]
IN_ONE = [Text("The word is s3cr3t, I think.")]


def script_of(texts: list[Text]) -> list[Any]:
    return [[Thought(f"They say {SECRET}."), *texts, CALL, Finish()], [Text("Kept."), Finish()]]


SCRIPT = script_of(IN_PIECES)


def hidden(value: Any) -> Any:
    """Any part, value or text without the secret."""
    return json.loads(json.dumps(value).replace(SECRET, HIDDEN))


def clean(parts: list[types.Part] | None) -> list[types.Part]:
    made = []
    for part in parts or []:
        part = part.model_copy(deep=True)
        if part.text:
            part.text = part.text.replace(SECRET, HIDDEN)
        if part.function_call is not None:
            part.function_call.args = hidden(part.function_call.args or {})
        if part.function_response is not None:
            part.function_response.response = hidden(part.function_response.response)
        made.append(part)
    return made


def clean_content(content: types.Content | None) -> types.Content | None:
    return None if content is None else types.Content(role=content.role, parts=clean(content.parts))


def after_model(callback_context: Any, llm_response: LlmResponse) -> LlmResponse:
    return llm_response.model_copy(update={"content": clean_content(llm_response.content)})


def after_model_whole(callback_context: Any, llm_response: LlmResponse) -> LlmResponse | None:
    return None if llm_response.partial else after_model(callback_context, llm_response)


def after_model_in_place(callback_context: Any, llm_response: LlmResponse) -> None:
    llm_response.content = clean_content(llm_response.content)


def after_tool(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> Any:
    return hidden(tool_response)


class ModelPlugin(BasePlugin):
    async def after_model_callback(self, *, callback_context: Any, llm_response: LlmResponse) -> LlmResponse:
        return after_model(callback_context, llm_response)

    async def after_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, result: Any) -> Any:
        return hidden(result)


class EventPlugin(BasePlugin):
    async def on_event_callback(self, *, invocation_context: Any, event: Event) -> Event | None:
        return Event(author=event.author, content=clean_content(event.content))


class InPlacePlugin(BasePlugin):
    async def on_event_callback(self, *, invocation_context: Any, event: Event) -> None:
        event.content = clean_content(event.content)


class Planner(BasePlanner):
    def build_planning_instruction(self, readonly_context: Any, llm_request: Any) -> None:
        return None

    def process_planning_response(self, callback_context: Any, response_parts: Any) -> list[types.Part]:
        return clean(response_parts)


class Filtering(BaseAgent):
    """An agent of the application's own, which shows the events of another as it likes."""

    inner: Any

    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
        async for event in self.inner.run_async(ctx):
            yield event.model_copy(update={"content": clean_content(event.content)})


class Rewriting(BaseAgent):
    inner: Any

    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
        async for event in self.inner.run_async(ctx):
            if not event.partial:
                yield Event(author=event.author, invocation_id=ctx.invocation_id, content=clean_content(event.content))


async def keep(word: str, number: int) -> dict[str, str]:
    """Keeps a word."""
    return {"kept": f"{word} or {SECRET}"}


WAYS: dict[str, Callable[[Any], tuple[Any, list[BasePlugin]]]] = {
    "after_model": lambda model: (
        agent_of(model, keep, after_model_callback=after_model, after_tool_callback=after_tool),
        [],
    ),
    "after_model_whole": lambda model: (
        agent_of(model, keep, after_model_callback=after_model_whole, after_tool_callback=after_tool),
        [],
    ),
    "after_model_in_place": lambda model: (
        agent_of(model, keep, after_model_callback=after_model_in_place, after_tool_callback=after_tool),
        [],
    ),
    "plugin_after_model": lambda model: (agent_of(model, keep), [ModelPlugin("model")]),
    "plugin_on_event": lambda model: (agent_of(model, keep), [EventPlugin("event")]),
    "plugin_on_event_in_place": lambda model: (agent_of(model, keep), [InPlacePlugin("event")]),
    "planner": lambda model: (agent_of(model, keep, planner=Planner(), after_tool_callback=after_tool), []),
    "custom_agent": lambda model: (Filtering(name="filter", inner=agent_of(model, keep)), []),
}


@pytest.mark.parametrize(("config", "texts"), [(STREAMED, IN_PIECES), (WHOLE, IN_ONE)], ids=["streamed", "whole"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("way", WAYS)
async def test_what_an_application_takes_out_is_never_shown(
    way: str, path: str, config: Any, texts: list[Text], cs: Callstream, models: Models
) -> None:
    async with scripted("gemini", script_of(texts)) as provider:
        root, plugins = WAYS[way](models(provider, path))
        app = App(name="app", root_agent=root, plugins=plugins)
        client = Client(ADKAgent.from_app(app, user_id="u", callstream=cs, run_config_factory=lambda _: config))
        events = await client.send("Go")
    assert events[-1]["type"] == "RUN_FINISHED", events[-1]
    [run] = await cs.journal.runs()
    told = [record.event async for record in cs.journal.read(run.run_id)]
    for seen in (repr(events), repr(told), repr(client.messages), repr(await cs.journal.calls())):
        assert SECRET not in seen
        assert "s3c" not in seen  # nor a piece of it
    [call] = client.calls()
    assert call["args"] == {"word": HIDDEN, "number": 7}
    assert HIDDEN in call["result"]
    assert client.text() == f"The word is {HIDDEN}, I think.Kept."
    reasoning = "".join(each["delta"] for each in events if each["type"] == "REASONING_MESSAGE_CONTENT")
    assert reasoning == f"They say {HIDDEN}."
    [kept] = await cs.journal.calls()
    assert (kept.state, kept.name) == (CallState.COMPLETED, "keep")


@pytest.mark.parametrize("path", PATHS)
async def test_an_agent_that_writes_its_own_events_of_anothers(path: str, cs: Callstream, models: Models) -> None:
    async with scripted("gemini", SCRIPT) as provider:
        host = Host(cs, Rewriting(name="rewriter", inner=agent_of(models(provider, path), keep)))
        await host.run()
    [run] = await cs.journal.runs()
    told = [record.event async for record in cs.journal.read(run.run_id)]
    assert SECRET not in repr(told)
    [kept] = await cs.journal.calls()
    assert kept.state is CallState.COMPLETED


@pytest.mark.parametrize("path", PATHS)
async def test_a_call_that_a_callback_takes_out_is_not_shown(path: str, cs: Callstream, models: Models) -> None:
    def without_calls(callback_context: Any, llm_response: LlmResponse) -> LlmResponse | None:
        parts = (llm_response.content and llm_response.content.parts) or []
        kept = [part for part in parts if part.function_call is None] or [types.Part(text="No.")]
        return llm_response.model_copy(update={"content": types.Content(role="model", parts=kept)})

    async with scripted("gemini", SCRIPT[:1]) as provider:
        host = Host(cs, agent_of(models(provider, path), keep, after_model_callback=without_calls))
        await host.run(config=WHOLE)
    assert await cs.journal.calls() == []


@pytest.mark.parametrize("path", PATHS)
async def test_the_tool_runs_on_what_it_is_given_though_something_else_is_shown(
    path: str, cs: Callstream, models: Models
) -> None:
    """A plugin that changes a copy of the event changes what is shown, not what the tool gets."""
    ran: list[Any] = []

    @tool
    async def count(word: int) -> int:
        """Counts."""
        ran.append(word)
        return word

    class Masking(BasePlugin):
        async def on_event_callback(self, *, invocation_context: Any, event: Event) -> Event | None:
            content = event.content.model_copy(deep=True) if event.content is not None else None
            for part in (content and content.parts) or ():
                if part.function_call is not None:
                    part.function_call.args = {"word": "masked"}
            return Event(author=event.author, content=content)

    script = [[ToolCall("count", {"word": 41}), Finish()], [Text("Done."), Finish()]]
    async with scripted("gemini", script) as provider:
        host = Host(cs, agent_of(models(provider, path), count), plugins=[Masking("masking")])
        await host.run()
    assert ran == [41]
    [call] = await host.calls()
    assert (call.state, call.args) == (CallState.COMPLETED, {"word": "masked"})


@pytest.mark.parametrize("path", PATHS)
async def test_arguments_that_a_callback_repairs_are_run(path: str, cs: Callstream, models: Models) -> None:
    ran: list[Any] = []

    @tool
    async def count(number: int) -> int:
        """Counts."""
        ran.append(number)
        return number

    def repair(callback_context: Any, llm_response: LlmResponse) -> None:
        for part in (llm_response.content and llm_response.content.parts) or ():
            if part.function_call is not None:
                part.function_call.args = {"number": 7}

    script = [[ToolCall("count", {"number": "seven"}), Finish()], [Text("Done."), Finish()]]
    async with scripted("gemini", script) as provider:
        host = Host(cs, agent_of(models(provider, path), count, after_model_callback=repair))
        await host.run()
    assert ran == [7]
    [call] = await host.calls()
    assert (call.state, call.args) == (CallState.COMPLETED, {"number": 7})


# -- planners --


@pytest.mark.parametrize("config", [STREAMED, WHOLE], ids=["streamed", "whole"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_plan_is_reasoning_and_not_the_answer(path: str, config: Any, cs: Callstream, models: Models) -> None:
    plan = ["/*PLANNING*/ Look it up. /*FINAL_", "ANSWER*/ It is 42."]
    script = [[*map(Text, plan if config is STREAMED else ["".join(plan)]), Finish()]]
    async with scripted("gemini", script) as provider:
        agent = agent_of(models(provider, path), planner=PlanReActPlanner())
        client = Client(
            ADKAgent(adk_agent=agent, app_name="app", user_id="u", callstream=cs, run_config_factory=lambda _: config)
        )
        events = await client.send("Go")
    assert client.text().strip() == "It is 42."
    reasoning = "".join(each["delta"] for each in events if each["type"] == "REASONING_MESSAGE_CONTENT")
    assert "Look it up." in reasoning


# -- only there --

LONG = {"word": "It rises, and it falls. " * 10, "number": 1}
LIVE = [[Text("I wr"), Text("ite."), ToolCall("keep", LONG), Finish()], [Text("Kept."), Finish()]]


@observes
def only_look(callback_context: Any, llm_response: LlmResponse) -> None:
    """Looks, and changes nothing."""


@observes
class Watching(BasePlugin):
    async def on_event_callback(self, *, invocation_context: Any, event: Event) -> None:
        """Watches, and changes nothing."""


@observes
class Passing(BaseAgent):
    inner: Any

    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
        async for event in self.inner.run_async(ctx):
            yield event


LIVELY: dict[str, Callable[[Any], tuple[Any, list[BasePlugin]]]] = {
    "nothing": lambda model: (agent_of(model, keep), []),
    "observing callback": lambda model: (agent_of(model, keep, after_model_callback=only_look), []),
    "observing plugin": lambda model: (agent_of(model, keep), [Watching("watching")]),
    "google-adk's logging": lambda model: (agent_of(model, keep), [LoggingPlugin()]),
    "built-in planner": lambda model: (
        agent_of(model, keep, planner=BuiltInPlanner(thinking_config=types.ThinkingConfig())),
        [],
    ),
    "observing agent": lambda model: (Passing(name="passing", inner=agent_of(model, keep)), []),
    "judged before": lambda model: (
        SequentialAgent(
            name="both", sub_agents=[Filtering(name="filter", inner=Silent(name="silent")), agent_of(model, keep)]
        ),
        [],
    ),
}


class Silent(BaseAgent):
    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
        return
        yield


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("way", LIVELY)
async def test_where_nothing_judges_all_stays_live(way: str, path: str, cs: Callstream, models: Models) -> None:
    async with scripted("gemini", LIVE) as provider:
        root, plugins = LIVELY[way](models(provider, path))
        client = Client(
            ADKAgent.from_app(App(name="app", root_agent=root, plugins=plugins), user_id="u", callstream=cs)
        )
        events = await client.send("Go")
    assert kinds(events).count("TOOL_CALL_ARGS") > 5
    deltas = [event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"]
    assert deltas[:2] == ["I wr", "ite."]
    [call] = client.calls()
    assert call["args"] == LONG


async def test_observes_marks_methods_too() -> None:
    class Holder:
        def look(self) -> None: ...

    assert observes(Holder().look) is not None
    assert hasattr(Holder.look, "__callstream_observes__")


@pytest.mark.parametrize("path", PATHS)
async def test_hooks_hear_what_is_shown(path: str, cs: Callstream, models: Models) -> None:
    heard: list[Any] = []

    @tool
    async def note(word: str, number: int) -> str:
        """Notes."""
        return "noted"

    @note.on_args_delta
    async def delta(piece: Any, signal: Any) -> None:
        heard.append(piece.text)

    @note.on_args_complete
    async def complete(call: Call, signal: Any) -> None:
        heard.append(call.args)

    script = [[ToolCall("note", {"word": SECRET, "number": 7}), Finish()], [Text("Done."), Finish()]]
    async with scripted("gemini", script) as provider:
        host = Host(cs, agent_of(models(provider, path), note, after_model_callback=after_model))
        events = await host.run()
    assert heard == ['{"word":"******","number":7}', {"word": HIDDEN, "number": 7}]
    assert responses_in(events)[0][1] == {"result": "noted"}
    assert isinstance(host.runner.agent, LlmAgent)


@pytest.mark.parametrize("fate", ["tell_model", "fail"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_judged_call_that_was_cut_off_does_not_run(
    path: str, fate: str, cs: Callstream, models: Models
) -> None:
    script = [
        [ToolCall("keep", {"word": SECRET, "number": 7}, stop_after=2), Finish("length")],
        [Text("Sorry."), Finish()],
    ]
    async with scripted("openai_chat", script) as provider:
        agent = agent_of(models(provider, path), keep, after_model_callback=after_model)
        host = Host(cs, agent, on_truncated=fate)
        await host.run()
    calls = await host.calls()
    assert {(call.state, call.name) for call in calls} <= {(CallState.DISCARDED, "keep")}
    assert calls
    [run] = await cs.journal.runs()
    assert SECRET not in repr([record.event async for record in cs.journal.read(run.run_id)])
