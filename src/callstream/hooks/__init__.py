"""A call's hooks: run in order while its arguments arrive, settled before its tool starts, aborted cleanly."""

from __future__ import annotations

from callstream.hooks.deltas import ArgsDelta, FieldDelta
from callstream.hooks.dispatch import CallHooks, HookSettings, OnFailure, Outcome
from callstream.hooks.worker import HookCutOff

__all__ = ["ArgsDelta", "CallHooks", "FieldDelta", "HookCutOff", "HookSettings", "OnFailure", "Outcome"]
