"""A server as a process of its own: ``python -m tests.server.program JOURNAL`` prints its port and serves.

Its agent writes a piece of an argument every 50 ms until it has written enough: ``pieces`` and ``piece`` of the forwarded
properties.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

from ag_ui.core import RunAgentInput

from callstream import Callstream, current_run
from callstream.events import ArgsAppended, CallCompleted, CallStarted
from callstream.server import create_app
from callstream.server.serving import _Server, config_for


async def writing(given: RunAgentInput) -> AsyncIterator[Any]:
    run = current_run()
    assert run is not None
    props = given.forwarded_props or {}
    call_id = f"call-{run.run_id}"
    await run.record([CallStarted(call_id, "write", call_id)])
    try:
        for _ in range(props.get("pieces", 1)):
            await run.record([ArgsAppended(call_id, props.get("piece", "["))])
            await asyncio.sleep(0.05)
        await run.record([CallCompleted(call_id, props.get("piece", "[") * props.get("pieces", 1))])
    except asyncio.CancelledError:
        if props.get("stubborn"):
            await asyncio.sleep(3600)
        raise
    yield None


async def main(journal: str) -> None:
    app = create_app(writing, callstream=Callstream(journal))
    server = _Server(config_for(app, host="127.0.0.1", port=0), app)

    def tell() -> None:
        while not server.started:
            time.sleep(0.01)
        print(json.dumps({"port": server.servers[0].sockets[0].getsockname()[1]}), flush=True)

    threading.Thread(target=tell, daemon=True).start()
    await server.serve()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    try:
        asyncio.run(main(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(130)
    print("ended", flush=True)
