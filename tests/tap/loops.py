"""A test on each event loop that programs run on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


def run_on(loop: str, program: Callable[[], Coroutine[Any, Any, None]]) -> None:
    factory = asyncio.SelectorEventLoop
    if loop == "uvloop":
        factory = pytest.importorskip("uvloop", reason="not on every platform").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(program())
