from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callstream import Callstream

from .hosting import Models
from .liveline import line

__all__ = ["line"]

HERE = Path(__file__).parent
IGNORED = (
    # google-adk warns of features of its own that it uses itself.
    r"ignore:\[EXPERIMENTAL\]",
    r"ignore:The `plugins` argument is deprecated",
    r"ignore:(Sequential|Parallel|Loop)Agent is deprecated",
)


def ignore_warnings_of_adk(items: list[pytest.Item], folder: Path) -> None:
    """In the tests of that folder."""
    for item in items:
        if folder in item.path.parents:
            for warning in IGNORED:
                item.add_marker(pytest.mark.filterwarnings(warning))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ignore_warnings_of_adk(items, HERE)


@pytest.fixture(params=["memory", "sqlite"])
def journal_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/calls.db" if request.param == "sqlite" else "memory:"


@pytest.fixture
async def cs() -> AsyncIterator[Callstream]:
    async with Callstream() as callstream:
        yield callstream


@pytest.fixture
async def models(cs: Callstream) -> AsyncIterator[Models]:
    made = Models(cs)
    yield made
    await made.aclose()
