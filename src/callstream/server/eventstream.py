"""A response of server-sent events: sent as they come, kept alive while none come, cut off when nobody takes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from callstream.errors import JournalError
from callstream.server.settings import Settings

logger = logging.getLogger("callstream.server")

HEARTBEAT: Final = b": keep-alive\n\n"
# Without the second one, nginx keeps what it gets until it has a buffer full.
_HEADERS: Final = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}


class EventStream(Response):
    """``watching`` is held while somebody reads."""

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        settings: Settings,
        *,
        headers: Mapping[str, str] | None = None,
        watching: AbstractAsyncContextManager[None] | None = None,
    ) -> None:
        self._frames = frames
        self._settings = settings
        self._watching = watching or nullcontext()
        self._sending = asyncio.Lock()
        self._sent_at = 0.0
        self.status_code = 200
        self.background = None
        self.init_headers({**_HEADERS, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with self._watching, aclosing(self._frames):
            sending = asyncio.ensure_future(self._send_frames(send))
            leaving = asyncio.ensure_future(self._until_left(receive, send))
            try:
                await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sending, leaving):
                    task.cancel()
                await asyncio.wait({sending, leaving})
            for task in (sending, leaving):
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error

    async def _send_frames(self, send: Send) -> None:
        try:
            async for frame in self._frames:
                await self._send(send, frame)
        except JournalError:
            logger.exception("a stream ended early, because the journal could not be read")
        except TimeoutError:
            logger.info("a reader that took nothing for %s s was cut off", self._settings.stall_seconds)
            return
        await self._send(send, b"", more=False)

    async def _until_left(self, receive: Receive, send: Send) -> None:
        """Sends heartbeats, and returns when the client has gone."""
        pause = self._settings.heartbeat_seconds
        message: asyncio.Future[Message] = asyncio.ensure_future(receive())
        try:
            while True:
                done, _ = await asyncio.wait({message}, timeout=pause)
                if done:
                    if message.result()["type"] == "http.disconnect":
                        return
                    message = asyncio.ensure_future(receive())
                elif not self._sending.locked() and asyncio.get_running_loop().time() - self._sent_at >= pause:
                    await self._send(send, HEARTBEAT)
        finally:
            message.cancel()

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        async with self._sending, asyncio.timeout(self._settings.stall_seconds):
            await send({"type": "http.response.body", "body": body, "more_body": more})
            self._sent_at = asyncio.get_running_loop().time()
