"""A call from its first piece to its result: on every wire, through the tap and from partial events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream import ArgsDelta, Call, Callstream, FieldDelta, Progress, Reject, no_progress, tool
from callstream.calls import CallState
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallExecuting,
    CallReturned,
    CallStarted,
    MessageReceived,
    TextAppended,
)
from callstream.testing import Finish, Text, ToolCall

from .hosting import PATHS, WHOLE, WIRES, Host, Models, agent_of, function_calls_in, responses_in, scripted

ARGS = {"title": "Tides", "content": 'The "moon" pulls\nthe sea 🌊.', "tags": ["a", "b"], "size": 3}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
async def test_one_id_from_first_delta_to_result(wire: str, path: str, cs: Callstream, models: Models) -> None:
    seen: list[Any] = []

    @tool
    async def write_document(title: str, content: str, tags: list[str], size: int) -> dict[str, Any]:
        """Writes a document."""
        seen.append(("run", title, content, tags, size))
        return {"words": 5}

    @write_document.on_args_delta
    async def delta(delta: ArgsDelta, signal: Any) -> None:
        seen.append(("delta", delta.call_id))

    @write_document.on_args_complete
    async def complete(call: Call, signal: Any) -> None:
        seen.append(("complete", call.call_id, call.args))

    script = [[Text("I write. "), ToolCall("write_document", ARGS), Finish()], [Text("Done."), Finish()]]
    async with scripted(wire, script) as provider:
        host = Host(cs, agent_of(models(provider, path), write_document))
        events = await host.run()
    (call,) = await host.calls()
    assert call.state is CallState.COMPLETED
    assert json.loads(await host.args_text(call.call_id)) == call.args == ARGS
    wire_id = call.provider_id or call.call_id
    assert [f.id for f in function_calls_in(events)] == [wire_id]
    assert {f.id for e in events for f in e.get_function_calls()} == {wire_id}
    assert responses_in(events) == [(wire_id, {"words": 5})]
    assert {entry[1] for entry in seen if entry[0] == "delta"} == {call.call_id}
    assert seen[-2:] == [("complete", call.call_id, ARGS), ("run", *ARGS.values())]
    assert call.result == {"words": 5}
    assert wire == "gemini" or wire_id == call.provider_id
    kinds = [type(event) for event in await host.events()]
    order = [MessageReceived, TextAppended, CallStarted, ArgsAppended, CallCompleted, CallExecuting, CallReturned]
    assert [kind for kind in dict.fromkeys(kinds) if kind in order] == order


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
async def test_same_states_unstreamed(wire: str, path: str, cs: Callstream, models: Models) -> None:
    deltas: list[str] = []

    @tool
    def note(text: str) -> str:
        """Notes."""
        return text.upper()

    @note.on_args_delta
    def delta(delta: ArgsDelta, signal: Any) -> None:
        deltas.append(delta.text)

    script = [[ToolCall("note", {"text": "x"}), Finish()], [Text("Done."), Finish()]]
    async with scripted(wire, script) as provider:
        host = Host(cs, agent_of(models(provider, path), note))
        await host.run(config=WHOLE)
    (call,) = await host.calls()
    assert (call.state, call.args, call.result) == (CallState.COMPLETED, {"text": "x"}, {"result": "X"})
    assert json.loads("".join(deltas)) == {"text": "x"}
    states = [type(e) for e in await host.events() if getattr(e, "call_id", None) == call.call_id]
    assert [kind for kind in dict.fromkeys(states) if kind is not ArgsAppended] == [
        CallStarted, CallCompleted, CallExecuting, CallReturned,
    ]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
async def test_args_that_a_callback_has_changed_are_the_args(
    wire: str, path: str, cs: Callstream, models: Models
) -> None:
    heard: list[Any] = []

    @tool
    async def note(text: str) -> str:
        """Notes."""
        heard.append(("run", text))
        return text.upper()

    @note.on_args_complete
    async def complete(call: Call, signal: Any) -> None:
        heard.append(("complete", call.call_id, call.args))

    @note.on_args_abort
    async def undo(call: Call, reason: str) -> None:
        heard.append(("abort", call.call_id, reason))

    def clean(callback_context: Any, llm_response: Any) -> None:
        for part in (llm_response.content and llm_response.content.parts) or ():
            if part.function_call is not None and not llm_response.partial:
                part.function_call.args = {"text": "clean"}

    script = [[ToolCall("note", {"text": "dirty"}), Finish()], [Text("Done."), Finish()]]
    async with scripted(wire, script) as provider:
        agent = agent_of(models(provider, path), note)
        agent.after_model_callback = clean
        host = Host(cs, agent)
        events = await host.run()
    (call,) = await host.calls()
    assert (call.state, call.args, call.result) == (CallState.COMPLETED, {"text": "clean"}, {"result": "CLEAN"})
    assert json.loads(await host.args_text(call.call_id)) == {"text": "clean"}
    assert responses_in(events) == [(call.wire_id, {"result": "CLEAN"})]
    assert heard == [("complete", call.call_id, {"text": "clean"}), ("run", "clean")]
    assert "dirty" not in repr([record.event for record in await host.records()])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
async def test_reject_tells_model(wire: str, path: str, cs: Callstream, models: Models) -> None:
    ran: list[str] = []

    @tool
    async def delete(place: str) -> str:
        """Deletes."""
        ran.append(place)
        return "gone"

    @delete.on_field("place")
    async def check(field: FieldDelta, signal: Any) -> None:
        if field.complete:
            raise Reject("nothing under /etc may be deleted")

    script = [[ToolCall("delete", {"place": "/etc"}), Finish()], [Text("I will not."), Finish()]]
    async with scripted(wire, script) as provider:
        host = Host(cs, agent_of(models(provider, path), delete))
        events = await host.run()
        assert "nothing under /etc may be deleted" in provider.requests[1].body.decode()
    assert ran == []
    (call,) = await host.calls()
    assert (call.state, call.reason) == (CallState.DISCARDED, "rejected")
    assert responses_in(events)[0][1] == {"error": "nothing under /etc may be deleted"}
    assert events[-1].content.parts[0].text == "I will not."


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
async def test_progress_out_of_band(wire: str, path: str, cs: Callstream, models: Models) -> None:
    reported: list[Any] = []
    cs.on_tool_progress = lambda name, call_id, data: reported.append((name, call_id, data))

    @tool
    async def count(upto: int, progress: Progress = no_progress) -> int:
        """Counts."""
        await progress(1, upto, "halfway")
        await progress({"any": ["json"]})
        return upto

    script = [[ToolCall("count", {"upto": 2}, call_id="c1"), Finish()], [Text("Two."), Finish()]]
    async with scripted(wire, script) as provider:
        host = Host(cs, agent_of(models(provider, path), count))
        await host.run()
        assert "progress" not in provider.requests[0].body.decode()
        assert "any" not in provider.requests[1].body.decode()
    assert reported[-1] == ("count", "c1", {"any": ["json"]})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("wire", WIRES)
async def test_id_reuse_new_call(wire: str, path: str, cs: Callstream, models: Models) -> None:
    """The same id in a later turn, and in a later step of one turn, is a new call."""

    def note(text: str) -> str:
        return text

    step = [ToolCall("note", {"text": "x"}, call_id="0"), Finish()]
    end = [Text("Done."), Finish()]
    async with scripted(wire, [step, step, end, step, end]) as provider:
        host = Host(cs, agent_of(models(provider, path), note))
        events = await host.run("one") + await host.run("two")
    calls = await host.calls()
    assert [call.call_id for call in calls] == ["0", "0~2", "0~3"]
    assert {call.state for call in calls} == {CallState.COMPLETED}
    assert [call_id for call_id, _ in responses_in(events)] == ["0"] * 3
