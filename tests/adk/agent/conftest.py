from __future__ import annotations

from tests.agui.conftest import judge, official_client

from .programs import program

__all__ = ["judge", "official_client", "program"]
