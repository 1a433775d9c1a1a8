from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from callstream.calls import Call
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallProgressed,
    CallReturned,
    CallStarted,
    InputKept,
    MessageStarted,
    ReasoningAppended,
    RunEnded,
    RunResumed,
    RunStarted,
    TextAppended,
)
from callstream.journal import RunRow, open_journal
from callstream.journal.rows import Entry

from .commands import Ran, in_terminal
from .conftest import filled

Run = Callable[..., Ran]


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def documents(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_calls_are_a_table_in_the_order_in_which_they_started(run: Run, journal_url: str) -> None:
    done = run("calls", "--journal", journal_url)
    assert done.code == 0
    heading, *found = rows(done.out)
    assert heading == ["call", "tool", "state", "thread", "started", "outcome"]
    assert [row[:4] for row in found] == [
        ["c1", "write_document", "completed", "t1"],
        ["c2", "look_up", "failed", "t2"],
        ["c3", "look_up", "discarded", "t2"],
        ["c4", "approve", "awaiting", "t2"],
        ["c5", "write_document", "discarded", "t2"],
    ]
    assert done.out.splitlines()[1].endswith('{"characters": 23}')
    assert done.out.splitlines()[2].endswith("the library is closed")
    assert done.out.splitlines()[5].endswith("truncated: the answer was cut off")


def test_calls_can_be_chosen(run: Run, journal_url: str) -> None:
    def ids(*arguments: str) -> list[object]:
        done = run("calls", "--journal", journal_url, "--json", *arguments)
        assert done.code == 0
        return [each["call_id"] for each in documents(done.out)]

    assert ids("--state", "awaiting") == ["c4"]
    assert ids("--state", "failed", "--state", "discarded") == ["c2", "c3", "c5"]
    assert ids("--state", "discarded", "--limit", "1") == ["c5"]
    assert ids("--thread", "t1") == ["c1"]
    assert ids("--run", "run_2", "--limit", "2") == ["c4", "c5"]
    assert ids("--run", "run_2", "--state", "completed") == []
    assert ids("--limit", "3") == ["c3", "c4", "c5"]
    assert ids("--limit", str(2**70)) == ["c1", "c2", "c3", "c4", "c5"]


def test_json_has_every_name_always(run: Run, journal_url: str) -> None:
    names = set(Call.__struct_fields__)
    for each in documents(run("calls", "--journal", journal_url, "--json").out):
        assert set(each) == names - {"args_json"}
    assert set(documents(run("show", "c4", "--journal", journal_url, "--json").out)[0]) == names
    for each in documents(run("runs", "--journal", journal_url, "--json").out):
        assert set(each) == set(RunRow.__struct_fields__)


def test_runs_are_a_table_the_newest_last(run: Run, journal_url: str) -> None:
    filled(journal_url, run_3=[RunStarted("t1")])
    done = run("runs", "--journal", journal_url)
    heading, *found = rows(done.out)
    assert heading == ["run", "thread", "outcome", "started", "took", "records"]
    assert [row[:3] for row in found] == [
        ["run_1", "t1", "finished"],
        ["run_2", "t2", "failed"],
        ["run_3", "t1", "running"],
    ]
    assert "failed (it broke)" in done.out
    assert [row[-1] for row in found] == ["18", "18", "1"]

    def ids(*arguments: str) -> list[object]:
        return [each["run_id"] for each in documents(run("runs", "--journal", journal_url, "--json", *arguments).out)]

    assert ids("--active") == ["run_3"]
    assert ids("--ended") == ["run_1", "run_2"]
    assert ids("--thread", "t1", "--limit", "1") == ["run_3"]
    assert ids("--thread", "t1", "--limit", str(2**70)) == ids("--thread", "t1")


def test_nothing_is_said_on_standard_output_where_there_is_nothing(run: Run, journal_url: str) -> None:
    done = run("calls", "--journal", journal_url, "--thread", "none")
    assert (done.code, done.out) == (0, "")
    assert "no such calls in" in done.err
    assert run("calls", "--journal", journal_url, "--thread", "none", "--json") == Ran(0, "", "")
    assert "no such runs in" in run("runs", "--journal", journal_url, "--thread", "none").err


def test_show_tells_all_of_a_call(run: Run, journal_url: str) -> None:
    done = run("show", "c1", "--journal", journal_url)
    assert done.code == 0
    facts = dict(line.split(maxsplit=1) for line in done.out.split("\n\n")[0].splitlines())
    assert facts["tool"] == "write_document"
    assert facts["state"] == "completed"
    assert facts["wire"] == "id    toolu_1"
    assert '  {\n    "title": "Tides",\n    "content": "# Tides\\nThe moon pulls."\n  }\n' in done.out
    assert done.out.endswith('result\n  {\n    "characters": 23\n  }\n')


def test_show_and_watch_name_the_agents(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/named.db"
    entries = [
        Entry(RunStarted("t")),
        Entry(MessageStarted("m1"), author="boss"),
        Entry(ReasoningAppended("m1", "Hm."), author="boss"),
        Entry(TextAppended("m1", "I ask."), author="boss"),
        Entry(CallStarted("c1", "look", message_id="m2"), author="helper"),
        Entry(CallStarted("c2", "look", message_id="m1"), author="boss"),
        Entry(CallDiscarded("c1", "aborted"), author="helper"),
        Entry(CallDiscarded("c2", "aborted"), author="boss"),
        Entry(RunEnded("cancelled")),
    ]

    async def write() -> None:
        async with open_journal(url) as journal:
            await journal.append("r1", entries)

    asyncio.run(write())
    assert "tool       look\nagent      helper\n" in run("show", "c1", "--journal", url).out
    assert "tool       look\nagent      boss\n" in run("show", "c2", "--journal", url).out
    watched = run("watch", "r1", "--journal", url).out.splitlines()
    assert watched[1:4] == ["reasoning of boss: Hm.", "boss: I ask.", "look #1 (c1) by helper"]


def test_what_the_agent_of_a_tool_does_stands_under_its_call(run: Run, tmp_path: Path) -> None:
    inner = [
        MessageStarted("m2", within="c1"),
        TextAppended("m2", "One.\nTwo."),
        CallStarted("c2", "look", message_id="m2"),
        ArgsAppended("c2", '{"at":"it"}'),
        CallCompleted("c2"),
        CallExecuting("c2"),
        CallProgressed("c2", {"done": 1, "total": 1}),
        CallProgressed("c2", "nearly"),
        CallAwaiting("c2"),
        CallReturned("c2", 1),
    ]
    whole = [RunStarted("t"), CallStarted("c1", "helper"), CallCompleted("c1"), *inner, CallReturned("c1", 2)]
    url = filled(f"sqlite:///{tmp_path}/nested.db", r1=[*whole, RunEnded("finished")])
    watched = run("watch", "r1", "--journal", url).out.splitlines()
    assert watched[1:-1] == [
        "helper #1 (c1)",
        "  model: One.",
        "  Two.",
        "  look #2 (c2)",
        "    at: it",
        "  look #2 [##############################] 1/1",
        "  look #2: nearly",
        "  look #2 awaits an answer",
        "  look #2 returned 1",
        "helper #1 returned 2",
    ]


def test_show_of_a_call_that_was_cut_off_has_what_came(run: Run, journal_url: str) -> None:
    shown = run("show", "c5", "--journal", journal_url).out
    assert "reason     truncated\ndetail     the answer was cut off\n" in shown
    assert shown.endswith('arguments\n  {"title":"Ha\n')
    assert run("show", "c4", "--journal", journal_url).out.endswith("no arguments\n")
    assert json.loads(run("show", "c5", "--journal", journal_url, "--json").out)["args_json"] == '{"title":"Ha'


def test_a_call_that_is_not_there_is_one_sentence(run: Run, journal_url: str) -> None:
    done = run("show", "c99", "--journal", journal_url)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"callstream show: call 'c99' not found in {journal_url}\n"


def test_what_a_model_wrote_is_never_obeyed_by_the_terminal(run: Run, journal_url: str) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2Jx\u202eevil\x9b31m"
    filled(
        journal_url,
        run_9=[RunStarted(hostile), CallStarted("c9", hostile), CallCompleted("c9"), RunEnded("failed", hostile)],
    )
    for arguments in (["calls"], ["runs"], ["show", "c9"], ["watch", "run_9"]):
        printed = run(*arguments, "--journal", journal_url).out
        assert not set(printed) & {"\x1b", "\x07", "\u202e", "\x9b"}
        assert "evil" in printed


def test_in_a_terminal_the_table_is_drawn_with_rich(journal_url: str) -> None:
    done = in_terminal("calls", "--journal", journal_url)
    assert done.code == 0
    assert "\x1b[1m" in done.out
    assert "write_document" in done.out
    plain = in_terminal("calls", "--journal", journal_url, "--plain")
    assert "\x1b[" not in plain.out
    assert "write_document" in plain.out


def test_json_of_half_a_surrogate_pair_is_an_escape(run: Run, tmp_path: Path) -> None:
    """A model may cut a pair in two, and a tool may return what it likes."""
    half = [
        RunStarted("t"),
        TextAppended("m", "\ud83c"),
        CallStarted("c", "tool"),
        CallCompleted("c", "{}"),
        CallReturned("c", "\ud83c"),
        RunEnded("finished"),
    ]
    url = filled(f"sqlite:///{tmp_path}/half.db", r=half)
    for arguments in (["calls"], ["show", "c"], ["watch", "r"]):
        done = run(*arguments, "--journal", url, "--json")
        assert done.code == 0, done.err
        assert "\\ud83c" in done.out
        assert documents(done.out)


def test_a_call_that_is_void_is_marked(run: Run, tmp_path: Path) -> None:
    """Two processes worked on its run; the second asked the model again."""
    url = f"sqlite:///{tmp_path}/killed.db"
    kept = InputKept("app", "input")
    half = [CallStarted("half", "write", message_id="m"), ArgsAppended("half", "{")]
    again = [CallStarted("whole", "write", message_id="n"), CallCompleted("whole", "{}"), CallReturned("whole", 1)]
    rest = [RunResumed(2, ("m",)), CallDiscarded("half", "interrupted"), MessageStarted("n"), *again]

    async def fill() -> None:
        async with open_journal(url, housekeeping=None) as journal:
            await journal.append("r", [RunStarted("t"), kept, MessageStarted("m"), *half])
        async with open_journal(url, housekeeping=None) as journal:
            assert await journal.adopt({"app"}) == ["r"]
            await journal.append("r", [*rest, RunEnded("finished")])

    asyncio.run(fill())
    shown = run("show", "half", "--journal", url)
    assert "attempt    1 of 2; void: the response was cut, and the model was asked again\n" in shown.out
    assert "attempt    2 of 2\n" in run("show", "whole", "--journal", url).out
    assert "finished, attempt 2" in run("runs", "--journal", url).out
    [row] = documents(run("runs", "--journal", url, "--json").out)
    assert row["attempt"] == 2
    watched = run("watch", "r", "--journal", url).out
    assert "--- attempt 2: another process goes on; void: the response that was cut with write\n" in watched


def test_a_declined_call_is_not_said_to_have_failed(run: Run, tmp_path: Path) -> None:
    called = [RunStarted("t"), CallStarted("c", "remove"), CallCompleted("c")]
    ended = [CallFailed("c", "This tool call is rejected."), RunEnded("finished")]
    url = filled(f"sqlite:///{tmp_path}/declined.db", run_1=[*called, *ended])
    assert "declined: This tool call is rejected." in run("calls", "--journal", url).out
    assert "declined   This tool call is rejected." in run("show", "c", "--journal", url).out
    watched = run("watch", "run_1", "--journal", url).out
    assert "remove #1 declined: This tool call is rejected.\n" in watched
    assert "failed" not in watched
