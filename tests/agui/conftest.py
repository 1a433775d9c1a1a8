from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.agui.judge import Judge, LiveJudge, Unavailable, install


@pytest.fixture(scope="session")
def official_client() -> None:
    """The official client. Where it cannot be installed the test is skipped with the reason; in CI it fails."""
    try:
        install()
    except Unavailable as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have the official AG-UI client: {reason}")
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def judge(official_client: None) -> Iterator[Judge]:
    with Judge() as official:
        yield official


@pytest.fixture(scope="session")
def live_judge(official_client: None) -> Iterator[LiveJudge]:
    with LiveJudge() as official:
        yield official
