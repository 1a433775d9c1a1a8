"""LiteLlm for real: google-adk's own class and litellm, against an OpenAI-compatible server on loopback.

litellm needs another major version of openai than the rest of the tests, so it has an environment of its own: ``make
litellm``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it is fetched from the internet at import
pytest.importorskip("litellm", reason="litellm is not installed here; `make litellm` runs these tests")

from google.adk.models.lite_llm import LiteLlm
from google.adk.tools import LongRunningFunctionTool

from callstream import ArgsDelta, Callstream, Progress, Reject, no_progress, tool
from callstream.adk import tapped
from callstream.calls import CallState
from callstream.testing import Finish, Text, ToolCall
from callstream.testing.provider import ProviderServer

from .hosting import STREAMED, WHOLE, Host, RawProvider, agent_of, answer, function_calls_in, scripted, text_of

pytestmark = pytest.mark.filterwarnings("ignore")  # litellm's own, many of them
END = [Text("Done."), Finish()]


def litellm_model(provider: ProviderServer) -> LiteLlm:
    return LiteLlm(model="openai/scripted", api_base=provider.base_url, api_key="none")


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
async def test_one_id_from_first_delta_to_result_on_litellm(config: Any, cs: Callstream) -> None:
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
        model = litellm_model(provider)
        assert tapped(model, cs) is model
        host = Host(cs, agent_of(model, write))
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
        host = Host(cs, agent_of(litellm_model(provider), note))
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
async def test_results_by_id_of_two_calls_of_one_tool_on_litellm(ids: bool, cs: Callstream) -> None:
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
    assert [call_id for call_id, _ in sent] == [first.provider_id, second.provider_id]
    assert [json.loads(content)["result"] for _, content in sent] == ["FIRST", "SECOND"]
    assert [await host.args_text(call.call_id) for call in (first, second)] == [first.args_json, second.args_json]


@pytest.mark.parametrize("on_truncated", ["tell_model", "fail"])
async def test_truncated_never_runs_on_litellm(on_truncated: Any, cs: Callstream) -> None:
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


async def test_reject_tells_model_on_litellm(cs: Callstream) -> None:
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


async def test_answer_after_a_call_without_an_id_on_litellm(cs: Callstream) -> None:
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
