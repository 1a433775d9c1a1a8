from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import captures

HERE = Path(__file__).parent

# No deadlines: a shared machine may stall any example. `ci` finds the same examples on every machine; the other two
# search anew each time: HYPOTHESIS_PROFILE=thorough make test
settings.register_profile(
    "ci", derandomize=True, max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("dev", max_examples=60, deadline=None)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    """Clients trust one root instead of all public ones, which take 50 ms to load into each of thousands of clients.

    Nothing but `make live` leaves this machine.
    """
    if "live" not in config.option.markexpr:
        os.environ["SSL_CERT_FILE"] = str(HERE / "root.pem")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests come first: at the end, one of them would keep one worker busy while the others wait."""
    long = {item.path for item in items if any(item.iter_markers("slow")) or any(item.iter_markers("subprocess"))}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def wires() -> Path:
    """The folder of recorded provider streams; the test is skipped where it is not there."""
    place = captures.folder()
    if place is None:
        pytest.skip(captures.NOT_THERE)
    return place
