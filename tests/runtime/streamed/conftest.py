"""A desk, at which a tool with a ``Streamed`` parameter writes, and a Callstream that has this tool."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from callstream import Callstream
from tests.runtime.streaming import Desk


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
async def cs(desk: Desk) -> AsyncIterator[Callstream]:
    async with Callstream("memory:", tools=[desk.write()]) as callstream:
        yield callstream
