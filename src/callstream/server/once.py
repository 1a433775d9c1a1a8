"""What is done once, however often it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Once:
    """Everybody who calls it waits for the same doing, and cancelling one of them does not cancel it."""

    def __init__(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._function = function
        self._doing: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        if self._doing is None:
            self._doing = asyncio.create_task(self._function())
        await asyncio.shield(self._doing)
