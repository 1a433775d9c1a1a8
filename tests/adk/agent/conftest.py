from __future__ import annotations

import pytest

from tests.agui.conftest import judge, official_client

from .asking import Remover
from .programs import program

__all__ = ["judge", "official_client", "program"]


@pytest.fixture
def remover() -> Remover:
    return Remover()
