"""Sync SDKs over real HTTP: what the tap does for async clients holds for them, in whatever thread they are used."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from callstream import CallState, Callstream, Reject
from callstream.errors import CallRejected, RunOver
from callstream.testing import Cut, Delay, HttpError, ScriptedProvider, Text, ToolCall, Truncated
from tests.tap.sync_clients import WIRES, ask, ask_client, sdk

ARGS = {"title": "Notes", "content": "one\ntwo ☃ three" * 5}
WRITE = ToolCall("write", ARGS, call_id="c1")
BODY = {"model": "m", "stream": True, "messages": []}


@pytest.fixture
def cs() -> Iterator[Callstream]:
    with Callstream() as callstream:
        yield callstream


def serving(wire: str, script: Any, **options: Any) -> ScriptedProvider:
    return ScriptedProvider(wire, script, stream_args_unasked=True, **options)


def journaled(cs: Callstream, **which: Any) -> list[Any]:
    """Calls in the journal, which any event loop may read."""
    return asyncio.run(cs.journal.calls(**which))


def post(client: Any, provider: ScriptedProvider, **options: Any) -> Any:
    return client.stream("POST", f"{provider.base_url}/chat/completions", json=BODY, **options)


def ask_whole(client: Any) -> None:
    asked = [{"role": "user", "content": "go"}]
    if isinstance(client, anthropic.Anthropic):
        client.messages.create(model="m", max_tokens=9, messages=asked)  # type: ignore[arg-type]
    else:
        client.chat.completions.create(model="m", messages=asked)


@pytest.mark.parametrize("collapse", ["known", "all", "none"])
@pytest.mark.parametrize("wire", WIRES)
def test_the_sdk_puts_together_what_it_would_without_the_tap(cs: Callstream, wire: str, collapse: str) -> None:
    cs.on_args_delta("write", lambda delta, signal: None)
    script = [Text("Let me see.", size=4), WRITE, ToolCall("other", {"title": "x"}, call_id="c2")]
    with serving(wire, script) as provider:
        tapped = ask(wire, provider, cs, collapse=collapse)
        plain = ask(wire, provider, None)
    assert (tapped.text, tapped.finish) == (plain.text, plain.finish)
    if wire != "gemini":  # google-genai gives streamed calls in pieces, and leaves them so
        assert [(name, args) for _, name, args in tapped.calls] == [(name, args) for _, name, args in plain.calls]
    if collapse == "all":
        assert [(name, args) for _, name, args in tapped.calls] == [("write", ARGS), ("other", {"title": "x"})]
    assert [call.name for call in journaled(cs)] == ["write", "other"]


@pytest.mark.parametrize("wire", WIRES)
def test_hooks_run_in_order_and_before_the_call_arrives(cs: Callstream, wire: str) -> None:
    """The same records as with the async client; hooks on the Callstream's loop, sync ones in a thread."""
    log: list[Any] = []
    cs.on_field("write", "content", lambda field, signal: log.append((field.text, threading.current_thread().name)))

    async def ready(call: Any, signal: Any) -> None:
        log.append(("ready", threading.current_thread().name))

    cs.on_args_complete("write", ready)
    with serving(wire, [WRITE]) as provider, cs.run("t") as run:
        answer = ask(wire, provider, cs)
        log.append(("sdk", threading.current_thread().name))
    assert [args for _, _, args in answer.calls] == [ARGS]
    assert "".join(text for text, _ in log[:-2]) == ARGS["content"]
    assert [entry[0] for entry in log[-2:]] == ["ready", "sdk"]
    assert log[-2][1] == "callstream-loop"
    assert "MainThread" not in [name for _, name in log[:-1]]
    assert [call.call_id for call in run.calls] == ["c1"]


@pytest.mark.parametrize("wire", WIRES)
def test_a_slow_hook_does_not_hold_up_the_hooks_of_the_next_call(cs: Callstream, wire: str) -> None:
    second = threading.Event()
    cs.on_args_delta("slow", lambda delta, signal: second.wait(20) and None)
    cs.on_args_complete("fast", lambda call, signal: second.set())
    script = [ToolCall("slow", {"title": "a"}, call_id="c1"), ToolCall("fast", {"title": "b"}, call_id="c2")]
    with serving(wire, script) as provider:
        answer = ask(wire, provider, cs)
    assert second.is_set()
    assert [name for _, name, _ in answer.calls] == ["slow", "fast"]


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", ["anthropic", "openai_chat"])
def test_a_rejected_call_raises_after_one_request(cs: Callstream, wire: str, streamed: bool) -> None:
    def refuse(call: Any, signal: Any) -> None:
        raise Reject("not today")

    cs.on_args_complete("write", refuse)
    with serving(wire, [WRITE]) as provider, sdk(wire, provider, cs, max_retries=2) as client:
        with pytest.raises(CallRejected, match="not today"):
            ask_client(wire, client) if streamed else ask_whole(client)
        assert len(provider.requests) == 1
    assert [(call.state, call.reason) for call in journaled(cs)] == [(CallState.DISCARDED, "rejected")]


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "ollama"])  # there calls come whole
def test_a_truncated_call_does_not_arrive(cs: Callstream, wire: str) -> None:
    with serving(
        wire, [Text("I write."), ToolCall("write", ARGS, call_id="c1", stop_after=3), Truncated()]
    ) as provider:
        answer = ask(wire, provider, cs, collapse="all", ask_again=0)
    assert (answer.text, answer.calls) == ("I write.", [])
    assert [(call.state, call.reason) for call in journaled(cs)] == [(CallState.DISCARDED, "truncated")]


def test_what_a_broken_connection_raises_is_the_librarys(cs: Callstream) -> None:
    aborted: list[str] = []
    cs.on_args_abort("write", lambda call, reason: aborted.append(reason))
    with serving("openai_chat", [ToolCall("write", ARGS, call_id="c1", stop_after=3), Cut()]) as provider:
        for client in (cs.sync_http_client(), httpx.Client(transport=cs.transport())):
            library = httpx2 if isinstance(client, httpx2.Client) else httpx
            with client, post(client, provider) as response, pytest.raises(library.RemoteProtocolError):
                response.read()
    assert aborted == ["interrupted", "interrupted"]


def test_errors_and_retries_are_the_sdks_own(cs: Callstream) -> None:
    script = [[HttpError(503, "busy", retry_after=0.01)], [HttpError(400, "no such model")]]
    with serving("openai_chat", script) as provider, sdk("openai_chat", provider, cs, max_retries=1) as client:
        with pytest.raises(openai.BadRequestError, match="no such model"):
            client.chat.completions.create(model="gpt", messages=[], stream=True)
        assert len(provider.requests) == 2


# -- whose connections -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
@pytest.mark.parametrize("kind", ["own pools", "sync transport", "async transport"])
def test_the_transport_serves_a_sync_client_of_ones_own(cs: Callstream, library: Any, kind: str) -> None:
    inner = {
        "own pools": None,
        "sync transport": library.HTTPTransport(),
        "async transport": library.AsyncHTTPTransport(),
    }
    with serving("openai_chat", [Text("Hello."), WRITE]) as provider:
        with library.Client(transport=cs.transport(inner[kind], collapse="all")) as client:
            with post(client, provider) as response:
                text = response.read().decode()
            assert client.get(f"{provider.origin}/elsewhere").status_code == 404  # none of ours
            assert client.post(f"{provider.base_url}/chat/completions", content=b"[]").status_code == 400
    assert response.is_closed
    assert text.count("tool_calls") == 2  # one whole call, and the finish reason
    assert [call.state for call in journaled(cs)] == [CallState.ARGS_COMPLETE]


def test_a_mock_transport_answers_both_kinds_of_client(cs: Callstream) -> None:
    body = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\ndata: [DONE]\n\n'
    mock = httpx.MockTransport(
        lambda asked: httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    )
    with httpx.Client(transport=cs.transport(mock)) as client:
        assert client.post("http://x/chat/completions", json={"stream": True}).content == body

    async def ask_mock() -> bytes:
        async with httpx.AsyncClient(transport=cs.transport(mock)) as async_client:
            return (await async_client.post("http://x/chat/completions", json={"stream": True})).content

    assert asyncio.run(ask_mock()) == body


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_proxies_of_the_environment_count(cs: Callstream, library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("openai_chat", [Text("through the proxy")]) as proxy:
        monkeypatch.setenv("http_proxy", proxy.origin)
        monkeypatch.setenv("no_proxy", "")
        with library.Client(transport=cs.transport(), trust_env=False) as client:
            answer = client.post("http://model.invalid/v1/chat/completions", json=BODY)
            client.get("http://model.invalid/elsewhere")
        assert "through the proxy" in answer.text
        assert len(proxy.requests) == 2


def test_closing_the_callstream_closes_the_connections_of_clients_that_nobody_closed() -> None:
    """Else collecting them warns of sockets, which fails a test here."""
    with Callstream() as cs, serving("openai_chat", [Text("Hello.")]) as provider:
        client = httpx.Client(transport=cs.transport())
        with post(client, provider) as response:
            response.read()
        client.get(f"{provider.origin}/elsewhere")
    del client, response
    gc.collect()


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_closing_a_sync_client_closes_the_async_transport_in_it(cs: Callstream, library: Any) -> None:
    """Else collecting it warns of sockets, which fails a test here."""
    with serving("openai_chat", [Text("Hello.")]) as provider:
        with library.Client(transport=cs.transport(library.AsyncHTTPTransport())) as client:
            with post(client, provider) as response:
                response.read()
            client.get(f"{provider.origin}/elsewhere")
        closed_by_hand = library.Client(transport=cs.transport(library.AsyncHTTPTransport()))
        closed_by_hand.get(f"{provider.origin}/elsewhere")
        closed_by_hand.close()
    del client, response, closed_by_hand
    gc.collect()


def test_the_trace_extension_of_a_sync_client_is_a_plain_function(cs: Callstream) -> None:
    names: list[str] = []
    with serving("openai_chat", [Text("Hello.")]) as provider, cs.sync_http_client() as client:
        with post(client, provider, extensions={"trace": lambda name, info: names.append(name)}) as response:
            response.read()
    assert "http11.receive_response_headers.complete" in names


# -- leaving early -----------------------------------------------------------------------------------------------------


def wait_for(condition: Any) -> bool:
    """Whether it comes true, soon."""
    pause = threading.Event()
    return any(condition() or pause.wait(0.01) for _ in range(500))


@pytest.mark.parametrize("inner", [None, httpx.HTTPTransport], ids=["own pools", "sync transport"])
def test_closing_early_ends_the_reading_and_discards_what_is_open(cs: Callstream, inner: Any) -> None:
    aborted = threading.Event()
    cs.on_args_abort("write", lambda call, reason: aborted.set())
    script = [Text("Hello."), ToolCall("write", ARGS, call_id="c1", stop_after=3), Delay(60)]
    with serving("openai_chat", script) as provider:
        with httpx.Client(transport=cs.transport(inner and inner())) as client, cs.run("t") as run:
            with post(client, provider) as response:
                chunks = response.iter_bytes()
                next(chunks)
                assert wait_for(lambda: [call.state for call in run.calls] == [CallState.ARGS_STREAMING])
            assert aborted.wait(10)
            assert [(call.state, call.reason) for call in run.calls] == [(CallState.DISCARDED, "aborted")]
            assert wait_for(lambda: provider.requests[-1].fate == "left")


def test_closing_waits_for_nothing_in_a_thread_of_callstreams_own(cs: Callstream) -> None:
    """Where an SDK closes what it forgot while garbage is collected, such as on the journal's thread."""
    script = [Text("Hello."), ToolCall("write", ARGS, call_id="c1", stop_after=3), Delay(60)]
    with serving("openai_chat", script) as provider, cs.sync_http_client() as client, cs.run("t") as run:
        with post(client, provider) as response:
            chunks = response.iter_bytes()
            next(chunks)
            assert wait_for(lambda: [call.state for call in run.calls] == [CallState.ARGS_STREAMING])
            gate = threading.Event()
            cs.own_loop.begin().call_soon_threadsafe(gate.wait)  # the loop waits for that thread
            closer = threading.Thread(target=lambda: (response.close(), gate.set()), name="callstream-other")
            closer.start()
            closer.join()
            assert wait_for(lambda: [call.reason for call in run.calls] == ["aborted"])
            chunks.close()


def test_a_stream_that_is_forgotten_ends_too(cs: Callstream) -> None:
    script = [Text("Hello."), ToolCall("write", ARGS, call_id="c1", stop_after=3), Delay(60)]
    with serving("openai_chat", script) as provider, cs.sync_http_client() as client, cs.run("t") as run:
        request = client.build_request("POST", f"{provider.base_url}/chat/completions", json=BODY)
        response = client.send(request, stream=True)
        chunks = response.iter_bytes()
        next(chunks)
        del chunks, response
        assert wait_for(lambda: provider.requests[-1].fate == "left")
        assert wait_for(lambda: [call.reason for call in run.calls] in ([], ["aborted"]))


def test_stopping_a_run_in_another_thread_ends_its_stream(cs: Callstream) -> None:
    script = [Text("Hello."), ToolCall("write", ARGS, call_id="c1", stop_after=3), Delay(60)]
    with serving("openai_chat", script) as provider, cs.run("t") as run:
        stopper = threading.Thread(target=lambda: wait_for(lambda: run.calls) and run.stop("enough"))
        stopper.start()
        with pytest.raises(RunOver):
            ask("openai_chat", provider, cs)
        stopper.join()
    assert (run.outcome, run.reason) == ("cancelled", "enough")
