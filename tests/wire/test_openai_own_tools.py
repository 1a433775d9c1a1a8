"""OpenAI's own tools that a client runs: ``apply_patch``, ``shell`` and ``local_shell`` are calls like any other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callstream.events import ArgsAppended, ResultReceived
from callstream.wire import decoder_for, provider_of, results_in
from callstream.wire.requests import RefusedCall, Request
from tests.decoding import calls, decode, only_call, sse
from tests.wire.collapsing import payloads as payloads_in
from tests.wire.collapsing import tapped
from tests.wire.payloads import added, completed, created, done, event


def read(*payloads: Any) -> Any:
    return decode("openai_responses", sse(*payloads))


def found(*payloads: Any) -> list[tuple[str, Any]]:
    return [(call.name, call.args) for call in calls(read(*payloads)) if call.outcome == "completed"]


def incomplete() -> dict[str, Any]:
    return completed(status="incomplete")


PATCH = {"type": "create_file", "path": "a.txt", "diff": '+hello "you"\n'}
SHELL = {"commands": ["ls -a", "pwd"], "max_output_length": None, "timeout_ms": 5}


def own_call(kind: str, given: dict[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    field = "operation" if kind == "apply_patch_call" else "action"
    return {"type": kind, "id": "own_1", "call_id": "call_1", "status": status, field: given, **more}


def patch_delta(text: str) -> dict[str, Any]:
    return event("apply_patch_call_operation_diff.delta", item_id="own_1", output_index=0, delta=text)


def command(part: str, index: int, text: str) -> dict[str, Any]:
    field = "delta" if part == "delta" else "command"
    return event(f"shell_call_command.{part}", output_index=0, command_index=index, **{field: text})


PATCH_START = added(own_call("apply_patch_call", {**PATCH, "diff": ""}, "in_progress"))
SHELL_START = added(own_call("shell_call", {**SHELL, "commands": []}, "in_progress", environment=None))
PATCH_DONE = done(own_call("apply_patch_call", PATCH))
SHELL_DONE = done(own_call("shell_call", SHELL, environment={"type": "local"}))
OWN_CALLS: dict[str, tuple[list[dict[str, Any]], tuple[str, Any]]] = {
    "patch": (
        [
            PATCH_START,
            patch_delta("+hello "),
            patch_delta('"you"\n'),
            event("apply_patch_call_operation_diff.done", item_id="own_1", output_index=0, diff=PATCH["diff"]),
            PATCH_DONE,
        ],
        ("apply_patch", PATCH),
    ),
    "patch without deltas": ([PATCH_START, PATCH_DONE], ("apply_patch", PATCH)),
    "shell": (
        [
            SHELL_START,
            command("added", 0, ""),
            command("delta", 0, "ls "),
            command("delta", 0, "-a"),
            command("done", 0, "ls -a"),
            command("added", 1, ""),
            command("done", 1, "pwd"),
            SHELL_DONE,
        ],
        ("shell", SHELL),
    ),
    "shell, done alone": ([SHELL_DONE], ("shell", SHELL)),
    "local shell": (
        [
            added(own_call("local_shell_call", {"type": "exec", "command": [], "env": {}}, "in_progress")),
            done(own_call("local_shell_call", {"type": "exec", "command": ["ls"], "env": {}})),
        ],
        ("local_shell", {"type": "exec", "command": ["ls"], "env": {}}),
    ),
}


@pytest.mark.parametrize("case", OWN_CALLS)
def test_calls_of_openais_own_tools(case: str) -> None:
    payloads, call = OWN_CALLS[case]
    item = payloads[-1]["item"]
    assert found(created(), *payloads, completed(item)) == [call]
    assert found(created(), *payloads, completed()) == [call]
    assert found(created(), completed(item)) == [call]


def test_pieces_of_openais_own_tools_are_read_as_they_come() -> None:
    events = decoder_for("openai_responses").feed(sse(created(), PATCH_START, patch_delta("+hello ")))
    assert "".join(each.text for each in events if isinstance(each, ArgsAppended)) == (
        '{"type":"create_file","path":"a.txt","diff":"+hello '
    )


def test_calls_of_openais_own_tools_that_are_cut_off() -> None:
    cut = done(own_call("shell_call", {**SHELL, "commands": ["rm -r"]}, "incomplete"))
    for payloads in ([SHELL_START, command("delta", 0, "rm -r"), cut], [SHELL_START, command("delta", 0, "rm -r")]):
        for end in (incomplete(), completed()):
            assert only_call(read(created(), *payloads, end)).outcome == "truncated"
    other = done(own_call("apply_patch_call", {**PATCH, "path": "b.txt"}))
    assert only_call(read(created(), PATCH_START, other, completed())).outcome == "malformed"


def test_a_shell_of_the_server_gives_no_calls() -> None:
    hosted = own_call("shell_call", SHELL, environment={"type": "container_reference", "container_id": "c"})
    pieces = [command("added", 0, ""), command("delta", 0, "ls"), command("done", 0, "ls")]
    assert found(created(), added(hosted), *pieces, done(hosted), completed(hosted)) == []
    # Nor pieces after its end, or of no item at all.
    late = [command("delta", 0, "x"), command("done", 0, "x"), {**command("delta", 0, "x"), "output_index": None}]
    assert found(created(), *OWN_CALLS["shell"][0], *late, completed()) == [("shell", SHELL)]


def test_calls_of_openais_own_tools_leave_whole_or_not_at_all() -> None:
    for case in ("patch", "shell"):
        payloads, _ = OWN_CALLS[case]
        item = payloads[-1]["item"]
        message = {"type": "message", "id": "m", "role": "assistant", "content": []}
        rest = [added(message, 1), done(message, 1)]
        sent = [created(), *payloads, *rest, completed(item, message)]
        assert payloads_in(tapped("openai_responses", [sse(*sent)]).body) == sent
        cut = [*sent[:2], *rest, completed({**item, "status": "incomplete"}, message)]
        left = payloads_in(tapped("openai_responses", [sse(*cut)]).body)
        assert left == [
            created(),
            *({**each, "output_index": 0} for each in rest),
            completed(message),
        ]


def test_results_of_openais_own_tools() -> None:
    outputs = [
        {"type": "apply_patch_call_output", "call_id": "1", "status": "failed", "output": "no such file"},
        {"type": "shell_call_output", "call_id": "2", "output": [{"stdout": "a"}]},
        {"type": "local_shell_call_output", "id": "3", "output": "{}"},
    ]
    asked = [{"type": "shell_call", "call_id": "2", "action": SHELL}, *outputs]
    assert results_in("openai_responses", json.dumps({"input": asked}).encode()) == [
        ResultReceived("1", None, "no such file", is_error=True),
        ResultReceived("2", "shell", [{"stdout": "a"}]),
        ResultReceived("3", None, "{}"),
    ]


def test_openais_own_tools_are_offered_and_refused_in_their_form() -> None:
    provider = provider_of("openai_responses")
    tools = [{"type": name} for name in ("apply_patch", "shell", "local_shell", "web_search")]
    request = Request("/v1/responses", json.dumps({"input": "go", "tools": tools}).encode())
    assert provider.offered_names(request) == ("apply_patch", "shell", "local_shell")
    refused = [
        RefusedCall("a", "apply_patch", PATCH, "No."),
        RefusedCall("b", "shell", SHELL, "No."),
        RefusedCall("c", "local_shell", {"command": ["ls"]}, "No."),
        RefusedCall("d", "other", {}, "No."),
    ]
    again = provider.ask_again(request, "", refused)
    assert again is not None
    assert again.fields["input"][1:] == [
        {"type": "apply_patch_call", "call_id": "a", "status": "completed", "operation": PATCH},
        {"type": "shell_call", "call_id": "b", "status": "completed", "action": SHELL},
        {"type": "local_shell_call", "call_id": "c", "status": "completed", "action": {"command": ["ls"]}},
        {"type": "function_call", "call_id": "d", "name": "other", "arguments": "{}"},
        {"type": "apply_patch_call_output", "call_id": "a", "status": "failed", "output": "No."},
        {
            "type": "shell_call_output",
            "call_id": "b",
            "output": [{"stdout": "", "stderr": "No.", "outcome": {"type": "exit", "exit_code": 1}}],
        },
        {"type": "local_shell_call_output", "id": "c", "output": "No."},
        {"type": "function_call_output", "call_id": "d", "output": "No."},
    ]
