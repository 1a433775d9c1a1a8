from __future__ import annotations

import json
from typing import Any

import pytest
from ag_ui.core import AssistantMessage, Message, RunAgentInput, SystemMessage, ToolMessage, UserMessage

from callstream.agui.messages import digest_of, result_value, since_spoken
from callstream.errors import UsageError

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


def test_equal_inputs_have_one_digest_and_others_another() -> None:
    given = RunAgentInput(thread_id="t", run_id="r", messages=[ASKED], state={"a": 1, "b": "\ud800"})
    other_order = given.model_copy(update={"state": {"b": "\ud800", "a": 1}})
    assert digest_of(given) == digest_of(given.model_copy(deep=True)) == digest_of(other_order)
    assert digest_of(given) != digest_of(given.model_copy(update={"state": {"a": 2}}))
    assert digest_of(given) != digest_of(given.model_copy(update={"messages": [SYSTEM]}))


# -- answers --


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"ok": true}', {"ok": True}),
        ('"said"', "said"),
        ("plain words", "plain words"),
        ("", ""),
        ("NaN", "NaN"),
        ("1e999", "1e999"),
        ("\ud800", "\ud800"),
        ("[" * 64 + "]" * 64, json.loads("[" * 64 + "]" * 64)),
    ],
)
def test_an_answer_is_its_value_where_it_is_json(text: str, value: Any) -> None:
    assert result_value(text) == value


@pytest.mark.parametrize("depth", [65, 500, 100_000])
def test_an_answer_that_nests_too_deep_is_refused(depth: int) -> None:
    with pytest.raises(UsageError, match="nests at most 64 deep"):
        result_value("[" * depth + "]" * depth)
