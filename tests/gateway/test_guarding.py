"""Guards in the gateway: what the official SDKs get where a call is refused, asked about, or let pass."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from google.genai.types import FinishReason

from callstream import Callstream
from callstream.calls import CallState
from callstream.gateway import GatewaySettings, create_gateway
from callstream.guards import Guard, Rule, Rules, ask
from callstream.guards.cedar import CedarPolicies
from callstream.testing import (
    Delay,
    Finish,
    HttpError,
    Parallel,
    ReceivedRequest,
    ScriptedProvider,
    Text,
    ToolCall,
    Truncated,
)
from callstream.testing.encoders import encode, encode_whole
from callstream.testing.httpserver import HttpAnswer, HttpServer
from tests.gateway.gates import NAMES, Gate, awaiting, gate
from tests.sdks import SDKS, Answer
from tests.server.serving import run_input, serving, tool_message

WIRES = tuple(NAMES)
RULES = Rules([Rule(name="keys", tool="write", pattern="sk-[a-z]+", message="Do not write keys.")])
CEDAR = CedarPolicies(
    "permit (principal, action, resource);"
    '@message("Do not write keys.") forbid (principal, action, resource == Tool::"write")'
    'when { context.args.content like "*sk-*" };'
)
ENDED: dict[str, Any] = {
    "anthropic": "end_turn",
    "openai_chat": "stop",
    "openai_responses": "completed",
    "gemini": FinishReason.STOP,
}
CALLS: dict[str, Any] = {**ENDED, "anthropic": "tool_use", "openai_chat": "tool_calls"}
REFUSED = "write was refused: Do not write keys."
BAD = ToolCall("write", {"title": "Keys", "content": "sk-abc"})
GOOD = ToolCall("write", {"title": "Tides", "content": "The moon."})
OTHER = ToolCall("other", {"title": "sk-abc"})


@asynccontextmanager
async def asked(gateway: Gate, *, stream: bool = True) -> AsyncIterator[asyncio.Task[Answer]]:
    sdk = SDKS[gateway.provider.wire]

    async def read() -> Answer:
        async with sdk.client(gateway.base_url, None, 0) as client:
            if not stream:
                return await sdk.whole(client)
            return sdk.fold([event async for event in await sdk.stream(client)])

    task = asyncio.create_task(read())
    try:
        yield task
    finally:
        task.cancel()


async def answer_of(gateway: Gate, *, stream: bool = True) -> Answer:
    async with asked(gateway, stream=stream) as answer:
        return await asyncio.wait_for(answer, 30)


def calls_of(answer: Answer) -> list[tuple[str, Any]]:
    return [(name, args) for _, name, args in answer.calls]


@pytest.mark.parametrize("guard", [RULES, CEDAR], ids=["rules", "cedar"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
async def test_a_refused_call_is_a_sentence_in_its_place(wire: str, stream: bool, guard: Guard) -> None:
    async with gate(wire, [[Text("I write."), BAD, Finish()]], guards=[guard]) as gateway:
        answer = await answer_of(gateway, stream=stream)
        assert (calls_of(answer), "I write." in answer.text, REFUSED in answer.text) == ([], True, True)
        assert answer.finish == ENDED[wire]
        [run] = await gateway.runs()
        [call] = await gateway.callstream.journal.calls(run_id=run.run_id)
        assert (call.state, call.reason, call.detail) == (CallState.DISCARDED, "rejected", "Do not write keys.")
        assert len(gateway.provider.requests) == 1


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
async def test_the_sentence_stands_at_the_end_of_the_answer(wire: str, stream: bool) -> None:
    """Also where the model has written on after the call: its text is passed on as it comes."""
    script = [Text("I write."), BAD, Text(" That was all."), Finish()]
    async with gate(wire, [script], guards=[RULES]) as gateway:
        answer = await answer_of(gateway, stream=stream)
        assert answer.text.startswith("I write. That was all.")
        assert answer.text.endswith(REFUSED)


@pytest.mark.parametrize("action", ["deny", "cut"])
@pytest.mark.parametrize("said", ["", "I write."], ids=["alone", "after text"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", ["openai_chat", "gemini"])
async def test_the_sentence_has_a_line_of_its_own(wire: str, stream: bool, said: str, action: Any) -> None:
    """Where programs make one text of an answer."""
    rules = Rules([Rule(name="keys", tool="write", pattern="sk-[a-z]+", action=action, message="Do not write keys.")])
    script = [*([Text(said)] if said else []), BAD, Finish()]
    async with gate(wire, [script], guards=[rules]) as gateway:
        answer = await answer_of(gateway, stream=stream)
        assert answer.text.split("\n") == [*filter(None, [said]), REFUSED]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("script", [[GOOD, BAD], [BAD, GOOD], [BAD, OTHER, GOOD]], ids=["last", "first", "of three"])
@pytest.mark.parametrize("wire", WIRES)
async def test_what_is_allowed_arrives_beside_it(wire: str, script: list[Any], stream: bool) -> None:
    async with gate(wire, [[Text("I write."), *script, Finish()]], guards=[RULES]) as gateway:
        answer = await answer_of(gateway, stream=stream)
        expected = [(call.name, call.args) for call in script if call is not BAD]
        assert (calls_of(answer), REFUSED in answer.text) == (expected, True)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
async def test_what_no_rule_refuses_is_what_it_would_be_without_guards(wire: str, stream: bool) -> None:
    told = []
    for guards in ([], [RULES]):
        async with gate(wire, [[Text("I write."), GOOD, OTHER, Finish()]], guards=guards) as gateway:
            answer = await answer_of(gateway, stream=stream)
            told.append((answer.text, calls_of(answer), answer.finish))
    assert told[0] == told[1]


CUT = Rules([Rule(name="keys", tool="write", pattern="sk-[a-z]+", action="cut", message="Do not write keys.")])
ENDLESS = ToolCall("write", {"title": "sk-abc", "content": "The moon. " * 20_000}, size=10)
"""At the pace of these tests it takes minutes."""


@pytest.mark.parametrize("before", [[], [GOOD]], ids=["alone", "after another"])
@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_may_be_cut_where_a_call_is_refused(wire: str, before: list[Any]) -> None:
    """The provider does not write on, and the SDK has a whole answer."""
    if before and wire == "openai_chat":
        return  # a call of that wire is open until the answer ends
    script = [Text("I write."), *before, ENDLESS, Finish()]
    pace = {"deltas_per_second": 100, "stream_args_unasked": wire == "gemini"}
    async with gate(wire, [script], guards=[CUT], **pace) as gateway:
        answer = await answer_of(gateway)
        assert (calls_of(answer), "I write." in answer.text) == ([(call.name, call.args) for call in before], True)
        assert REFUSED in answer.text
        assert answer.finish == (ENDED[wire] if not before else CALLS[wire])
        [asked] = gateway.provider.requests
        async with asyncio.timeout(60):
            while asked.fate == "open":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert asked.fate == "left"
        [run] = await gateway.runs()
        states = [call.state for call in await gateway.callstream.journal.calls(run_id=run.run_id)]
        assert states[len(before) :] == [CallState.DISCARDED]


async def test_an_answer_is_not_cut_while_another_call_is_written() -> None:
    script = [Parallel([ToolCall("write", {"title": "sk-abc"}), ToolCall("other", {"title": "x" * 400})]), Finish()]
    async with gate("openai_chat", [script], guards=[CUT], deltas_per_second=100) as gateway:
        answer = await answer_of(gateway)
        assert (calls_of(answer), REFUSED in answer.text) == ([("other", {"title": "x" * 400})], True)
        assert gateway.provider.requests[0].fate == "answered"


async def test_what_the_provider_did_not_end_has_no_end_beside_a_refused_call() -> None:
    async with gate("anthropic", [[Text("I write."), BAD, Truncated()]], guards=[RULES]) as gateway:
        answer = await answer_of(gateway)
        assert (calls_of(answer), answer.finish) == ([], None)


@pytest.mark.parametrize("wire", WIRES)
async def test_text_before_a_guarded_call_is_not_held(wire: str) -> None:
    """The provider is still far from the end of the call when the client has the text."""
    async with gate(wire, [[Text("I write."), Delay(2.0), GOOD, Finish()]], guards=[RULES]) as gateway:
        url, body = SDKS[wire].raw(gateway.base_url)
        async with httpx.AsyncClient(timeout=30) as client, client.stream("POST", url, json=body) as response:
            seen = b""
            async for data in response.aiter_bytes():
                seen += data
                if b"write." in seen:
                    break
            assert gateway.provider.requests[0].fate == "open"
            assert b"Tides" not in seen


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("said", "passes"),
    [({"approved": True}, True), ({"approved": False, "comment": "not on Fridays"}, False), ("Yes", True)],
    ids=["yes", "no", "a word"],
)
async def test_a_person_decides(wire: str, said: Any, passes: bool) -> None:
    rule = Rules([Rule(name="ask", tool="write", action="ask", message="Writing is risky.")])
    async with gate(wire, [[Text("I write."), GOOD, Finish()]], guards=[rule]) as gateway, asked(gateway) as answer:
        question = await awaiting(gateway)
        expected = {"tool": "write", "arguments": GOOD.args, "why": "Writing is risky."}
        assert json.loads(question.args_json) == expected
        assert not answer.done()
        reply = run_input(None, thread=question.thread_id, messages=[tool_message(question.call_id, said)])
        async with gateway.server.stream("POST", "/agui", json=reply) as stream:
            assert (await stream.all())[-1]["type"] == "RUN_FINISHED"
        told = await asyncio.wait_for(answer, 30)
        assert calls_of(told) == ([("write", GOOD.args)] if passes else [])
        if not passes:
            assert "write was refused: a person refused it" in told.text
            assert "not on Fridays" in told.text


@pytest.mark.parametrize("said", ["what?", {"aproved": True}, 1])
async def test_what_is_neither_yes_nor_no_is_refused_and_the_question_stays_open(said: Any) -> None:
    guards = [lambda call: ask("Risky.")]
    async with gate("anthropic", [[GOOD, Finish()]], guards=guards) as gateway, asked(gateway) as answer:
        question = await awaiting(gateway)
        body, clear = (
            run_input(None, thread=question.thread_id, messages=[tool_message(question.call_id, reply)])
            for reply in (said, True)
        )
        refused = await gateway.server.post("/agui", json=body)
        assert (refused.status_code, "answer_refused" in refused.text) == (409, True)
        assert "asks for yes or no" in refused.text
        assert (await gateway.server.post("/agui", json=clear)).status_code == 200
        assert calls_of(await asyncio.wait_for(answer, 30)) == [("write", GOOD.args)]


@pytest.mark.parametrize(
    "script", [[Text("I write."), BAD], [BAD, Text("So.")], [BAD]], ids=["after", "before", "alone"]
)
@pytest.mark.parametrize("in_pieces", [True, False], ids=["pieces", "whole"])
@pytest.mark.parametrize("guard", [RULES, CUT], ids=["denied", "cut"])
async def test_a_chat_of_google_genai_remembers_a_turn_with_a_refused_call(
    script: list[Any], in_pieces: bool, guard: Guard
) -> None:
    """It forgets turns in which a chunk has no parts."""
    async with gate("gemini", [[*script, Finish()]], guards=[guard], stream_args_unasked=in_pieces) as gateway:
        async with SDKS["gemini"].client(gateway.base_url, None, 0) as client:
            chat = client.aio.chats.create(model="gemini-3-flash-preview")
            parts = [chunk.candidates[0].content.parts async for chunk in await chat.send_message_stream("Write.")]
        assert all(parts)
        history = chat.get_history(curated=True)
        assert REFUSED in "".join(part.text or "" for content in history for part in content.parts)


@pytest.mark.parametrize("status", [400, 529])
async def test_a_request_that_the_provider_refuses_is_a_run_that_failed(status: int) -> None:
    async with gate("anthropic", [[HttpError(status, "key sk-secret is wrong")]]) as gateway:
        with pytest.raises(anthropic.APIStatusError):
            await answer_of(gateway)
        [run] = await gateway.runs()
        assert (run.outcome, run.reason) == ("failed", f"UpstreamRefused: anthropic answered {status}")


async def test_a_question_that_nobody_answers_is_a_refusal_and_is_withdrawn() -> None:
    settings = GatewaySettings(approval_seconds=0.5)
    guards = [lambda call: ask("Risky.")]
    async with gate("anthropic", [[GOOD, Finish()]], guards=guards, settings=settings) as gateway:
        answer = await answer_of(gateway)
        assert answer.text == "write was refused: Risky.; nobody approved it within 0.5 seconds"
        rows = await gateway.callstream.journal.calls(states=[CallState.AWAITING])
        assert rows == []


async def test_runs_cannot_be_started_at_a_gateway() -> None:
    async with gate("anthropic", [[GOOD]], guards=[RULES]) as gateway:
        async with gateway.server.run("Hello") as stream:
            assert (await stream.all())[-1]["type"] == "RUN_ERROR"


def test_rules_of_the_documentation_can_be_read(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/howto/gateway.md").read_text(encoding="utf-8")
    file = tmp_path / "rules.yaml"
    file.write_text(text.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    assert Rules.load(file).watches("Bash")


# -- answers that cannot be read --

CALL = encode_whole("openai_chat", [Text("I write."), BAD], first_id=1)
STREAMED = b"".join(frame for frame in encode("openai_chat", [Text("I write."), BAD]) if isinstance(frame, bytes))
UNREADABLE: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {
    "no type": (200, [], CALL),
    "another type": (200, [("content-type", "text/plain")], STREAMED),
    "another status": (201, [("content-type", "application/json")], CALL),
    "a coding that is not known": (
        200,
        [("content-type", "application/json"), ("content-encoding", "made-up")],
        CALL,
    ),
    "JSON where events should be": (200, [("content-type", "text/event-stream")], CALL),
    "no JSON": (200, [("content-type", "application/json")], CALL + b","),
    "no events": (200, [("content-type", "text/event-stream")], b"\r\n \n" + STREAMED),
    "no text": (200, [("content-type", "text/event-stream")], STREAMED.replace(b"I write", b"\xff")),
}


@pytest.mark.parametrize("guards", [[RULES], []], ids=["guarded", "not guarded"])
@pytest.mark.parametrize("case", UNREADABLE)
async def test_what_no_guard_can_read_reaches_no_client(case: str, guards: list[Any]) -> None:
    status, headers, body = UNREADABLE[case]

    async def answering(request: ReceivedRequest) -> HttpAnswer:
        return HttpAnswer(status, headers, [body], length=len(body))

    upstream = HttpServer(answering)
    upstream.start()
    try:
        async with gate("openai_chat", [[]], guards=guards, upstream=f"http://127.0.0.1:{upstream.port}/v1") as gateway:
            url, asked = SDKS["openai_chat"].raw(gateway.base_url)
            async with httpx.AsyncClient(timeout=20) as client:
                answer = await client.post(url, json=asked, headers={"accept-encoding": "identity"})
            if not guards:
                assert (answer.status_code, answer.content) == (status, body)
                return
            assert answer.status_code == 502
            assert "no guard can read it" in answer.json()["error"]["message"]
            [run] = await gateway.runs()
            assert run.outcome == "failed"
    finally:
        upstream.close()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_refusal_without_a_sentence_says_why_if_it_can_and_is_not_asked_again(stream: bool) -> None:
    async with ScriptedProvider("cohere", [[Text("I write."), BAD]]) as provider:
        app = create_gateway(Callstream("memory:", guards=[RULES]), upstreams={"cohere": provider.origin})
        async with serving(app) as server, httpx.AsyncClient(timeout=20) as client:
            url, asked = SDKS["cohere"].raw(f"http://127.0.0.1:{server.port}/cohere")
            if stream:
                with pytest.raises(httpx.RemoteProtocolError):
                    await client.post(url, json=asked)
                return
            answer = await client.post(url, json={**asked, "stream": False})
            assert (answer.status_code, answer.json()) == (403, {"message": REFUSED})
