"""Whole sync programs with the real SDKs: the page on sync programs, and the quickstart's loops without async and await."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callstream import CallState, Callstream, Reject, SyncRun, current_run
from callstream.errors import RunOver
from callstream.testing import Finish, ScriptedProvider, Text, ToolCall
from tests.test_quickstarts import DOCUMENT, PLAIN, TURN, blocks, executed, told

_SYNC_WORDS = {
    r"\basync (def|with|for)\b": r"\1",
    r"\bawait ": "",
    r"\bAsync(Anthropic|OpenAI)\b": r"\1",
    r"\bhttp_client\(\)": "sync_http_client()",
    r"\bhttpx_async_client\b": "httpx_client",
    r"\.aio\.": ".",
    r"^( *)(results = run.run_tools)": r"\1before_tools(run)\n\1\2",
}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for provider in ("ANTHROPIC", "OPENAI", "GOOGLE"):
        monkeypatch.setenv(f"{provider}_API_KEY", "none")


@contextlib.contextmanager
def sync_loop(
    wire: str, script: Any, monkeypatch: pytest.MonkeyPatch, *, before_tools: Any = None
) -> Iterator[tuple[Any, dict[str, Any], Any]]:
    """The plain SDK page as a sync program: the provider, what the page defines, and its loop for that wire.

    ``before_tools`` is called with the run before each ``run.run_tools``, as the page on approvals has it.
    """
    turn, _, base_url = PLAIN[wire]
    with ScriptedProvider(wire, script, stream_args_unasked=True) as provider:
        monkeypatch.setenv(base_url, provider.base_url)
        names: dict[str, Any] = {"__name__": "page", "before_tools": before_tools or (lambda run: None)}
        for block in blocks("quickstart/plain-sdk.md"):
            for word, replacement in _SYNC_WORDS.items():
                block = re.sub(word, replacement, block, flags=re.MULTILINE)
            exec(compile(block, "plain-sdk.md, sync", "exec"), names)
        yield provider, names, names[turn]
        for client in ("client", "openai"):
            names[client].close()
        names["cs"].close()


def states(cs: Callstream) -> list[CallState]:
    return [call.state for call in asyncio.run(cs.journal.calls())]


@pytest.mark.parametrize("wire", PLAIN)
def test_the_plain_sdk_loops_without_async_and_await(
    wire: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with sync_loop(wire, TURN, monkeypatch) as (provider, names, turn):
        assert turn("Write of tides.") == "Written."
        assert capsys.readouterr().out == DOCUMENT["content"]
        assert f'{{"characters":{len(DOCUMENT["content"])}}}' in told(provider.requests[1].body)
        assert states(names["cs"]) == ["completed"]


@pytest.mark.parametrize("wire", PLAIN)
def test_the_model_is_told_of_what_did_not_run(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [
        ToolCall("write_document", {"title": "", "content": "The moon pulls."}, call_id="c1"),
        ToolCall("write_document", DOCUMENT, call_id="c2"),
    ]
    cut_off = [ToolCall("write_document", DOCUMENT, stop_after=3), Finish("length")]
    with sync_loop(wire, [calls, cut_off, [Text("Written.")]], monkeypatch) as (provider, names, turn):

        @names["write_document"].on_args_complete
        def check(call: Any, signal: Any) -> None:
            if not call.args["title"]:
                raise Reject("a document needs a title")

        assert turn("Write of tides.") == "Written."
        assert "a document needs a title" in told(provider.requests[1].body)
        assert "the arguments of write_document were cut off" in told(provider.requests[2].body)
        assert sorted(states(names["cs"])) == ["completed", "discarded", "discarded"]


@contextlib.contextmanager
def page(script: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    with ScriptedProvider("anthropic", script) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        names = executed("howto/sync.md")
        yield names
        names["client"].close()
        names["cs"].close()


@pytest.mark.parametrize("in_loop", [False, True], ids=["plain", "inside a running loop"])
def test_the_page_on_sync_programs(
    in_loop: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with page(TURN, monkeypatch) as names:
        progress: list[Any] = []
        names["cs"].on_tool_progress = lambda name, call_id, data: progress.append(data)

        async def main() -> str:
            return str(names["turn"]("Write of tides."))

        assert (asyncio.run(main()) if in_loop else names["turn"]("Write of tides.")) == "Written."
        assert capsys.readouterr().out == DOCUMENT["content"]
        assert progress == [{"done": 1, "total": 1, "message": "written"}]
        assert states(names["cs"]) == ["completed"]


def test_the_page_in_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(request: Any) -> Any:
        return [Text("Written.")] if b"tool_result" in request.body else [ToolCall("write_document", DOCUMENT)]

    with page(script, monkeypatch) as names:
        assert names["turns_in_threads"](["one", "two", "three"]) == ["Written."] * 3
        assert states(names["cs"]) == ["completed"] * 3


@pytest.mark.parametrize("wire", PLAIN)
@pytest.mark.parametrize("approved", [True, False], ids=["yes", "no"])
def test_approval(wire: str, approved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends while the call waits; its tool runs in a later one, in the thread of whoever decides."""
    asked: list[str] = []

    def ask(run: SyncRun) -> None:
        for call in run.calls:
            if call.state is CallState.ARGS_COMPLETE:
                asked.append(run.await_answer(call.call_id).call_id)

    script = [[ToolCall("write_document", DOCUMENT)]]
    with sync_loop(wire, script, monkeypatch, before_tools=ask) as (_, names, turn):
        cs: Callstream = names["cs"]
        turn("Write of tides.")
        assert states(cs) == [CallState.AWAITING]
        with cs.run("thread-1") as run:
            call = run.resume(asked[0])
            assert call is not None
            if approved:
                assert run.invoke(call.call_id) == {"characters": len(DOCUMENT["content"])}
            else:
                assert run.answer(call.call_id, error="the user said no")
        assert states(cs) == [CallState.COMPLETED if approved else CallState.FAILED]


def test_a_sync_hook_may_stop_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs in a thread of its own, where a SyncRun may block."""
    with page([[ToolCall("write_document", DOCUMENT, call_id="c1")]], monkeypatch) as names:
        stopping: list[threading.Thread] = []

        @names["write_document"].on_args_delta
        def stop(delta: Any, signal: Any) -> None:
            run = current_run()
            if run is not None and not stopping:
                # The end of a run waits for its hooks, so a hook does not wait for that end.
                stopping.append(threading.Thread(target=SyncRun(run).stop, args=("seen enough",)))
                stopping[0].start()
                pause = threading.Event()
                assert any(signal.aborted or pause.wait(0.01) for _ in range(1000))

        with pytest.raises(RunOver):
            names["turn"]("Write of tides.")
        stopping[0].join()
        assert states(names["cs"]) == [CallState.DISCARDED]
        assert [run.reason for run in asyncio.run(names["cs"].journal.runs())] == ["seen enough"]
