"""A response of server-sent events: sent as they come, kept alive while none come, cut off when nobody takes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, aclosing
from typing import Final
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from callstream.errors import JournalError
from callstream.server.settings import Settings

logger = logging.getLogger("callstream.server")

HEARTBEAT: Final = b": keep-alive\n\n"
CUT: Final = "callstream.cut"
"""The name in a request's state of the function that drops its connection with all that waits to be sent.

``serve`` puts it there. ASGI knows nothing of the kind: servers close a connection by sending all of it first, which to
a reader that takes nothing is never.
"""
_CUT_SECONDS: Final = 1.0
# Without the second one, nginx keeps what it gets until it has a buffer full.
_HEADERS: Final = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}


class EventStream(Response):
    """``watching`` is entered while somebody reads, ``held`` is closed when nobody does any more."""

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        settings: Settings,
        *,
        run_id: str,
        watching: AbstractAsyncContextManager[None],
        held: ExitStack,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._frames = frames
        self._settings = settings
        self._run_id = run_id
        self._watching = watching
        self._held = held
        self._sending = asyncio.Lock()
        self._sent_at = 0.0
        self._stalled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status_code = 200
        self.background = None
        self.init_headers({**_HEADERS, "x-run-id": _header_text(run_id), **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as stack:
            stack.enter_context(self._held)
            await stack.enter_async_context(self._watching)
            await stack.enter_async_context(aclosing(self._frames))
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            sending = asyncio.ensure_future(self._send_frames(send))
            leaving = asyncio.ensure_future(self._until_left(receive, send))
            try:
                await asyncio.wait({sending, leaving, self._stalled}, return_when=asyncio.FIRST_COMPLETED)
                if self._stalled.done():
                    self._cut_off(scope)
                    await asyncio.wait({leaving}, timeout=_CUT_SECONDS)
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
            logger.exception(
                "a stream of run %s ended early, because the journal could not be read",
                self._run_id,
                extra={"run_id": self._run_id},
            )
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
        """Sends, unless the reader has stalled: then nothing more is sent, and it is up to ``__call__`` to end it."""
        if self._stalled.done():
            return
        try:
            async with self._sending, asyncio.timeout(self._settings.stall_seconds):
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError:
            if not self._stalled.done():
                self._stalled.set_result(None)
            return
        self._sent_at = asyncio.get_running_loop().time()

    def _cut_off(self, scope: Scope) -> None:
        seconds = self._settings.stall_seconds
        logger.info(
            "a reader of run %s took nothing for %s s and is cut off",
            self._run_id,
            seconds,
            extra={"run_id": self._run_id},
        )
        cut: Callable[[], None] | None = scope.get("state", {}).get(CUT)
        if cut is not None:
            cut()


def _header_text(run_id: str) -> str:
    """The id, percent-encoded where a header cannot carry it as it is; the run's first event has it in any case."""
    fits = run_id.isascii() and run_id.isprintable() and run_id == run_id.strip()
    return run_id if fits else quote(run_id, safe="")
