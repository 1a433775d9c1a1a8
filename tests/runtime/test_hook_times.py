from __future__ import annotations

import asyncio
import threading
from typing import Any

from callstream import ArgsDelta, CallState, Callstream, Settings
from callstream.events import ArgsAppended, CallCompleted, CallStarted


async def test_without_grace_a_sync_hook_holds_its_call_no_longer_than_its_time() -> None:
    let_go = threading.Event()
    has_ended = threading.Event()

    def hangs(delta: ArgsDelta, signal: Any) -> None:
        let_go.wait(20)
        has_ended.set()

    async with Callstream(settings=Settings(hook_timeout=0.05, hook_grace=0)) as cs:
        cs.on_args_delta("write", hangs)
        run = await cs.start("thread")
        await run.record([CallStarted("c", "write"), ArgsAppended("c", "{}"), CallCompleted("c", "{}")])
        async with asyncio.timeout(4):  # less than the usual grace
            call = await run.settled("c")
        assert call.state is CallState.DISCARDED
        assert not has_ended.is_set()
        let_go.set()
        assert await asyncio.to_thread(has_ended.wait, 20)
        await run.finish()
