from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.agui.judge import Judge, Unavailable, install


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    """The official client. Where it cannot be installed the test is skipped with the reason; in CI it fails."""
    try:
        install()
    except Unavailable as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have the official AG-UI client: {reason}")
        pytest.skip(str(reason))
    with Judge() as official:
        yield official
