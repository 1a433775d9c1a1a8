"""Results and answers: whose call they are, in this run or a later one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callstream import CallState, Callstream, tool
from callstream.errors import JournalError, UsageError
from callstream.events import (
    CallDiscarded,
    CallReturned,
    MessageReceived,
    ResultReceived,
)
from callstream.testing import Finish, ToolCall
from callstream.wire import WIRES, results_in
from tests.submitting import replace_append

from .reading import ARGS, WRITE, events, read


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
        await read(run, wire, [ToolCall("write", ARGS, call_id="a"), ToolCall("write", ARGS, call_id="b")])
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
            replace_append(broken, cs.journal, full)
            with pytest.raises(JournalError, match="the disk is full"):
                await run.receive(said)
        await asyncio.gather(run.receive(said), run.receive(said))
        await run.receive(said)
    found = await events(cs, run)
    assert [event for event in found if isinstance(event, CallReturned | MessageReceived)] == [
        MessageReceived("user", "write it"),
        CallReturned("c1", "done"),
    ]


async def test_what_a_request_says_is_taken_again_after_it_was_cancelled_while_it_waited(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, go_on = cs.journal.append, asyncio.Event()

    async def slow(*args: Any, **options: Any) -> int:
        await go_on.wait()
        return await append(*args, **options)

    said = [MessageReceived("user", "write it"), ResultReceived("c1", "write", "done")]
    async with cs.run("thread") as run:
        await read(run, "anthropic", [WRITE])
        with monkeypatch.context() as held:
            replace_append(held, cs.journal, slow)
            waiting = asyncio.create_task(run.receive(said))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            go_on.set()
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
        await read(run, "gemini", [ToolCall("look", {"at": 1}), ToolCall("look", {"at": 2}), ToolCall("other", {})])
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


async def test_a_result_whose_id_the_program_made_up_is_told_by_its_name(cs: Callstream) -> None:
    """Where the provider sends no ids, programs make some up. Two calls of one name cannot be told apart then."""
    async with cs.run("thread") as run:
        look = ToolCall("look", {"at": 1}, call_id="")
        await read(run, "gemini", [look, ToolCall("see", {}, call_id=""), ToolCall("see", {}, call_id="")])
        await run.receive([ResultReceived("made-up-1", "look", "earlier", latest=False)])
        made_up = [("made-up-2", "see"), ("made-up-3", "look"), ("made-up-4", "see")]
        for _ in range(2):
            await run.receive([ResultReceived(made, name, f"of {made}") for made, name in made_up])
        assert [(call.name, call.result) for call in run.calls] == [
            ("look", "of made-up-3"),
            ("see", None),
            ("see", None),
        ]


async def test_a_made_up_id_means_one_call_however_often_its_result_is_seen(cs: Callstream) -> None:
    async with cs.run("thread") as run:
        for at in (1, 2):
            await read(run, "gemini", [ToolCall("look", {"at": at}, call_id="")])
            await run.receive([ResultReceived("made-up", "look", "first")])
        assert [call.result for call in run.calls] == ["first", None]


async def test_two_results_with_made_up_ids_are_not_told_apart_where_one_call_was_discarded(cs: Callstream) -> None:
    async with cs.run("thread", rejected="forward") as run:
        await read(run, "gemini", [ToolCall("look", {"at": at}, call_id="") for at in (1, 2)])
        await run.record([CallDiscarded(run.calls[0].call_id, "rejected")])
        await run.receive([ResultReceived("made-up-1", "look", "refused"), ResultReceived("made-up-2", "look", "two")])
        assert [call.result for call in run.calls] == [None, None]


async def test_a_result_whose_id_is_known_is_of_no_other_call(cs: Callstream) -> None:
    async with cs.run("thread") as earlier:
        await read(earlier, "gemini", [ToolCall("look", {}, call_id="c1")])
        await earlier.await_answer("c1")
    async with cs.run("thread") as run:
        await read(run, "gemini", [ToolCall("look", {}, call_id=""), ToolCall("look", {}, call_id="c2")])
        await run.receive([ResultReceived("c1", "look", "first"), ResultReceived("c2", "look", "second")])
        assert [call.result for call in run.calls if call.run_id == run.run_id] == [None, "second"]
    answered = await cs.journal.call("c1")
    assert answered is not None
    assert answered.result == "first"


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
        await read(run, "anthropic", [WRITE, ToolCall("write", ARGS, call_id="server")])
        await run.await_answer("c1")
        await run.execute("server")
        with pytest.raises(UsageError, match="does not await"):
            await run.answer("server", 1)
        await run.complete("server", 2)
    async with cs.run("theirs") as other:
        with pytest.raises(UsageError, match="no call 'c1' awaits"):
            await other.answer("c1", {"approved": True})
