from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from callstream import ArgsDelta, CallState, Callstream, Progress, Reject, Run, Settings, current_run, no_progress, tool
from callstream.calls import Call as JournalCall
from callstream.errors import CallRejected, JournalError, RunOver, TransitionError, UsageError, WireError
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallProgressed,
    CallReturned,
    CallStarted,
    MessageReceived,
    Record,
    ResultReceived,
    RunEnded,
    RunStarted,
)
from callstream.testing import Call, Failure, Finish, Text, Truncated, encode, encode_whole
from callstream.wire import WIRES, results_in

ARGS = {"title": "Notes", "content": "one\ntwo ☃ three"}
WRITE = Call("write", ARGS, call_id="c1")


async def read(run: Run, wire: str, script: list[Any]) -> None:
    async with run.response(wire) as response:
        for chunk in encode(wire, script):
            await response.feed(chunk)


async def records(cs: Callstream, run: Run) -> list[Record]:
    return [record async for record in cs.journal.read(run.run_id)]


async def events(cs: Callstream, run: Run) -> list[Any]:
    return [record.event for record in await records(cs, run)]


async def execute_write(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE])
        await run.execute("c1")


def states(found: list[Any]) -> list[str]:
    return [type(event).__name__ for event in found if getattr(event, "call_id", None) is not None]


@pytest.mark.parametrize("thread_id", [None, "", 7])
async def test_a_thread_has_an_id(cs: Callstream, thread_id: Any) -> None:
    with pytest.raises(UsageError, match="expected the id of a thread"):
        async with cs.run(thread_id):
            pass


@pytest.mark.parametrize("wire", WIRES)
async def test_a_run_keeps_all_that_a_response_said(cs: Callstream, wire: str) -> None:
    async with cs.run("thread") as run:
        await read(run, wire, [Text("Let me write."), WRITE])
        (call,) = run.calls
        assert call.state is CallState.ARGS_COMPLETE
        assert call.args == ARGS
        executing = await run.execute(call.call_id)
        assert executing.args == ARGS
        await run.complete(call.call_id, {"ok": True})
    found = await events(cs, run)
    assert isinstance(found[0], RunStarted)
    assert found[-1] == RunEnded("finished")
    assert [record.seq for record in await records(cs, run)] == list(range(1, len(found) + 1))
    kept = await cs.journal.call(call.call_id)
    assert kept is not None
    assert (kept.state, kept.args, kept.result) == (CallState.COMPLETED, ARGS, {"ok": True})
    responses = {record.response_id for record in await records(cs, run) if isinstance(record.event, ArgsAppended)}
    assert len(responses) == 1
    assert None not in responses


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("streamed", [True, False])
async def test_same_states_unstreamed(cs: Callstream, wire: str, streamed: bool) -> None:
    async with cs.run("thread") as run:
        if streamed:
            await read(run, wire, [WRITE])
        else:
            await run.response(wire).whole(encode_whole(wire, [WRITE]))
        (call,) = run.calls
        await run.execute(call.call_id)
        await run.complete(call.call_id, 1)
    passed = states(await events(cs, run))
    assert passed[0] == "CallStarted"
    assert passed[-3:] == ["CallCompleted", "CallExecuting", "CallReturned"]


async def test_first_record_started_whatever_the_wire_sends_first(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await run.response("gemini").whole(encode_whole("gemini", [WRITE, Call("other", {})]))
    found = await events(cs, run)
    for call in run.calls:
        first = next(event for event in found if getattr(event, "call_id", None) == call.call_id)
        assert isinstance(first, CallStarted)


async def test_released_when_unseen(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE])
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert kept.state is CallState.RELEASED


@pytest.mark.parametrize("provider_id", ["0", "tc-0", "call_1"])
async def test_id_reuse_new_call_in_later_turns_runs_and_threads(cs: Callstream, provider_id: str) -> None:
    async with cs.run("one") as run:
        for turn in (1, 2):
            await read(run, "openai_chat", [Call("write", {"turn": turn}, call_id=provider_id)])
    async with cs.run("one") as later:
        await read(later, "openai_chat", [Call("write", {"turn": 3}, call_id=provider_id)])
    async with cs.run("two") as other:
        await read(other, "openai_chat", [Call("write", {"turn": 4}, call_id=provider_id)])
    calls = [*run.calls, *later.calls, *other.calls]
    assert [call.call_id for call in calls] == [provider_id, f"{provider_id}~2", f"{provider_id}~3", f"{provider_id}~4"]
    assert {call.provider_id for call in calls} == {provider_id}
    assert [call.args["turn"] for call in calls] == [1, 2, 3, 4]


@pytest.mark.parametrize("wire", WIRES)
async def test_one_id_in_hook_journal_and_result(cs: Callstream, wire: str) -> None:
    seen: list[str] = []
    cs.on_args_delta("write", lambda delta, signal: seen.append(delta.call_id))
    async with cs.run("thread") as run:
        await read(run, wire, [Call("write", ARGS, call_id="")])
        (call,) = run.calls
        await run.execute(call.call_id)
        await run.complete(call.call_id, None)
    assert set(seen) == {call.call_id}
    ids = {event.call_id for event in await events(cs, run) if hasattr(event, "call_id")}
    assert ids == {call.call_id}


@pytest.mark.parametrize("wire", WIRES)
async def test_truncated_never_runs(cs: Callstream, wire: str) -> None:
    for ending in (Truncated(), Finish("length")):
        async with cs.run("thread") as run:
            await read(run, wire, [Call("write", ARGS, stop_after=2), ending])
            (call,) = run.calls
            assert (call.state, call.reason) == (CallState.DISCARDED, "truncated")
            with pytest.raises(CallRejected, match="arguments of write were cut off"):
                await run.execute(call.call_id)


async def test_an_error_in_the_stream_discards_and_rises_unchanged(cs: Callstream) -> None:
    aborted: list[str] = []
    cs.on_args_abort("write", lambda call, reason: aborted.append(reason))
    with pytest.raises(WireError, match="overloaded"):
        async with cs.run("thread") as run:
            await read(run, "anthropic", [Call("write", ARGS, stop_after=2), Failure("overloaded")])
    found = await events(cs, run)
    assert [event.reason for event in found if isinstance(event, CallDiscarded)] == ["interrupted"]
    assert isinstance(found[-1], RunEnded)
    assert found[-1].outcome == "failed"
    assert aborted == ["interrupted"]


async def test_unfinished_arguments_are_refused_before_the_wire_ends_them(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        async with run.response("anthropic") as response:
            for chunk in list(encode("anthropic", [WRITE]))[:6]:
                await response.feed(chunk)
            with pytest.raises(TransitionError, match="unfinished"):
                await run.execute("c1")


async def test_malformed_never_runs(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(run, "openai_chat", [Call("write", call_id="c1", text='{"a": 1,}')])
        with pytest.raises(CallRejected, match="arguments of write cannot be read"):
            await run.execute("c1")
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert kept.args_json == '{"a": 1,}'


async def test_arguments_that_are_no_object_never_run(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(
            run, "openai_chat", [Call("write", call_id="c1", text="[1]"), Call("write", call_id="c2", text="null")]
        )
        with pytest.raises(CallRejected, match="not an object"):
            await run.execute("c1")
        assert (await run.execute("c2")).args is None


@pytest.mark.parametrize("text", ['{"a": 1', '{"a": NaN}', "{'a': 1}"])
async def test_malformed_never_runs_whoever_recorded_it(cs: Callstream, text: str) -> None:
    async with cs.run("thread") as run:
        await run.record([CallStarted("c1", "write"), ArgsAppended("c1", text), CallCompleted("c1", text)])
        with pytest.raises(CallRejected, match="not JSON"):
            await run.execute("c1")
        assert (run.call("c1").reason, run.call("c1").args_json) == ("malformed", text)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_delta_has_the_number_of_its_record(cs: Callstream, streamed: bool) -> None:
    deltas: list[Any] = []
    cs.on_args_delta("write", lambda delta, signal: deltas.append(delta))
    cs.on_field("write", "content", lambda field, signal: deltas.append(field))
    async with cs.run("thread") as run:
        if streamed:
            await read(run, "openai_chat", [Call("write", ARGS, call_id=call_id) for call_id in ("a", "b")])
        else:
            for call_id in ("a", "b"):
                await run.record([CallStarted(call_id, "write"), CallCompleted(call_id, json.dumps(ARGS))])
    texts: dict[tuple[str, int], str] = {}
    async for record in cs.journal.read(run.run_id):
        if isinstance(record.event, ArgsAppended):
            texts[record.event.call_id, record.seq] = record.event.text
        elif isinstance(record.event, CallCompleted) and not streamed:
            texts[record.event.call_id, record.seq] = record.event.args_json or ""
    assert {(delta.call_id, delta.seq) for delta in deltas} <= set(texts)
    for call_id in ("a", "b"):
        own = [delta for delta in deltas if delta.call_id == call_id and isinstance(delta, ArgsDelta)]
        last = max(seq for of, seq in texts if of == call_id)
        assert own[-1].seq == last
        joined = "".join(text for (of, seq), text in texts.items() if of == call_id and seq <= own[0].seq)
        assert joined == own[0].text


async def test_barrier_before_execute_waits_for_the_hooks_of_the_call_alone(cs: Callstream) -> None:
    gate = asyncio.Event()
    seen: list[str] = []

    async def slow(delta: Any, signal: Any) -> None:
        await gate.wait()
        seen.append(delta.text)

    cs.on_args_delta("slow", slow)
    async with cs.run("thread") as run:
        await read(run, "openai_chat", [Call("slow", ARGS, call_id="s"), Call("fast", ARGS, call_id="f")])
        await run.execute("f")
        executing = asyncio.ensure_future(run.execute("s"))
        await asyncio.sleep(0.01)
        assert not executing.done()
        assert CallExecuting("s") not in await events(cs, run)
        gate.set()
        call = await executing
        assert "".join(seen) == call.args_json
        await run.complete("s")
        await run.complete("f")


async def test_executing_after_barrier_is_recorded_after_the_last_hook(cs: Callstream) -> None:
    order: list[str] = []

    async def ready(call: Any, signal: Any) -> None:
        order.append(f"ready, executing={CallExecuting('c1') in await events(cs, run)}")

    cs.on_args_complete("write", ready)
    async with cs.run("thread") as run:
        await read(run, "gemini", [WRITE])
        await run.execute("c1")
        order.append(f"executing={CallExecuting('c1') in await events(cs, run)}")
        await run.complete("c1")
    assert order == ["ready, executing=False", "executing=True"]


@pytest.mark.parametrize("leave", ["finish", "fail", "cancel"])
async def test_barrier_on_every_exit(cs: Callstream, leave: str) -> None:
    running = asyncio.Event()
    ended: list[str] = []

    async def slow(delta: Any, signal: Any) -> None:
        running.set()
        try:
            await asyncio.sleep(0.05)
        finally:
            ended.append("hook")

    cs.on_args_delta("write", slow)

    async def program() -> None:
        async with cs.run("thread") as run:
            await read(run, "anthropic", [WRITE])
            await running.wait()
            if leave == "fail":
                raise KeyError("broken")
            if leave == "cancel":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(1)

    before = asyncio.all_tasks()
    try:
        await asyncio.create_task(program())
    except (KeyError, asyncio.CancelledError):
        pass
    assert ended
    assert asyncio.all_tasks() == before


async def test_abort_during_barrier_never_executes(cs: Callstream) -> None:
    held = asyncio.Event()
    aborted: list[str] = []

    async def slow(delta: Any, signal: Any) -> None:
        held.set()
        await signal.wait()

    cs.on_args_delta("write", slow)
    cs.on_args_abort("write", lambda call, reason: aborted.append(reason))
    run = await cs.start("thread")
    await read(run, "anthropic", [WRITE])
    executing = asyncio.ensure_future(run.execute("c1"))
    await held.wait()
    await run.stop("user")
    with pytest.raises(RunOver):
        await executing
    found = await events(cs, run)
    assert CallExecuting("c1") not in found
    assert [event.reason for event in found if isinstance(event, CallDiscarded)] == ["aborted"]
    assert found[-1] == RunEnded("cancelled", "user")
    assert aborted == ["aborted"]


@pytest.mark.parametrize("turns", range(6))
async def test_abort_at_the_very_moment_of_execution(cs: Callstream, turns: int) -> None:
    """Whichever comes first: a tool that is let run has not been aborted, and one that was aborted is not let run."""
    aborted: list[str] = []
    cs.on_args_abort("write", lambda call, reason: aborted.append(reason))
    run = await cs.start("thread")
    await read(run, "anthropic", [WRITE])
    executing = asyncio.ensure_future(run.execute("c1"))
    for _ in range(turns):
        await asyncio.sleep(0)
    was_let_run = executing.done()
    await run.stop("user")
    (outcome,) = await asyncio.gather(executing, return_exceptions=True)
    assert was_let_run or isinstance(outcome, RunOver)
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert (kept.state is CallState.DISCARDED) == (aborted == ["aborted"])
    assert kept.is_final


async def test_append_before_deliver(cs: Callstream) -> None:
    """What a hook is handed is in the journal at that moment."""
    missing: list[str] = []
    seen = ""

    async def check(delta: Any, signal: Any) -> None:
        nonlocal seen
        seen += delta.text
        kept = "".join(event.text for event in await events(cs, run) if isinstance(event, ArgsAppended))
        if not kept.startswith(seen):
            missing.append(delta.text)

    cs.on_args_delta("write", check)
    async with cs.run("thread") as run:
        await read(run, "openai_responses", [WRITE])
    assert seen
    assert missing == []


async def test_reject_tells_model_why_and_never_runs(cs: Callstream) -> None:
    async def refuse(call: Any, signal: Any) -> None:
        raise Reject("not on a Sunday")

    cs.on_args_complete("write", refuse)
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE])
        with pytest.raises(CallRejected, match="not on a Sunday"):
            await run.execute("c1")
        (call,) = run.calls
        assert (call.state, call.reason, call.detail) == (CallState.DISCARDED, "rejected", "not on a Sunday")


async def test_a_hook_that_fails_in_the_middle_drops_the_rest_of_its_call_only(cs: Callstream) -> None:
    async def broken(delta: Any, signal: Any) -> None:
        raise RuntimeError("disk full")

    cs.on_args_delta("write", broken)
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE, Call("other", ARGS, call_id="c2")])
        with pytest.raises(CallRejected, match="write did not run: the call was interrupted") as raised:
            await run.execute("c1")
        assert "disk full" in str(raised.value.__cause__)
        assert "disk full" in (raised.value.detail or "")
        assert (await run.execute("c2")).args == ARGS
        await run.complete("c2")


async def test_fail_run_raises_the_hook_error_in_the_run(journal_url: str) -> None:
    @tool(on_hook_error="fail_run")
    async def write(title: str, content: str) -> None: ...

    @write.on_args_delta
    async def broken(delta: Any, signal: Any) -> None:
        raise RuntimeError("disk full")

    async with Callstream(journal_url, tools=[write]) as cs:
        with pytest.raises(RuntimeError, match="disk full"):
            await execute_write(cs)
        (run,) = await cs.journal.runs()
        assert (run.outcome, run.reason) == ("failed", "RuntimeError: disk full")


@pytest.mark.parametrize("context", [True, False])
async def test_fail_run_raises_the_error_of_a_hook_that_failed_last(journal_url: str, context: bool) -> None:
    @tool(on_hook_error="fail_run")
    async def write(title: str, content: str) -> None: ...

    written = asyncio.Event()

    @write.on_args_complete
    async def broken(call: Any, signal: Any) -> None:
        await written.wait()
        raise RuntimeError("disk full")

    async def leave(cs: Callstream) -> None:
        if context:
            async with cs.run("thread") as run:
                await read(run, "anthropic", [WRITE])
                written.set()
        else:
            run = await cs.start("thread")
            await read(run, "anthropic", [WRITE])
            written.set()
            await run.finish()

    async with Callstream(journal_url, tools=[write]) as cs:
        with pytest.raises(RuntimeError, match="disk full"):
            await leave(cs)
        (run,) = await cs.journal.runs()
        assert (run.outcome, run.reason) == ("failed", "RuntimeError: disk full")


async def test_invoke_runs_the_tool_from_barrier_to_result(journal_url: str) -> None:
    @tool
    async def write(title: str, content: str, progress: Progress = no_progress) -> dict[str, int]:
        await progress(1, 2, "half")
        return {"length": len(content)}

    told: list[Any] = []
    async with Callstream(journal_url, tools=[write], on_tool_progress=lambda *args: told.append(args)) as cs:
        async with cs.run("thread") as run:
            await read(run, "anthropic", [WRITE])
            assert await run.invoke("c1") == {"length": len(ARGS["content"])}
        found = await events(cs, run)
        assert [event for event in found if isinstance(event, CallProgressed | CallReturned)] == [
            CallProgressed("c1", {"done": 1, "total": 2, "message": "half"}),
            CallReturned("c1", {"length": len(ARGS["content"])}),
        ]
        assert told == [("write", "c1", {"done": 1, "total": 2, "message": "half"})]


async def test_invoke_of_sync_and_generator_tools(journal_url: str) -> None:
    threads: list[int] = []

    @tool
    def sync(title: str, content: str, progress: Progress = no_progress) -> str:
        threads.append(threading.get_ident())
        progress({"at": "work"})
        return title

    @tool
    def steps(title: str, content: str):  # type: ignore[no-untyped-def]
        yield title
        yield content

    async with Callstream(journal_url, tools=[sync, steps]) as cs:
        async with cs.run("thread") as run:
            await read(run, "anthropic", [Call("sync", ARGS, call_id="a"), Call("steps", ARGS, call_id="b")])
            assert await run.invoke("a") == "Notes"
            assert await run.invoke("b") == ["Notes", ARGS["content"]]
        assert CallProgressed("a", {"at": "work"}) in await events(cs, run)
    assert threads != [threading.get_ident()]


async def test_a_tool_that_raises_is_recorded_and_rises(journal_url: str) -> None:
    @tool
    async def write(title: str, content: str) -> None:
        raise ValueError("no room")

    async with Callstream(journal_url, tools=[write]) as cs:
        async with cs.run("thread") as run:
            await read(run, "anthropic", [WRITE])
            with pytest.raises(ValueError, match="no room"):
                await run.invoke("c1")
        kept = await cs.journal.call("c1")
        assert kept is not None
        assert (kept.state, kept.error) == (CallState.FAILED, "ValueError: no room")


async def test_a_sync_tool_that_raises_stop_iteration_fails(journal_url: str) -> None:
    @tool
    def write(title: str, content: str) -> str:
        return next(line for line in [title, content] if not line)

    async with Callstream(journal_url, tools=[write]) as cs:
        async with cs.run("thread") as run:
            await read(run, "anthropic", [WRITE])
            async with asyncio.timeout(10):
                with pytest.raises(RuntimeError, match="StopIteration"):
                    await run.invoke("c1")
            assert run.call("c1").state is CallState.FAILED


async def test_a_result_that_json_cannot_express_fails_its_call(journal_url: str) -> None:
    @tool
    async def write(title: str, content: str) -> object:
        return object()

    async with Callstream(journal_url, tools=[write]) as cs:
        async with cs.run("thread") as run:
            await read(run, "anthropic", [WRITE])
            with pytest.raises(UsageError, match="cannot be written as JSON"):
                await run.invoke("c1")
            call = run.call("c1")
            assert (call.state, "cannot be written as JSON" in str(call.error)) == (CallState.FAILED, True)


async def test_invoke_of_tools_that_hide_what_they_are(journal_url: str) -> None:
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call

    @tool
    @logged
    async def hidden(title: str, content: str) -> str:
        return title

    @tool
    def nameless(title: str, /, content: str) -> str:
        return title

    async with Callstream(journal_url, tools=[hidden, nameless]) as cs, cs.run("thread") as run:
        await read(run, "anthropic", [Call("hidden", ARGS, call_id="a"), Call("nameless", ARGS, call_id="b")])
        assert await run.invoke("a") == "Notes"
        assert await run.invoke("b") == "Notes"


async def test_a_method_is_the_same_tool_each_time_it_is_asked_for() -> None:
    class Shop:
        @tool
        async def buy(self, title: str) -> str:
            return title

    shop = Shop()
    cs = Callstream(tools=[shop.buy, shop.buy])
    with pytest.raises(UsageError, match="a tool 'buy' already"):
        cs.add_tool(Shop().buy)
    async with cs, cs.run("thread") as run:
        await read(run, "anthropic", [Call("buy", {"title": "x"}, call_id="c1")])
        assert await run.invoke("c1") == "x"


async def test_stopping_the_run_cancels_the_tools_that_it_runs(journal_url: str) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def write(title: str, content: str) -> None:
        began.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    async with Callstream(journal_url, tools=[write]) as cs:
        run = await cs.start("thread")
        await read(run, "anthropic", [WRITE])
        invoking = asyncio.ensure_future(run.invoke("c1"))
        await began.wait()
        await run.stop("user")
        with pytest.raises(RunOver, match="while tool 'write' ran"):
            await invoking
        assert ended.is_set()
        kept = await cs.journal.call("c1")
        assert kept is not None
        assert (kept.state, kept.error) == (CallState.FAILED, "aborted")


async def test_progress_is_merged_and_the_last_value_kept(journal_url: str) -> None:
    @tool
    async def write(title: str, content: str, progress: Progress = no_progress) -> None:
        for step in range(200):
            progress(step, 199)

    async with Callstream(journal_url, tools=[write]) as cs:
        async with cs.run("thread") as run:
            await read(run, "anthropic", [WRITE])
            await run.invoke("c1")
        reported = [event.data["done"] for event in await events(cs, run) if isinstance(event, CallProgressed)]
    assert reported[-1] == 199
    assert reported == sorted(reported)
    assert len(reported) < 20


async def test_a_call_is_answered_by_whose_it_is(cs: Callstream) -> None:
    """Two people may have threads of one name, and calls of one id in them."""
    for call_id, principal in (("c1", "ann"), ("c1~2", "bob")):
        async with cs.run("thread", principal=principal) as run:
            await read(run, "anthropic", [WRITE, Finish()])
            await run.await_answer(call_id)
    async with cs.run("thread", principal="bob") as run:
        assert await run.answer("c1", "bob's") is True
    async with cs.run("thread", principal="ann") as run:
        with pytest.raises(UsageError, match="no call 'c1~2' awaits an answer"):
            await run.answer("c1~2", "not hers")
        await run.receive([ResultReceived("c1", None, "ann's", latest=True)])
    async with cs.run("thread", principal="eve") as run:
        with pytest.raises(UsageError, match="no call 'c1' awaits an answer"):
            await run.answer("c1", "not hers")
    assert [(call.call_id, call.result) for call in await cs.journal.calls()] == [("c1", "ann's"), ("c1~2", "bob's")]


@pytest.mark.parametrize("wire", WIRES)
async def test_results_in_a_request_complete_the_calls_that_they_answer(cs: Callstream, wire: str) -> None:
    async with cs.run("thread") as run:
        await run.receive([MessageReceived("user", "write it")])
        await read(run, wire, [Call("write", ARGS, call_id="a"), Call("write", ARGS, call_id="b")])
        answers = [ResultReceived("b", "write", "second"), ResultReceived("a", "write", "first")]
        await run.receive([MessageReceived("user", "write it"), *answers])
        await run.receive(answers)
    found = await events(cs, run)
    assert [event for event in found if isinstance(event, CallReturned)] == [
        CallReturned("b", "second"),
        CallReturned("a", "first"),
    ]
    assert [event.text for event in found if isinstance(event, MessageReceived)] == ["write it"]


async def test_what_a_request_says_is_taken_again_if_it_could_not_be_kept(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*args: Any, **kwargs: Any) -> int:
        raise JournalError("the disk is full")

    said = [MessageReceived("user", "write it"), ResultReceived("c1", "write", "done")]
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE])
        with monkeypatch.context() as broken:
            broken.setattr(cs.journal, "append", full)
            with pytest.raises(JournalError, match="the disk is full"):
                await run.receive(said)
        await asyncio.gather(run.receive(said), run.receive(said))
        await run.receive(said)
    found = await events(cs, run)
    assert [event for event in found if isinstance(event, CallReturned | MessageReceived)] == [
        MessageReceived("user", "write it"),
        CallReturned("c1", "done"),
    ]


async def test_what_a_request_says_is_taken_again_after_it_was_cancelled_while_it_waited(cs: Callstream) -> None:
    said = [MessageReceived("user", "write it"), ResultReceived("c1", "write", "done")]
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE])
        async with run._log.writing:
            waiting = asyncio.create_task(run.receive(said))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await run.receive(said)
    found = await events(cs, run)
    assert [event for event in found if isinstance(event, CallReturned | MessageReceived)] == [
        MessageReceived("user", "write it"),
        CallReturned("c1", "done"),
    ]


async def test_an_error_in_a_request_that_is_no_text_is_kept_as_json(cs: Callstream) -> None:
    block = {"type": "text", "text": "größer", "cached": None, "isError": True}
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE])
        await run.receive([ResultReceived("c1", "write", [block], is_error=True)])
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert kept.state is CallState.FAILED
    assert kept.error == '[{"type":"text","text":"größer","cached":null,"isError":true}]'


async def test_results_without_ids_are_told_by_name_and_order(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(run, "gemini", [Call("look", {"at": 1}), Call("look", {"at": 2}), Call("other", {})])
        request = (
            b'{"contents":[{"role":"model","parts":[]},{"role":"user","parts":['
            b'{"functionResponse":{"name":"look","response":{"r":1}}},'
            b'{"functionResponse":{"name":"other","response":{"r":3}}},'
            b'{"functionResponse":{"name":"look","response":{"r":2}}}]}]}'
        )
        await run.receive(results_in("gemini", request))
        assert [(call.name, call.result) for call in run.calls] == [
            ("look", {"r": 1}),
            ("look", {"r": 2}),
            ("other", {"r": 3}),
        ]


async def test_an_answer_finds_its_call_in_a_later_run_once(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE])
        await run.await_answer("c1")
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert kept.state is CallState.AWAITING
    async with cs.run("thread") as later:
        assert await later.answer("c1", {"approved": True}) is True
        assert await later.answer("c1", {"approved": False}) is False
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert (kept.state, kept.result) == (CallState.COMPLETED, {"approved": True})
    assert CallReturned("c1", {"approved": True}) in await events(cs, later)


async def test_a_call_resumed_by_its_wire_id_has_its_arguments(journal_url: str) -> None:
    @tool
    async def write(title: str = "default", content: str = "") -> str:
        return title

    async with Callstream(journal_url, tools=[write]) as cs:
        async with cs.run("elsewhere") as other:
            await read(other, "anthropic", [WRITE])
        async with cs.run("thread") as run:
            await read(run, "anthropic", [WRITE])
            await run.await_answer("c1~2")
        async with cs.run("thread") as later:
            call = await later.resume("c1")
            assert call is not None
            assert (call.call_id, call.args) == ("c1~2", ARGS)
            assert await later.invoke("c1~2") == "Notes"


async def test_foreign_answer_refused(cs: Callstream) -> None:
    async with cs.run("mine") as run:
        await read(run, "anthropic", [WRITE, Call("write", ARGS, call_id="server")])
        await run.await_answer("c1")
        await run.execute("server")
        with pytest.raises(UsageError, match="does not await"):
            await run.answer("server", 1)
        await run.complete("server", 2)
    async with cs.run("theirs") as other:
        with pytest.raises(UsageError, match="no call 'c1' awaits"):
            await other.answer("c1", {"approved": True})


async def test_current_run_counts_until_it_ends(cs: Callstream) -> None:
    assert current_run() is None
    async with cs.run("outer") as outer:
        assert current_run() is outer
        async with cs.run("inner") as inner:
            assert current_run() is inner
        assert current_run() is outer
    assert current_run() is None
    run = await cs.start("thread")
    assert current_run() is run
    await run.finish()
    assert current_run() is None


async def test_a_run_left_in_another_context_ends_there(cs: Callstream) -> None:
    """As a server does that takes a generator's items in one task and closes it in another."""

    async def items() -> AsyncIterator[Run]:
        async with cs.run("thread") as run:
            yield run

    generator = items()
    run = await asyncio.create_task(anext(generator))  # type: ignore[arg-type]
    await asyncio.create_task(generator.aclose())  # type: ignore[attr-defined]
    assert (run.outcome, current_run()) == ("cancelled", None)


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(UsageError, match="on_hook_error"):
        Settings(on_hook_error="fail-run")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="hook_timeout"):
        Settings(hook_timeout=0)


async def test_stop_while_a_call_is_being_started(cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record is on its way when the end begins, and the hooks of another call take their time to end."""
    held = asyncio.Event()
    aborted: list[str] = []

    async def delta(delta: Any, signal: Any) -> None:
        held.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            raise

    async def abort(call: Call, reason: str) -> None:
        await asyncio.sleep(0.05)
        aborted.append(call.call_id)

    cs.on_args_delta("t", delta)
    cs.on_args_abort("t", abort)
    run = await cs.start("thread")
    await run.record([CallStarted("a", "t"), ArgsAppended("a", "{")])
    await held.wait()
    append = cs.journal.append

    async def slow(*args: Any, **options: Any) -> int:
        await asyncio.sleep(0.02)
        return await append(*args, **options)

    monkeypatch.setattr(cs.journal, "append", slow)
    starting = asyncio.create_task(run.record([CallStarted("b", "t"), ArgsAppended("b", "{")]))
    await asyncio.sleep(0)
    await run.stop("user")
    await starting
    assert run.outcome == "cancelled"
    assert sorted(aborted) == ["a", "b"]
    assert [(call.state, call.reason) for call in run.calls] == [(CallState.DISCARDED, "aborted")] * 2
    assert [row.outcome for row in await cs.journal.runs()] == ["cancelled"]


async def test_a_refusal_that_could_not_be_recorded_does_not_keep_the_run_from_ending(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(delta: Any, signal: Any) -> None:
        raise Reject("no")

    cs.on_args_delta("t", refuse)
    append = cs.journal.append
    refused = asyncio.Event()

    async def full(run_id: str, entries: Sequence[Any], **options: Any) -> int:
        if any(isinstance(getattr(entry, "event", entry), CallDiscarded) for entry in entries) and not refused.is_set():
            refused.set()
            raise JournalError("the disk is full")
        return await append(run_id, entries, **options)

    run = await cs.start("thread")
    monkeypatch.setattr(cs.journal, "append", full)
    await run.record([CallStarted("c", "t"), ArgsAppended("c", "{")])
    await refused.wait()
    with pytest.raises(JournalError, match="disk is full"):
        await run.finish()
    assert (run.outcome, run.reason) == ("failed", "JournalError: the disk is full")
    (row,) = await cs.journal.runs()
    (call,) = await cs.journal.calls()
    assert (row.outcome, call.state) == ("failed", CallState.DISCARDED)


async def test_a_callback_that_raises_does_not_keep_the_run_from_ending(
    cs: Callstream, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    run = await cs.start("thread")
    run.on_stop(lambda reason: heard.append(reason[99:] or reason[99]))
    run.on_stop(heard.append)
    await run.stop("user")
    assert (run.outcome, heard) == ("cancelled", ["user"])
    assert "a callback raised" in caplog.text
    assert [row.outcome for row in await cs.journal.runs()] == ["cancelled"]


async def test_progress_that_the_journal_does_not_take_is_not_recorded(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    append = cs.journal.append

    async def full(run_id: str, entries: Sequence[Any], **options: Any) -> int:
        if [entry.event for entry in entries] == [CallProgressed("c", {"at": 1})]:
            raise JournalError("the disk is full")
        return await append(run_id, entries, **options)

    async with cs.run("thread") as run:
        await run.record([CallStarted("c", "t"), CallCompleted("c", "{}")])
        await run.execute("c")
        monkeypatch.setattr(cs.journal, "append", full)
        progress = run.progress_of("c")
        progress({"at": 1})
        async with asyncio.timeout(10):
            while "disk is full" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        progress({"at": 2})
        await run.complete("c", "done")
    kept = [record.event async for record in cs.journal.read(run.run_id)]
    assert CallProgressed("c", {"at": 2}) in kept
    assert CallReturned("c", "done") in kept


async def test_a_run_whose_start_is_cancelled_ends(cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
    append = cs.journal.append
    writing = asyncio.Event()

    async def slow(*args: Any, **kwargs: Any) -> int:
        writing.set()
        await asyncio.sleep(0.01)
        return await append(*args, **kwargs)

    monkeypatch.setattr(cs.journal, "append", slow)
    starting = asyncio.create_task(cs.start("thread", "r", exclusive=True))
    await writing.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    (row,) = await cs.journal.runs()
    assert (row.outcome, cs.active_run("r")) == ("cancelled", None)
    await (await cs.start("thread", exclusive=True)).finish()


async def test_a_run_id_that_comes_always_again_is_not_counted_up(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    runs = cs.journal.runs

    async def counted(**given: Any) -> Any:
        asked.append(given)
        return await runs(**given)

    monkeypatch.setattr(cs.journal, "runs", counted)
    found = []
    for _ in range(100):
        asked.clear()
        found.append(await cs.free_run_id("run"))
        async with cs.run("thread", found[-1]):
            pass
        assert len(asked) <= 8
    assert len(set(found)) == 100
    assert found[:8] == ["run", *(f"run~{number}" for number in range(2, 9))]
    at_once = await asyncio.gather(*(cs.free_run_id("run") for _ in range(5)))
    assert len({*found, *at_once}) == 105


async def test_a_run_id_is_used_once(cs: Callstream) -> None:
    first = await cs.start("thread", "r")
    with pytest.raises(UsageError, match="'r'"):
        await cs.start("thread", "r")
    assert cs.active_run("r") is first
    await first.finish()
    with pytest.raises(UsageError, match="'r' has ended"):
        async with cs.run("thread", "r"):
            pass
    assert [type(event) for event in await events(cs, first)] == [RunStarted, RunEnded]


async def test_a_run_that_cannot_be_ended_keeps_nothing_else_open() -> None:
    cs = Callstream()
    lost, other = await cs.start("thread"), await cs.start("thread")
    await cs.journal.append(lost.run_id, [RunEnded("finished")])  # behind the run's back
    with pytest.raises(UsageError, match="has ended"):
        await cs.aclose()
    assert other.outcome == "cancelled"
    with pytest.raises(UsageError, match="closed"):
        await cs.journal.runs()


async def test_a_run_that_is_over_takes_nothing_more(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE])
    with pytest.raises(RunOver):
        await run.execute("c1")
    with pytest.raises(RunOver):
        await run.receive([MessageReceived("user", "late")])
    await run.finish()
    await run.stop()
    assert run.outcome == "finished"


async def test_a_cancelled_writer_loses_nothing(cs: Callstream) -> None:
    """Whoever is cancelled in the middle of a write finds journal and ledger in step."""
    run = await cs.start("thread")
    chunks = list(encode("anthropic", [WRITE]))

    async def feed() -> None:
        async with run.response("anthropic") as response:
            for chunk in chunks:
                await response.feed(chunk)

    for delay in range(1, 6):
        task = asyncio.create_task(feed())
        for _ in range(delay * 3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await run.finish()
    found = await records(cs, run)
    assert [record.seq for record in found] == list(range(1, len(found) + 1))
    assert run.seq == len(found)
    for call in run.calls:
        kept = await cs.journal.call(call.call_id)
        assert kept is not None
        assert kept.is_final


def test_two_event_loops(journal_url: str) -> None:
    """One Callstream, used from two loops at once and from a third one after them."""
    cs = Callstream(journal_url)
    seen: list[tuple[int, str]] = []

    async def hook(delta: Any, signal: Any) -> None:
        seen.append((threading.get_ident(), delta.text))

    cs.on_args_delta("write", hook)
    failures: list[BaseException] = []

    async def program(number: int) -> None:
        for turn in range(5):
            async with cs.run(f"thread-{number}") as run:
                await read(run, "anthropic", [Call("write", ARGS, call_id=f"{number}-{turn}")])
                call: JournalCall = await run.execute(f"{number}-{turn}")
                await run.complete(call.call_id, call.args)

    def loop(number: int) -> None:
        try:
            asyncio.run(program(number))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=loop, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loop(3)
    asyncio.run(cs.aclose())
    assert failures == []
    assert {thread for thread, _ in seen} >= {threading.get_ident()}
    assert len({thread for thread, _ in seen}) == 3


async def test_nothing_is_parsed_for_a_tool_without_hooks(cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """no_hook_no_parse, with the whole runtime around it."""
    from callstream.jsontext import stream

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a JsonStream was made")

    monkeypatch.setattr(stream.JsonStream, "__init__", refuse)
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE])
        assert (await run.execute("c1")).args == ARGS
        await run.complete("c1")


async def test_equal_pieces_are_kept_as_two(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        await read(run, "anthropic", [Call("write", call_id="c1", text='{"a":"xxxxxxxx"}', size=1)])
    pieces = [event.text for event in await events(cs, run) if isinstance(event, ArgsAppended)]
    assert pieces.count("x") == 8
    assert "".join(pieces) == '{"a":"xxxxxxxx"}'
    completed = next(event for event in await events(cs, run) if isinstance(event, CallCompleted))
    assert completed.args_json is None


async def test_result_on_its_way_when_the_run_is_stopped(cs: Callstream) -> None:
    """What is open is closed after that was written, so the call has one outcome and the run an end."""
    run = await cs.start("thread")
    await run.record([CallStarted("c", "f"), ArgsAppended("c", "{}"), CallCompleted("c", "{}")])
    await run.execute("c")
    await asyncio.gather(run.fail("c", "out of paper"), run.stop())
    call = await cs.journal.call("c")
    assert call is not None
    assert (call.state, call.error) == (CallState.FAILED, "out of paper")
    assert run.outcome == "cancelled"
