"""What a client is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a client is shown, and how.

    ``errors``: whether it may read the text of errors (why a run or a tool failed), which may tell of internals;
    without it, it learns that they failed. What a hook says with ``Reject`` is meant to be read and is always shown.
    ``emit_interrupt_outcome``: calls that await an answer end the run as interrupts, except those of ``client_tools``
    (the names of the tools that the client brought; those in the run's journalled input are added), which it answers
    with tool messages in any case; without it, all of them are ``pendingToolCallIds``. ``response_schemas``: the JSON
    Schema of the answer, by tool name.
    """

    reasoning: bool = True
    errors: bool = False
    emit_interrupt_outcome: bool = False
    client_tools: frozenset[str] = frozenset()
    response_schemas: Mapping[str, dict[str, Any]] = {}
