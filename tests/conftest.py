from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import captures

# No deadlines: a shared machine may stall any example. `ci` finds the same examples on every machine; the other two
# search anew each time: HYPOTHESIS_PROFILE=thorough make test
settings.register_profile(
    "ci", derandomize=True, max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("dev", max_examples=60, deadline=None)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def wires() -> Path:
    """The folder of recorded provider streams; the test is skipped where it is not there."""
    place = captures.folder()
    if place is None:
        pytest.skip(captures.NOT_THERE)
    return place
