"""Fixtures for pytest. One line in ``conftest.py`` switches them on::

    pytest_plugins = ["callstream.testing.pytest_plugin"]

Installing Callstream does not switch them on: a plugin that is always active would be imported before every test run of
every project in the environment, and before coverage measures anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from callstream.testing.driving import Driven
    from callstream.testing.provider import ScriptedProvider, Scripting


@pytest.fixture
def scripted_provider() -> Iterator[Callable[..., ScriptedProvider]]:
    """Starts scripted providers: ``scripted_provider("anthropic", [...])``. They end with the test."""
    from callstream.testing.provider import ScriptedProvider

    with ExitStack() as providers:

        def start(wire: str, script: Scripting, **options: Any) -> ScriptedProvider:
            return providers.enter_context(ScriptedProvider(wire, script, **options))

        yield start


@pytest.fixture
def stream_args() -> Callable[..., Awaitable[Driven]]:
    """``callstream.testing.stream_args``, which streams arguments to a tool's hooks."""
    from callstream.testing.driving import stream_args

    return stream_args
