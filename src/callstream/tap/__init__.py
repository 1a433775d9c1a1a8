"""The tap: live tool calls for any framework, through the SDK's own HTTP client."""

from __future__ import annotations

from callstream.runtime import TextFilter
from callstream.tap.body import Limits
from callstream.tap.clients import Tap, has_tap
from callstream.tap.exchange import Collapse, TapSettings
from callstream.tap.transport import TapTransport

__all__ = ["Collapse", "Limits", "Tap", "TapSettings", "TapTransport", "TextFilter", "has_tap"]
