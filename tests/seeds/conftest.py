"""Programs that users wanted to be able to write, as they would write them. Each has a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adk.conftest import cs, ignore_warnings_of_adk, models

__all__ = ["cs", "models"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ignore_warnings_of_adk(items, Path(__file__).parent)
