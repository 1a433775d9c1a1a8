"""Clients of AG-UI before 1.0: success and interrupts are the outcomes that they know, and nothing more in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.agui import encode, for_older_client
from callstream.agui.events import Cancelled, Interrupt, Interrupted, RunError, RunFinished, Success
from callstream.agui.messages import Metadata

INTERRUPT = Interrupt(id="c", reason="tool_call", message="?", tool_call_id="c")
ASKED = {"type": "interrupt", "interrupts": [{"id": "c", "reason": "tool_call", "message": "?", "toolCallId": "c"}]}


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (Success(pending_tool_call_ids=("c",)), {"type": "success"}),
        (Success(), {"type": "success"}),
        (Interrupted(interrupts=(INTERRUPT,)), ASKED),
        (Cancelled(), None),
    ],
)
def test_older_client_gets_outcomes_that_it_knows(outcome: Any, told: Any) -> None:
    finished = RunFinished(thread_id="t", run_id="r", outcome=outcome, metadata=Metadata(1))
    (event,) = for_older_client([finished])
    assert json.loads(encode(event)).get("outcome") == told


def test_older_client_gets_all_else_as_it_is() -> None:
    failed = RunError(message="no", code="failed", metadata=Metadata(1))
    assert for_older_client([failed]) == [failed]
