"""A draft that grows while the model writes it: hooks act on each piece, the tool finishes what they began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callstream import AbortSignal, ArgsDelta, Call, Callstream, tool
from callstream.calls import CallState
from callstream.events import (
    ArgsAppended,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallReturned,
    CallStarted,
)
from callstream.testing import Finish, Text, ToolCall
from tests.adk.hosting import PATHS, STREAMED, WHOLE, WIRES, Host, Models, agent_of, scripted

ARGS = {"document_id": "doc-1", "content": "The moon pulls the sea. " * 8}
END = [Text("Done."), Finish()]


class Drafts:
    """Where previews grow and drafts are finished."""

    def __init__(self) -> None:
        self.previews: dict[str, str] = {}
        self.finished: dict[str, str] = {}
        self.pieces: list[tuple[str, str]] = []
        self.signals: set[int] = set()
        self.undone: list[str] = []
        self.early = 0

    def tool(self) -> Any:
        @tool
        async def streaming_draft(document_id: str, content: str) -> str:
            """Writes a draft."""
            assert self.previews[document_id] == content, "the hooks have settled before the tool runs"
            self.finished[document_id] = content
            return "finished"

        @streaming_draft.on_args_delta
        async def grow(delta: ArgsDelta, signal: AbortSignal) -> None:
            self.pieces.append((delta.call_id, delta.text))
            self.signals.add(id(signal))
            document_id, content = delta.args.get("document_id"), delta.args.get("content")
            if content is None or signal.aborted:
                self.early += 1
                return
            self.previews[document_id] = content

        @streaming_draft.on_args_abort
        async def undo(call: Call, reason: str) -> None:
            self.previews.clear()
            self.undone.append(reason)

        return streaming_draft


@pytest.mark.parametrize("config", [STREAMED, WHOLE], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("path", PATHS)
async def test_the_draft_grows_and_is_finished(
    path: str, wire: str, config: Any, cs: Callstream, models: Models
) -> None:
    drafts = Drafts()
    async with scripted(wire, [[ToolCall("streaming_draft", ARGS), Finish()], END]) as provider:
        host = Host(cs, agent_of(models(provider, path), drafts.tool()))
        await host.run(config=config)
    assert drafts.finished == {"doc-1": ARGS["content"]}
    assert drafts.undone == []
    assert len(drafts.signals) == 1
    (call,) = await host.calls()
    assert {call_id for call_id, _ in drafts.pieces} == {call.call_id}
    assert "".join(text for _, text in drafts.pieces) == call.args_json
    assert call.state is CallState.COMPLETED
    mine = [event for event in await host.events() if getattr(event, "call_id", None) == call.call_id]
    passed = list(dict.fromkeys(type(event) for event in mine))
    assert passed == [CallStarted, ArgsAppended, CallCompleted, CallExecuting, CallReturned]
    streamed = sum(isinstance(event, ArgsAppended) for event in mine)
    assert streamed > 1 if config is STREAMED else streamed == 1
    assert (drafts.early > 0) is (config is STREAMED)


async def test_the_pieces_are_durable_rows(tmp_path: Path, cs: Callstream, models: Models) -> None:
    drafts = Drafts()
    url = f"sqlite:///{tmp_path}/calls.db"
    async with scripted("gemini", [[ToolCall("streaming_draft", ARGS), Finish()], END]) as provider:
        async with Callstream(journal=url) as kept:
            tapping = Models(kept)
            await Host(kept, agent_of(tapping(provider), drafts.tool())).run()
            await tapping.aclose()
        async with Callstream(journal=url) as later:
            (listed,) = await later.journal.calls()
            call = await later.journal.call(listed.call_id)
            (run,) = await later.journal.runs()
            records = [record async for record in later.journal.read(run.run_id)]
    assert call is not None
    assert call.args == ARGS
    texts = [record.event.text for record in records if isinstance(record.event, ArgsAppended)]
    assert "".join(texts) == call.args_json


@pytest.mark.parametrize("path", PATHS)
async def test_a_draft_that_breaks_off_leaves_nothing(path: str, cs: Callstream, models: Models) -> None:
    drafts = Drafts()
    async with scripted(
        "gemini", [[ToolCall("streaming_draft", ARGS, stop_after=12), Finish("length")], END]
    ) as provider:
        host = Host(cs, agent_of(models(provider, path), drafts.tool()))
        await host.run()
    assert drafts.finished == {}
    assert drafts.previews == {}
    assert drafts.undone == ["truncated"]
    (call,) = await host.calls()
    assert (call.state, call.reason) == (CallState.DISCARDED, "truncated")
    assert any(isinstance(event, CallDiscarded) for event in await host.events())


@pytest.mark.parametrize("path", PATHS)
async def test_a_hook_that_raises_is_logged_and_its_tool_does_not_run(
    path: str, cs: Callstream, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []

    @tool
    async def streaming_draft(document_id: str, content: str) -> str:
        """Writes a draft."""
        ran.append(content)
        return "finished"

    @streaming_draft.on_args_delta
    async def grow(delta: ArgsDelta, signal: AbortSignal) -> None:
        raise RuntimeError("no room for drafts")

    async with scripted("gemini", [[ToolCall("streaming_draft", ARGS), Finish()], END]) as provider:
        host = Host(cs, agent_of(models(provider, path), streaming_draft))
        await host.run()
        assert "no room for drafts" not in provider.requests[1].body.decode()
    assert ran == []
    assert "no room for drafts" in caplog.text
