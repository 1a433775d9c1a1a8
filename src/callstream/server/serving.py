"""Serving an app with uvicorn, and ending well: no new runs, time for those that go on, then the end."""

from __future__ import annotations

import asyncio
import socket
from types import FrameType
from typing import Any

from starlette.applications import Starlette

from callstream.errors import UsageError

try:
    import uvicorn
except ImportError:  # pragma: no cover
    raise UsageError("serving needs uvicorn: pip install 'callstream[server]'") from None


class _Server(uvicorn.Server):
    """uvicorn waits for open streams before it tells the app to end; so runs are told before."""

    def __init__(self, config: uvicorn.Config, app: Starlette) -> None:
        super().__init__(config)
        self._runs = app.state.runs
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._draining is None and self.started:
            loop = self._loop
            loop.call_soon_threadsafe(self._drain, sig, frame)
        else:
            super().handle_exit(sig, frame)  # a second signal does not wait

    def _drain(self, sig: int, frame: FrameType | None) -> None:
        async def drain() -> None:
            await self._runs.drain()
            super(_Server, self).handle_exit(sig, frame)

        self._draining = asyncio.ensure_future(drain())

    async def serve(self, sockets: list[Any] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)


async def serve(
    app: Starlette,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    sockets: list[socket.socket] | None = None,
    **options: Any,
) -> None:
    """Serves until SIGINT or SIGTERM; ``options`` are uvicorn's. A second signal ends it at once.

    ``sockets`` that listen already are used in place of host and port.
    """
    options.setdefault("log_level", "warning")
    config = uvicorn.Config(app, host=host, port=port, lifespan="on", **options)
    await _Server(config, app).serve(sockets)
