"""A quick part of the catalogue; ``make parity`` goes through all of it."""

from __future__ import annotations

import pytest

from tests.agui.conftest import judge, official_client
from tests.agui.judge import Judge

from .parity import CATALOGUE, MEANT, QUICK, compare

__all__ = ["judge", "official_client"]


@pytest.mark.parametrize("name", QUICK)
async def test_clients_see_what_a_plain_runner_says(name: str, judge: Judge) -> None:
    verdict = await compare(name, judge)
    assert verdict.is_equal, verdict


def test_every_difference_that_is_meant_is_of_an_app_of_the_catalogue() -> None:
    assert set(MEANT) <= set(CATALOGUE)
