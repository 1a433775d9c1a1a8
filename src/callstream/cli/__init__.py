"""The command ``callstream``: serve an agent, watch its runs, read and look after its journal."""

from __future__ import annotations

from callstream.cli.program import main

__all__ = ["main"]
