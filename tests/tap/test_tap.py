from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from callstream import CallState, Callstream, Reject
from callstream.errors import CallRejected, RunOver, UsageError, WireError
from callstream.tap import TapSettings
from callstream.tap.body import Limits
from callstream.testing import Cut, Delay, Failure, Finish, ScriptedProvider, Text, ToolCall, Truncated, encode
from tests.sdks import SDKS
from tests.tap.clients import ASK, WIRES, ask, sdk
from tests.wire.collapsing import Tap

ARGS = {"title": "Notes", "content": "one\ntwo ☃ three" * 5}
WRITE = ToolCall("write", ARGS, call_id="c1")


def test_a_callstream_takes_a_journal() -> None:
    assert "journal" in inspect.signature(Callstream).parameters


@pytest.fixture
def environment_without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def serving(wire: str, script: Any, **options: Any) -> ScriptedProvider:
    """A provider that streams arguments on every wire, so that all four can be held to the same."""
    return ScriptedProvider(wire, script, stream_args_unasked=True, **options)


async def journaled(cs: Callstream, call_id: str) -> list[Any]:
    call = await cs.journal.call(call_id)
    assert call is not None
    assert call.run_id is not None
    return [record.event async for record in cs.journal.read(call.run_id)]


async def left(provider: ScriptedProvider) -> bool:
    """Whether the provider notices, soon, that its client is gone."""
    for _ in range(2000):
        if provider.requests[-1].fate == "left":
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.parametrize("collapse", ["known", "all", "none"])
@pytest.mark.parametrize("wire", WIRES)
async def test_the_sdk_puts_together_what_it_would_without_the_tap(cs: Callstream, wire: str, collapse: str) -> None:
    cs.on_args_delta("write", lambda delta, signal: None)
    script = [Text("Let me see.", size=4), WRITE, ToolCall("other", {"title": "x"}, call_id="c2")]
    async with serving(wire, script) as provider:
        tapped = await ask(wire, provider, cs, collapse=collapse)
        plain = await ask(wire, provider, None)
    assert tapped.text == plain.text == "Let me see."
    assert tapped.finish == plain.finish
    if wire != "gemini":  # google-genai gives streamed calls in pieces, and leaves them so
        assert [(name, args) for _, name, args in tapped.calls] == [(name, args) for _, name, args in plain.calls]
    if collapse == "all":
        assert [(name, args) for _, name, args in tapped.calls] == [("write", ARGS), ("other", {"title": "x"})]
        assert tapped.events <= plain.events - 10
    elif collapse == "known":
        assert ("write", ARGS) in [(name, args) for _, name, args in tapped.calls]
    else:
        assert tapped.events == plain.events
    calls = await cs.journal.calls()
    assert [(call.name, (await cs.journal.call(call.call_id)).args) for call in calls] == [  # type: ignore[union-attr]
        ("write", ARGS),
        ("other", {"title": "x"}),
    ]


@pytest.mark.parametrize("wire", ["gemini", "openai_chat"])  # the other two have no form without an id
async def test_one_id_at_the_sdk_and_in_the_journal(cs: Callstream, wire: str) -> None:
    async with serving(wire, [ToolCall("write", ARGS, call_id="")]) as provider:
        answer = await ask(wire, provider, cs, collapse="all")
    ((wire_id, _, args),) = answer.calls
    (call,) = await cs.journal.calls()
    assert args == ARGS
    assert wire_id == (call.provider_id or call.call_id)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("ending", [Truncated(), Finish("length")], ids=["truncated", "length"])
async def test_truncated_never_runs_over_the_tap(cs: Callstream, wire: str, ending: Any) -> None:
    script = [Text("Writing."), ToolCall("write", ARGS, call_id="c1", stop_after=3), ending]
    async with serving(wire, script) as provider:
        answer = await ask(wire, provider, cs, collapse="all", ask_again=0)
    assert answer.calls == []
    assert answer.text == "Writing."
    (call,) = await cs.journal.calls()
    assert (call.state, call.reason) == (CallState.DISCARDED, "truncated")


@pytest.mark.parametrize("wire", ["anthropic", "openai_chat", "openai_responses", "cohere", "gemini_interactions"])
async def test_malformed_never_runs_over_the_tap(cs: Callstream, wire: str) -> None:
    script = [ToolCall("write", call_id="c1", text='{"title": 1,}'), ToolCall("other", {"title": "x"}, call_id="c2")]
    async with serving(wire, script) as provider:
        answer = await ask(wire, provider, cs, collapse="all")
    assert [name for _, name, _ in answer.calls] == ["other"]
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert (kept.state, kept.reason, kept.args_json) == (CallState.DISCARDED, "malformed", '{"title": 1,}')


@pytest.mark.parametrize("wire", WIRES)
async def test_slow_hook_beside_second_call(cs: Callstream, wire: str) -> None:
    """The hooks of the second call run while the first one's hook still waits, over the tap too."""
    gate = asyncio.Event()
    second = asyncio.Event()

    async def slow(delta: Any, signal: Any) -> None:
        await gate.wait()

    async def fast(call: Any, signal: Any) -> None:
        second.set()

    cs.on_args_delta("slow", slow)
    cs.on_args_complete("fast", fast)
    script = [ToolCall("slow", ARGS, call_id="s"), ToolCall("fast", ARGS, call_id="f")]
    async with serving(wire, script) as provider:
        asking = asyncio.create_task(ask(wire, provider, cs))
        await asyncio.wait_for(second.wait(), 5)
        assert not asking.done()
        gate.set()
        answer = await asking
    assert [name for _, name, _ in answer.calls] == ["slow", "fast"]


@pytest.mark.parametrize("wire", WIRES)
async def test_hooks_settle_before_the_call_reaches_the_sdk(cs: Callstream, wire: str) -> None:
    seen: list[str] = []

    async def watch(delta: Any, signal: Any) -> None:
        await asyncio.sleep(0.001)
        seen.append(delta.text)

    cs.on_args_delta("write", watch)
    async with serving(wire, [WRITE]) as provider, sdk(wire, provider, cs) as client:
        await ASK[wire](client)
    kept = await cs.journal.call("c1")
    assert kept is not None
    assert "".join(seen) == kept.args_json


@pytest.mark.parametrize("wire", WIRES)
async def test_a_rejected_call_rises_where_no_host_can_refuse_it(cs: Callstream, wire: str) -> None:
    async def refuse(call: Any, signal: Any) -> None:
        raise Reject("not today")

    cs.on_args_complete("write", refuse)
    async with serving(wire, [WRITE]) as provider:
        with pytest.raises(CallRejected, match="not today"):
            async with cs.run("thread"):
                await ask(wire, provider, cs)
    (run,) = await cs.journal.runs()
    assert run.outcome == "failed"
    (call,) = await cs.journal.calls()
    assert (call.state, call.reason, call.detail) == (CallState.DISCARDED, "rejected", "not today")


async def test_settings_are_given_in_one_place(cs: Callstream) -> None:
    for twice in ({"wire": "gemini"}, {"collapse": "all"}):
        for make in (cs.transport, cs.httpx_client, cs.httpx2_client):
            with pytest.raises(UsageError, match="belong in settings="):
                make(settings=TapSettings(), **twice)


@pytest.mark.parametrize("seconds", [0, 0.2])
async def test_a_rejected_call_ends_the_run_of_its_response(cs: Callstream, seconds: float) -> None:
    async def refuse(call: Any, signal: Any) -> None:
        await asyncio.sleep(seconds)
        raise Reject("not today")

    cs.on_args_complete("write", refuse)
    async with serving("openai_chat", [WRITE]) as provider, sdk("openai_chat", provider, cs) as client:
        with pytest.raises(CallRejected, match="not today"):
            await ask("openai_chat", provider, cs)
        with pytest.raises(CallRejected, match="not today"):
            await client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "go"}])
    assert [run.outcome for run in await cs.journal.runs()] == ["finished", "finished"]


async def test_a_whole_answer_that_breaks_off_ends_the_run_of_its_response(cs: Callstream) -> None:
    async with serving("openai_chat", [Text("Hello. "), WRITE, Cut()]) as provider:
        async with sdk("openai_chat", provider, cs) as client:
            with pytest.raises(openai.APIConnectionError):
                await client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "go"}])
    assert [run.outcome for run in await cs.journal.runs()] == ["failed"]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("end", [Cut(), Failure("overloaded")], ids=["cut", "error"])
async def test_a_response_that_breaks_off_fails_its_run(cs: Callstream, wire: str, end: Any) -> None:
    async with serving(wire, [Text("Hello. "), end]) as provider:
        await asyncio.gather(ask(wire, provider, cs), return_exceptions=True)  # what it raises is the SDK's own
    (run,) = await cs.journal.runs()
    assert run.outcome == "failed"
    assert "overloaded" in (run.reason or "") or isinstance(end, Cut)


async def test_a_response_that_is_left_by_its_reader_has_not_failed(cs: Callstream) -> None:
    script = [Text("Hello. "), Delay(30), Text("Bye.")]
    async with serving("anthropic", script) as provider, sdk("anthropic", provider, cs) as client:
        messages: list[Any] = [{"role": "user", "content": "go"}]
        async with client.messages.stream(model="claude", max_tokens=10, messages=messages) as stream:
            async for _ in stream:
                break
    (run,) = await cs.journal.runs()
    assert run.outcome == "finished"


@pytest.mark.parametrize("wire", WIRES)
async def test_a_held_call_keeps_the_stream_alive(cs: Callstream, wire: str) -> None:
    gate = asyncio.Event()

    async def slow(delta: Any, signal: Any) -> None:
        await gate.wait()

    cs.on_args_delta("write", slow)
    tap = cs.transport(settings=TapSettings(collapse="all", limits=Limits(keep_alive_every=0.02)))
    expected = Tap(wire)
    async with serving(wire, [WRITE]) as provider, httpx.AsyncClient() as client:
        url, body = _raw(wire, provider)
        answer = expected.feed((await client.post(url, json=body)).content) + expected.end()
    sign_of_life = expected.collapser.keep_alive
    async with serving(wire, [WRITE]) as provider, httpx.AsyncClient(transport=tap) as client:
        url, body = _raw(wire, provider)
        signs, rest = 0, b""
        async with client.stream("POST", url, json=body) as response:
            async for data in response.aiter_raw():
                if data != sign_of_life:
                    rest += data
                    continue
                signs += 1
                if signs == 3:
                    gate.set()
    assert signs >= 3
    assert rest == answer


@pytest.mark.parametrize("wire", WIRES)
async def test_the_sdks_stand_being_kept_alive(cs: Callstream, wire: str) -> None:
    async def slow(delta: Any, signal: Any) -> None:
        await asyncio.sleep(0.02)

    cs.on_args_delta("write", slow)
    settings = TapSettings(collapse="all", limits=Limits(keep_alive_every=0.005))
    async with serving(wire, [WRITE]) as provider:
        answer = await ask(wire, provider, cs, settings=settings)
    assert [args for _, _, args in answer.calls] == [ARGS]


async def test_bytes_that_are_not_the_wire_in_the_middle_of_a_withheld_call_rise(cs: Callstream) -> None:
    frames = list(encode("anthropic", [WRITE]))

    async def answer(request: httpx.Request) -> httpx.Response:
        body = b"".join(frames[:6]) + b"data: not json\n\n" + b"".join(frames[6:])
        return httpx.Response(200, content=body, headers={"content-type": "text/event-stream"})

    transport = cs.transport(httpx.MockTransport(answer), collapse="all")
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(WireError, match="expected JSON"):
            await client.post("http://127.0.0.1/v1/messages", json={"messages": []})
    (call,) = await cs.journal.calls()
    assert (call.state, call.reason) == (CallState.DISCARDED, "interrupted")


async def test_the_reader_stops_when_too_much_waits_for_the_sdk(cs: Callstream) -> None:
    tap = cs.transport(settings=TapSettings(limits=Limits(max_held=20_000)))
    script = [Text("x" * 2_000_000, size=1000)]
    async with ScriptedProvider("anthropic", script) as provider, httpx.AsyncClient(transport=tap) as client:
        url, body = _raw("anthropic", provider)
        async with client.stream("POST", url, json=body) as response:
            read = response.aiter_raw()
            first = await anext(read)
            await asyncio.sleep(0.2)
            (run,) = await cs.journal.runs()
            early = run.last_seq
            rest = b"".join([data async for data in read])
    assert early < 1500, "the reader took it all, though nobody read"
    assert (first + rest).count(b"text_delta") == 2000


@pytest.mark.parametrize("wire", WIRES)
async def test_the_consumers_end_closes_upstream_and_discards(cs: Callstream, wire: str) -> None:
    script = [Text("Hello. "), ToolCall("write", ARGS, call_id="c1", stop_after=2), Delay(30), Finish()]
    async with serving(wire, script) as provider:
        async with sdk(wire, provider, cs) as client:
            asking = asyncio.create_task(ASK[wire](client))
            while not await cs.journal.calls(states=[CallState.ARGS_STREAMING]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        assert await left(provider)
        while not (await cs.journal.calls())[0].is_final:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    (call,) = await cs.journal.calls()
    assert (call.state, call.reason) == (CallState.DISCARDED, "aborted")


@pytest.mark.parametrize("wire", WIRES)
async def test_stopping_the_run_closes_upstream(cs: Callstream, wire: str) -> None:
    script = [ToolCall("write", ARGS, call_id="c1", stop_after=2), Delay(30), Finish()]
    async with serving(wire, script) as provider:
        run = await cs.start("thread")
        asking = asyncio.create_task(ask(wire, provider, cs))
        while not await cs.journal.calls(states=[CallState.ARGS_STREAMING]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await run.stop("enough")
        assert await left(provider)
        with pytest.raises(RunOver):
            await asking
    (call,) = await cs.journal.calls()
    assert (call.state, call.reason) == (CallState.DISCARDED, "aborted")


@pytest.mark.usefixtures("environment_without_proxies")
async def test_the_environments_proxies_count(cs: Callstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain HTTP proxy is asked for the whole URL; the scripted provider takes that for the path, so it can play one."""
    async with ScriptedProvider("openai_chat", [WRITE]) as provider:
        monkeypatch.setenv("HTTP_PROXY", provider.origin)
        async with openai.AsyncOpenAI(
            base_url="http://provider.invalid/v1", api_key="none", http_client=cs.httpx_client(collapse="all")
        ) as client:
            answer = await ASK["openai_chat"](client)
        assert provider.requests[0].headers["host"] == "provider.invalid"
        monkeypatch.setenv("NO_PROXY", "provider.invalid")
        async with openai.AsyncOpenAI(
            base_url="http://provider.invalid/v1", api_key="none", http_client=cs.httpx_client(), max_retries=0
        ) as client:
            with pytest.raises(openai.APIConnectionError):
                await ASK["openai_chat"](client)
    assert [args for _, _, args in answer.calls] == [ARGS]


def test_two_event_loops_share_one_client() -> None:
    """One Callstream and one SDK client, from two loops one after the other and at once."""
    cs = Callstream()
    with ScriptedProvider("anthropic", [ToolCall("write", ARGS)]) as provider:
        client = anthropic.AsyncAnthropic(
            base_url=provider.base_url,
            api_key="none",
            # Nobody closes the connections of a loop that ends, so none is kept.
            http_client=cs.httpx2_client(collapse="all", limits=httpx2.Limits(max_keepalive_connections=0)),
            max_retries=0,
        )
        answers: list[Any] = []

        def program() -> None:
            async def main() -> None:
                for _ in range(3):
                    answers.append(await ASK["anthropic"](client))

            asyncio.run(main())

        program()
        threads = [threading.Thread(target=program) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        program()
    assert len(answers) == 12
    assert all([args for _, _, args in answer.calls] == [ARGS] for answer in answers)
    asyncio.run(cs.aclose())


@pytest.mark.slow
async def test_many_streams_at_once_through_one_client(cs: Callstream) -> None:
    async with ScriptedProvider("openai_chat", [ToolCall("write", ARGS, size=20)]) as provider:
        async with sdk("openai_chat", provider, cs, collapse="all") as client:
            answers = await asyncio.gather(*(ASK["openai_chat"](client) for _ in range(300)))
    assert all([args for _, _, args in answer.calls] == [ARGS] for answer in answers)
    assert len(await cs.journal.calls()) == 300


def _raw(wire: str, provider: ScriptedProvider) -> tuple[str, dict[str, Any]]:
    """The URL and a body that get a stream from the provider."""
    return SDKS[wire].raw(provider.base_url)
