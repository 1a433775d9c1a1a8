from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from callstream import Callstream


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A journal's."""
    return f"sqlite:///{tmp_path}/calls.db"


@pytest_asyncio.fixture
async def cs(url: str) -> AsyncIterator[Callstream]:
    async with Callstream(url) as callstream:
        yield callstream
