from __future__ import annotations

import pytest
from ag_ui.core import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage

from callstream.agui.given import since_spoken

SYSTEM = SystemMessage(id="s", content="Be brief.")
ASKED = UserMessage(id="u", content="Paint.")
SPOKEN = AssistantMessage(id="a", content="With what?")
ANSWERED = ToolMessage(id="t", tool_call_id="c", content="oil")


@pytest.mark.parametrize(
    ("messages", "since"),
    [
        ([], []),
        ([SYSTEM, ASKED], [SYSTEM, ASKED]),
        ([ASKED, SPOKEN], []),
        ([ASKED, SPOKEN, ANSWERED, ASKED], [ANSWERED, ASKED]),
        ([SPOKEN, ASKED, SPOKEN, ANSWERED], [ANSWERED]),
    ],
)
def test_messages_since_the_model_last_spoke(messages: list[Message], since: list[Message]) -> None:
    assert since_spoken(messages) == since
