from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callstream import Callstream
from tests.adk.conftest import IGNORED
from tests.adk.hosting import Models
from tests.agui.conftest import live_judge, official_client

__all__ = ["live_judge", "official_client"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            for warning in IGNORED:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture
async def models(cs: Callstream) -> AsyncIterator[Models]:
    made = Models(cs)
    yield made
    await made.aclose()
