"""What the official AG-UI client sees of google-adk apps, against what a plain Runner's events say.

``python -m tests.adk.parity`` goes through the catalogue and prints a table. Each app runs twice against scripted
providers: with a plain Runner and nothing of Callstream, and behind ``ADKAgent``, whose stream the official client folds.
Both become lists of what was said, called and returned, and by whom; nothing may be missing, doubled, in another
order or another agent's. What agents of tools do is no part of the thread, and a plain Runner shows nothing of it.
``MEANT`` has the differences that are meant, each with its reason; there are no others.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from google.adk.agents import BaseAgent, LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.apps import App
from google.adk.apps.app import EventsCompactionConfig
from google.adk.artifacts import InMemoryArtifactService
from google.adk.code_executors.unsafe_local_code_executor import UnsafeLocalCodeExecutor
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.adk.planners import BuiltInPlanner, PlanReActPlanner
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools import ToolContext, exit_loop
from google.adk.tools.agent_tool import AgentTool
from google.adk.workflow import START, JoinNode, Workflow
from google.genai import types
from pydantic import BaseModel

from callstream import Callstream
from callstream.adk import ADKAgent
from callstream.testing import Finish, ScriptedProvider, Text, Thought, ToolCall
from tests.adk.agent.clients import Client
from tests.adk.hosting import STREAMED, Models, by_agent, scripted
from tests.agui.judge import Judge, install

Item: TypeAlias = tuple[str, str | None, str]
"""What it is (text, thought, call, result), whose it is, with the tool's name where there is one, and what it says."""
Made: TypeAlias = Callable[..., LlmAgent]


class Entry(NamedTuple):
    """An app of the catalogue. ``scripts`` are by agent; ``is_ordered``: whether agents never run beside each other."""

    build: Callable[[Made], Any]
    scripts: dict[str, list[Any]]
    turns: Sequence[str] = ("Go",)
    is_ordered: bool = True
    serve: Callable[[Made, AsyncExitStack], Awaitable[Any]] | None = None
    """Starts what the app needs, and builds the app."""


class Difference(NamedTuple):
    """``missing`` and ``extra``: the kinds of items that only the plain Runner or only the client has."""

    missing: frozenset[str]
    extra: frozenset[str]
    reason: str


# -- the tools and agents of the catalogue --


def note(text: str) -> str:
    """Notes."""
    return text.upper()


def fail(text: str) -> dict[str, Any]:
    """Fails."""
    return {"error": f"no {text}"}


def nothing() -> None:
    """Says nothing."""


async def keep(text: str, tool_context: ToolContext) -> dict[str, Any]:
    """Keeps an artifact and a value."""
    part = types.Part(inline_data=types.Blob(data=text.encode(), mime_type="text/plain"))
    tool_context.state["kept"] = text
    return {"version": await tool_context.save_artifact("note.txt", part)}


class Verdict(BaseModel):
    is_fine: bool


class Custom(BaseAgent):
    """Says something, calls something, and has agents of its own."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        call = types.FunctionCall(id="custom-1", name="look", args={"at": "it"})
        response = types.FunctionResponse(id="custom-1", name="look", response={"seen": True})
        for part in (
            types.Part(text="I look."),
            types.Part(function_call=call),
            types.Part(function_response=response),
        ):
            content = types.Content(role="model", parts=[part])
            yield Event(author=self.name, invocation_id=ctx.invocation_id, branch=ctx.branch, content=content)
        for agent in self.sub_agents:
            async for event in agent.run_async(ctx):
                yield event


class Redacting(BasePlugin):
    """Takes a word out of every event."""

    async def on_event_callback(self, *, invocation_context: InvocationContext, event: Event) -> Event | None:
        for part in (event.content and event.content.parts) or ():
            if part.text:
                part.text = part.text.replace("secret", "[redacted]")
        return event


def redact(callback_context: Any, llm_response: LlmResponse) -> LlmResponse | None:
    for part in (llm_response.content and llm_response.content.parts) or ():
        if part.text:
            part.text = part.text.replace("secret", "[redacted]")
    return llm_response


def doubled(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> Any:
    return {"result": [tool_response, tool_response]}


def answered(callback_context: Any, llm_request: Any) -> LlmResponse:
    return LlmResponse(content=types.Content(role="model", parts=[types.Part(text="No model needed.")]))


def greeting(callback_context: Any) -> types.Content:
    return types.Content(role="model", parts=[types.Part(text="From a callback.")])


def shout(node_input: Any) -> Event:
    return Event(content=types.Content(role="model", parts=[types.Part(text="SHOUTED")]))


# -- scripts --


def says(*texts: str) -> list[Any]:
    return [[Text(text, size=3), Finish()] for text in texts]


def calls(name: str = "note", args: Any = None, then: str = "Done.", first: str = "Let me see.") -> list[Any]:
    args = {"text": "tide"} if args is None else args
    return [[Text(first), ToolCall(name, args, size=3), Finish()], [Text(then), Finish()]]


TRANSFER = [[ToolCall("transfer_to_agent", {"agent_name": "helper"}), Finish()]]


# -- the catalogue --


def _single(**options: Any) -> Callable[[Made], Any]:
    return lambda made: made("writer", **options)


def _app(root: Any, **options: Any) -> App:
    return App(name="app", root_agent=root, **options)


def _nested(outer: str, inner: str) -> Callable[[Made], Any]:
    """An agent of one kind in one of another kind, with an agent before or beside and one after."""

    def build(made: Made) -> Any:
        core = _group(inner, "inner", [made("left", tools=[note, exit_loop]), made("right", tools=[note])])
        return _group(outer, "outer", [made("first"), core, made("last", tools=[note])])

    return build


def _group(kind: str, name: str, agents: list[Any]) -> Any:
    match kind:
        case "sequential":
            return SequentialAgent(name=name, sub_agents=agents)
        case "parallel":
            return ParallelAgent(name=name, sub_agents=agents)
        case "loop":
            return LoopAgent(name=name, sub_agents=agents, max_iterations=1)
        case "custom":
            return Custom(name=name, sub_agents=agents)
        case "workflow":
            return Workflow(name=name, edges=[(START, *agents)])
        case "fan":
            join = JoinNode(name=f"{name}_join")
            return Workflow(name=name, edges=[(START, tuple(agents)), (tuple(agents), join)])
        case _:
            raise AssertionError(kind)


NESTED_SCRIPTS: dict[str, list[Any]] = {
    "FIRST": says("First."),
    "LEFT": calls(first="Left looks.", then="Left is done."),
    "RIGHT": calls(args={"text": "ebb"}, first="Right looks.", then="Right is done."),
    "LAST": calls(args={"text": "flow"}, first="Last looks.", then="All done."),
}
GROUPS = ("sequential", "parallel", "loop", "custom")


def _fan(made: Made) -> Workflow:
    left, right, last, join = (
        made("left", tools=[note]),
        made("right", tools=[note]),
        made("last"),
        JoinNode(name="join"),
    )
    return Workflow(name="flow", edges=[(START, (left, right)), ((left, right), join), (join, last)])


async def _with_mcp(made: Made, stack: AsyncExitStack) -> Any:
    """An agent with the tools of a real MCP server, over standard input and output."""
    from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
    from mcp import StdioServerParameters

    script = Path(__file__).parent / "mcpserver.py"
    server = StdioServerParameters(command=sys.executable, args=[str(script)])
    tools = McpToolset(connection_params=StdioConnectionParams(server_params=server, timeout=30))
    stack.push_async_callback(tools.close)
    return made("writer", tools=[tools])


async def _remote(made: Made, stack: AsyncExitStack) -> Any:
    """An agent on a server of its own that speaks A2A."""
    import uvicorn
    from google.adk.a2a.utils.agent_to_a2a import to_a2a
    from google.adk.agents.remote_a2a_agent import RemoteA2aAgent

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = to_a2a(made("far", description="is far away", tools=[note]), host="127.0.0.1", port=port)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
        await asyncio.sleep(0.01)

    async def stop() -> None:
        server.should_exit = True
        await serving

    stack.push_async_callback(stop)
    return RemoteA2aAgent(
        name="remote",
        description="is far away",
        agent_card=f"http://127.0.0.1:{port}/.well-known/agent-card.json",
    )


async def _remote_after_another(made: Made, stack: AsyncExitStack) -> Any:
    remote = await _remote(made, stack)
    return SequentialAgent(name="both", sub_agents=[made("first"), remote, made("last", tools=[note])])


async def _transfer_to_remote(made: Made, stack: AsyncExitStack) -> Any:
    return made("boss", sub_agents=[await _remote(made, stack)])


def _unbuilt(made: Made) -> Any:
    raise AssertionError("it is served")


FAR: dict[str, list[Any]] = {"FAR": calls(first="Far away I look.", then="Far away I am done.")}

CATALOGUE: dict[str, Entry] = {
    "text": Entry(_single(), {"WRITER": says("Hello there.", "Again.")}, turns=("One", "Two")),
    "thoughts": Entry(_single(), {"WRITER": [[Thought("Hm."), Text("Yes."), Finish()]]}),
    "call": Entry(_single(tools=[note]), {"WRITER": calls()}),
    "call alone": Entry(_single(tools=[note]), {"WRITER": calls(first="")}),
    "two calls": Entry(
        _single(tools=[note]),
        {"WRITER": [[ToolCall("note", {"text": "a"}), ToolCall("note", {"text": "b"}), Finish()], *says("Both.")]},
    ),
    "a tool's error": Entry(_single(tools=[fail]), {"WRITER": calls("fail")}),
    "a tool that says nothing": Entry(_single(tools=[nothing]), {"WRITER": calls("nothing", {})}),
    "state and artifacts": Entry(_single(tools=[keep]), {"WRITER": calls("keep")}),
    "output_key": Entry(_single(tools=[note], output_key="draft"), {"WRITER": calls()}),
    "output_schema": Entry(_single(output_schema=Verdict), {"WRITER": says('{"is_fine": true}')}),
    "after_model_callback": Entry(_single(after_model_callback=redact), {"WRITER": says("A secret word.")}),
    "before_model_callback": Entry(_single(before_model_callback=answered), {"WRITER": []}),
    "before_agent_callback": Entry(_single(before_agent_callback=greeting), {"WRITER": []}),
    "after_agent_callback": Entry(_single(after_agent_callback=greeting), {"WRITER": says("Said.")}),
    "after_tool_callback": Entry(_single(tools=[note], after_tool_callback=doubled), {"WRITER": calls()}),
    "plugin": Entry(
        lambda made: _app(made("writer"), plugins=[Redacting(name="redacting")]), {"WRITER": says("A secret word.")}
    ),
    "PlanReActPlanner": Entry(
        _single(planner=PlanReActPlanner()),
        {"WRITER": says("/*PLANNING*/ I plan. /*FINAL_ANSWER*/ The answer.")},
    ),
    "BuiltInPlanner": Entry(
        _single(planner=BuiltInPlanner(thinking_config=types.ThinkingConfig(include_thoughts=True))),
        {"WRITER": [[Thought("Hm."), Text("Yes."), Finish()]]},
    ),
    "code execution": Entry(
        _single(code_executor=UnsafeLocalCodeExecutor()),
        {"WRITER": says("I count.\n```python\nprint(6 * 7)\n```\n", "It is 42.")},
    ),
    "transfer": Entry(
        lambda made: made("boss", sub_agents=[made("helper", description="helps", tools=[note])]),
        {"HELPER": calls(), "BOSS": TRANSFER},
    ),
    "AgentTool": Entry(
        lambda made: made("boss", tools=[AgentTool(made("helper", description="helps"))]),
        {"HELPER": says("Inner words."), "BOSS": calls("helper", {"request": "help"})},
    ),
    "task mode": Entry(
        lambda made: made("boss", sub_agents=[made("helper", description="helps", mode="task")]),
        {
            "HELPER": [[ToolCall("finish_task", {"result": "found"}), Finish()]],
            "BOSS": calls("helper", {"request": "help"}),
        },
    ),
    "compaction": Entry(
        lambda made: _app(
            made("writer"), events_compaction_config=EventsCompactionConfig(compaction_interval=1, overlap_size=0)
        ),
        {"WRITER": says("One.", "Two."), "": [[Text("A summary."), Finish()]] * 4},
        turns=("One", "Two"),
    ),
    "Workflow with a function": Entry(
        lambda made: Workflow(name="flow", edges=[(START, made("first"), shout)]), {"FIRST": says("First.")}
    ),
    "Workflow that fans out": Entry(
        _fan,
        {"LEFT": calls(first="L."), "RIGHT": calls(first="R."), "LAST": says("All.")},
        is_ordered=False,
    ),
    **{
        f"{inner} in workflow": Entry(
            _nested("workflow", inner), NESTED_SCRIPTS, is_ordered=inner not in ("parallel", "fan")
        )
        for inner in ("sequential", "parallel", "loop", "custom", "workflow", "fan")
    },
    "MCP": Entry(_unbuilt, {"WRITER": calls("count", {"upto": 3})}, serve=_with_mcp),
    "A2A": Entry(_unbuilt, FAR, serve=_remote),
    "A2A in sequential": Entry(
        _unbuilt,
        {"FIRST": NESTED_SCRIPTS["FIRST"], "LAST": NESTED_SCRIPTS["LAST"], **FAR},
        serve=_remote_after_another,
    ),
    "transfer to A2A": Entry(
        _unbuilt,
        {"BOSS": [[ToolCall("transfer_to_agent", {"agent_name": "remote"}), Finish()]], **FAR},
        serve=_transfer_to_remote,
    ),
    "AgentTool with tools": Entry(
        lambda made: made("boss", tools=[AgentTool(made("helper", description="helps", tools=[note])), note]),
        {"HELPER": calls(), "BOSS": calls("helper", {"request": "help"})},
    ),
    "custom agent": Entry(lambda made: Custom(name="custom"), {}),
    **{
        f"{inner} in {outer}": Entry(_nested(outer, inner), NESTED_SCRIPTS, is_ordered="parallel" not in (outer, inner))
        for outer in GROUPS
        for inner in GROUPS
    },
    **{
        f"transfer to {inner}": Entry(
            lambda made, inner=inner: made("boss", sub_agents=[_nested("sequential", inner)(made)]),  # type: ignore[misc]
            {**NESTED_SCRIPTS, "BOSS": [[ToolCall("transfer_to_agent", {"agent_name": "outer"}), Finish()]]},
            is_ordered=inner != "parallel",
        )
        for inner in GROUPS
    },
}


MEANT: dict[str, Difference] = {
    "task mode": Difference(
        frozenset(),
        frozenset(),
        "the official client puts a result right behind its call, though the task's own calls came between",
    ),
}

QUICK = ("text", "call", "two calls", "transfer", "custom agent", "parallel in sequential", "transfer to parallel")
"""What the ordinary tests go through."""


# -- both sides --


def folded_events(events: Sequence[Event]) -> list[Item]:
    """What a plain Runner's events say."""
    found: list[Item] = []
    callers: dict[str | None, str] = {}
    for event in events:
        if event.partial:
            continue
        for part in (event.content and event.content.parts) or ():
            if part.text:
                kind = "thought" if part.thought else "text"
                whose = None if part.thought else event.author
                if found and found[-1][:2] == (kind, whose) and found[-1][0] != "call":
                    found[-1] = (kind, whose, found[-1][2] + part.text)
                else:
                    found.append((kind, whose, part.text))
            elif part.function_call is not None:
                callers[part.function_call.id] = event.author
                whose = f"{event.author}: {part.function_call.name}"
                found.append(("call", whose, _canonical(part.function_call.args or {})))
            elif part.function_response is not None:
                whose = f"{callers[part.function_response.id]}: {part.function_response.name}"
                found.append(("result", whose, _canonical(part.function_response.response)))
            elif part.executable_code is not None:
                found.append(("text", event.author, f"\n```python\n{part.executable_code.code}\n```\n"))
            elif part.code_execution_result is not None:
                found.append(("text", event.author, f"\n```\n{part.code_execution_result.output}\n```\n"))
    return found


def folded_messages(messages: Sequence[dict[str, Any]]) -> list[Item]:
    """What the official client's messages say."""
    found: list[Item] = []
    names: dict[str, str] = {}
    for message in messages:
        if "subagentRunId" in message:
            continue
        match message["role"]:
            case "reasoning":
                found.append(("thought", None, message["content"]))
            case "assistant":
                if message.get("content"):
                    found.append(("text", message.get("name"), message["content"]))
                for call in message.get("toolCalls", ()):
                    names[call["id"]] = f"{message.get('name')}: {call['function']['name']}"
                    arguments = json.loads(call["function"]["arguments"])
                    found.append(("call", names[call["id"]], _canonical(arguments)))
            case "tool":
                found.append(("result", names[message["toolCallId"]], _canonical(_parsed(message["content"]))))
    return _joined(found)


def _joined(items: list[Item]) -> list[Item]:
    """Adjacent text of one agent as one: events and messages cut it in their own ways."""
    made: list[Item] = []
    for item in items:
        if made and item[0] in ("text", "thought") and made[-1][:2] == item[:2]:
            made[-1] = (*item[:2], made[-1][2] + item[2])
        else:
            made.append(item)
    return [(kind, whose, _without_blanks(said)) for kind, whose, said in made]


def _without_blanks(said: str) -> str:
    """Text with code, without its blank space: an executor cuts it out of the model's text, and trims it."""
    return "".join(said.split()) if "```" in said else said


def _canonical(value: Any) -> str:
    """The value as text. google-adk makes floats of all numbers whose call was streamed to it."""
    text = json.dumps(value, sort_keys=True, default=repr)
    return json.dumps(json.loads(text, parse_float=_number), sort_keys=True)


def _number(text: str) -> float | int:
    return int(float(text)) if float(text).is_integer() else float(text)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class Verdicted(NamedTuple):
    name: str
    items: int
    missing: list[Item]
    extra: list[Item]
    is_reordered: bool

    @property
    def is_meant(self) -> bool:
        meant = MEANT.get(self.name)
        if meant is None:
            return False
        kinds = ({item[0] for item in self.missing}, {item[0] for item in self.extra})
        return kinds[0] <= meant.missing and kinds[1] <= meant.extra

    @property
    def is_equal(self) -> bool:
        return not self.missing and not self.extra and not self.is_reordered


async def compare(name: str, judge: Judge) -> Verdicted:
    entry = CATALOGUE[name]
    plain, shown = await _plain(entry), await _shown(entry, judge)
    missing = list((Counter(plain) - Counter(shown)).elements())
    extra = list((Counter(shown) - Counter(plain)).elements())
    is_reordered = not missing and not extra and not _same_order(plain, shown, is_ordered=entry.is_ordered)
    return Verdicted(name, len(plain), missing, extra, is_reordered)


def _same_order(plain: list[Item], shown: list[Item], *, is_ordered: bool) -> bool:
    if is_ordered:
        return plain == shown
    agents = {_agent(item) for item in plain}
    return all([i for i in plain if _agent(i) == who] == [i for i in shown if _agent(i) == who] for who in agents)


def _agent(item: Item) -> str | None:
    return None if item[1] is None else item[1].partition(":")[0]


def _provider(entry: Entry) -> ScriptedProvider:
    return scripted("gemini", by_agent({word: list(steps) for word, steps in entry.scripts.items()}))


def _maker(model: Any) -> Made:
    return lambda name, **options: LlmAgent(name=name, model=model, instruction=name.upper(), **options)


async def _plain(entry: Entry) -> list[Item]:
    events: list[Event] = []
    async with AsyncExitStack() as stack:
        cs = await stack.enter_async_context(Callstream())
        provider = await stack.enter_async_context(_provider(entry))
        models = Models(cs)
        stack.push_async_callback(models.aclose)
        maker = _maker(models(provider, "partial"))
        built = entry.build(maker) if entry.serve is None else await entry.serve(maker, stack)
        app = built if isinstance(built, App) else App(name="app", root_agent=built)
        runner = Runner(
            app=app,
            session_service=InMemorySessionService(),
            artifact_service=InMemoryArtifactService(),
            auto_create_session=True,
        )
        for turn in entry.turns:
            message = types.Content(role="user", parts=[types.Part(text=turn)])
            async for event in runner.run_async(
                user_id="user", session_id="thread", new_message=message, run_config=STREAMED
            ):
                events.append(event)
        await runner.close()
    return _joined(folded_events(events))


async def _shown(entry: Entry, judge: Judge) -> list[Item]:
    steps: list[dict[str, Any]] = []
    async with AsyncExitStack() as stack:
        cs = await stack.enter_async_context(Callstream())
        provider = await stack.enter_async_context(_provider(entry))
        models = Models(cs)
        stack.push_async_callback(models.aclose)
        maker = _maker(models(provider, "none"))
        built = entry.build(maker) if entry.serve is None else await entry.serve(maker, stack)
        app = built if isinstance(built, App) else App(name="app", root_agent=built)
        agent = ADKAgent.from_app(app, user_id="user", callstream=cs, show_errors=True)
        client = Client(agent)
        for number, turn in enumerate(entry.turns):
            asked = {"id": f"user-{number}", "role": "user", "content": turn}
            client.messages.append(asked)
            body = b"".join([frame async for frame in agent.run_sse(client.input())]).decode()
            steps.append({"how": "run", "body": body, "add": [asked]})
            for frame in body.split("\n\n")[:-1]:
                client.take(json.loads(frame.split("data: ", 1)[1]))
        await agent.close()
    verdict = judge(*steps)[-1]
    assert verdict["error"] is None, verdict["error"]
    return folded_messages(verdict["messages"])


# -- the table --


async def main(names: Sequence[str]) -> int:
    install()
    bad = 0
    with Judge() as judge:
        for name in names:
            try:
                verdict = await compare(name, judge)
            except Exception as error:  # noqa: BLE001  # the others are to be seen too
                print(f"{name:28} FAILED  {type(error).__name__}: {error!s:.150}")
                bad += 1
                continue
            if verdict.is_equal:
                print(f"{name:28} equal   {verdict.items} items")
            elif verdict.is_meant:
                print(f"{name:28} meant   {MEANT[name].reason}")
            else:
                bad += 1
                print(f"{name:28} DIFFERS{' in order' if verdict.is_reordered else ''}")
                for item in verdict.missing:
                    print(f"    missing {item}")
                for item in verdict.extra:
                    print(f"    extra   {item}")
    print(f"{len(names)} apps, {bad} with differences that are not meant")
    return 1 if bad else 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    sys.exit(asyncio.run(main(sys.argv[1:] or list(CATALOGUE))))
