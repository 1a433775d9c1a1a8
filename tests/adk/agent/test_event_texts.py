"""Text that no model wrote, or that a callback changed: clients see what google-adk's own events say, each text once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import pytest
from google.adk.agents import BaseAgent, SequentialAgent
from google.adk.apps import App
from google.adk.code_executors import UnsafeLocalCodeExecutor
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.workflow import START, Workflow
from google.genai import types
from pydantic import BaseModel

from callstream import Callstream
from callstream.adk import ADKAgent
from callstream.adk.eventtexts import MAX_IMAGE
from callstream.events import TextAppended
from callstream.testing import Finish, HttpError, Text, Thought, ToolCall
from tests.adk.hosting import PATHS, STREAMED, WHOLE, Models, agent_of, scripted

from .clients import Client, kinds
from .test_run import gemini_on

ANSWER = [Text("The code is 1234."), Finish()]


def content(text: str) -> types.Content:
    return types.Content(role="model", parts=[types.Part(text=text)])


async def bare_texts(root: Any, plugins: list[BasePlugin], config: Any) -> list[str]:
    """The texts of google-adk's own events, without the plugin."""
    app = App(name="app", root_agent=root, plugins=plugins)
    runner = Runner(app=app, session_service=InMemorySessionService(), auto_create_session=True)
    events = [
        event
        async for event in runner.run_async(
            user_id="user", session_id="bare", new_message=types.UserContent("Go"), run_config=config
        )
    ]
    whole = (event.content.parts or [] for event in events if not event.partial and event.content)
    texts = ("".join(part.text for part in parts if part.text and not part.thought) for parts in whole)
    return [text for text in texts if text]


async def seen_texts(
    cs: Callstream, root: Any, plugins: list[BasePlugin], config: Any, thread_id: str = "thread"
) -> list[str]:
    """The messages of the assistant that a client has after a run; one that loads the thread later has the same."""
    app = App(name="app", root_agent=root, plugins=plugins)
    agent = ADKAgent.from_app(app, user_id="user", callstream=cs, run_config_factory=lambda _: config)
    client = Client(agent, thread_id)
    events = await client.send("Go")
    assert events[-1]["type"] == "RUN_FINISHED", events[-1]
    loaded = await agent.thread_state(thread_id)
    assert loaded is not None
    seen = [
        [each["content"] for each in messages if each["role"] == "assistant" and each.get("content")]
        for messages in (client.messages, loaded["messages"])
    ]
    assert seen[0] == seen[1]
    return seen[0]


async def check(
    cs: Callstream,
    models: Models,
    make: Callable[[Any], Any],
    script: list[Any] = [ANSWER],  # noqa: B006
    *,
    path: str = "tap",
    plugins: Callable[[], list[BasePlugin]] = list,
    config: Any = STREAMED,
) -> list[str]:
    """What clients see; it is what google-adk itself shows."""
    async with scripted("gemini", script) as provider, gemini_on(path, models, provider) as model:
        seen = await seen_texts(cs, make(model), plugins(), config)
    async with scripted("gemini", script) as provider, gemini_on("partial", models, provider) as model:
        assert seen == await bare_texts(make(model), plugins(), config)
    return seen


# -- agents and nodes --


class Plain(BaseAgent):
    async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
        yield Event(author=self.name, content=content("Whole."))
        yield Event(author=self.name, content=content("In pie"), partial=True)
        yield Event(author=self.name, content=content("ces."), partial=True)
        yield Event(author=self.name, content=content("In pieces."))
        yield Event(author=self.name, content=content("Said before"), partial=True)
        yield Event(author=self.name, content=content("Said before, and after."))
        yield Event(author=self.name, content=content("Said before, and after."))


async def test_a_custom_agent(cs: Callstream, models: Models) -> None:
    seen = await check(cs, models, lambda _: Plain(name="plain"))
    assert seen == ["Whole.", "In pieces.", "Said before, and after.", "Said before, and after."]


async def test_pieces_are_shown_as_they_come(cs: Callstream) -> None:
    await seen_texts(cs, Plain(name="plain"), [], STREAMED)
    [run] = await cs.journal.runs()
    records = [record async for record in cs.journal.read(run.run_id) if isinstance(record.event, TextAppended)]
    assert [record.event.text for record in records if isinstance(record.event, TextAppended)] == [
        "Whole.",
        "In pie",
        "ces.",
        "Said before",
        ", and after.",
        "Said before, and after.",
    ]
    assert {record.author for record in records} == {"plain"}


async def test_thoughts_of_a_custom_agent_are_no_text(cs: Callstream) -> None:
    class Thinker(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
            thought = types.Part(text="Hm.", thought=True)
            yield Event(author=self.name, content=types.Content(parts=[thought]), partial=True)
            yield Event(author=self.name, content=types.Content(parts=[thought, types.Part(text="So.")]))
            yield Event(author="user", content=types.UserContent("The user's own."))

    client = Client(ADKAgent(adk_agent=Thinker(name="thinker"), app_name="app", user_id="user", callstream=cs))
    events = await client.send("Go")
    assert client.text() == "So."
    assert [each["delta"] for each in events if each["type"] == "REASONING_MESSAGE_CONTENT"] == ["Hm."]


def returns_event(node_input: Any) -> Event:
    return Event(content=content("Content of an event."), output="x")


async def yields_message(node_input: Any) -> AsyncIterator[Event]:
    yield Event(message="A message.")  # type: ignore[call-arg]
    yield Event(output="out")


def returns_content(node_input: Any) -> types.Content:
    return content("A content.")


def returns_value(node_input: Any) -> str:
    return "just a value"


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (returns_event, ["Content of an event."]),
        (yields_message, ["A message."]),
        (returns_content, ["A content."]),
        (returns_value, []),
    ],
)
async def test_a_node_of_a_workflow(node: Any, text: list[str], cs: Callstream, models: Models) -> None:
    assert await check(cs, models, lambda _: Workflow(name="flow", edges=[(START, node)])) == text


@pytest.mark.parametrize("path", PATHS)
async def test_models_beside_other_agents(path: str, cs: Callstream, models: Models) -> None:
    """Each text once, in order: that of a model is not taken from its events again."""

    def make(model: Any) -> Any:
        return SequentialAgent(name="all", sub_agents=[Plain(name="first"), agent_of(model), Plain(name="last")])

    seen = await check(cs, models, make, path=path)
    assert seen[4:5] == ["The code is 1234."]
    assert len(seen) == 9


@pytest.mark.parametrize("path", PATHS)
async def test_an_agent_as_a_node(path: str, cs: Callstream, models: Models) -> None:
    def make(model: Any) -> Any:
        return Workflow(name="flow", edges=[(START, agent_of(model, output_key="said"), returns_content)])

    assert await check(cs, models, make, path=path) == ["The code is 1234.", "A content."]


# -- callbacks --


@pytest.mark.parametrize("path", PATHS)
async def test_callbacks_around_an_agent(path: str, cs: Callstream, models: Models) -> None:
    def after(callback_context: Any) -> types.Content:
        return content("After.")

    def make(model: Any) -> Any:
        return agent_of(model, after_agent_callback=after, output_key="said")

    assert await check(cs, models, make, path=path) == ["The code is 1234.", "After."]


async def test_a_callback_in_place_of_an_agent(cs: Callstream, models: Models) -> None:
    def before(callback_context: Any) -> types.Content:
        return content("Not today.")

    assert await check(cs, models, lambda model: agent_of(model, before_agent_callback=before)) == ["Not today."]


@pytest.mark.parametrize("config", [STREAMED, WHOLE])
async def test_a_callback_in_place_of_a_model(config: Any, cs: Callstream, models: Models) -> None:
    def before(callback_context: Any, llm_request: Any) -> LlmResponse:
        return LlmResponse(content=content("I must not."))

    seen = await check(cs, models, lambda model: agent_of(model, before_model_callback=before), config=config)
    assert seen == ["I must not."]


@pytest.mark.parametrize("path", PATHS)
async def test_a_callback_after_a_model_failed(path: str, cs: Callstream, models: Models) -> None:
    def failed(callback_context: Any, llm_request: Any, error: Exception) -> LlmResponse:
        return LlmResponse(content=content("Try again later."))

    def make(model: Any) -> Any:
        return agent_of(model, on_model_error_callback=failed)

    assert await check(cs, models, make, [[HttpError(500, "broken")]], path=path) == ["Try again later."]


class EarlyEnd(BasePlugin):
    async def before_run_callback(self, *, invocation_context: Any) -> types.Content:
        return content("Closed.")


async def test_a_plugin_that_answers_for_all(cs: Callstream, models: Models) -> None:
    assert await check(cs, models, agent_of, plugins=lambda: [EarlyEnd("early")]) == ["Closed."]


# -- a callback that changes what the model said --


def redact(callback_context: Any, llm_response: LlmResponse) -> LlmResponse:
    parts = (llm_response.content and llm_response.content.parts) or []
    kept = [part for part in parts if not part.text]
    text = "".join(part.text for part in parts if part.text and not part.thought)
    said = [types.Part(text="".join("*" if char.isdigit() else char for char in text))] if text else []
    return LlmResponse(content=types.Content(role="model", parts=said + kept), finish_reason=llm_response.finish_reason)


def redact_in_place(callback_context: Any, llm_response: LlmResponse) -> None:
    for part in (llm_response.content and llm_response.content.parts) or ():
        if part.text:
            part.text = "".join("*" if char.isdigit() else char for char in part.text)


class Redacting(BasePlugin):
    async def after_model_callback(self, *, callback_context: Any, llm_response: LlmResponse) -> LlmResponse:
        return redact(callback_context, llm_response)


@pytest.mark.parametrize("config", [STREAMED, WHOLE])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("callback", [redact, redact_in_place, Redacting])
async def test_what_is_redacted_is_never_shown(
    callback: Any, path: str, config: Any, cs: Callstream, models: Models
) -> None:
    def make(model: Any) -> Any:
        return agent_of(model, **({} if callback is Redacting else {"after_model_callback": callback}))

    plugins: Any = (lambda: [Redacting("redacting")]) if callback is Redacting else list
    script = [[Thought("It is 1234."), Text("The code is 1234."), Text(" Keep it, 5."), Finish()]]
    seen = await check(cs, models, make, script, path=path, plugins=plugins, config=config)
    assert seen == ["The code is ****. Keep it, *."]
    [run] = await cs.journal.runs()
    told = [record.event async for record in cs.journal.read(run.run_id)]
    assert "is 1234" not in repr(told)  # ids are random digits


@pytest.mark.parametrize("path", PATHS)
async def test_calls_of_a_redacted_answer_are_shown_with_it(path: str, cs: Callstream, models: Models) -> None:
    def write(title: str, body: str) -> str:
        """Writes."""
        return "written"

    args = {"title": "A wave", "body": "It rises, and it falls.\n" * 5}
    script = [[Text("I write 1."), ToolCall("write", args), Finish()], [Text("Done 2."), Finish()]]
    async with scripted("gemini", script) as provider, gemini_on(path, models, provider) as model:
        agent = agent_of(model, write, after_model_callback=redact)
        client = Client(ADKAgent(adk_agent=agent, app_name="app", user_id="user", callstream=cs))
        events = await client.send("Go")
    [call] = client.calls()
    assert call["args"] == args
    assert kinds(events).count("TOOL_CALL_ARGS") == 1
    assert client.text() == "I write *.Done *."


@pytest.mark.parametrize("path", PATHS)
async def test_only_the_whole_answer_is_replaced(path: str, cs: Callstream, models: Models) -> None:
    """A callback that leaves the pieces alone: they are shown to nobody before it has judged the whole."""

    def replace(callback_context: Any, llm_response: LlmResponse) -> LlmResponse | None:
        return None if llm_response.partial else LlmResponse(content=content("Something else."))

    async with scripted("gemini", [ANSWER]) as provider, gemini_on(path, models, provider) as model:
        seen = await seen_texts(cs, agent_of(model, after_model_callback=replace), [], STREAMED)
    assert seen == ["Something else."]


@pytest.mark.parametrize("path", PATHS)
async def test_a_callback_that_lets_only_whole_answers_through(path: str, cs: Callstream, models: Models) -> None:
    def whole_only(callback_context: Any, llm_response: LlmResponse) -> LlmResponse:
        return LlmResponse() if llm_response.partial else redact(callback_context, llm_response)

    seen = await check(cs, models, lambda model: agent_of(model, after_model_callback=whole_only), path=path)
    assert seen == ["The code is ****."]


# -- what google-adk makes of a model's answer --


class Found(BaseModel):
    city: str


@pytest.mark.parametrize("path", PATHS)
async def test_a_result_with_a_schema(path: str, cs: Callstream, models: Models) -> None:
    def look(city: str) -> str:
        """Looks."""
        return city

    def make(model: Any) -> Any:
        return agent_of(model, look, output_schema=Found, output_key="found")

    script = [[ToolCall("set_model_response", {"city": "Rome"}), Finish()], ANSWER]
    await check(cs, models, make, script, path=path)


def only_look(callback_context: Any, llm_response: LlmResponse) -> None:
    """A callback that changes nothing."""


@pytest.mark.parametrize("config", [STREAMED, WHOLE])
@pytest.mark.parametrize("callback", [None, only_look])
@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_with_code_is_shown_once(
    path: str, callback: Any, config: Any, cs: Callstream, models: Models
) -> None:
    """google-adk runs the code and makes another event of the answer."""
    script = [[Text("I compute.\n```python\nprint(6 * 7)\n```"), Finish()], ANSWER]
    async with scripted("gemini", script) as provider, gemini_on(path, models, provider) as model:
        agent = agent_of(model, code_executor=UnsafeLocalCodeExecutor(), after_model_callback=callback)
        seen = await seen_texts(cs, agent, [], config)
    said, printed, then = seen
    assert (said.strip()[:10], then[:10]) == ("I compute.", "The code i")
    assert "```python\nprint(6 * 7)\n```" in seen[0]
    assert "42" in printed


PICTURE = types.Blob(data=b"picture", mime_type="image/png")


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (types.Part(inline_data=PICTURE), "![image/png](data:image/png;base64,cGljdHVyZQ==)"),
        (types.Part(inline_data=types.Blob(data=b"ab", mime_type="audio/wav")), "(audio/wav, 2 bytes)"),
        (types.Part(inline_data=types.Blob(data=b"ab")), "(application/octet-stream, 2 bytes)"),
        (
            types.Part(inline_data=types.Blob(data=b"a" * (MAX_IMAGE + 1), mime_type="image/png")),
            "(image/png, 1,048,577 bytes)",
        ),
        (types.Part.from_uri(file_uri="gs://a/b.pdf", mime_type="application/pdf"), "[application/pdf](gs://a/b.pdf)"),
        (
            types.Part(executable_code=types.ExecutableCode(code="1 + 1", language=types.Language.PYTHON)),
            "```python\n1 + 1\n```",
        ),
        (
            types.Part(code_execution_result=types.CodeExecutionResult(outcome=types.Outcome.OUTCOME_OK, output="2\n")),
            "```\n2\n```",
        ),
        (types.Part(code_execution_result=types.CodeExecutionResult(outcome=types.Outcome.OUTCOME_OK)), None),
    ],
)
async def test_what_an_agent_shows_that_is_not_text(part: types.Part, shown: str | None, cs: Callstream) -> None:
    class Painter(BaseAgent):
        async def _run_async_impl(self, ctx: Any) -> AsyncGenerator[Event, None]:
            whole = types.Content(role="model", parts=[types.Part(text="Look:"), part])
            yield Event(author=self.name, invocation_id=ctx.invocation_id, content=whole)

    seen = await seen_texts(cs, Painter(name="painter"), [], STREAMED)
    assert seen == ["Look:" if shown is None else f"Look:\n{shown}\n"]
