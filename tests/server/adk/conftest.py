from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callstream import Callstream
from tests.adk.conftest import ignore_warnings_of_adk
from tests.adk.hosting import Models
from tests.agui.conftest import live_judge, official_client

__all__ = ["live_judge", "official_client"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ignore_warnings_of_adk(items, Path(__file__).parent)


@pytest.fixture
async def models(cs: Callstream) -> AsyncIterator[Models]:
    made = Models(cs)
    yield made
    await made.aclose()
