"""What nobody can mean is refused where it is given, with what was expected and what came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from callstream import Callstream, Settings, SyncRun, UsageError, current_run
from callstream.tap import TapSettings


def search(topic: str) -> str:
    return topic


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Callstream(tools=search), r"expected a list of tools, such as tools=\[search\], got <function search"),
        (lambda: Callstream(tools=5), "expected a list of tools"),
        (lambda: Callstream(tools=[print]), "tool 'print' takes .*args, which no schema can describe"),
        (lambda: Settings(hook_timeout="3"), "expected hook_timeout in seconds, more than 0, got '3'"),
        (lambda: Settings(progress_interval="1"), "expected progress_interval to be a number of seconds, got '1'"),
        (lambda: Settings(hook_grace=-1), "expected hook_grace to be a number of seconds, got -1"),
        (lambda: Settings(max_args_bytes="1"), "expected max_args_bytes to be a number of bytes, or None, got '1'"),
        (lambda: Callstream().http_client(settings={}), "expected settings to be callstream.tap.TapSettings, got .*dict"),
        (lambda: Callstream().transport(settings=Settings()), "expected settings to be callstream.tap.TapSettings"),
        (lambda: Callstream().transport(5), "expected a transport of httpx or httpx2, or none, got 5"),
        (lambda: SyncRun(current_run()), "expected a run, got None; current_run"),
    ],
)  # fmt: skip
def test_a_clear_error(wrong: Callable[[], Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        wrong()


def test_what_is_meant_is_taken() -> None:
    cs = Callstream(tools=(search, len), settings=Settings(hook_timeout=3, progress_interval=0, max_run_bytes=9))
    assert sorted(cs.tools) == ["len", "search"]
    assert cs.transport(settings=TapSettings(collapse="all")) is not None
