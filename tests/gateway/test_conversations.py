"""Which conversation and which turn a request belongs to, with nothing set but the base URL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from google import genai
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

from callstream import Callstream
from callstream.errors import JournalError
from callstream.gateway import create_gateway
from callstream.gateway.conversation import ConversationIds, conversation_of, principal_of, request_key
from callstream.testing import Finish, Text, ToolCall
from callstream.testing.bodies import BodiesProvider
from callstream.testing.encoders import encode
from tests.gateway.gates import Gate, gate
from tests.server.serving import serving
from tests.submitting import replace_append

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
    "a sub-agent of Codex": (
        {"user-agent": "codex", "thread-id": "t-2", "session-id": SESSION, "x-codex-parent-thread-id": "t-1"},
        {"client_metadata": {"turn_id": "turn-1"}},
        ConversationIds(f"{SESSION}/t-2", "turn-1"),
    ),
    "a sub-agent of an older Codex": (
        {"originator": "codex_exec", "thread-id": "t-2", "x-codex-parent-thread-id": "t-1"},
        {},
        ConversationIds("t-1/t-2"),
    ),
    "Codex without a turn": ({"originator": "codex_exec", "session_id": SESSION}, {}, ConversationIds(SESSION)),
    "a vendor's session": ({"x-acme-session-id": SESSION}, {}, ConversationIds(SESSION)),
    "an id that is too short": ({"x-session-id": "1"}, {}, ConversationIds()),
    "opencode": ({"x-session-affinity": "ses_12345678"}, {}, ConversationIds("ses_12345678")),
    "a conversation of Responses": ({}, {"conversation": {"id": "conv_1"}}, ConversationIds("conv_1")),
    "a cache key": ({}, {"prompt_cache_key": "session-1", "user": "ada"}, ConversationIds(group="session-1")),
    "a trace": (
        {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        {"user": "ada"},
        ConversationIds(group="0af7651916cd43dd8448eb211c80319c"),
    ),
    "a user": ({"traceparent": "00-0"}, {"user": "ada"}, ConversationIds(group="ada")),
    "an answer that is continued": (
        {},
        {"previous_response_id": "resp_1", "prompt_cache_key": "k"},
        ConversationIds(previous="resp_1", group="k"),
    ),
    "an interaction that is continued": (
        {},
        {"previous_interaction_id": "int_1"},
        ConversationIds(previous="int_1"),
    ),
    "a session of opencode inside of another": (
        {"x-parent-session-id": "ses_parent01", "x-session-id": "ses_child001"},
        {},
        ConversationIds("ses_child001"),
    ),
    "nothing but the session that it is a part of": (
        {"x-acme-parent-session-id": "ses_parent01"},
        {},
        ConversationIds(),
    ),
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


# -- programs without an id --


class Chat:
    """A program that speaks Chat Completions and keeps its conversation itself."""

    def __init__(self, gateway: Gate, client: httpx.AsyncClient, **headers: str) -> None:
        self._url = f"{gateway.base_url}/chat/completions"
        self._client = client
        self._headers = headers
        self.messages: list[Any] = []

    async def say(self, text: str, **more: Any) -> str:
        """Returns the thread in which it was answered."""
        self.messages.append({"role": "user", "content": text})
        body = {"model": "m", "messages": self.messages, **more}
        answer = await self._client.post(self._url, json=body, headers=self._headers)
        self.messages.append(answer.json()["choices"][0]["message"])
        return answer.headers["callstream-thread"]


ANSWERS = [[Text(f"Answer {number}."), Finish()] for number in range(12)]


async def test_a_conversation_without_an_id_is_known_by_what_was_said_before() -> None:
    async with gate("openai_chat", ANSWERS) as gateway, httpx.AsyncClient(timeout=20) as client:
        one, two = Chat(gateway, client), Chat(gateway, client)
        first, second = await one.say("Tides?"), await two.say("Stars?")
        assert first != second
        assert [await one.say("And the moon?"), await one.say("Thanks")] == [first, first]
        assert await two.say("And the moon?") == second


async def test_the_same_first_words_begin_another_conversation() -> None:
    async with gate("openai_chat", ANSWERS) as gateway, httpx.AsyncClient(timeout=20) as client:
        one, two = Chat(gateway, client), Chat(gateway, client)
        first = await one.say("Hello")
        assert await one.say("Tides?") == first
        second = await two.say("Hello")
        assert second != first
        assert await two.say("Stars?") == second
        assert await one.say("Thanks") == first


async def test_conversations_that_cannot_be_told_apart_are_not_mixed() -> None:
    async with gate("openai_chat", ANSWERS) as gateway, httpx.AsyncClient(timeout=20) as client:
        one, two = Chat(gateway, client), Chat(gateway, client)
        begun = {await one.say("Hello"), await two.say("Hello")}
        third = await one.say("Tides?")
        assert third not in begun
        assert await one.say("Thanks") == third


async def test_what_another_credential_said_is_another_conversation() -> None:
    async with gate("openai_chat", ANSWERS) as gateway, httpx.AsyncClient(timeout=20) as client:
        mine = Chat(gateway, client, authorization="Bearer one")
        thread = await mine.say("Tides?")
        stranger = Chat(gateway, client, authorization="Bearer two")
        stranger.messages = [*mine.messages]
        assert await stranger.say("And the moon?") != thread


async def test_a_cache_key_counts_where_nothing_else_tells_the_conversation() -> None:
    async with gate("openai_chat", ANSWERS) as gateway, httpx.AsyncClient(timeout=20) as client:
        one, two = Chat(gateway, client), Chat(gateway, client)
        first = await one.say("Tides?")
        assert await one.say("And the moon?", prompt_cache_key="app") == first
        assert await two.say("Stars?", prompt_cache_key="app") == "app"


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_an_answer_that_is_named_is_continued_in_its_thread(stream: bool) -> None:
    async with gate("openai_responses", ANSWERS) as gateway:
        async with openai.AsyncOpenAI(base_url=gateway.base_url, api_key="k") as client:
            raw = client.responses.with_raw_response
            first = await raw.create(model="m", input="Tides?", stream=stream)
            if stream:
                named = [event async for event in first.parse()][-1].response.id
            else:
                named = first.parse().id
            again = await raw.create(model="m", input="And the moon?", previous_response_id=named)
            other = await raw.create(model="m", input="And the moon?", previous_response_id="resp_unknown")
            threads = [each.headers["callstream-thread"] for each in (first, again, other)]
        assert (threads[0] == threads[1], threads[0] == threads[2]) == (True, False)


async def test_a_question_beside_the_turn_does_not_end_it() -> None:
    """Coding agents ask for titles and summaries in the name of the conversation, while its tools run."""
    look = ToolCall("look", {"at": "tides"}, call_id="toolu_1")
    scripts = [[look, Finish()], [Text("A title"), Finish()], [Text("High tide."), Finish()]]
    session = {"x-claude-code-session-id": SESSION}
    async with gate("anthropic", scripts) as gateway:
        async with anthropic.AsyncAnthropic(base_url=gateway.base_url, api_key="k", default_headers=session) as client:
            how: dict[str, Any] = {"model": "m", "max_tokens": 99}
            messages: list[Any] = [{"role": "user", "content": "When?"}]
            answer = await client.messages.create(messages=messages, **how)
            await client.messages.create(messages=[{"role": "user", "content": "A title for: When?"}], **how)
            result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "at noon"}
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
            await client.messages.create(messages=messages, **how)
        turn, title = await gateway.runs()
        assert [(run.thread_id, run.outcome) for run in (turn, title)] == [(SESSION, "finished")] * 2
        [row] = await gateway.callstream.journal.calls(run_id=turn.run_id)
        assert str(row.state) == "completed"


async def test_a_turn_whose_calls_were_never_answered_ends_with_the_next() -> None:
    scripts = [[ToolCall("look", {}, call_id="toolu_1"), Finish()], [Text("Well."), Finish()]]
    session = {"x-claude-code-session-id": SESSION}
    async with gate("anthropic", scripts) as gateway:
        async with anthropic.AsyncAnthropic(base_url=gateway.base_url, api_key="k", default_headers=session) as client:
            how: dict[str, Any] = {"model": "m", "max_tokens": 99}
            messages: list[Any] = [{"role": "user", "content": "When?"}]
            answer = await client.messages.create(messages=messages, **how)
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "Never mind."}]
            await client.messages.create(messages=messages, **how)
        left, _ = await gateway.runs()
        assert left.outcome == "finished"
        [row] = await gateway.callstream.journal.calls(run_id=left.run_id)
        assert str(row.state) == "released"


async def test_results_find_the_thread_of_their_calls_after_a_restart(tmp_path: Path) -> None:
    journal = f"sqlite:///{tmp_path / 'calls.db'}"
    look = ToolCall("look", {"at": "tides"}, call_id="call_1")
    async with gate("openai_chat", [[look, Finish()]], journal=journal) as gateway:
        async with httpx.AsyncClient(timeout=20) as client:
            chat = Chat(gateway, client)
            thread = await chat.say("Tides?")
    async with gate("openai_chat", ANSWERS, journal=journal) as gateway:
        async with httpx.AsyncClient(timeout=20) as client:
            result = {"role": "tool", "tool_call_id": "call_1", "content": "at noon"}
            body = {"model": "m", "messages": [*chat.messages, result]}
            answer = await client.post(f"{gateway.base_url}/chat/completions", json=body)
            assert answer.headers["callstream-thread"] == thread


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


class Contents:
    """A program that speaks Gemini's API and names calls as it likes."""

    def __init__(self, gateway: Gate, client: httpx.AsyncClient, call_id: str | None) -> None:
        self._url = f"{gateway.base_url}/v1beta/models/g:generateContent"
        self._client = client
        self._named = {} if call_id is None else {"id": call_id}
        self._contents: list[Any] = []

    async def say(self, **part: Any) -> None:
        self._contents.append({"role": "user", "parts": [part]})
        answer = await self._client.post(self._url, json={"contents": self._contents})
        said = answer.json()["candidates"][0]["content"]
        for call in (part["functionCall"] for part in said["parts"] if "functionCall" in part):
            call.pop("id", None)
            call.update(self._named)
        self._contents.append(said)

    async def return_of(self, name: str) -> None:
        await self.say(functionResponse={**self._named, "name": name, "response": {"seen": "tides"}})


@pytest.mark.parametrize(
    ("provider_id", "program_id"),
    [("", None), ("", "made-up"), ("call_1", None)],
    ids=["there is none", "the program makes one up", "the program leaves it out"],
)
async def test_results_that_name_no_call_go_on_in_the_run_of_their_conversation(
    provider_id: str, program_id: str | None
) -> None:
    look = [ToolCall("look", {"at": "tides"}, call_id=provider_id), Finish()]
    scripts = [look, look, [Text("Two."), Finish()], [Text("One."), Finish()]]
    async with gate("gemini", scripts) as gateway, httpx.AsyncClient(timeout=20) as client:
        one, two = Contents(gateway, client, program_id), Contents(gateway, client, program_id)
        await one.say(text="Tides?")
        await two.say(text="Stars?")
        await two.return_of("look")
        assert [run.outcome for run in await gateway.runs()] == [None, "finished"]
        await one.return_of("look")
        runs = await gateway.runs()
        assert [run.outcome for run in runs] == ["finished"] * 2
        for run in runs:
            [row] = await gateway.callstream.journal.calls(run_id=run.run_id)
            assert str(row.state) == "completed"


async def test_results_that_name_no_call_go_on_in_no_run_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose end the journal could not take still has its calls."""

    async def away(run_id: str, entries: Any, *, after: int | None = None) -> int:
        raise JournalError("the disk is full")

    scripts = [[ToolCall("look", {"at": "tides"}, call_id=""), Finish()], [Text("One."), Finish()]]
    async with gate("gemini", scripts) as gateway, httpx.AsyncClient(timeout=20) as client:
        program = Contents(gateway, client, None)
        await program.say(text="Tides?")
        [row] = await gateway.runs()
        run = gateway.callstream.engine.active_run(row.run_id)
        assert run is not None
        with monkeypatch.context() as broken:
            replace_append(broken, gateway.callstream.journal, away)
            with pytest.raises(JournalError):
                await run.end(None)
        await program.return_of("look")
        assert [run.thread_id for run in await gateway.runs()] == [row.thread_id] * 2


@pytest.mark.parametrize("guards", [[], [lambda call: None]])
async def test_the_rest_of_a_long_answer_belongs_to_its_turn(guards: list[Any]) -> None:
    """google-genai asks for it with a token."""
    args = {"title": "Notes", "content": "one two three"}
    call = ToolCall("write", args, call_id="c1")
    frames = list(encode("gemini", [Text("I write."), call]))
    end = {"content": {"parts": []}, "finishReason": "CONTINUATION", "continuationToken": "dG9rZW4="}
    limit = b"data: " + json.dumps({"candidates": [end]}).encode() + b"\r\n\r\n"
    callstream = Callstream("memory:", guards=guards)
    async with BodiesProvider("gemini", [[*frames[:4], limit], frames[4:]]) as provider:
        app = create_gateway(callstream, upstreams={"gemini": provider.origin})
        async with serving(app) as server:
            options = types.HttpOptions(base_url=f"http://127.0.0.1:{server.port}/gemini")
            client = genai.Client(api_key="none", http_options=options)
            stream = await client.aio.models.generate_content_stream(model="gemini-3", contents="go")
            parts = [part async for chunk in stream for part in (chunk.candidates[0].content.parts or ())]  # type: ignore[index, union-attr]
            await client.aio.aclose()
            assert "".join(part.text or "" for part in parts) == "I write."
            (run,) = await callstream.journal.runs()
            (row,) = await callstream.journal.calls(run_id=run.run_id)
            found = await callstream.journal.call(row.call_id)
            assert found is not None
            assert json.loads(found.args_json or "") == args
            whole = [part.function_call.args for part in parts if part.function_call and part.function_call.args]
            assert whole == ([args] if guards else [])


async def test_a_response_that_is_looked_at_is_no_turn() -> None:
    async with gate("openai_responses", [[Text("Done.")]]) as made:
        client = openai.AsyncOpenAI(base_url=made.base_url, api_key="none", max_retries=0)
        response = await client.responses.retrieve("resp_1")
        assert response.output_text == "Done."
        assert await made.runs() == []
        await client.close()
