"""Programs that users wanted to be able to write, as they would write them. Each has a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adk.conftest import IGNORED, cs, models

__all__ = ["cs", "models"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            for warning in IGNORED:
                item.add_marker(pytest.mark.filterwarnings(warning))
