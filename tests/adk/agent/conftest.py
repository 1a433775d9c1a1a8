from __future__ import annotations

from tests.agui.conftest import judge

__all__ = ["judge"]
