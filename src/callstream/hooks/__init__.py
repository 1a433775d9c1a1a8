"""A call's hooks: run in order while its arguments arrive, settled before its tool starts, aborted cleanly."""

from __future__ import annotations

from callstream.hooks.dispatch import CallHooks, HookCutOff, HookSettings, Outcome
from callstream.tools.delta import ArgsDelta, FieldDelta

__all__ = ["ArgsDelta", "CallHooks", "FieldDelta", "HookCutOff", "HookSettings", "Outcome"]
