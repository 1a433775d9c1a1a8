from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """These speak to real providers and cost money: they run when they are asked for by name, and never beside others."""
    if "live" in config.option.markexpr:
        return
    asked = [item for item in items if HERE not in item.path.parents]
    config.hook.pytest_deselected(items=[item for item in items if HERE in item.path.parents])
    items[:] = asked
