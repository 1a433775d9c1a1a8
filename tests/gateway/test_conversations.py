"""Which conversation and which turn a request belongs to, with nothing set but the base URL."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream.gateway.conversation import ConversationIds, conversation_of, principal_of, request_key
from callstream.testing import Finish, Text, ToolCall
from tests.gateway.gates import gate

SESSION = "0b0a5c3e-1111-4222-8333-944455566677"
CASES: dict[str, tuple[dict[str, str], Any, ConversationIds]] = {
    "ours": (
        {"callstream-thread": "mine", "callstream-run": "r1", "x-session-id": "other-one"},
        {},
        ConversationIds("mine", "r1"),
    ),
    "Claude Code": ({"x-claude-code-session-id": SESSION}, {}, ConversationIds(SESSION)),
    "a sub-agent of Claude Code": (
        {"x-claude-code-session-id": SESSION, "x-claude-code-agent-id": "a1"},
        {},
        ConversationIds(f"{SESSION}/a1"),
    ),
    "Claude Code by its metadata": (
        {},
        {"metadata": {"user_id": json.dumps({"device_id": "d", "session_id": SESSION})}},
        ConversationIds(SESSION),
    ),
    "an older Claude Code": (
        {},
        {"metadata": {"user_id": f"user_1_account_2_session_{SESSION}"}},
        ConversationIds(SESSION),
    ),
    "Codex": (
        {"user-agent": "codex_cli_rs/0.166.0", "thread-id": SESSION},
        {"client_metadata": {"turn_id": "turn-7"}, "prompt_cache_key": "x"},
        ConversationIds(SESSION, "turn-7"),
    ),
    "Codex without a turn": ({"originator": "codex_exec", "session_id": SESSION}, {}, ConversationIds(SESSION)),
    "a vendor's session": ({"x-acme-session-id": SESSION}, {}, ConversationIds(SESSION)),
    "an id that is too short": ({"x-session-id": "1"}, {}, ConversationIds()),
    "opencode": ({"x-session-affinity": "ses_12345678"}, {}, ConversationIds("ses_12345678")),
    "a conversation of Responses": ({}, {"conversation": {"id": "conv_1"}}, ConversationIds("conv_1")),
    "a cache key": ({}, {"prompt_cache_key": "session-1"}, ConversationIds("session-1")),
    "a user that is no session": ({}, {"metadata": {"user_id": "alice"}}, ConversationIds()),
    "a user that is JSON of another kind": ({}, {"metadata": {"user_id": "[1]"}}, ConversationIds()),
    "Codex that says nothing": ({"user-agent": "codex"}, {}, ConversationIds()),
    "control characters": ({"callstream-thread": "a\nb"}, {}, ConversationIds()),
    "no JSON": ({}, None, ConversationIds()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_conversation_is_known_by_what_programs_send(case: str) -> None:
    headers, body, expected = CASES[case]
    assert conversation_of(headers, body) == expected


def test_the_credential_is_hashed_and_nowhere_in_clear() -> None:
    by_bearer = principal_of({"authorization": "Bearer secret"}, {})
    assert by_bearer is not None
    assert "secret" not in by_bearer
    assert by_bearer != principal_of({"x-api-key": "other"}, {})
    assert principal_of({}, {"key": "secret"}) is not None
    assert principal_of({}, {}) is None


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=4), st.booleans())
def test_how_an_answer_is_sent_does_not_make_two_requests_different(body: dict[str, Any], streams: bool) -> None:
    asked = {**body, "model": "m"}
    same = {**dict(reversed(asked.items())), "stream": streams, "metadata": {"user_id": "x"}}
    compared = {name: value for name, value in asked.items() if name not in ("stream", "metadata", "user")}
    assert request_key("p", "anthropic", "v1/messages", compared) == request_key(
        "p",
        "anthropic",
        "v1/messages",
        {**compared, **{name: value for name, value in same.items() if name in ("stream", "metadata")}},
    )
    assert request_key("p", "anthropic", "v1/messages", compared) != request_key(
        "q", "anthropic", "v1/messages", compared
    )
    assert request_key("p", "anthropic", "v1/messages", [1]) is None


async def test_a_turn_is_one_run_from_the_users_word_to_the_answer_without_calls() -> None:
    scripts = [
        [ToolCall("look", {"at": "tides"}, call_id="toolu_1"), Finish()],
        [Text("High tide."), Finish()],
        [Text("You are welcome."), Finish()],
    ]
    async with gate("anthropic", scripts) as gateway:
        session = {"x-claude-code-session-id": SESSION}
        async with anthropic.AsyncAnthropic(base_url=gateway.base_url, api_key="k", default_headers=session) as client:
            messages: list[Any] = [{"role": "user", "content": "When?"}]
            how: dict[str, Any] = {"model": "m", "max_tokens": 99}
            answer = await client.messages.create(messages=messages, **how)
            [call] = [block for block in answer.content if block.type == "tool_use"]
            messages += [
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "at noon"}]},
            ]
            said = await client.messages.create(messages=messages, **how)
            messages += [{"role": "assistant", "content": said.content}, {"role": "user", "content": "Thanks"}]
            await client.messages.create(messages=messages, **how)
        first, second = await gateway.runs()
        assert [(run.thread_id, run.outcome) for run in (first, second)] == [(SESSION, "finished")] * 2
        [row] = await gateway.callstream.journal.calls(run_id=first.run_id)
        assert str(row.state) == "completed"


async def test_requests_without_an_id_go_on_in_the_run_whose_calls_they_answer() -> None:
    scripts = [[ToolCall("look", {}, call_id="call_1"), Finish()], [Text("Done."), Finish()]]
    async with gate("openai_chat", scripts) as gateway:
        async with httpx.AsyncClient(timeout=20) as client:
            ask = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
            answer = (await client.post(f"{gateway.base_url}/chat/completions", json=ask)).json()
            message = answer["choices"][0]["message"]
            result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "seen"}
            again = {"model": "m", "messages": [*ask["messages"], message, result]}
            await client.post(f"{gateway.base_url}/chat/completions", json=again)
        [run] = await gateway.runs()
        assert run.outcome == "finished"
