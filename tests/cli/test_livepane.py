"""What is drawn, frame by frame, without a terminal."""

from __future__ import annotations

import io
from typing import Any

import msgspec
from rich.console import Console

from callstream.cli.watch import LivePane, Scene, answer_text, bar_of
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallProgressed,
    CallReleased,
    CallReturned,
    CallStarted,
    MessageEnded,
    MessageReceived,
    MessageStarted,
    Record,
    RunEnded,
    RunResumed,
    RunStarted,
    TextAppended,
)
from callstream.view import AnswerView, CallView, InputView, Passage

from .commands import screen
from .conftest import BROKEN, WRITING


def records(*events: Any) -> list[Record]:
    return [Record("run_1", number, float(number), event) for number, event in enumerate(events, 1)]


class Drawing:
    """A pane whose frames are asked for, instead of coming by a clock."""

    def __init__(self) -> None:
        self._file = io.StringIO()
        self._console = Console(
            file=self._file, force_terminal=True, width=80, height=30, markup=False, highlight=False, color_system=None
        )
        self.pane = LivePane(self._console)

    def show(self, *shown: Record) -> str:
        """What stands in the terminal after these records."""
        for record in shown:
            self.pane.show(record)
        self.pane._live.refresh()
        return self.drawn()

    def drawn(self) -> str:
        return screen(self._file.getvalue().replace("\n", "\r\n"))


def test_arguments_grow_in_place_and_the_finished_card_stays() -> None:
    drawing = Drawing()
    shown = records(*WRITING)
    assert "  title: Ti\n" in drawing.show(*shown[:9]) + "\n"
    growing = drawing.show(*shown[9:10])
    assert "● write_document  args_streaming, 45 characters, 2 deltas/s" in growing
    assert "title: Tides" in growing
    assert growing.count("write_document") == 1
    moving = drawing.show(*shown[10:15])
    assert "[########......................] 1/4 writing" in moving
    done = drawing.show(*shown[15:])
    assert done.count("write_document") == 1
    assert "✓ write_document  completed, 9.0 s, c1" in done
    assert '    → {"characters": 23}' in done
    assert done.rstrip().endswith("run finished")
    drawing.pane.close()
    assert drawing.drawn() == done


def test_every_end_of_a_call_is_told() -> None:
    drawing = Drawing()
    done = drawing.show(*records(*BROKEN))
    for text in (
        "✗ look_up  failed",
        "failed: the library is closed",
        "? approve  awaiting",
        "discarded: truncated: the answer was cut off",
        "run failed: it broke",
    ):
        assert done.count(text) == 1
    released = Drawing().show(*records(RunStarted("t"), CallStarted("c", "f"), CallCompleted("c"), CallReleased("c")))
    assert "○ f  released" in released


def test_a_declined_call_is_not_said_to_have_failed() -> None:
    said = "This tool call is rejected."
    called = CallStarted("c", "remove"), CallCompleted("c")
    drawn = Drawing().show(*records(RunStarted("t"), *called, CallFailed("c", said), RunEnded("finished")))
    assert "✗ remove  declined" in drawn
    assert f"declined: {said}" in drawn
    assert "failed" not in drawn


def test_what_is_long_shows_its_end() -> None:
    drawing = Drawing()
    start = [RunStarted("t"), CallStarted("c", "f"), ArgsAppended("c", '{"a":"')]
    lines = [ArgsAppended("c", f"line {number}\\n") for number in range(100)]
    drawn = drawing.show(*records(*start, *lines))
    assert "… 91 lines above" in drawn
    assert "line 99" in drawn
    assert "line 80" not in drawn
    one = Drawing().show(*records(*start, ArgsAppended("c", "x" * 5000)))
    assert "… 4000 characters above" in one
    assert len(one.splitlines()) < 30


def test_told_anew_the_old_is_forgotten() -> None:
    drawing = Drawing()
    drawing.show(*records(RunStarted("t"), TextAppended("m", "Once")))
    drawing.pane.restart()
    done = drawing.show(*records(RunStarted("t"), TextAppended("m", "Once upon"), RunEnded("finished")))
    assert done.count("Once upon") == 1


def test_nothing_is_obeyed() -> None:
    hostile = "\x1b[31mred\x07\u202e[bold]"
    drawing = Drawing()
    pieces = [CallStarted("c", hostile), ArgsAppended("c", '{"\\u001b[1m": "\\u001b[2J"}'), CallCompleted("c")]
    drawing.show(*records(RunStarted(hostile), MessageReceived("user", hostile), *pieces, RunEnded("failed", hostile)))
    raw = drawing._file.getvalue()
    assert "\x1b[31mred" not in raw
    assert "\x1b[2J" not in raw
    assert not set(raw) & {"\x07", "\u202e"}
    assert "[bold]" in raw  # and rich's own marks are text too


def test_a_scene_is_the_run_as_it_is_until_now() -> None:
    scene = Scene()
    for record in records(*WRITING[:10]):
        scene.feed(record)
    user, reasoning, said, called = scene.view.items
    assert isinstance(user, InputView)
    assert isinstance(reasoning, Passage)
    assert isinstance(said, Passage)
    assert isinstance(called, CallView)
    assert [user.received.text, reasoning.text, said.text] == ["Write it down.", "Hm. Yes.", "I will write."]
    assert [reasoning.kind, said.kind] == ["reasoning", "text"]
    assert scene.previews[called.call_id].fields(called) == [("title", "Tides"), ("content", "# Tides\nThe moon")]
    assert [scene.is_settled(item) for item in scene.view.items] == [True, True, True, False]


def test_a_scene_shows_arguments_that_are_no_object_and_answers_to_earlier_calls() -> None:
    scene = Scene()
    free = [CallStarted("c", "patch", encoding="text"), ArgsAppended("c", "*** one"), ArgsAppended("c", "\ntwo")]
    broken = [CallStarted("d", "f"), ArgsAppended("d", "{'a'"), ArgsAppended("d", ": 1}")]
    for record in records(RunStarted("t"), CallReturned("old", {"approved": True}), *free, *broken):
        scene.feed(record)
    answer, text, raw = scene.view.items
    assert isinstance(answer, AnswerView)
    assert isinstance(text, CallView)
    assert isinstance(raw, CallView)
    assert answer_text(answer) == '{"approved": true}'
    assert scene.previews["c"].fields(text) == [("", "*** one\ntwo")]
    assert scene.previews["d"].fields(raw) == [("", "{'a': 1}")]


def test_a_bar_is_drawn_where_it_is_told_how_far_of_what() -> None:
    assert bar_of({"done": 1, "total": 2}, 4) == "[##..] 1/2"
    assert bar_of({"done": 9, "total": 2, "message": "more"}, 4) == "[####] 9/2 more"
    assert bar_of({"done": -1, "total": 2}, 4) == "[....] -1/2"
    for data in ("half", {"done": 1}, {"done": 1, "total": 0}, {"done": True, "total": 2}, {"done": "1", "total": 2}):
        assert bar_of(data) is None
    drawing = Drawing()
    drawn = drawing.show(
        *records(
            RunStarted("t"),
            CallStarted("c", "f"),
            ArgsAppended("c", "{}"),
            CallCompleted("c"),
            CallExecuting("c"),
            CallProgressed("c", {"stage": "two"}),
        )
    )
    assert '{"stage": "two"}' in drawn


def test_agents_are_named_where_they_are_known() -> None:
    started = CallStarted("c1", "look", message_id="m1")
    told = records(RunStarted("t"), TextAppended("m1", "I look."), started)
    drawn = Drawing().show(*(msgspec.structs.replace(record, author="helper") for record in told))
    assert "helper: I look." in drawn
    assert "look  by helper, started" in drawn


def test_what_the_agent_of_a_tool_does_is_indented() -> None:
    told = records(
        RunStarted("t"), CallStarted("c1", "helper"), MessageStarted("m", within="c1"), TextAppended("m", "In.")
    )
    assert "\n    In." in Drawing().show(*told)


def test_what_is_void_is_marked_and_the_rest_is_drawn() -> None:
    drawing = Drawing()
    told = records(
        RunStarted("t"),
        MessageReceived("user", "Go", "u"),
        MessageStarted("m"),
        TextAppended("m", "Half an answer"),
        CallStarted("c", "write", message_id="m"),
        ArgsAppended("c", '{"title": "Ti'),
        RunResumed(2, ("m",)),
        CallDiscarded("c", "interrupted"),
        MessageStarted("n"),
        TextAppended("n", "The whole answer"),
        MessageEnded("n"),
        RunResumed(3),
        RunEnded("finished"),
    )
    drawn = drawing.show(*told)
    for once in (
        "> Go",
        "Half an answer",
        "Ti",
        "The whole answer",
        "attempt 2: another process goes on",
        "attempt 3: ",
    ):
        assert drawn.count(once) == 1, once
    assert "void: the response that was cut with write" in drawn
    assert drawn.index("Half an answer") < drawn.index("attempt 2") < drawn.index("The whole answer")
