"""What hooks read: merged pieces, parsed arguments, fields."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import msgspec
import pytest

import callstream.tools.delta
from callstream.hooks import CallHooks, HookSettings, Outcome
from callstream.hooks.deltas import ArgsDelta, DeltaQueue, FieldDelta
from callstream.jsontext.stream import JsonStream
from callstream.tools import AbortSignal, Hooks
from tests.clock import jumping

from .watching import Gate, Watch, a_call, turns, whole, write_call

# -- the queue ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [HookSettings(), HookSettings(queue_deltas=3), HookSettings(queue_chars=40)])
@jumping
async def test_bounded_queue_merges(settings: HookSettings) -> None:
    watch, gate = Watch("content"), Gate()
    watch.hooks.on_args_delta(gate)
    calls = CallHooks(a_call(), watch.hooks, msgspec.structs.replace(settings, timeout=math.inf))
    content = "0123456789" * 500
    args = json.dumps({"content": content})
    calls.push(args[:4])
    await gate.begun.wait()
    for index in range(4, len(args), 2):
        calls.push(args[index : index + 2])
        assert len(calls._queue) <= settings.queue_deltas
    gate.open.set()
    calls.complete(whole(args=args))
    assert (await calls.settled()).ready
    assert watch.text == args
    numbers = [entry[1] for entry in watch.seen if entry[0] == "delta"]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 1 + (len(args) - 3) // 2
    assert 2 <= len(numbers) <= settings.queue_deltas + 1
    fields = [entry for entry in watch.seen if entry[0] == "field"]
    assert "".join(entry[2] for entry in fields) == content
    assert [entry[3] for entry in fields] == [False] * (len(fields) - 1) + [True]


def test_bounded_queue_merges_by_deltas_and_by_characters() -> None:
    by_deltas = DeltaQueue(3, 1000)
    for number, text in enumerate("abcdefgh", 1):
        by_deltas.put(text, number)
        assert len(by_deltas) <= 3
    assert [by_deltas.pop() for _ in range(len(by_deltas))] == [("abcdefg", 7), ("h", 8)]
    by_characters = DeltaQueue(100, 4)
    for number, text in enumerate(["ab", "cd", "ef", "gh"], 1):
        by_characters.put(text, number)
    assert [by_characters.pop() for _ in range(len(by_characters))] == [("abcdefgh", 4)]
    by_characters.put("a very long piece", 5)
    assert by_characters.pop() == ("a very long piece", 5)
    by_characters.put("ab", 6)
    by_characters.put("cd", 7)
    assert by_characters.pop() == ("ab", 6)
    by_characters.put("ef", 8)
    by_characters.put("g", 9)
    assert by_characters.pop(merged=True) == ("cdefg", 9)
    by_characters.put("h", 10)
    assert by_characters.pop(merged=True) == ("h", 10)
    by_characters.clear()
    assert len(by_characters) == 0


@pytest.mark.parametrize("pause", [0.0, 0.04])
@jumping
async def test_a_slow_hook_is_called_once_for_all_that_came_meanwhile(pause: float) -> None:
    """However many pieces came in which time: it is done soon after the last of them."""
    watch = Watch()
    content: list[tuple[str, Any, bool, bool, int]] = []

    @watch.hooks.on_field("content")
    async def slow(field: FieldDelta, signal: AbortSignal) -> None:
        await asyncio.sleep(1)
        content.append((field.text, field.value, field.first, field.complete, field.seq))

    loop = asyncio.get_running_loop()
    calls = CallHooks(a_call(), watch.hooks)
    args = json.dumps({"title": "Tea", "content": "word " * 40, "end": 1})
    pieces = [args[start : start + 5] for start in range(0, len(args), 5)]
    for piece in pieces:
        calls.push(piece)
        await asyncio.sleep(pause)
    calls.complete(whole(args=args))
    came_at = loop.time()
    assert (await calls.settled()).ready
    assert loop.time() - came_at <= 2
    assert watch.text == args
    assert len(content) == (2 if pause == 0 else 3)
    assert "".join(text for text, *_ in content) == content[-1][1] == "word " * 40
    assert [first for _, _, first, _, _ in content] == [True] + [False] * (len(content) - 1)
    assert [complete for _, _, _, complete, _ in content] == [False] * (len(content) - 1) + [True]
    assert [value for _, value, *_ in content] == [
        "".join(text for text, *_ in content[: number + 1]) for number in range(len(content))
    ]
    assert content[-1][4] == len(pieces)


@pytest.mark.parametrize("seconds", [0.0, 0.009])
@jumping
async def test_a_hook_that_keeps_up_sees_each_delta_as_it_came(seconds: float) -> None:
    """Also those that came at once, such as the frames of one chunk."""
    watch = Watch()

    @watch.hooks.on_args_delta
    async def quick(delta: ArgsDelta, signal: AbortSignal) -> None:
        await asyncio.sleep(seconds)

    calls = CallHooks(a_call(), watch.hooks)
    args = json.dumps({"content": "x" * 300})
    pieces = [args[start : start + 5] for start in range(0, len(args), 5)]
    for start in range(0, len(pieces), 10):
        for piece in pieces[start : start + 10]:
            calls.push(piece)
        await asyncio.sleep(0.2)
    calls.complete(whole(args=args))
    assert (await calls.settled()).ready
    assert [entry[2] for entry in watch.seen if entry[0] == "delta"] == pieces


@jumping
async def test_bounded_queue_merges_only_what_waits() -> None:
    watch = Watch()
    calls = CallHooks(a_call(), watch.hooks, HookSettings(queue_deltas=1))
    for number in range(10):
        calls.push(f"[{number}" if number == 0 else f",{number}")
        await turns()
    calls.complete(whole())
    await calls.settled()
    assert [entry[1] for entry in watch.seen if entry[0] == "delta"] == list(range(1, 11))


@pytest.fixture
def parsers(monkeypatch: pytest.MonkeyPatch) -> list[JsonStream]:
    """Every parser that is made."""
    made: list[JsonStream] = []

    class Counted(JsonStream):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(callstream.tools.delta, "JsonStream", Counted)
    return made


# -- reading -----------------------------------------------------------------------------------------------------------


@jumping
async def test_no_hook_no_parse(parsers: list[JsonStream]) -> None:
    calls = CallHooks(a_call(), Hooks())
    write_call(calls)
    assert len(asyncio.all_tasks()) == 1
    assert await calls.settled() == Outcome("ready")
    assert calls.claim()
    assert parsers == []
    assert not hasattr(calls, "_queue")


@jumping
async def test_no_hook_no_parse_with_hooks_that_do_not_ask(parsers: list[JsonStream]) -> None:
    hooks = Hooks()
    kept: list[ArgsDelta] = []

    @hooks.on_args_delta
    async def raw(delta: ArgsDelta, signal: AbortSignal) -> None:
        kept.append(delta)

    hooks.on_args_complete(raw)  # type: ignore[type-var]
    calls = CallHooks(a_call(), hooks)
    write_call(calls)
    await calls.settled()
    assert len(kept) == 5
    assert parsers == []


@jumping
async def test_args_and_changes_are_those_of_their_delta(parsers: list[JsonStream]) -> None:
    hooks = Hooks()
    kept: list[ArgsDelta] = []
    asked: list[Any] = []

    @hooks.on_args_delta
    async def some(delta: ArgsDelta, signal: AbortSignal) -> None:
        kept.append(delta)
        if delta.seq == 3:  # The first two are read now, together.
            asked.append((delta.args, [(change.path, change.kind, change.value) for change in delta.changes]))

    calls = CallHooks(a_call(), hooks)
    write_call(calls)
    await calls.settled()
    now = {"title": "Tea", "content": "one two"}
    assert asked == [(now, [(("content",), "append", " two")])]
    assert len(parsers) == 1
    assert [delta.args for delta in kept] == [{"title": "T"}, {"title": "Tea", "content": "one"}, now, now]
    assert [change.kind for change in kept[1].changes] == ["append", "close", "append"]
    assert [change.path for change in kept[3].changes] == [("content",), ()]
    assert repr(kept[2]) == "ArgsDelta('c1', 'write', seq=3, text=' two')"


def test_args_of_a_delta_made_by_hand() -> None:
    delta = ArgsDelta("c1", "write", 1, '{"a": [1, 2')
    assert delta.args == {"a": [1]}
    assert len(delta.changes) == 3
    field = FieldDelta("c1", "write", 1, ("a",), "text", complete=True)
    assert (field.value, field.complete) == ("text", True)
    assert repr(field) == "FieldDelta('c1', 'write', seq=1, path=('a',), text='text', complete=True)"


async def fields_of(path: str, pieces: list[str]) -> list[tuple[str, Any, bool, bool]]:
    hooks = Hooks()
    kept: list[FieldDelta] = []
    seen: list[tuple[str, Any, bool, bool]] = []

    @hooks.on_field(path)
    async def field(field: FieldDelta, signal: AbortSignal) -> None:
        kept.append(field)
        seen.append((field.text, field.value, field.complete, field.first))

    calls = CallHooks(a_call(), hooks)
    for piece in pieces:
        calls.push(piece)
        await turns()
    calls.complete(whole())
    await calls.settled()
    assert [(field.text, field.value, field.complete, field.first) for field in kept] == seen
    return seen


@jumping
async def test_field_of_every_shape() -> None:
    assert await fields_of("a", ['{"a":"', "x", 'y"', "}"]) == [
        ("x", "x", False, True),
        ("y", "xy", True, False),
    ]
    assert await fields_of("a", ['{"a":"', '"}']) == [("", "", True, True)]
    assert await fields_of("a", ['{"a":""}']) == [("", "", True, True)]
    assert await fields_of("a", ['{"a":12', "3}"]) == [("", 123, True, True)]
    assert await fields_of("a", ['{"a":null}']) == [("", None, True, True)]
    assert await fields_of("a", ['{"b":{"a":1}}']) == []
    assert await fields_of("$.b[1].a", ['{"b":[{"a":0},{"a', '":"x', '"}]}']) == [
        ("x", "x", False, True),
        ("", "x", True, False),
    ]


@jumping
async def test_field_that_is_a_container_shows_what_is_in_it() -> None:
    assert await fields_of("items", ['{"items":[', '{"t":"x', 'y"}', "]", ',"z":1}']) == [
        ("", [], False, True),
        ("", [{"t": "x"}], False, False),
        ("", [{"t": "xy"}], False, False),
        ("", [{"t": "xy"}], True, False),
    ]
    assert await fields_of("$", ['{"a":', "1}"]) == [("", {}, False, True), ("", {"a": 1}, True, False)]


@jumping
async def test_field_written_twice_is_shown_once() -> None:
    assert await fields_of("a", ['{"a":"x","a":"y', 'z"}']) == [("x", "x", True, True)]
    assert await fields_of("$.o.a", ['{"o":{"a":"x","b":', '1,"a":"y"}}']) == [("x", "x", True, True)]


@jumping
async def test_field_inside_a_watched_field_comes_first() -> None:
    hooks = Hooks()
    order: list[Any] = []

    async def keep(field: FieldDelta, signal: AbortSignal) -> None:
        order.append((field.path, field.complete))

    hooks.on_field("$")(keep)
    hooks.on_field("$.a.b")(keep)
    hooks.on_field("a")(keep)
    calls = CallHooks(a_call(), hooks)
    for piece in ('{"a":{"b":"x', '"}', "}"):
        calls.push(piece)
        await turns()
    calls.complete(whole())
    await calls.settled()
    assert order == [
        (("a", "b"), False),
        (("a",), False),
        ((), False),
        (("a", "b"), True),
        (("a",), True),
        ((), False),
        ((), True),
    ]
