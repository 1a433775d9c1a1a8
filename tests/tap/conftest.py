from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from callstream import Callstream


@pytest.fixture
async def cs() -> AsyncIterator[Callstream]:
    async with Callstream() as callstream:
        yield callstream
