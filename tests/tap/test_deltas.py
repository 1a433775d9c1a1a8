"""Deltas that come one by one, as real models write them: straight into the journal, and nothing else is different."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from callstream import Callstream
from callstream.errors import LimitExceeded
from callstream.events import ArgsAppended
from callstream.runtime import TextLimits
from callstream.testing import ScriptedProvider, ToolCall
from tests.submitting import replace_append

DELTAS = 40
TEXT = "0123456789" * DELTAS
SCRIPT = [ToolCall("write", {"content": TEXT}, size=10, call_id="c1")]


async def read(cs: Callstream, provider: ScriptedProvider) -> bytes:
    async with cs.httpx_client(collapse="all") as client:
        body = {"model": "m", "stream": True, "messages": []}
        response = await client.post(f"{provider.base_url}/chat/completions", json=body)
        return bytes(response.content)


def count_tasks() -> list[str]:
    names: list[str] = []

    def make(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:
        names.append(work.__qualname__)
        return asyncio.Task(work, loop=loop, **options)

    asyncio.get_running_loop().set_task_factory(make)
    return names


async def test_a_delta_that_comes_alone_takes_no_task(tmp_path: Path) -> None:
    async with Callstream(f"sqlite:///{tmp_path}/calls.db") as cs:
        async with ScriptedProvider("openai_chat", SCRIPT, deltas_per_second=100) as provider, cs.run("thread") as run:
            tasks = count_tasks()
            body = await read(cs, provider)
            assert TEXT.encode() in body
            assert len(tasks) < DELTAS / 2
            assert run.call("c1").args == {"content": TEXT}
        records = [record async for record in cs.journal.read(run.run_id)]
    pieces = [record.event.text for record in records if isinstance(record.event, ArgsAppended)]
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert "".join(pieces) == f'{{"content":"{TEXT}"}}'


async def test_hooks_and_followers_see_what_is_stored(tmp_path: Path) -> None:
    seen: list[str] = []

    async def note(delta: Any, signal: Any) -> None:
        stored = [record async for record in cs.journal.read(run.run_id) if isinstance(record.event, ArgsAppended)]
        seen.append(delta.text)
        assert "".join(record.event.text for record in stored).startswith("".join(seen))

    async with Callstream(f"sqlite:///{tmp_path}/calls.db") as cs:
        cs.on_args_delta("write", note)
        async with ScriptedProvider("openai_chat", SCRIPT, deltas_per_second=200) as provider, cs.run("thread") as run:
            await read(cs, provider)
    assert "".join(seen) == f'{{"content":"{TEXT}"}}'


async def test_a_limit_holds_for_deltas_that_come_one_by_one(tmp_path: Path) -> None:
    async with Callstream(f"sqlite:///{tmp_path}/calls.db") as cs:
        async with ScriptedProvider("openai_chat", SCRIPT, deltas_per_second=200) as provider:
            run = await cs.start("thread")
            run.tighten(TextLimits(max_args_bytes=100))
            with pytest.raises(LimitExceeded, match="max_args_bytes"):
                await read(cs, provider)
        call = await cs.journal.call("c1")
        assert call is not None
        assert len(call.args_json or "") <= 100


async def test_deltas_that_come_while_something_is_written_share_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Callstream(f"sqlite:///{tmp_path}/calls.db") as cs:
        writes: list[bool] = []
        append = cs.journal.append

        async def slow(run_id: str, entries: Any, **options: Any) -> int:
            writes.append(all(isinstance(entry.event, ArgsAppended) for entry in entries))
            await asyncio.sleep(0.03)
            return await append(run_id, entries, **options)

        replace_append(monkeypatch, cs.journal, slow)
        async with ScriptedProvider("openai_chat", SCRIPT, deltas_per_second=200) as provider, cs.run("thread") as run:
            await read(cs, provider)
            assert run.call("c1").args == {"content": TEXT}
    assert writes.count(True) <= DELTAS / 2
