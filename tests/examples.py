"""How many examples a property is tried with: few in a quick look (`make test`), all of them in `make slow`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
USUAL = {"quick": 12, "ci": 60, "dev": 60, "thorough": 2000}


def register_profiles() -> None:
    """No deadlines: a shared machine may stall any example. ``quick`` and ``ci`` find the same examples everywhere."""
    for name, count in USUAL.items():
        is_fixed = name in ("quick", "ci")
        settings.register_profile(
            name,
            max_examples=count,
            derandomize=is_fixed,
            deadline=None,
            database=None if is_fixed else settings.default.database,  # type: ignore[union-attr]
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile(PROFILE)


def examples(count: int) -> settings:
    """For a property that needs more examples than others, or fewer: so many with ``ci``, and a share of them else."""
    return settings(max_examples=max(5, count * USUAL[PROFILE] // USUAL["ci"]))
