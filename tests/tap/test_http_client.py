"""``cs.http_client()`` fits the SDK, whichever of httpx2 and httpx is installed."""

from __future__ import annotations

import asyncio
import sys

import httpx
import httpx2
import pytest

from callstream import Callstream, UsageError
from callstream.testing import ScriptedProvider, Text, ToolCall
from tests.tap.clients import ask


@pytest.mark.parametrize("wire", ["anthropic", "openai_chat", "openai_responses", "gemini"])
async def test_every_sdk_accepts_it(wire: str) -> None:
    cs = Callstream()
    cs.on_args_delta("write", lambda delta, signal: None)
    script = [Text("I write."), ToolCall("write", {"text": "Tides"}, call_id="c1", size=3)]
    async with ScriptedProvider(wire, script) as provider:
        answer = await ask(wire, provider, cs, client=cs.http_client)
    assert answer.text == "I write."
    assert [call[1:] for call in answer.calls] == [("write", {"text": "Tides"})]
    call = await cs.journal.call("c1")
    assert call is not None
    assert call.args == {"text": "Tides"}
    await cs.aclose()


async def test_it_is_of_the_library_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    cs = Callstream()
    assert isinstance(cs.http_client(), httpx2.AsyncClient)
    monkeypatch.setitem(sys.modules, "httpx", None)  # as if it were not installed
    assert isinstance(cs.http_client(timeout=3), httpx2.AsyncClient)
    with pytest.raises(UsageError, match=r"httpx is not installed\. cs\.http_client\(\) uses"):
        cs.httpx_client()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "httpx2", None)
    assert isinstance(cs.http_client(), httpx.AsyncClient)
    with pytest.raises(UsageError, match="httpx2 is not installed"):
        cs.httpx2_client()
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(UsageError, match="neither httpx2 nor httpx is installed"):
        cs.http_client()


async def test_an_event_loop_that_is_not_asyncios_is_named(cs: Callstream) -> None:
    """trio drives coroutines itself; so does this."""
    request = httpx.Request("POST", "http://127.0.0.1/v1/messages", json={"messages": []})
    handling = cs.transport(httpx.MockTransport(lambda _: httpx.Response(200))).handle_async_request(request)

    def drive() -> None:
        with pytest.raises(UsageError, match=r"asyncio's event loop; under trio use cs.sync_http_client"):
            handling.send(None)

    await asyncio.to_thread(drive)
