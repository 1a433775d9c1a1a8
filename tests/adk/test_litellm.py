"""LiteLlm for real: google-adk's own class and litellm, against an OpenAI-compatible server on loopback.

litellm needs another major version of openai than the rest of the tests, so it has an environment of its own: ``make
litellm``.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched from the internet at import
pytest.importorskip("litellm", reason="litellm is not installed here; `make litellm` runs these tests")

import litellm
from google.adk.models import BaseLlm
from google.adk.models.lite_llm import LiteLlm, LiteLLMClient
from google.adk.tools import LongRunningFunctionTool
from litellm.integrations.custom_logger import CustomLogger

from callstream import ArgsDelta, Callstream, Progress, Reject, no_progress, tool
from callstream.adk import tapped
from callstream.adk.tapping import route_of
from callstream.calls import CallState
from callstream.testing import Finish, ReceivedRequest, Text, Thought, ToolCall
from callstream.testing.httpserver import HttpAnswer
from callstream.testing.provider import ProviderServer, Route
from tests.captures import Capture, body, each_capture

from .agent.test_joined_text import called, ended, ran, ran_both_ways, said, thought
from .hosting import STREAMED, WHOLE, Host, RawProvider, agent_of, answer, function_calls_in, scripted, text_of

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own, many of them
END = [Text("Done."), Finish()]
Make: TypeAlias = Callable[[ProviderServer], BaseLlm]


def untapped(provider: ProviderServer, name: str = "scripted", kind: type[LiteLlm] = LiteLlm) -> LiteLlm:
    return kind(model=f"openai/{name}", api_base=provider.base_url, api_key="none")


@pytest.fixture(params=["tap", "partial"])
def litellm_model(request: pytest.FixtureRequest, cs: Callstream) -> Make:
    """LiteLlm on either path."""
    if request.param == "partial":
        return untapped

    def make(provider: ProviderServer) -> BaseLlm:
        model = untapped(provider)
        made = tapped(model, cs)
        assert made is not model
        return made

    return make


def chunks(*deltas: dict[str, Any], finish: str = "tool_calls") -> list[dict[str, Any]]:
    """A streamed answer of a server that leaves out what OpenAI sends."""
    payloads = [{"delta": delta, "index": 0, "finish_reason": None} for delta in deltas]
    payloads.append({"delta": {}, "index": 0, "finish_reason": finish})
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    return [{**head, "choices": [choice]} for choice in payloads]


def pieces(index: int, name: str, text: str, **more: Any) -> Iterator[dict[str, Any]]:
    yield {"tool_calls": [{"index": index, "type": "function", "function": {"name": name, "arguments": ""}, **more}]}
    for at in range(0, len(text), 5):
        yield {"tool_calls": [{"index": index, "function": {"arguments": text[at : at + 5]}}]}


SAID = chunks({"role": "assistant", "content": "Done."}, finish="stop")


def results_in(request: Any) -> list[tuple[str, str]]:
    return [
        (message["tool_call_id"], message["content"])
        for message in request.json["messages"]
        if message["role"] == "tool"
    ]


@pytest.mark.parametrize("config", [STREAMED, WHOLE])
async def test_one_id_from_first_delta_to_result_on_litellm(config: Any, cs: Callstream, litellm_model: Make) -> None:
    deltas: list[ArgsDelta] = []
    args = {"title": "A wave 🌊", "tags": ["a", "b"], "size": {"w": 3, "h": 4.5}, "empty": {}, "nothing": None}

    @tool
    async def write(
        title: str, tags: list[str], size: dict[str, Any], empty: dict[str, Any], nothing: str | None,
        progress: Progress = no_progress,
    ) -> dict[str, Any]:  # fmt: skip
        """Writes."""
        await progress(1, 1, "secret step")
        return {"title": title, "tags": tags, "size": size, "empty": empty, "nothing": nothing}

    @write.on_args_delta
    async def seen(delta: ArgsDelta, signal: Any) -> None:
        deltas.append(delta)

    script = [[Text("I write."), ToolCall("write", args, call_id="call_abc"), Finish()], END]
    async with scripted("openai_chat", script) as provider:
        host = Host(cs, agent_of(litellm_model(provider), write))
        events = await host.run(config=config)
        ((result_id, result),) = results_in(provider.requests[1])
    assert text_of(events) == "I write.Done."
    (call,) = await host.calls()
    assert (call.call_id, call.provider_id, call.args, call.state) == (
        "call_abc",
        "call_abc",
        args,
        CallState.COMPLETED,
    )
    assert (result_id, json.loads(result)) == ("call_abc", args)
    assert {delta.call_id for delta in deltas} == {"call_abc"}
    assert json.loads("".join(delta.text for delta in deltas)) == args
    assert (len(deltas) > 1) is (config is STREAMED)
    assert "secret step" not in str([request.body for request in provider.requests])


async def test_id_reuse_new_call_on_litellm(cs: Callstream) -> None:
    """Where a server sends no ids, litellm calls the first call of every turn "0"."""
    ran: list[str] = []

    def note(text: str) -> str:
        ran.append(text)
        return text.upper()

    turns = [chunks(*pieces(0, "note", json.dumps({"text": text}))) for text in ("one", "two", "three")]
    async with RawProvider("openai_chat", [*turns, SAID]) as provider:
        host = Host(cs, agent_of(untapped(provider), note))
        await host.run()
        sent = results_in(provider.requests[-1])
    calls = await host.calls()
    assert ran == ["one", "two", "three"] == [(call.args or {})["text"] for call in calls]  # type: ignore[union-attr]
    assert [call.call_id for call in calls] == ["0", "0~2", "0~3"]
    assert [call.provider_id for call in calls] == ["0", "0", "0"]
    assert [call.result for call in calls] == [{"result": text} for text in ("ONE", "TWO", "THREE")]
    assert [call_id for call_id, _ in sent] == ["0", "0", "0"]
    assert [json.loads(content)["result"] for _, content in sent] == ["ONE", "TWO", "THREE"]


@pytest.mark.parametrize("ids", [True, False])
async def test_results_by_id_of_two_calls_of_one_tool_on_litellm(
    ids: bool, cs: Callstream, litellm_model: Make
) -> None:
    def note(text: str) -> str:
        return text.upper()

    def named(number: int) -> dict[str, Any]:
        return {"id": f"call_{number}"} if ids else {}

    both = [
        *pieces(0, "note", json.dumps({"text": "first"}), **named(0)),
        *pieces(1, "note", json.dumps({"text": "second"}), **named(1)),
    ]
    async with RawProvider("openai_chat", [chunks(*both), SAID]) as provider:
        host = Host(cs, agent_of(litellm_model(provider), note))
        await host.run()
        sent = results_in(provider.requests[1])
    first, second = await host.calls()
    assert (first.args, first.result) == ({"text": "first"}, {"result": "FIRST"})
    assert (second.args, second.result) == ({"text": "second"}, {"result": "SECOND"})
    assert [call_id for call_id, _ in sent] == [call.provider_id or call.call_id for call in (first, second)]
    assert [json.loads(content)["result"] for _, content in sent] == ["FIRST", "SECOND"]
    assert [await host.args_text(call.call_id) for call in (first, second)] == [first.args_json, second.args_json]


@pytest.mark.parametrize("on_truncated", ["tell_model", "fail"])
async def test_truncated_never_runs_on_litellm(on_truncated: Any, cs: Callstream, litellm_model: Make) -> None:
    ran: list[str] = []

    def write(content: str = "nothing") -> str:
        ran.append(content)
        return "ok"

    half = chunks(*pieces(0, "write", '{"content":"The moon pu', id="call_1"), finish="length")
    async with RawProvider("openai_chat", [half, SAID]) as provider:
        host = Host(cs, agent_of(litellm_model(provider), write), on_truncated=on_truncated)
        await host.run()
        requests = provider.requests
    assert ran == []
    (call,) = await host.calls()
    assert (call.state, call.reason) == (CallState.DISCARDED, "truncated")
    (run,) = await cs.journal.runs()
    if on_truncated == "tell_model":
        ((_, content),) = results_in(requests[1])
        assert "were cut off" in content
        assert run.outcome == "finished"
    else:
        assert len(requests) == 1
        assert run.outcome == "failed"


async def test_reject_tells_model_on_litellm(cs: Callstream, litellm_model: Make) -> None:
    @tool
    async def write(content: str) -> str:
        """Writes."""
        raise AssertionError("it must not run")

    @write.on_args_complete
    async def check(call: Any, signal: Any) -> None:
        raise Reject("not on a Sunday")

    async with scripted("openai_chat", [[ToolCall("write", {"content": "x"}), Finish()], END]) as provider:
        host = Host(cs, agent_of(litellm_model(provider), write))
        await host.run()
        ((_, content),) = results_in(provider.requests[1])
    assert "not on a Sunday" in content


async def test_answer_after_a_call_without_an_id_on_litellm(cs: Callstream, litellm_model: Make) -> None:
    """A person answers the second call "0" of a thread."""

    def approve(what: str) -> None:
        """Asks."""

    turns = [chunks(*pieces(0, "approve", json.dumps({"what": what}))) for what in ("one", "two")]
    async with RawProvider("openai_chat", [turns[0], SAID, turns[1], SAID]) as provider:
        host = Host(cs, agent_of(litellm_model(provider), LongRunningFunctionTool(approve)))
        for what in ("one", "two"):
            (asked,) = function_calls_in(await host.run(what))
            assert (await host.calls())[-1].state is CallState.AWAITING
            assert "Done." in text_of(await host.run([answer("approve", asked.id, {"approved": what})]))
        sent = results_in(provider.requests[-1])
    assert [(call.state, call.args, call.result) for call in await host.calls()] == [
        (CallState.COMPLETED, {"what": what}, {"approved": what}) for what in ("one", "two")
    ]
    assert [json.loads(content) for _, content in sent] == [{"approved": "one"}, {"approved": "two"}]


@pytest.mark.parametrize("wire", ["openai_chat", "anthropic"])
async def test_a_tapped_session_that_litellm_does_not_use_is_warned_of(
    wire: str, cs: Callstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """litellm uses its session for OpenAI-compatible providers, and a client of its own for Anthropic."""

    def note(text: str) -> str:
        return text.upper()

    script = [[ToolCall("note", {"text": "one"}), Finish()], END]
    model = {"openai_chat": "openai/scripted", "anthropic": "anthropic/claude-scripted"}[wire]
    async with cs.httpx_client() as session, scripted(wire, script) as provider:
        monkeypatch.setattr("litellm.aclient_session", session)
        host = Host(cs, agent_of(LiteLlm(model=model, api_base=provider.base_url, api_key="none"), note))
        assert "Done." in text_of(await host.run())
        assert len(provider.requests) == 2
    warned = [record.getMessage() for record in caplog.records if "litellm.aclient_session" in record.getMessage()]
    if wire == "openai_chat":
        assert warned == []
    else:  # once, though the model answers twice
        (text,) = warned
        assert "litellm does not use it for this provider: the model is read from its partial events" in text
    (call,) = await host.calls()
    assert (call.args, call.state) == ({"text": "one"}, CallState.COMPLETED)


# -- text by the passage --


class Replayed(ProviderServer):
    """Answers with a body as it was recorded, then with a word."""

    def __init__(self, sent: bytes) -> None:
        super().__init__("openai_chat")
        self._bodies = [sent]

    async def answer(self, request: ReceivedRequest, route: Route) -> HttpAnswer:
        rest = b"".join(b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in SAID)
        sent = self._bodies.pop() if self._bodies else rest
        return HttpAnswer(200, [("content-type", "text/event-stream")], [sent])


@settings(max_examples=25)
@given(steps=st.lists(said | thought, max_size=4), call=st.none() | called, end=ended)
async def test_any_script_gives_the_same_session_in_both_ways(steps: list[Any], call: Any, end: Any) -> None:
    script = [*steps, *([call] if call is not None else []), end]
    await ran_both_ways(lambda: scripted("openai_chat", [script, END, END, END]), untapped)


class Counting(LiteLlm):
    """A model of the application's own, which sees what its base class has read."""

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncIterator[Any]:  # type: ignore[override]
        async for response in super().generate_content_async(llm_request, stream):
            counted.append(response)
            yield response


counted: list[Any] = []


async def test_google_adk_gets_text_by_the_passage_and_clients_as_it_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "callstream")
    text = "High tide is at noon, and low tide follows. " * 3
    first = [Thought(text, size=7), Text(text, size=5), ToolCall("note", {"word": text}, size=9), Finish()]
    joined = await ran_both_ways(lambda: scripted("openai_chat", [first, END]), untapped)
    assert joined == await ran(scripted("openai_chat", [first, END]), join_text=None, make_model=untapped)
    _, kinds, shown = joined
    assert shown == f"{text}Done."
    assert kinds.count("TEXT_MESSAGE_CONTENT") > 20
    assert kinds.count("TOOL_CALL_ARGS") > 10
    assert any("google-adk gets it in whole passages" in line for line in caplog.messages)
    for join_text, least, most in ((True, 1, 12), (None, 40, 60)):
        counted.clear()
        make = partial(untapped, kind=Counting)
        assert joined == await ran(scripted("openai_chat", [first, END]), join_text=join_text, make_model=make)
        assert least <= len(counted) <= most
    assert any("piece by piece, for model Counting" in line for line in caplog.messages)


async def test_what_litellm_asks_through_responses_is_read_from_partial_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scripts = [[Text("A long answer.", size=2), Finish()]]
    make = partial(untapped, name="responses/scripted")
    _, _, shown = await ran(scripted("openai_responses", scripts), join_text=None, make_model=make)
    assert shown == "A long answer."
    (text,) = [record.getMessage() for record in caplog.records if "litellm" in record.getMessage()]
    assert "such as OpenAI's Responses: the model is read from its partial events" in text


@each_capture("openai_chat", slow_above=60_000)
async def test_recorded_answers_give_the_same_session_in_both_ways(capture: Capture) -> None:
    sent = body(capture)
    await ran_both_ways(lambda: Replayed(sent), untapped)


CALL_AS_TEXT = json.dumps({"name": "note", "arguments": {"word": "hi"}})


@pytest.mark.parametrize("size", [1, 3, 7, 200])
@pytest.mark.parametrize("is_beside_a_call", [True, False])
async def test_a_call_that_is_written_as_text_is_what_it_was(size: int, is_beside_a_call: bool) -> None:
    """google-adk looks for calls in the text of single chunks, and in the whole where there is no other call."""
    call = [ToolCall("note", {"word": "real"})] if is_beside_a_call else []
    script = [Text(f"So: {CALL_AS_TEXT}, it is. ", size=size), *call, Finish()]
    await ran_both_ways(lambda: scripted("openai_chat", [script, END, END]), untapped)


async def test_callbacks_of_litellm_get_every_piece(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "callstream")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("litellm.callbacks", [CustomLogger()])
        provider = scripted("openai_chat", [[Text("A long answer.", size=2), Finish()]])
        _, _, shown = await ran(provider, join_text=None, make_model=untapped)
    assert shown == "A long answer."
    assert any("piece by piece, for litellm.callbacks" in line for line in caplog.messages)


@pytest.mark.parametrize(
    "given",
    [
        {"fallbacks": ["openai/other"]},
        {"client": object()},
        {"custom_llm_provider": "anthropic"},
        {"ssl_verify": False},
        {"api_key": None},
    ],
)
def test_a_request_that_may_go_elsewhere_is_left_to_litellm(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    usual = {"api_base": "http://localhost", "api_key": "none"}
    assert route_of(litellm, "openai/scripted", usual) is not None
    assert route_of(litellm, "openai/scripted", {**usual, **given}) is None
    with monkeypatch.context() as patch:
        patch.setattr(litellm, "model_alias_map", {"openai/scripted": "openai/other"})
        assert route_of(litellm, "openai/scripted", usual) is None
    with monkeypatch.context() as patch:
        patch.setenv("SSL_VERIFY", "False")
        assert route_of(litellm, "openai/scripted", usual) is None


def test_a_client_of_the_applications_own_is_left_alone(cs: Callstream) -> None:
    class Own(LiteLLMClient):
        pass

    for model in (LiteLlm(model="openai/scripted", llm_client=Own()), LiteLlm(model="anthropic/claude-scripted")):
        assert tapped(model, cs) is model


async def test_keys_and_addresses_are_those_that_litellm_would_use(
    cs: Callstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "first")
    async with scripted("openai_chat", [END, END]) as provider:
        monkeypatch.setenv("OPENAI_API_BASE", provider.base_url)
        host = Host(cs, agent_of(tapped(LiteLlm(model="openai/scripted"), cs)))
        await host.run()
        monkeypatch.setenv("OPENAI_API_KEY", "second")
        await host.run()
        keys = [request.headers["authorization"] for request in provider.requests]
    assert keys == ["Bearer first", "Bearer second"]
