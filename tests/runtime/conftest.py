from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callstream import Callstream


@pytest.fixture(params=["memory", "sqlite"])
def journal_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/calls.db" if request.param == "sqlite" else "memory:"


@pytest.fixture
async def cs(journal_url: str) -> AsyncIterator[Callstream]:
    async with Callstream(journal_url) as callstream:
        yield callstream
