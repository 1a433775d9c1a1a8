"""``stream_args`` drives a tool's hooks as an application would; the fixtures give it and providers to tests."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from callstream.calls import Call, CallState
from callstream.errors import CallRejected, Reject, UsageError
from callstream.hooks import ArgsDelta, FieldDelta, HookSettings
from callstream.testing import Text, stream_args
from callstream.tools import AbortSignal, Progress, no_progress, tool

pytest_plugins = ["callstream.testing.pytest_plugin"]

STARTED: list[Any] = []
DOCUMENT = {"title": "Tides", "content": "The moon pulls.\nTwice a day: 🌊"}


def made() -> tuple[Any, list[Any]]:
    """A tool, and what its hooks and itself did, in order."""
    log: list[Any] = []

    @tool
    async def write_document(title: str, content: str, progress: Progress = no_progress) -> dict[str, Any]:
        await progress(1, 2, "half")
        log.append(("run", title, content))
        return {"length": len(content)}

    @write_document.on_args_delta
    async def preview(delta: ArgsDelta, signal: AbortSignal) -> None:
        log.append(("delta", delta.text))

    @write_document.on_field("content")
    def grow(field: FieldDelta, signal: AbortSignal) -> None:
        log.append(("field", field.text, field.complete))

    @write_document.on_args_complete
    async def ready(call: Call, signal: AbortSignal) -> None:
        log.append(("complete", call.args))

    @write_document.on_args_abort
    async def undo(call: Call, reason: str) -> None:
        log.append(("abort", reason, call.state))

    return write_document, log


def kinds(log: list[Any], kind: str) -> list[Any]:
    return [entry for entry in log if entry[0] == kind]


@pytest.mark.parametrize("size", [1, 8, 1000])
async def test_hooks_get_every_piece_in_order_and_then_the_tool_runs(size: int) -> None:
    write_document, log = made()
    driven = await stream_args(write_document, DOCUMENT, size)
    assert driven.ready
    assert driven.outcome.kind == "ready"
    assert [text for _, text in kinds(log, "delta")] == driven.deltas
    assert all(len(text) == size for text in driven.deltas[:-1])
    fields = kinds(log, "field")
    assert "".join(text for _, text, _ in fields) == DOCUMENT["content"]
    assert [complete for _, _, complete in fields].count(True) == 1
    assert log[-1] == ("complete", DOCUMENT)
    assert not kinds(log, "abort")
    assert await driven.run() == {"length": len(DOCUMENT["content"])}
    assert log[-1] == ("run", "Tides", DOCUMENT["content"])
    assert driven.progress == [{"done": 1, "total": 2, "message": "half"}]
    assert driven.call.state is CallState.ARGS_COMPLETE
    assert repr(driven) == f"<Driven write_document in {len(driven.deltas)} deltas: ready>"
    with pytest.raises(UsageError, match="was run before"):
        await driven.run()


async def test_no_deltas_are_merged_while_a_hook_is_slow() -> None:
    write_document, log = made()

    @write_document.on_args_delta
    async def slow(delta: ArgsDelta, signal: AbortSignal) -> None:
        await asyncio.sleep(0.0001)

    driven = await stream_args(write_document, {"title": "x" * 300, "content": ""}, 1)
    assert len(kinds(log, "delta")) == len(driven.deltas) > 300


async def test_arguments_may_be_the_text_that_a_model_wrote() -> None:
    write_document, _ = made()
    driven = await stream_args(write_document, '{ "title": "T",\n "content": "\\u00e9" }')
    assert await driven.run() == {"length": 1}


@pytest.mark.parametrize("text", ['{"title": "T"', '{"title": NaN}', "", '{"title": "T"} more'])
async def test_malformed_text_aborts(text: str) -> None:
    write_document, log = made()
    driven = await stream_args(write_document, text)
    assert not driven.ready
    assert driven.outcome.reason == "malformed"
    assert kinds(log, "abort") == [("abort", "malformed", CallState.DISCARDED)]
    assert not kinds(log, "complete")
    with pytest.raises(CallRejected, match="cannot be read"):
        await driven.run()
    assert not kinds(log, "run")


async def test_an_argument_that_comes_twice_aborts_as_from_a_provider() -> None:
    ran = []

    @tool
    def add(a: int) -> None:
        ran.append(a)

    driven = await stream_args(add, '{"a": 1, "a": 2}')
    assert (driven.outcome.kind, driven.outcome.reason) == ("aborted", "malformed")
    assert driven.call.detail == "the name 'a' comes twice in an object"
    with pytest.raises(CallRejected):
        await driven.run()
    assert ran == []


@pytest.mark.parametrize("pieces", [0, 3, 1000])
async def test_truncated_arguments_abort_even_if_all_of_them_came(pieces: int) -> None:
    write_document, log = made()
    driven = await stream_args(write_document, DOCUMENT, stop_after=pieces)
    assert len(driven.deltas) <= pieces
    assert driven.outcome.reason == "truncated"
    assert kinds(log, "abort") == [("abort", "truncated", CallState.DISCARDED)]
    with pytest.raises(CallRejected, match="cut off"):
        await driven.run()


async def test_a_hook_that_rejects_keeps_the_tool_from_running() -> None:
    write_document, log = made()

    @write_document.on_field("title")
    async def check(field: FieldDelta, signal: AbortSignal) -> None:
        if field.complete:
            raise Reject("no such title")

    driven = await stream_args(write_document, DOCUMENT)
    assert (driven.outcome.kind, driven.outcome.detail) == ("rejected", "no such title")
    assert driven.call.state is CallState.DISCARDED
    assert driven.call.detail == "no such title"
    assert kinds(log, "abort")
    with pytest.raises(CallRejected, match="no such title"):
        await driven.run()


async def test_a_hook_that_raises_is_told_in_the_outcome() -> None:
    write_document, _ = made()

    @write_document.on_args_complete
    async def breaks(call: Call, signal: AbortSignal) -> None:
        raise KeyError("oh")

    driven = await stream_args(write_document, DOCUMENT)
    assert driven.outcome.kind == "failed"
    assert isinstance(driven.outcome.error, KeyError)


async def test_limits_are_the_tools_own_and_can_be_set() -> None:
    write_document, _ = made()

    @write_document.on_args_complete
    async def hangs(call: Call, signal: AbortSignal) -> None:
        await asyncio.Event().wait()

    driven = await stream_args(write_document, DOCUMENT, settings=HookSettings(timeout=0.01))
    assert isinstance(driven.outcome.error, TimeoutError)


async def test_cancelling_gives_the_call_up() -> None:
    write_document, log = made()
    started = asyncio.Event()

    @write_document.on_args_complete
    async def hangs(call: Call, signal: AbortSignal) -> None:
        started.set()
        await asyncio.Event().wait()

    driving = asyncio.ensure_future(stream_args(write_document, DOCUMENT))
    await started.wait()
    driving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driving
    assert kinds(log, "abort")[0][1] == "interrupted"


async def test_free_text_is_one_string() -> None:
    pieces: list[str] = []

    @tool
    def patch(text: str) -> str:
        return text.upper()

    @patch.on_args_delta
    async def preview(delta: ArgsDelta, signal: AbortSignal) -> None:
        pieces.append(delta.text)

    driven = await stream_args(patch, 'not "json"', 4, encoding="text")
    assert pieces == ["not ", '"jso', 'n"']
    assert await driven.run() == 'NOT "JSON"'


async def test_tools_of_every_kind_run() -> None:
    @tool
    def plain(x: int) -> int:
        return x + 1

    @tool
    def steps(x: int) -> Iterator[int]:
        yield x
        yield x + 1

    @tool
    async def stream(x: int) -> AsyncIterator[int]:
        yield x
        yield x + 1

    assert [await (await stream_args(each, {"x": 1})).run() for each in (plain, steps, stream)] == [2, [1, 2], [1, 2]]


async def test_what_the_tool_raises_rises() -> None:
    @tool
    async def breaks() -> None:
        raise LookupError("nothing there")

    driven = await stream_args(breaks, {})
    with pytest.raises(LookupError, match="nothing there"):
        await driven.run()


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [({}, {"size": 0}, "expected size"), ({}, {"encoding": "text"}, "free-text tool, a string")],
)
async def test_mistakes_are_told(args: Any, options: Any, message: str) -> None:
    write_document, _ = made()
    with pytest.raises(UsageError, match=message):
        await stream_args(write_document, args, **options)


async def test_a_function_that_is_no_tool_is_told() -> None:
    with pytest.raises(UsageError, match="expected a tool"):
        await stream_args(len, {})  # type: ignore[arg-type]


# -- the fixtures ------------------------------------------------------------------------------------------------------


async def test_fixture_streams_args(request: pytest.FixtureRequest) -> None:
    write_document, _ = made()
    driven = await request.getfixturevalue("stream_args")(write_document, DOCUMENT)
    assert driven.ready


def test_fixture_starts_providers_that_end_with_the_test(scripted_provider: Any) -> None:
    provider = scripted_provider("anthropic", [Text("Hi")], encoding="gzip")
    other = scripted_provider("gemini", [Text("Hi")])
    STARTED.extend([provider, other])
    request = urllib.request.Request(provider.base_url + "/v1/messages", b"{}")
    with urllib.request.urlopen(request) as answer:
        assert answer.headers["content-encoding"] == "gzip"
    assert len(provider.requests) == 1


def test_fixture_has_ended_the_providers_of_the_test_before() -> None:
    assert len(STARTED) == 2
    for provider in STARTED:
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(provider.origin)


@pytest.mark.parametrize("text", ["[1, 2]", "3", "null", '"text"'])
async def test_arguments_that_are_not_an_object_never_run(text: str) -> None:
    ran = []

    @tool
    def add(a: int = 1) -> None:
        ran.append(a)

    driven = await stream_args(add, text)
    assert (driven.ready, driven.outcome.reason) == (False, "malformed")
    with pytest.raises(CallRejected):
        await driven.run()
    assert ran == []
