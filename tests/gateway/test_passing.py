"""What passes through the gateway: the same bytes, the same errors, the same ends."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from callstream import Callstream
from callstream.errors import UsageError
from callstream.gateway import GatewaySettings, create_gateway
from callstream.gateway.settings import Upstreams
from callstream.runtime.telemetry import Telemetry
from callstream.testing import Cut, Finish, HttpError, ReceivedRequest, Text, ToolCall, Truncated
from callstream.testing.httpserver import HttpAnswer, HttpServer
from tests.gateway.gates import NAMES, gate, until_unread
from tests.sdks import SDKS

WIRES = tuple(NAMES)
SCRIPT = [Text("I will write. "), ToolCall("write", {"title": "Tides", "content": "# Tides\n\u2028é" * 20}), Finish()]


async def posted(url: str, body: dict[str, Any], **headers: str) -> tuple[int, httpx.Headers, bytes]:
    async with httpx.AsyncClient(timeout=20) as client:
        answer = await client.post(url, json=body, headers=headers)
        return answer.status_code, answer.headers, answer.content


@pytest.mark.parametrize("wire", WIRES)
async def test_the_sdk_reads_through_the_gateway_what_it_reads_without(wire: str) -> None:
    sdk = SDKS[wire]
    async with gate(wire, [SCRIPT, SCRIPT]) as gateway:
        told = []
        for base_url in (gateway.provider.base_url, gateway.base_url):
            async with sdk.client(base_url, None, 0) as client:
                told.append(sdk.fold([event async for event in await sdk.stream(client)]))
        direct, passed = told
        assert (passed.text, [call[1:] for call in passed.calls]) == (direct.text, [call[1:] for call in direct.calls])
        [run] = await gateway.runs()
        expected = {"title": "Tides", "content": "# Tides\n\u2028é" * 20}
        assert await gateway.arguments(run.run_id) == [("write", expected)]


@pytest.mark.parametrize("wire", WIRES)
async def test_the_bytes_of_the_body_are_identical(wire: str) -> None:
    async with gate(wire, [SCRIPT]) as gateway:
        url, body = SDKS[wire].raw(gateway.base_url)
        status, headers, content = await posted(url, body, authorization="Bearer secret")
        [asked] = gateway.provider.requests
        assert json.loads(asked.body) == body
        assert asked.headers["authorization"] == "Bearer secret"
        assert status == 200
        assert headers["callstream-run"]
        assert headers["callstream-response"]
    async with gate(wire, [SCRIPT]) as again:
        url, body = SDKS[wire].raw(again.provider.base_url)
        assert (await posted(url, body))[2] == content


@pytest.mark.parametrize("wire", WIRES)
async def test_a_broken_upstream_breaks_the_connection_and_is_no_clean_end(wire: str) -> None:
    async with gate(wire, [[Text("Half of "), Cut()]]) as gateway:
        url, body = SDKS[wire].raw(gateway.base_url)
        with pytest.raises(httpx.RemoteProtocolError):
            await posted(url, body)


@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_without_an_end_ends_as_it_came(wire: str) -> None:
    async with gate(wire, [[Text("Half of "), Truncated()]]) as gateway:
        url, body = SDKS[wire].raw(gateway.base_url)
        status, _, content = await posted(url, body)
        assert status == 200
        assert b"Half of" in content


@pytest.mark.parametrize("wire", WIRES)
async def test_refusals_of_the_provider_pass_unchanged_and_are_not_asked_again(wire: str) -> None:
    async with gate(wire, [[HttpError(529, "Overloaded")]]) as gateway:
        url, body = SDKS[wire].raw(gateway.base_url)
        status, _, content = await posted(url, body)
        assert (status, b"Overloaded" in content) == (529, True)
        assert len(gateway.provider.requests) == 1


async def test_a_connection_that_fails_is_an_error_of_the_wire() -> None:
    async with gate("anthropic", [SCRIPT]) as gateway:
        await gateway.provider.aclose()
        status, _, content = await posted(f"{gateway.base_url}/v1/messages", {"model": "m", "messages": []})
        assert status == 502
        assert json.loads(content)["error"] == {
            "type": "api_error",
            "message": "The upstream anthropic did not answer (ConnectError).",
        }


@pytest.mark.parametrize("ending", ["nobody listens", "it breaks off"])
async def test_an_upstream_that_fails_is_a_line_in_the_log(ending: str, caplog: pytest.LogCaptureFixture) -> None:
    async with gate("anthropic", [[Text("Half of "), Cut()]]) as gateway:
        url, body = SDKS["anthropic"].raw(gateway.base_url)
        if ending == "nobody listens":
            await gateway.provider.aclose()
            await posted(url, body)
        else:
            with pytest.raises(httpx.RemoteProtocolError):
                await posted(url, body)
        [run] = await gateway.runs()
        expected = "ConnectError: " if ending == "nobody listens" else "RemoteProtocolError: "
        assert run.outcome == "failed"
        assert run.reason.startswith(f"UpstreamFailed: anthropic: {expected}")
    [failed] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert failed.exc_info is not None
    assert logging.Formatter().formatException(failed.exc_info).count("\n") == 0


@pytest.mark.parametrize("path", ["/v1/messages", "/messages", "/v1/v1/messages"])
async def test_every_spelling_of_a_path_reaches_the_provider(path: str) -> None:
    async with gate("anthropic", [SCRIPT]) as gateway:
        status, _, _ = await posted(
            f"{gateway.base_url}{path}?beta=true", {"model": "m", "stream": True, "messages": []}
        )
        assert status == 200
        [asked] = gateway.provider.requests
        assert asked.path.startswith("/v1/messages")


@pytest.mark.parametrize(
    ("path", "name", "rest"),
    [
        ("/v1/messages", "anthropic", "v1/messages"),
        ("/messages", "anthropic", "messages"),
        ("/v1/v1/messages", "anthropic", "v1/v1/messages"),
        ("/v1//messages", "anthropic", "v1//messages"),
        ("/v1/chat/completions", "openai", "v1/chat/completions"),
        ("/v1/responses/", "openai", "v1/responses/"),
        ("/v1beta/models/g:generateContent", "gemini", "v1beta/models/g:generateContent"),
        ("/tunedModels/g:streamGenerateContent", "gemini", "tunedModels/g:streamGenerateContent"),
        ("/v1beta/interactions", "gemini", "v1beta/interactions"),
        ("/mine/v1/x", "mine", "v1/x"),
    ],
)
def test_a_path_without_a_name_belongs_to_the_api_that_has_it(path: str, name: str, rest: str) -> None:
    upstreams = Upstreams({"mine": "https://models.example.com/api/v1"})
    found = upstreams.find(path, "POST")
    assert found is not None
    assert (found[0].name, found[1]) == (name, rest)


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/nobody/v1/messages",
        "/v1/nobody/messages",
        "/nobody/v1/chat/completions",
        "/v1/agents/completions",  # Mistral's
        "/backend-api/codex/responses",
        "/v1beta/openai/chat/completions",  # Google's, with a key of Google's
        "/v1/projects/p/locations/l/publishers/anthropic/models/c:streamRawPredict",
        "/v1/projects/p/locations/l/publishers/google/models/g:generateContent",
        "/v1internal:generateContent",
        "/v2/chat",
    ],
)
def test_a_path_that_begins_with_anything_else_belongs_to_no_api(path: str) -> None:
    assert Upstreams().find(path, "POST") is None


def test_the_version_of_an_upstream_is_in_its_address_once() -> None:
    found = Upstreams({"mine": "https://models.example.com/api/v1"}).find("/mine/v1/chat", "POST")
    assert found is not None
    assert found[0].target(found[1], "a=1") == "https://models.example.com/api/v1/chat?a=1"


@pytest.mark.parametrize("url", ["ftp://x", "https://", "https://x/?a=b", "https://user:pass@x", "x"])
def test_an_upstream_is_an_http_address(url: str) -> None:
    with pytest.raises(UsageError, match="expected an upstream such as"):
        Upstreams({"mine": url})


@pytest.mark.parametrize("name", ["api", "agui", "healthz", "page", "responses", "runs", "threads", "ui"])
async def test_an_upstream_takes_no_path_of_the_gateways_own(name: str) -> None:
    expected = f"expected an upstream's name that is not one of the gateway's own paths, got '{name}'"
    async with Callstream("memory:") as callstream:
        with pytest.raises(UsageError, match=expected):
            create_gateway(callstream, upstreams={name: "https://models.example.com/v1"})


async def test_the_inspector_and_the_api_are_beside_it() -> None:
    async with gate("anthropic", [SCRIPT]) as gateway:
        page = await gateway.server.client.get("/")
        assert page.status_code == 200
        assert (await gateway.server.client.get("/api/runs")).json()["runs"] == []


async def test_a_websocket_is_refused_so_that_clients_fall_back() -> None:
    async with gate("openai_responses", [SCRIPT]) as gateway:
        headers = {
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": "x" * 22 + "==",
        }
        answer = await gateway.server.client.get("/openai/v1/responses", headers=headers)
        assert answer.status_code == 426


async def test_a_key_is_asked_for_by_a_header_of_its_own() -> None:
    async with gate("anthropic", [SCRIPT], key="open sesame") as gateway:
        url, body = SDKS["anthropic"].raw(gateway.base_url)
        assert (await posted(url, body))[0] == 401
        assert (await posted(url, body, **{"callstream-key": "wrong"}))[0] == 401
        assert (await posted(url, body, **{"callstream-key": "open sesame"}))[0] == 200
        [asked] = gateway.provider.requests
        assert "callstream-key" not in asked.headers


async def test_who_has_the_key_sees_all_runs() -> None:
    async with gate("anthropic", [SCRIPT, SCRIPT], key="open sesame") as gateway:
        url, body = SDKS["anthropic"].raw(gateway.base_url)
        for credential in ("one", "two"):
            await posted(url, body, **{"callstream-key": "open sesame", "x-api-key": credential})
        api = gateway.server.client
        for wrong in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer one"}):
            assert (await api.get("/api/runs", headers=wrong)).status_code == 401
        for right in ({"callstream-key": "open sesame"}, {"authorization": "Bearer open sesame"}):
            assert len((await api.get("/api/runs", headers=right)).json()["runs"]) == 2


async def test_answers_and_clients_that_came_back_are_measured() -> None:
    reader = InMemoryMetricReader()
    script = [Text("The moon pulls at the sea. " * 9, size=9), Finish()]
    settings = GatewaySettings(linger=30.0)
    async with gate("anthropic", [script], settings=settings, deltas_per_second=40) as gateway:
        gateway.callstream.observe(Telemetry(meter_provider=MeterProvider([reader])))
        url, body = SDKS["anthropic"].raw(gateway.base_url)
        async with httpx.AsyncClient(timeout=20) as client:
            async with client.stream("POST", url, json=body) as answer:
                await anext(answer.aiter_raw())
            await until_unread(gateway)
            assert (await client.post(url, json=body)).status_code == 200
    data = reader.get_metrics_data()
    assert data is not None
    metrics = {m.name: m.data.data_points for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    [first_byte] = metrics["callstream.gateway.time_to_first_byte"]
    assert (first_byte.count, dict(first_byte.attributes)) == (
        1,
        {"callstream.upstream": "anthropic", "http.response.status_code": 200},
    )
    assert [point.value for point in metrics["callstream.gateway.attached"]] == [1]
    assert {point.attributes["gen_ai.token.type"] for point in metrics["callstream.model.tokens"]} == {
        "input",
        "output",
    }


async def test_a_request_has_its_clients_headers_and_nobody_elses() -> None:
    """No cookie that an upstream gave to another client, and no name of a library."""
    asked: list[ReceivedRequest] = []

    async def answering(request: ReceivedRequest) -> HttpAnswer:
        asked.append(request)
        headers = [("content-type", "application/json"), ("set-cookie", "session=one; Path=/")]
        return HttpAnswer(200, headers, [b"{}"], length=2)

    upstream = HttpServer(answering)
    upstream.start()
    try:
        async with gate("anthropic", [SCRIPT], upstream=f"http://127.0.0.1:{upstream.port}/v1") as gateway:
            for name in (b"one", b"two"):
                head = b"GET /anthropic/v1/models HTTP/1.1\r\nhost: localhost\r\nx-api-key: %b\r\nconnection: close\r\n\r\n"
                reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.port)
                writer.write(head % name)
                assert b"set-cookie: session=one; Path=/" in await reader.read()
                writer.close()
    finally:
        upstream.close()
    assert [request.headers["x-api-key"] for request in asked] == ["one", "two"]
    assert {name for request in asked for name in request.headers} == {"host", "x-api-key", "accept-encoding"}
