"""What happens in the threads that the official client lives through, over real HTTP and with a real agent."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext

from callstream import Callstream, Progress, Reject, no_progress, tool
from callstream.adk import AGUIToolset
from callstream.testing import Delay, Failure, Finish, HttpError, Parallel, Script, Text, Thought, ToolCall, Truncated

LONG = {"title": 'A "quoted" title', "body": "wave 🌊 \n" * 6}
END = [Text("Done.", size=2), Finish()]
PAINT = {
    "name": "paint",
    "description": "Paints the page.",
    "parameters": {"type": "object", "properties": {"color": {"type": "string"}, "size": {"type": "integer"}}},
}
SCHEMA = {"type": "object", "properties": {"approved": {"type": "boolean"}}, "required": ["approved"]}


class Scene(msgspec.Struct, frozen=True):
    """``scripts`` answer the model's requests. ``steps`` are the client's; its first one says something."""

    scripts: Sequence[Script]
    steps: Sequence[dict[str, Any]] = ({"how": "run"},)
    wire: str = "gemini"
    interrupts: bool = False
    ends: Sequence[str] = ("success",)
    """How each of the runs ends: an outcome of AG-UI, or ``error``."""


def says(text: str, number: int = 0) -> list[dict[str, Any]]:
    return [{"id": f"user-{number}", "role": "user", "content": text}]


def answers(content: str, which: str = "$0") -> dict[str, Any]:
    return {"id": f"answer-{which[1:]}", "role": "tool", "toolCallId": which, "content": content}


_two = [ToolCall("write", LONG), ToolCall("write", {"title": "t", "body": ""})]
_paint = [Text("I paint."), ToolCall("paint", {"color": "red", "size": 3}), Finish()]
_ask = [Text("May I?"), ToolCall("ask", {"question": "Really?"}), Finish()]

SCENES: dict[str, Scene] = {
    "text": Scene([[Text("Hello there.", size=3), Finish()]]),
    "reasoning": Scene([[Thought("Hm, let me see.", size=4), Text("Yes.", size=2), Finish()]]),
    "one_call": Scene([[Text("I write."), ToolCall("write", LONG), Finish()], END]),
    "call_that_came_whole": Scene([[ToolCall("write", LONG, streamed=False), Finish()], END]),
    "call_without_arguments": Scene([[ToolCall("now", {}), Finish()], END]),
    "parallel_calls": Scene([[Thought("Two."), Parallel(_two), Finish()], END]),
    "parallel_calls_of_another_wire": Scene([[Text("Two."), Parallel(_two), Finish()], END], wire="openai_chat"),
    "anthropic": Scene([[Thought("Hm."), Text("I write."), ToolCall("write", LONG), Finish()], END], wire="anthropic"),
    "responses": Scene([[Text("I write."), ToolCall("write", LONG), Finish()], END], wire="openai_responses"),
    "truncated_call": Scene([[Text("I write."), ToolCall("write", LONG, stop_after=3), Finish("length")], END]),
    "call_cut_off": Scene([[ToolCall("write", LONG, stop_after=3), Truncated()], END]),
    "rejected_call": Scene([[ToolCall("erase", {"path": "/"}), Finish()], END]),
    "failing_tool": Scene([[ToolCall("fail", {}), Finish()], END], ends=("error",)),
    "progress": Scene([[ToolCall("slow", {"steps": 3}), Finish()], END]),
    "state": Scene([[ToolCall("remember", {"key": "colour", "value": "red"}), Finish()], END]),
    "error_in_the_stream": Scene(
        [[Text("I begin"), ToolCall("write", LONG, stop_after=2), Failure("overloaded")]], ends=("error",)
    ),
    "refused_request": Scene([[HttpError(400, "no")]], ends=("error",)),
    "stop": Scene(
        [[Text("I begin.", size=4), ToolCall("write", {"title": "x", "body": "long " * 400}, size=4), Finish()]],
        steps=[{"how": "run", "stop": 9}],
        ends=("cancelled",),
    ),
    "client_tool": Scene(
        [_paint, END],
        steps=[{"how": "run"}, {"how": "run", "add": [answers('{"painted":true}')]}],
        ends=("success", "success"),
    ),
    "client_tools_answered_in_reverse": Scene(
        [[Parallel([ToolCall("paint", {"color": "red"}), ToolCall("paint", {"color": "blue"})]), Finish()], END],
        steps=[{"how": "run"}, {"how": "run", "add": [answers("second", "$1"), answers("first", "$0")]}],
        ends=("success", "success"),
    ),
    "client_and_server_tool": Scene(
        [[Parallel([ToolCall("write", LONG), ToolCall("paint", {"color": "red"})]), Finish()], END],
        steps=[{"how": "run"}, {"how": "run", "add": [answers("ok")]}],
        ends=("success", "success"),
    ),
    "something_else_while_a_tool_waits": Scene(
        [_paint, END, END],
        steps=[
            {"how": "run"},
            {"how": "run", "add": says("And now?", 1)},
            {"how": "run", "add": [answers("late")]},
        ],
        ends=("success", "success", "success"),
    ),
    "pending_answered_with_a_message": Scene(
        [_ask, END],
        steps=[{"how": "run"}, {"how": "run", "add": [answers('{"approved":true}')]}],
        ends=("success", "success"),
    ),
    "interrupt_resumed": Scene(
        [_ask, END],
        steps=[
            {"how": "run"},
            {"how": "run", "resume": [{"interruptId": "$0", "status": "resolved", "payload": {"approved": True}}]},
        ],
        interrupts=True,
        ends=("interrupt", "success"),
    ),
    "interrupt_cancelled": Scene(
        [_ask, END],
        steps=[{"how": "run"}, {"how": "run", "resume": [{"interruptId": "$0", "status": "cancelled"}]}],
        interrupts=True,
        ends=("interrupt", "success"),
    ),
    "interrupt_of_a_confirmation": Scene(
        [[ToolCall("sign", {"name": "x"}), Finish()], END],
        steps=[
            {"how": "run"},
            {"how": "run", "resume": [{"interruptId": "$0", "status": "resolved", "payload": {"confirmed": True}}]},
        ],
        interrupts=True,
        ends=("interrupt", "success"),
    ),
    "client_tool_beside_interrupts": Scene(
        [_paint, END],
        steps=[{"how": "run"}, {"how": "run", "add": [answers("painted")]}],
        interrupts=True,
        ends=("success", "success"),
    ),
}


def tools_of(cs: Callstream, ran: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """The agent's tools; ``ran`` gets what they were executed with."""

    @tool
    async def write(title: str, body: str) -> dict[str, bool]:
        """Writes."""
        ran.append(("write", {"title": title, "body": body}))
        return {"written": True}

    @tool
    async def now() -> str:
        """Says what time it is."""
        ran.append(("now", {}))
        return "noon"

    @tool
    async def erase(path: str) -> str:
        """Erases."""
        raise AssertionError("it must not run")

    @erase.on_args_complete
    async def refuse(call: Any, signal: Any) -> None:
        raise Reject("not today")

    @tool
    async def fail() -> str:
        """Fails."""
        ran.append(("fail", {}))
        raise ValueError("a secret of the tool")

    @tool
    async def slow(steps: int, progress: Progress = no_progress) -> str:
        """Takes long."""
        ran.append(("slow", {"steps": steps}))
        for done in range(steps):
            await progress(done + 1, steps, "going on")
        return "slow"

    @tool
    async def remember(key: str, value: str, tool_context: ToolContext) -> str:
        """Remembers."""
        ran.append(("remember", {"key": key, "value": value}))
        tool_context.state[key] = value
        return "remembered"

    def ask(question: str) -> None:
        """Asks a person."""
        ran.append(("ask", {"question": question}))

    def sign(name: str) -> str:
        """Signs, if it may."""
        ran.append(("sign", {"name": name}))
        return "signed"

    own = [write, now, erase, fail, slow, remember]
    return [*own, LongRunningFunctionTool(ask), FunctionTool(sign, require_confirmation=True), AGUIToolset()]


def random_scene(seed: int) -> Scene:
    """A thread of one or two turns, of all that a model may do."""
    chance = random.Random(seed)

    def text() -> str:
        return "".join(chance.choices('abc \n"\\é🌊{}[],:0', k=chance.randrange(1, 40)))

    def call() -> ToolCall:
        size = chance.randrange(1, 12)
        match chance.randrange(5):
            case 0:
                return ToolCall("now", {}, size=size)
            case 1:
                return ToolCall("remember", {"key": f"k{chance.randrange(3)}", "value": text()}, size=size)
            case 2:
                return ToolCall("erase", {"path": text()}, size=size)
            case 3:
                return ToolCall("slow", {"steps": chance.randrange(4)}, size=size, streamed=chance.random() < 0.7)
            case _:
                return ToolCall("write", {"title": text(), "body": text() * 3}, size=size)

    def response(*, last: bool) -> list[Any]:
        made: list[Any] = []
        if chance.random() < 0.4:
            made.append(Thought(text(), size=chance.randrange(1, 9)))
        if last or chance.random() < 0.6:
            made.append(Text(text(), size=chance.randrange(1, 9)))
        if not last:
            calls = [call() for _ in range(chance.randrange(1, 4))]
            made += [Parallel(calls)] if chance.random() < 0.5 else calls
        if chance.random() < 0.3:
            made.insert(chance.randrange(len(made) + 1), Delay(0.01))
        return [*made, Finish()]

    scripts: list[Script] = []
    steps = []
    for turn in range(chance.randrange(1, 3)):
        scripts += [response(last=False) for _ in range(chance.randrange(3))]
        scripts.append(response(last=True))
        steps.append({"how": "run", "add": says(text(), turn)})
    wire = chance.choice(["gemini", "gemini", "openai_chat", "anthropic", "openai_responses"])
    return Scene(scripts, steps, wire=wire, ends=["success"] * len(steps))
