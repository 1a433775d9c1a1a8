"""Which call an id means, in one thread of one principal."""

from __future__ import annotations

import pytest

from callstream import Callstream
from callstream.calls import CallState
from callstream.events import ArgsAppended, CallCompleted, CallDiscarded, CallStarted
from callstream.runtime.answers import Directory


async def add(
    cs: Callstream, *states: str, thread: str = "thread", principal: str | None = None, wire_id: str | None = "0"
) -> list[str]:
    """A run with a call for each state, all of one wire id. Returns their ids."""
    call_ids: list[str] = []
    async with cs.run(thread, principal=principal) as run:
        for state in states:
            response = run.response("gemini")
            await response.record([CallStarted("0", "write", wire_id), ArgsAppended("0", '{"a":1}')])
            if state == "discarded":
                await response.record([CallDiscarded("0", "malformed")])
            else:
                await response.record([CallCompleted("0", '{"a":1}')])
            call_id = response.call_ids["0"]
            if state == "awaiting":
                await run.await_answer(call_id)
            elif state == "completed":
                await run.execute(call_id)
                await run.complete(call_id, "done")
            call_ids.append(call_id)
    return call_ids


async def names(directory: Directory, named: str) -> tuple[str | None, str | None]:
    """The ids of the calls that a client and a host mean."""
    by_client, by_host = await directory.find(named), await directory.find_by_wire_id(named)
    return by_client and by_client.call_id, by_host and by_host.call_id


async def test_a_client_means_a_call_id_and_a_host_a_wire_id(cs: Callstream) -> None:
    assert await add(cs, "completed") == ["0"]
    assert await add(cs, "awaiting") == ["0~2"]
    directory = Directory(cs.journal, "thread", None)
    assert await names(directory, "0") == ("0", "0~2")
    assert await names(directory, "0~2") == ("0~2", "0~2")
    assert await names(directory, "1") == (None, None)


@pytest.mark.parametrize(
    ("runs", "meant"),
    [
        ([["awaiting"], ["completed"]], "0~2"),
        ([["awaiting"], ["awaiting"]], "0~3"),
        ([["completed", "awaiting", "awaiting"]], "0~3"),
        ([["completed"], ["completed"]], "0~3"),
        ([["completed"], ["discarded"]], "0~2"),
        ([["discarded"]], "0~2"),
    ],
)
async def test_a_wire_id_means_the_call_that_awaits_an_answer_else_the_newest(
    cs: Callstream, runs: list[list[str]], meant: str
) -> None:
    await add(cs, "completed", thread="another")  # which has the call_id 0
    for states in runs:
        await add(cs, *states)
    assert await names(Directory(cs.journal, "thread", None), "0") == (meant, meant)


async def test_the_newest_use_of_a_wire_id(cs: Callstream) -> None:
    await add(cs, "awaiting")
    await add(cs, "completed")
    directory = Directory(cs.journal, "thread", None)
    newest = await directory.find_newest("0")
    assert newest is not None
    assert newest.call_id == "0~2"
    assert await directory.find_newest("1") is None


async def test_a_call_without_a_wire_id_is_known_by_its_call_id(cs: Callstream) -> None:
    assert await add(cs, "awaiting", wire_id=None) == ["0"]
    directory = Directory(cs.journal, "thread", None)
    assert await names(directory, "0") == ("0", "0")
    assert await directory.find_awaiting("0") is None


async def test_calls_of_others_are_not_found(cs: Callstream) -> None:
    assert await add(cs, "awaiting", principal="ann") == ["0"]
    assert await add(cs, "awaiting", principal="bob") == ["0~2"]
    assert await names(Directory(cs.journal, "thread", "ann"), "0") == ("0", "0")
    assert await names(Directory(cs.journal, "thread", "bob"), "0") == ("0~2", "0~2")
    assert await names(Directory(cs.journal, "thread", "ann"), "0~2") == (None, None)
    assert await names(Directory(cs.journal, "thread", "eve"), "0") == (None, None)
    assert await names(Directory(cs.journal, "elsewhere", None), "0") == (None, None)


async def test_what_is_found_has_its_arguments(cs: Callstream) -> None:
    await add(cs, "awaiting")
    directory = Directory(cs.journal, "thread", None)
    for call in (await directory.find("0"), await directory.find_by_wire_id("0"), await directory.find_newest("0")):
        assert call is not None
        assert (call.state, call.args) == (CallState.AWAITING, {"a": 1})
