"""``@tool(check="stream")``: a call is discarded where the fault is, and nothing invalid runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from callstream import Call, CallRejected, CallState, Callstream, FieldDelta, Reject, Run, UsageError, tool
from callstream.events import ArgsAppended, CallCompleted, CallStarted
from callstream.testing import Finish, ToolCall, encode


class Table(BaseModel):
    seats: int = Field(ge=1, le=12)


class Desk:
    """A Callstream with a tool that is judged while it is written, and what happened to it."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.aborted: list[str] = []
        self.fields: list[str] = []

        @tool(check="stream")
        async def reserve(
            area: Literal["garden", "hall"],
            table: Table,
            note: Annotated[str, msgspec.Meta(max_length=20, pattern="^[a-z ]*$")] = "",
        ) -> str:
            self.ran.append((area, table, note))
            return "reserved"

        @tool
        async def later(count: int) -> int:
            self.ran.append(count)
            return count

        @reserve.on_field("note")
        def read(field: FieldDelta, signal: Any) -> None:
            self.fields.append(field.text)
            if "please" in "".join(self.fields):
                raise Reject("do not beg")

        @reserve.on_args_abort
        def undo(call: Call, reason: str) -> None:
            self.aborted.append(reason)

        self.cs = Callstream(tools=[reserve, later])


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    async with made.cs:
        yield made


async def feed(run: Run, *calls: ToolCall, wire: str = "anthropic") -> None:
    async with run.response(wire) as response:
        for chunk in encode(wire, [*calls, Finish()]):
            await response.feed(chunk)


GOOD = {"area": "hall", "table": {"seats": 4}, "note": "by the window"}


async def test_what_fits_runs(desk: Desk) -> None:
    async with desk.cs.run("t") as run:
        await feed(run, ToolCall("reserve", GOOD))
        assert await run.invoke(run.calls[0].call_id) == "reserved"
    assert [("hall", Table(seats=4), "by the window")] == desk.ran
    assert "".join(desk.fields) == "by the window"


@pytest.mark.parametrize(
    ("written", "rest", "sentence"),
    [
        ('{"area": "k', 'itchen"}', "the argument 'area' should be one of \"garden\", \"hall\", got a string that begins with 'k'"),
        ('{"table": {"seats": "', '4"}}', "the argument 'table.seats' should be an integer, got a string"),
        ('{"table": {"seats": 13,', ' "more": 1}}', "the argument 'table.seats' should be at most 12, got the number 13"),
        ('{"price": 10,', ' "area": "hall"}', "there is no argument 'price'"),
        ('{"note": "far too long to be a n', 'ote"}', "the argument 'note' should be at most 20 characters long"),
        ('{"note": "LOUD"', "}", "the argument 'note' should be a string that matches"),
        ('{"area": "hall"}', "", "the argument 'table' is missing"),
    ],
)  # fmt: skip
async def test_a_call_is_discarded_where_the_fault_is(desk: Desk, written: str, rest: str, sentence: str) -> None:
    async with desk.cs.run("t") as run:
        await run.record([CallStarted("c1", "reserve")])
        for character in written:
            await run.record([ArgsAppended("c1", character)])
        call = await run.settled("c1")  # before the rest has come
        assert (call.state, call.reason) == (CallState.DISCARDED, "invalid")
        assert sentence in (call.detail or "")
        await run.record([ArgsAppended("c1", rest), CallCompleted("c1", written + rest)])
        [refused] = run.refusals()
        assert refused.text == f"reserve did not run: {call.detail}"
        with pytest.raises(CallRejected):
            await run.invoke("c1")
    assert desk.ran == []
    assert desk.aborted == ["invalid"]


async def test_the_log_quotes_no_argument(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """The model is told what it got wrong, and the journal keeps it; the log is read by others."""
    async with desk.cs.run("t") as run:
        await feed(run, ToolCall("reserve", {"area": "hall", "table": {"seats": 47114711}}))
        assert "47114711" in (run.calls[0].detail or "")
    assert "was discarded (invalid)" in caplog.text
    assert "47114711" not in caplog.text


async def test_calls_beside_it_run(desk: Desk) -> None:
    async with desk.cs.run("t") as run:
        await feed(run, ToolCall("reserve", {"area": "roof"}), ToolCall("later", {"count": 5}))
        results = {result.name: (result.text, result.is_error) for result in await run.run_tools()}
    assert results["later"] == ("5", False)
    assert results["reserve"][0].startswith("reserve did not run: the argument 'area' should be one of")
    assert desk.ran == [5]


async def test_a_name_that_comes_twice_is_malformed(desk: Desk) -> None:
    async with desk.cs.run("t") as run:
        await feed(run, ToolCall("reserve", text='{"area": "hall", "area": "garden"}'))
        assert (run.calls[0].reason, run.calls[0].detail) == (
            "malformed",
            "the name 'area' comes twice in an object (at position 22)",
        )
    assert desk.ran == []


async def test_a_hook_rejects_by_its_own_rules(desk: Desk) -> None:
    async with desk.cs.run("t") as run:
        await feed(run, ToolCall("reserve", {**GOOD, "note": "please"}))
        with pytest.raises(CallRejected, match="do not beg"):
            await run.invoke(run.calls[0].call_id)
    assert desk.aborted == ["rejected"]


@pytest.mark.parametrize(("text", "fits"), [(json.dumps(GOOD), True), ('{"area": "roof"}', False), ("null", False)])
async def test_a_call_that_comes_whole_is_judged_too(desk: Desk, text: str, fits: bool) -> None:
    async with desk.cs.run("t") as run:
        await run.record([CallStarted("c1", "reserve"), CallCompleted("c1", text)])
        call = await run.settled("c1")
        assert (call.state is CallState.ARGS_COMPLETE) is fits
        assert call.reason == (None if fits else "invalid")


def test_what_cannot_be_said() -> None:
    with pytest.raises(UsageError, match="expected check to be one of"):
        tool(check="often")  # type: ignore[call-overload]


# -- nothing invalid runs --


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(data=st.data())
async def test_nothing_invalid_runs_whatever_is_written(data: Any) -> None:
    """Any wire, any split, either time of judging: the tool runs on what pydantic takes, and on nothing else."""
    seats = data.draw(st.integers(0, 14) | st.sampled_from(["4", None, 4.5, [4]]))
    area = data.draw(st.sampled_from(["hall", "garden", "roof", 5]))
    note = data.draw(st.sampled_from(["", "a b", "A", "x" * 21, None]))
    wire = data.draw(st.sampled_from(["anthropic", "openai_chat", "openai_responses", "gemini"]))
    ran: list[Any] = []

    @tool(check=data.draw(st.sampled_from(["end", "stream"])))
    async def reserve(
        area: Literal["garden", "hall"],
        table: StrictTable,
        note: Annotated[str, Field(max_length=20, pattern="^[a-z ]*$")] = "",
    ) -> str:
        ran.append((area, table.seats, note))
        return "reserved"

    written = {"area": area, "table": {"seats": seats}, "note": note}
    try:
        expected = [_Reserve.model_validate_json(json.dumps(written))]
    except ValueError:
        expected = []
    async with Callstream(tools=[reserve]) as cs, cs.run("t") as run:
        async with run.response(wire) as response:
            body = b"".join(encode(wire, [ToolCall("reserve", written), Finish()]))
            cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=5)))
            for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
                await response.feed(body[start:end])
        await run.run_tools()
        assert run.calls[0].reason == (None if expected else "invalid")
    assert [(each.area, each.table.seats, each.note or "") for each in expected] == ran


class StrictTable(Table):
    model_config = {"strict": True}


class _Reserve(BaseModel):
    model_config = {"strict": True}
    area: Literal["garden", "hall"]
    table: StrictTable
    note: Annotated[str, Field(max_length=20, pattern="^[a-z ]*$")] | None = ""
