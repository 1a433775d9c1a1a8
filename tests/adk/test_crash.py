"""A process dies in the middle of arguments; another one goes on."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from pathlib import Path

import pytest

from callstream import Callstream
from callstream.calls import CallState
from callstream.testing import Call as Calls
from callstream.testing import Delay, Finish, Text

from . import crashing
from .hosting import PATHS, scripted, text_of

STALLED = [Text("I write."), Calls("write", {"content": "The moon pulls the sea."}, stop_after=4), Delay(30), Finish()]
AGAIN = [Calls("write", {"content": "The sea."}), Finish()]
END = [Text("Done."), Finish()]


@pytest.mark.subprocess
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # google-adk leaves its clients open
@pytest.mark.parametrize("path", PATHS)
async def test_crash_in_the_middle_of_arguments(path: str, tmp_path: Path) -> None:
    crashing.undone.clear()
    async with scripted("gemini", [STALLED, AGAIN, END, END]) as provider:
        arguments = ["-m", "tests.adk.crashing", provider.base_url, str(tmp_path), path]
        process = await asyncio.create_subprocess_exec(sys.executable, "-W", "ignore", *arguments)
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
        await asyncio.sleep(crashing.LEASE + 0.2)  # the dead process owns its run that long
        async with Callstream(f"sqlite:///{tmp_path}/calls.db") as cs:
            host = crashing.host_of(cs, provider.base_url, str(tmp_path), path)
            assert "Done." in text_of(await host.run("two"))
            ((args_json, reason),) = crashing.undone
            assert (args_json or "").startswith('{"content":"The moon')  # what came before the crash was kept
            assert reason == "interrupted"
            await host.run("three")
            given_up, written = await host.calls()
            runs = await cs.journal.runs()
    assert (given_up.state, given_up.reason) == (CallState.DISCARDED, "interrupted")
    assert (written.state, written.args) == (CallState.COMPLETED, {"content": "The sea."})
    assert [run.outcome for run in runs] == ["finished", "finished", "failed"]
    assert len(crashing.undone) == 1  # once
    gc.collect()
