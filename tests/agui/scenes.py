"""Threads played through the real runtime: what happens in them, and the records that it leaves.

A scene is a sequence of runs, a run a sequence of acts. All of it is data, so that hypothesis can make scenes up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from callstream import CallState, Callstream, Record, Reject, Run
from callstream.agui import AguiEvent, Conversation, Translator, View, encode_sse
from callstream.errors import CallstreamError
from callstream.events import (
    CallDiscarded,
    CallFailed,
    CallReleased,
    CallReturned,
    CallStarted,
    MessageReceived,
    MessageStarted,
    ResponseEnded,
    RunEvent,
    RunResumed,
    StateChanged,
)
from callstream.runtime.run import current_tool
from callstream.testing import Failure, Finish, Parallel, Script, Text, Thought, ToolCall, Truncated, encode

CLIENT_TOOL = "pick_colour"
REJECTED_TOOL = "delete_everything"
CRASHED_TOOL = "crash"

FATES = ("text", "json", "none", "fail", "await", "ask", "progress", "release", "agent", "agent_asks", "agent_fails")
"""What becomes of a call: its tool returns, fails, awaits an answer (executing, or at once), is never seen again, or runs
an agent and returns, awaits an answer or fails afterwards."""
AGENT: Script = [Thought("Well."), Text("Inner words."), ToolCall("inner", {"q": "x"}), Text("More.")]


class Respond(msgspec.Struct, frozen=True):
    """The model answers. ``fates`` go to its calls in turn. ``stop_at``: the run is stopped after that many chunks."""

    script: Script
    wire: str = "anthropic"
    fates: Sequence[str] = ("json",)
    stop_at: int | None = None


class Together(msgspec.Struct, frozen=True):
    """Two responses at once, as parallel agents make them: their chunks alternate."""

    one: Respond
    other: Respond


class State(msgspec.Struct, frozen=True):
    snapshot: Any = None
    patch: list[dict[str, Any]] | None = None


class Overheard(msgspec.Struct, frozen=True):
    """A user message that a framework wrote into a request by itself."""

    text: str


class Break(msgspec.Struct, frozen=True):
    """The program around the run raises."""


class Stop(msgspec.Struct, frozen=True):
    pass


Act = Respond | Together | State | Overheard | Break | Stop


class Play(msgspec.Struct, frozen=True):
    """One run. ``says``: the user's message, None for none. ``answers``: how many of the open calls it answers."""

    acts: Sequence[Act] = ()
    says: str | None = "Hello"
    answers: int = 9


class Played(msgspec.Struct):
    """One run as it was: its records, and what the client sent to have it."""

    records: list[Record] = []
    compacted: list[Record] = []
    sent: list[dict[str, Any]] = []
    resume: list[dict[str, Any]] = []


class Scene(msgspec.Struct):
    view: View
    runs: list[Played] = []
    executed: dict[str, Any] = {}
    """The arguments of calls that ran or were asked of somebody, by ``call_id``."""

    def earlier(self, number: int) -> list[Record]:
        return [record for run in self.runs[:number] for record in run.records]

    def steps(self) -> list[dict[str, Any]]:
        """The life of a client that sees every run from its beginning."""
        return [
            {
                "how": "run",
                "body": body_of(run.records, self.view, self.earlier(number)),
                "add": run.sent,
                "resume": run.resume or None,
            }
            for number, run in enumerate(self.runs)
        ]


def events_of(records: Sequence[Record], view: View, earlier: Sequence[Record] = ()) -> Iterator[list[AguiEvent]]:
    """What a client gets of each record that sees the run from its beginning. ``earlier``: those of the runs before."""
    translator = Translator(view)
    for number, record in enumerate(records, start=1):
        may_want_snapshot = translator.may_want_snapshot(record)
        events = translator.feed(record)
        if translator.snapshot_at is not None:
            assert may_want_snapshot
            events.insert(translator.snapshot_at, Conversation.of([*earlier, *records[:number]], view).snapshot())
        yield events


def body_of(records: Sequence[Record], view: View, earlier: Sequence[Record] = ()) -> str:
    told = zip(events_of(records, view, earlier), records, strict=True)
    return b"".join(encode_sse(events, record.seq) for events, record in told).decode()


def play(plays: Sequence[Play], view: View | None = None) -> Scene:
    return asyncio.run(_play(plays, view or View(client_tools=frozenset({CLIENT_TOOL}))))


async def _play(plays: Sequence[Play], view: View) -> Scene:
    scene = Scene(view)
    async with Callstream("memory:") as cs:

        async def refuse(call: Any, signal: Any) -> None:
            raise Reject("not today")

        async def crash(call: Any, signal: Any) -> None:
            raise RuntimeError("a secret of the house")

        cs.on_args_complete(REJECTED_TOOL, refuse)
        cs.on_args_complete(CRASHED_TOOL, crash)
        for number, played in enumerate(plays):
            await _play_run(cs, f"run-{number}", played, scene)
        for run in scene.runs:
            run_id = run.records[0].run_id
            await cs.journal.compact(run_id)
            run.compacted = [record async for record in cs.journal.read(run_id)]
    return scene


async def _play_run(cs: Callstream, run_id: str, plan: Play, scene: Scene) -> None:
    played = Played()
    waiting = await cs.journal.calls(thread_id="thread", states=[CallState.AWAITING])
    run = await cs.start("thread", run_id)
    try:
        async with run:
            # What the client has sent as messages comes first: it has them before anything of the run reaches it.
            for call in sorted(waiting[: plan.answers], key=lambda call: call.name != CLIENT_TOOL):
                if scene.view.emit_interrupt_outcome and call.name != CLIENT_TOOL:
                    await run.answer(call.call_id, {"approved": True})
                    entry = {"interruptId": call.call_id, "status": "resolved", "payload": {"approved": True}}
                    played.resume.append(entry)
                else:
                    message_id = f"answer-to-{call.call_id}"
                    await run.answer(call.call_id, "blue", message_id=message_id)
                    played.sent.append(
                        {"id": message_id, "role": "tool", "toolCallId": call.call_id, "content": "blue"}
                    )
            if plan.says is not None:
                message_id = f"user-{run_id}"
                await run.receive([MessageReceived("user", plan.says, message_id)])
                played.sent.append({"id": message_id, "role": "user", "content": plan.says})
            for act in plan.acts:
                await _act(run, act, scene)
    except (CallstreamError, LookupError):
        pass  # the run has failed, which its records say
    played.records = [record async for record in cs.journal.read(run_id)]
    scene.runs.append(played)


async def _act(run: Run, act: Act, scene: Scene) -> None:
    match act:
        case Respond():
            await _respond(run, [act], scene)
        case Together(one=one, other=other):
            await _respond(run, [one, other], scene)
        case State(snapshot=snapshot, patch=patch):
            await run.record([StateChanged(snapshot, patch)])
        case Overheard(text=text):
            await run.receive([MessageReceived("user", text)])
        case Break():
            raise LookupError("the database of accounts is gone")
        case Stop():
            await run.stop("the user pressed stop")


async def _respond(run: Run, answers: Sequence[Respond], scene: Scene) -> None:
    responses = [run.response(answer.wire, author="writer") for answer in answers]
    bodies = [list(encode(answer.wire, answer.script)) for answer in answers]
    try:
        for number in range(max(map(len, bodies))):
            for answer, response, body in zip(answers, responses, bodies, strict=True):
                if number == answer.stop_at:
                    await run.stop("the user pressed stop")
                    return
                if number < len(body):
                    await response.feed(body[number])
        for response in responses:
            await response.end()
    except BaseException:
        for response in responses:
            await response.interrupt()
        raise
    for answer, response in zip(answers, responses, strict=True):
        for number, call_id in enumerate(response.call_ids.values()):
            await _meet(run, call_id, answer.fates[number % len(answer.fates)], scene)


async def _meet(run: Run, call_id: str, fate: str, scene: Scene) -> None:
    """What a host does with a call."""
    try:
        if run.call(call_id).name == CLIENT_TOOL or fate == "ask":
            call = await run.await_answer(call_id)
        elif fate == "release":
            return
        else:
            call = await run.execute(call_id)
    except CallstreamError:
        return  # it was discarded
    if scene.view.nested or current_tool.get() is None:
        scene.executed[call_id] = call.args
    if call.state is CallState.AWAITING:
        return
    match fate:
        case "text":
            await run.complete(call_id, "It is done.\n…🎉")
        case "json":
            await run.complete(call_id, {"ok": True, "items": [1, None, "é"]})
        case "none":
            await run.complete(call_id, None)
        case "fail":
            await run.fail(call_id, ValueError("a secret of the tool"))
        case "await":
            await run.await_answer(call_id)
        case "progress":
            for done in range(3):
                await run.progress(call_id, {"done": done, "total": 2, "message": None})
            await run.complete(call_id, "made progress")
        case "agent" | "agent_asks" | "agent_fails":
            await _run_agent(run, call_id, scene)
            if fate == "agent":
                await run.complete(call_id, "Inner words.")
            elif fate == "agent_asks":
                await run.await_answer(call_id)
            else:
                await run.fail(call_id, ValueError("a secret of the agent"))


async def _run_agent(run: Run, call_id: str, scene: Scene) -> None:
    """The tool asks a model, whose call runs an agent in its turn, unless this is that one."""
    is_outermost = current_tool.get() is None
    token = current_tool.set((run, call_id))
    try:
        fates = ["agent", "progress"] if is_outermost else ["fail"]
        await _respond(run, [Respond(AGENT, fates=fates)], scene)
        await _respond(run, [Respond([ToolCall("inner", {})], fates=fates[-1:])], scene)
    finally:
        current_tool.reset(token)


# -- runs that went on in another process ------------------------------------------------------------------------------


class Killed(msgspec.Struct, frozen=True):
    """Records of a run whose process died, and of the same run without what that made void."""

    records: list[Record]
    valid: list[Record]


def kill(records: Sequence[Record], cut: int, attempt: int = 2) -> Killed:
    """The run if its process had died after so many records, of 1 to all but the last, and another had gone on.

    The responses that were being read then are void and come again, under the ids that they have; their first half has
    others.
    """
    ended = {record.response_id for record in records[:cut] if isinstance(record.event, ResponseEnded)}
    is_cut = {
        record.event.message_id: record.response_id
        for record in records[:cut]
        if isinstance(record.event, MessageStarted) and record.response_id not in ended
    }
    cut_calls = [
        record.event.call_id
        for record in records[:cut]
        if isinstance(record.event, CallStarted) and record.event.message_id in is_cut
    ]
    names = {name: f"{name}-void-{attempt}" for name in (*is_cut, *cut_calls)}
    first = [msgspec.structs.replace(record, event=_renamed(record.event, names)) for record in records[:cut]]
    resumed = [RunResumed(attempt, tuple(names[message_id] for message_id in is_cut))]
    left = [CallDiscarded(names[call_id], "interrupted") for call_id in cut_calls if _is_left(records[:cut], call_id)]
    between = [Record(records[0].run_id, 0, 0.0, event) for event in (*resumed, *left)]
    again = [record for record, told in zip(records, first, strict=False) if record.event != told.event]
    kept = [record for record, told in zip(records, first, strict=False) if record.event == told.event]
    rest = [*again, *records[cut:]]
    return Killed(_numbered([*first, *between, *rest]), _numbered([*kept, *rest]))


def kill_last(scene: Scene, cut: int) -> tuple[Scene, Scene]:
    """The scene if the process of its last run had died after so many records, and without what that made void."""
    *before, last = scene.runs
    killed = kill(last.records, cut)
    both = [msgspec.structs.replace(last, records=records) for records in (killed.records, killed.valid)]
    one, other = (msgspec.structs.replace(scene, runs=[*before, run]) for run in both)
    return one, other


def _is_left(records: Sequence[Record], call_id: str) -> bool:
    final = (CallReturned, CallFailed, CallDiscarded, CallReleased)
    return not any(isinstance(record.event, final) and record.event.call_id == call_id for record in records)


def _renamed(event: RunEvent, names: Mapping[str, str]) -> RunEvent:
    fields = ("message_id", "call_id", "within")
    changed = {name: names[value] for name in fields if (value := getattr(event, name, None)) in names}
    return msgspec.structs.replace(event, **changed)


def _numbered(records: Sequence[Record]) -> list[Record]:
    return [msgspec.structs.replace(record, seq=number) for number, record in enumerate(records, start=1)]


# -- scenes that have a name -------------------------------------------------------------------------------------------

LONG = {"title": 'A "quoted" title', "content": "line\n" * 12, "nested": {"list": [1, 2.5, None, True, {"k": "🎈"}]}}

_calls = [ToolCall("write", LONG), ToolCall("lookup", {"q": "x"}), ToolCall("write", {"title": "t"}, streamed=False)]

SCENES: dict[str, tuple[Sequence[Play], View | None]] = {
    "text": ([Play([Respond([Text("Hello there.", size=3)])])], None),
    "nothing": ([Play()], None),
    "reasoning_then_text": ([Play([Respond([Thought("Hm, let me see.", size=4), Text("Yes.", size=2)])])], None),
    "reasoning_hidden": (
        [Play([Respond([Thought("Secret."), Text("Yes."), ToolCall("write", {"a": 1})])])],
        View(reasoning=False),
    ),
    "one_call": ([Play([Respond([Text("Let me write."), ToolCall("write", LONG)]), Respond([Text("Done.")])])], None),
    "agent_of_a_tool": (
        [
            Play(
                [
                    Respond([Text("I ask."), ToolCall("helper", {"request": "x"})], fates=["agent"]),
                    Respond([Text("Ok.")]),
                ]
            )
        ],
        None,
    ),
    "agent_of_a_tool_that_asks_and_one_that_fails": (
        [
            Play([Respond([ToolCall("helper", {}), ToolCall("other", {})], fates=["agent_asks", "agent_fails"])]),
            Play([Respond([Text("Ok.")])]),
        ],
        None,
    ),
    "agent_of_a_tool_hidden": (
        [Play([Respond([ToolCall("helper", {"request": "x"})], fates=["agent"]), Respond([Text("Ok.")])])],
        View(nested=False),
    ),
    "call_without_text": ([Play([Respond([ToolCall("write", LONG)])])], None),
    "call_without_arguments": ([Play([Respond([ToolCall("now", {})])])], None),
    "text_between_calls": (
        [
            Play(
                [
                    Respond(
                        [Text("a"), ToolCall("f", {"x": 1}), Text("b"), ToolCall("g", {"y": 2}), Text("c")], "anthropic"
                    )
                ]
            )
        ],
        None,
    ),
    "reasoning_between_calls": (
        [Play([Respond([Thought("a"), Text("b"), Thought("c"), ToolCall("f", {"x": 1}), Thought("d")])])],
        None,
    ),
    "parallel_calls": ([Play([Respond([Parallel(_calls)], "openai_chat", FATES[:4])])], None),
    "parallel_agents": (
        [
            Play(
                [
                    Together(
                        Respond(
                            [Thought("one"), Text("left side", size=2), ToolCall("write", LONG)], fates=["progress"]
                        ),
                        Respond([Text("right side", size=3), ToolCall("lookup", {"q": "y"})], "openai_responses"),
                    )
                ]
            )
        ],
        None,
    ),
    "signature": ([Play([Respond([ToolCall("write", LONG, signature="c2lnbmF0dXJl")], "gemini")])], None),
    "free_text_tool": (
        [
            Play(
                [
                    Respond(
                        [ToolCall("shell", custom=True, text='echo "hi"\n\t…🎈', size=3)], "openai_responses", ["ask"]
                    )
                ]
            )
        ],
        None,
    ),
    "free_text_tool_without_text": (
        [Play([Respond([ToolCall("shell", custom=True, text="")], "openai_responses", ["ask"])])],
        None,
    ),
    "truncated": ([Play([Respond([Text("x"), ToolCall("write", LONG, stop_after=3), Finish("length")])])], None),
    "cut_off": ([Play([Respond([Text("x"), ToolCall("write", LONG, stop_after=3), Truncated()])])], None),
    "provider_fails": (
        [Play([Respond([Text("x"), ToolCall("write", LONG, stop_after=3), Failure("overloaded")])])],
        None,
    ),
    "provider_fails_shown": (
        [Play([Respond([Text("x"), ToolCall("write", LONG, stop_after=3), Failure("overloaded")])])],
        View(errors=True),
    ),
    "malformed": ([Play([Respond([ToolCall("write", text='{"a": tru}')], "openai_chat")])], None),
    "rejected": ([Play([Respond([ToolCall(REJECTED_TOOL, {"sure": True})])])], None),
    "hook_fails": ([Play([Respond([ToolCall(CRASHED_TOOL, {"sure": True}), ToolCall("write", LONG)])])], None),
    "tool_fails": ([Play([Respond([ToolCall("write", LONG)], fates=["fail"])])], None),
    "tool_fails_shown": ([Play([Respond([ToolCall("write", LONG)], fates=["fail"])])], View(errors=True)),
    "progress": (
        [Play([Respond([ToolCall("write", LONG), ToolCall("lookup", {"q": "z"})], fates=["progress"])])],
        None,
    ),
    "released": ([Play([Respond([ToolCall("write", LONG), ToolCall("lookup", {})], fates=["release"])])], None),
    "client_tool": (
        [
            Play([Respond([Text("Which?"), ToolCall(CLIENT_TOOL, {"of": ["red", "blue"]})])]),
            Play([Respond([Text("Blue it is.")])], says=None),
        ],
        None,
    ),
    "client_tools_answered_in_part": (
        [
            Play(
                [
                    Respond(
                        [ToolCall(CLIENT_TOOL, {"n": 1}), ToolCall(CLIENT_TOOL, {"n": 2}), ToolCall("write", {"n": 3})]
                    )
                ]
            ),
            Play([Respond([Text("One more.")])], says=None, answers=1),
            Play([Respond([Text("Thanks."), ToolCall("write", LONG)])], says="Go on"),
        ],
        None,
    ),
    "approval_pending": (
        [
            Play([Respond([ToolCall("approve", {"sum": 7})], fates=["await"])]),
            Play([Respond([Text("Approved.")])], says="Here you are"),
        ],
        None,
    ),
    "approval_interrupts": (
        [
            Play([Respond([ToolCall("approve", {"sum": 7}), ToolCall("write", LONG)], fates=["ask", "json"])]),
            Play([Respond([Text("Approved.")])], says=None),
        ],
        View(emit_interrupt_outcome=True, response_schemas={"approve": {"type": "object"}}),
    ),
    "approval_beside_a_client_tool": (
        [
            Play([Respond([ToolCall("approve", {"sum": 7}), ToolCall(CLIENT_TOOL, {"n": 1})], fates=["ask"])]),
            Play([Respond([Text("Both are there.")])], says=None),
        ],
        View(emit_interrupt_outcome=True, client_tools=frozenset({CLIENT_TOOL})),
    ),
    "state": (
        [
            Play(
                [
                    State({"count": 1, "list": [1]}),
                    Respond([Text("Counting.")]),
                    State(patch=[{"op": "add", "path": "/list/-", "value": {"a~/b": 2}}]),
                    State(patch=[{"op": "replace", "path": "/nowhere/x", "value": 1}]),
                    State(patch=[{"op": "replace", "path": "/list/1/a~0~1b", "value": 3}]),
                ]
            ),
            Play([State(patch=[{"op": "remove", "path": "/count"}]), Respond([Text("Removed.")])]),
        ],
        None,
    ),
    "state_without_a_snapshot": ([Play([State(patch=[{"op": "add", "path": "/a", "value": None}])])], None),
    "stopped_in_arguments": ([Play([Respond([Text("x"), ToolCall("write", LONG)], stop_at=6)])], None),
    "stopped_between": ([Play([Respond([ToolCall("write", LONG)], fates=["release"]), Stop()])], None),
    "broken": ([Play([Respond([Text("x"), ToolCall("write", LONG)], fates=["release"]), Break()])], None),
    "broken_shown": ([Play([Respond([Text("x")]), Break()])], View(errors=True)),
    "overheard": ([Play([Respond([Text("a")]), Overheard("[writer] said: a"), Respond([Text("b")])])], None),
    "many_turns": (
        [
            Play(
                [
                    Respond([Thought("t"), Text("one"), ToolCall("write", LONG)], wire, FATES),
                    Respond([Text("two")], wire),
                ]
            )
            for wire in ("gemini", "anthropic", "openai_chat", "openai_responses")
        ],
        None,
    ),
}
