from __future__ import annotations

import json
from typing import Any

import pytest
from ag_ui.core import RunAgentInput

from callstream.errors import UsageError
from callstream.uistream import ChatRequest, read_request


def user(*parts: dict[str, Any], message_id: str = "u") -> dict[str, Any]:
    return {"id": message_id, "role": "user", "parts": list(parts)}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said, "state": "done"}


def answer(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"id": "a", "role": "assistant", "parts": list(parts)}


def read(*messages: dict[str, Any], **given: Any) -> ChatRequest:
    request = read_request({"id": "chat", "messages": list(messages), "trigger": "submit-message", **given}, "name")
    RunAgentInput.model_validate({**request.run_input, "runId": "run"})
    return request


def test_a_message_is_the_input_of_a_thread() -> None:
    request = read(
        {"id": "s", "role": "system", "parts": [text("Be brief.")]}, user(text("Hello"), text("there")), extra=1
    )
    assert request.chat_id == request.run_input["threadId"] == "chat"
    assert request.continues is None
    assert request.run_input["messages"] == [
        {"id": "s", "role": "system", "content": "Be brief."},
        {"id": "u", "role": "user", "content": "Hello\nthere"},
    ]
    assert request.run_input["forwardedProps"] == {"extra": 1}
    assert "resume" not in request.run_input


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"id": "", "messages": []},
        {"id": 7, "messages": []},
        {"id": "c", "messages": {}},
        {"id": "c", "messages": ["hello"]},
        {"id": "c", "messages": [{"id": "u", "role": "tool", "parts": []}]},
        {"id": "c", "messages": [], "tools": "paint"},
    ],
)
def test_what_is_no_chat_is_refused(body: Any) -> None:
    with pytest.raises(UsageError, match="expected"):
        read_request(body, "name")


def test_files_become_parts() -> None:
    files = [
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA"},
        {"type": "file", "mediaType": "audio/wav", "url": "https://example.com/a.wav"},
        {"type": "file", "mediaType": "application/pdf", "url": "data:text/plain,plain"},
        {"type": "file", "url": "https://example.com/unknown"},
        {"type": "data-note", "data": 1},
        "no part",
    ]
    [message] = read(user(text("Look"), *files)).run_input["messages"]  # type: ignore[arg-type]
    assert message["content"] == [
        {"type": "text", "text": "Look"},
        {"type": "image", "source": {"type": "data", "value": "AAAA", "mimeType": "image/png"}},
        {"type": "audio", "source": {"type": "url", "value": "https://example.com/a.wav", "mimeType": "audio/wav"}},
        {
            "type": "document",
            "source": {"type": "url", "value": "data:text/plain,plain", "mimeType": "application/pdf"},
        },
    ]


def call(name: str, state: str, **given: Any) -> dict[str, Any]:
    return {"type": f"tool-{name}", "toolCallId": f"call-{name}", "state": state, "input": {"n": 1}, **given}


def test_each_step_is_a_message_with_its_results_behind_it() -> None:
    step = {"type": "step-start"}
    request = read(
        user(text("Go")),
        answer(
            step,
            {"type": "reasoning", "text": "Hm."},
            text("One."),
            call("write", "output-available", output="123"),
            step,
            call("fail", "output-error", errorText="no"),
            call("fall", "output-error"),
            call("deny", "output-denied"),
            {**call("any", "output-available", output=None), "type": "dynamic-tool", "toolName": "any"},
            {**call("x", "output-available", output=None), "type": "dynamic-tool"},
            step,
            call("pick", "input-available"),
        ),
    )
    assert request.continues == "a"
    _, one, written, two, failed, fell, denied, other, three = request.run_input["messages"]
    assert (one["id"], one["content"], one["toolCalls"][0]["function"]) == (
        "a",
        "One.",
        {"name": "write", "arguments": '{"n":1}'},
    )
    # As JSON, so that a text that looks like a number stays a text.
    assert json.loads(written["content"]) == "123"
    assert two["id"] == "a-1"
    assert (failed["error"], fell["error"], denied["error"]) == ("no", "The tool failed.", "The user denied this.")
    assert other["content"] == "null"
    assert [made["id"] for made in three["toolCalls"]] == ["call-pick"]
    assert "content" not in three


def test_what_is_half_written_is_left_out() -> None:
    half = [
        call("half", "input-streaming", rawInput='{"n":'),
        {"type": "tool-none", "toolCallId": "none", "state": "output-error", "errorText": "cut off"},
        call("early", "output-available", output={"done": 1}, preliminary=True),
    ]
    _, message = read(user(text("Go")), answer(*half)).run_input["messages"]
    assert [made["function"]["name"] for made in message["toolCalls"]] == ["early"]
    assert read(answer()).run_input["messages"] == [{"id": "a", "role": "assistant"}]


@pytest.mark.parametrize(
    ("output", "content"),
    [
        ({"a": 1}, '{"a":1}'),
        ("red", "red"),
        ("", ""),
        ("5", '"5"'),
        ('"quoted"', '"\\"quoted\\""'),
        ("[" * 300 + "]" * 300, f'"{"[" * 300}{"]" * 300}"'),
        (None, "null"),
    ],
    ids=lambda value: str(value)[:8],
)
def test_an_output_that_is_a_text_stays_one(output: Any, content: str) -> None:
    done = call("paint", "output-available", output=output)
    *_, message = read(user(text("Go")), answer(done)).run_input["messages"]
    assert message["content"] == content


def test_approvals_are_answers_to_interrupts() -> None:
    asked = [
        call("sign", "approval-responded", approval={"id": "q1", "approved": True}),
        call("send", "approval-responded", approval={"id": "q2", "approved": False, "reason": "too late"}),
        call("wait", "approval-requested", approval={"id": "q3"}),
        call("done", "output-available", output=1, approval={"id": "q4", "approved": True}),
    ]
    assert read(user(text("Go")), answer(*asked)).run_input["resume"] == [
        {"interruptId": "q1", "status": "resolved", "payload": {"approved": True}},
        {"interruptId": "q2", "status": "resolved", "payload": {"approved": False, "reason": "too late"}},
    ]


def test_a_message_that_is_sent_once_more_gets_another_id() -> None:
    assert read(user(text("Go")), trigger="regenerate-message").run_input["messages"][-1]["id"] == "u~again-name"
    assert read(user(text("Gone")), messageId="u").run_input["messages"][-1]["id"] == "u~again-name"
    assert read(user(text("Go")), answer(), messageId="a").run_input["messages"][0]["id"] == "u"


def test_tools_of_the_browser() -> None:
    listed = [{"name": "paint", "description": "Paints.", "parameters": {"type": "object"}}, {"title": "no name"}, 7]
    assert read(tools=listed).run_input["tools"] == [listed[0]]
    named = {"paint": {"inputSchema": {"type": "object", "properties": {}}}, "other": None}
    assert read(tools=named).run_input["tools"] == [
        {"name": "paint", "description": "", "parameters": {"type": "object", "properties": {}}}
    ]


def test_the_former_name_of_the_input_warns() -> None:
    request = read(user(text("Go")))
    with pytest.warns(DeprecationWarning, match="run_input"):
        assert request.given == request.run_input
