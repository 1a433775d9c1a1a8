"""What was recorded is served again, byte for byte, and no secret is in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from google import genai

from callstream.errors import UsageError
from callstream.testing import (
    Cut,
    Delay,
    HttpError,
    Recording,
    ScriptedProvider,
    Text,
    ToolCall,
    encode,
    record,
    replay,
)
from callstream.testing.provider import ProviderServer
from tests import captures
from tests.captures import Capture, each_capture, folder
from tests.testing.asking import WIRES, Said, ask, asked, client_of, gemini_options, gemini_said

each_wire = pytest.mark.parametrize("wire", WIRES)
SECRET = "sk-this-is-a-secret"
PARIS = {"city": "Paris"}


@asynccontextmanager
async def recording_client(provider: ProviderServer, place: Path) -> AsyncIterator[Any]:
    """The SDK's client, with a recorder under it."""
    library: Any = httpx2 if provider.wire == "anthropic" else httpx
    async with library.AsyncClient(transport=record(place)) as inner:
        match provider.wire:
            case "gemini":
                options = gemini_options(provider, httpx_async_client=inner)
                yield genai.Client(api_key=SECRET, http_options=options).aio
            case "anthropic":
                yield anthropic.AsyncAnthropic(base_url=provider.base_url, api_key=SECRET, http_client=inner)
            case _:
                yield openai.AsyncOpenAI(base_url=provider.base_url, api_key=SECRET, http_client=inner)


async def recorded(place: Path, wire: str, script: Any, **options: Any) -> list[Said]:
    """A streamed answer and a whole one, kept in the place."""
    async with ScriptedProvider(wire, script, **options) as provider, recording_client(provider, place) as client:
        return [await ask(client, wire, stream=stream) for stream in (True, False)]


@each_wire
@pytest.mark.parametrize("encoding", [None, "gzip"])
async def test_round_trip(wire: str, encoding: Any, tmp_path: Path) -> None:
    said = await recorded(tmp_path, wire, [Text("Let me look: ☀️", size=2), ToolCall("a", PARIS)], encoding=encoding)
    assert said[0].text == said[1].text == "Let me look: ☀️"
    async with replay(tmp_path) as provider:
        again = [await asked(provider, stream=stream) for stream in (True, False)]
    assert again == said


@each_wire
async def test_secrets_are_not_kept(wire: str, tmp_path: Path) -> None:
    await recorded(tmp_path, wire, [Text("Hi")])
    transport = record(tmp_path)
    async with ScriptedProvider(wire, [Text("Hi")]) as provider, httpx.AsyncClient(transport=transport) as client:
        path = {"gemini": "/models/m:generateContent", "anthropic": "/v1/messages"}.get(wire, "/v1/chat/completions")
        headers = {"authorization": SECRET, "x-api-key": SECRET, "api-key": SECRET, "x-goog-api-key": SECRET}
        await client.post(f"{provider.origin}{path}?key={SECRET}&alt=sse", headers=headers | {"cookie": SECRET})
    files = list(tmp_path.iterdir())  # noqa: ASYNC240
    assert len(files) == 6
    assert not [file.name for file in files if SECRET.encode() in file.read_bytes()]
    assert json.loads((tmp_path / "0003.json").read_bytes())["query"] == {"alt": "sse"}


async def test_files_tell_the_exchange(tmp_path: Path) -> None:
    script = [Text("Hello", size=1)]
    await recorded(tmp_path, "anthropic", script)
    kept = json.loads((tmp_path / "0001.json").read_bytes())
    assert kept["method"] == "POST"
    assert kept["path"] == "/v1/messages"
    assert kept["status"] == 200
    assert kept["request_json"]["stream"] is True
    assert kept["response_headers"] == {"content-type": "text/event-stream; charset=utf-8"}
    body = (tmp_path / kept["body"]).read_bytes()
    assert body == b"".join(encode("anthropic", script, model="claude-opus-4-5"))
    assert sum(kept["read_sizes"]) == len(body)
    assert "complete" not in kept, "what is the rule is not written"


def test_sync_clients_are_recorded_too(tmp_path: Path) -> None:
    with ScriptedProvider("gemini", [Text("Hello", size=2)]) as provider:
        with httpx.Client(transport=record(tmp_path, httpx.HTTPTransport())) as inner:
            client = genai.Client(api_key="none", http_options=gemini_options(provider, httpx_client=inner))
            chunks = list(client.models.generate_content_stream(model="m", contents="Hi"))
    assert gemini_said(chunks).text == "Hello"
    with replay(tmp_path / "0001.json") as provider:
        with httpx.Client(transport=record(tmp_path / "again")) as inner:
            client = genai.Client(api_key="none", http_options=gemini_options(provider, httpx_client=inner))
            assert gemini_said(list(client.models.generate_content_stream(model="m", contents="Hi"))).text == "Hello"
    assert (tmp_path / "0001.body").read_bytes() == (tmp_path / "again" / "0001.body").read_bytes()


async def test_an_inner_transport_does_the_work(tmp_path: Path) -> None:
    inner = httpx.MockTransport(lambda request: httpx.Response(200, text="mocked", headers={"set-cookie": SECRET}))
    async with httpx.AsyncClient(transport=record(tmp_path, inner)) as client:
        answer = await client.post("http://nowhere.invalid/v1/messages", content=b"not json")
    assert answer.text == "mocked"
    assert answer.headers["set-cookie"] == SECRET, "the client gets what came"
    kept = json.loads((tmp_path / "0001.json").read_bytes())
    assert "request_json" not in kept


async def test_other_files_of_the_folder_are_no_recordings(tmp_path: Path) -> None:
    (tmp_path / "2026-notes.json").write_text("{}")
    async with ScriptedProvider("anthropic", [Text("Now.")]) as provider:
        async with recording_client(provider, tmp_path) as client:
            assert (await ask(client, "anthropic")).text == "Now."
    assert (tmp_path / "0001.json").exists()
    async with replay(tmp_path) as provider:
        assert (await asked(provider)).text == "Now."


async def test_refusals_are_recorded_and_replayed(tmp_path: Path) -> None:
    script = [[HttpError(429, "Slow down.", retry_after=0.01)], [Text("Now.")]]
    async with ScriptedProvider("openai_chat", script) as provider:
        async with recording_client(provider, tmp_path) as client:
            assert (await ask(client, "openai_chat")).text == "Now."
    async with replay(tmp_path) as provider:
        assert (await asked(provider)).text == "Now."
        assert len(provider.requests) == 2


async def test_a_broken_answer_is_recorded_and_breaks_again(tmp_path: Path) -> None:
    async with ScriptedProvider("anthropic", [Text("I was going"), Cut()]) as provider:
        async with recording_client(provider, tmp_path) as client:
            with pytest.raises(httpx2.RemoteProtocolError):
                await ask(client, "anthropic")
    assert json.loads((tmp_path / "0001.json").read_bytes())["complete"] is False
    async with replay(tmp_path) as provider:
        with pytest.raises(httpx2.RemoteProtocolError):
            await asked(provider)
        assert provider.requests[0].fate == "cut"


async def test_a_reader_that_leaves_leaves_what_it_read(tmp_path: Path) -> None:
    async with ScriptedProvider("anthropic", [Text("Wait"), Delay(60), Text("for it")]) as provider:
        async with recording_client(provider, tmp_path) as client:
            stream = await client.messages.create(model="m", max_tokens=1, messages=[], stream=True)
            await anext(aiter(stream))
            await stream.close()
    assert json.loads((tmp_path / "0001.json").read_bytes())["complete"] is False
    assert b"message_start" in (tmp_path / "0001.body").read_bytes()


# -- which answer is given ---------------------------------------------------------------------------------------------


def keep(place: Path, number: int, path: str, content: bytes, **fields: Any) -> None:
    place.mkdir(exist_ok=True)
    headers = {"content-type": "application/json"}
    recording = {"method": "POST", "path": path, "status": 200, "body": f"{number}.body", "read_sizes": [len(content)]}
    (place / f"{number}.json").write_text(json.dumps({**recording, "response_headers": headers, **fields}))
    (place / f"{number}.body").write_bytes(content)


async def got(provider: ProviderServer, path: str) -> str:
    async with httpx.AsyncClient(verify=False) as client:
        return (await client.post(provider.origin + path, json={})).text


async def test_answers_are_given_in_order_a_path(tmp_path: Path) -> None:
    for number, model in ((1, "a"), (2, "b"), (3, "a"), (10, "a")):
        keep(tmp_path, number, f"/v1beta/models/{model}:generateContent", b"%d" % number)
    a, b = "/v1beta/models/a:generateContent", "/v1beta/models/b:generateContent"
    provider = replay(tmp_path).start()
    assert [await got(provider, path) for path in (a, a, b, a)] == ["1", "3", "2", "10"]
    assert f"{b} is answered already (requests: 1)" in await got(provider, b)
    assert "expected a request that was recorded" in await got(provider, a.replace("/a:", "/c:"))
    with pytest.raises(UsageError, match="is answered already"):
        provider.close()


async def test_answers_are_given_again_where_that_is_wanted(tmp_path: Path) -> None:
    for number in (1, 2):
        keep(tmp_path, number, "/v1/messages", b"%d" % number)
    async with replay(tmp_path, repeat=True) as provider:
        assert [await got(provider, "/v1/messages") for _ in range(5)] == ["1", "2", "1", "2", "1"]


async def test_recordings_of_one_wire_are_served_of_a_folder_of_many(tmp_path: Path) -> None:
    keep(tmp_path, 1, "/v1/messages", b"from anthropic")
    keep(tmp_path, 2, "/openai/deployments/d/chat/completions", b"from openai")
    with pytest.raises(UsageError, match="expected recordings of one wire, got"):
        replay(tmp_path)
    async with replay(tmp_path, wire="openai_chat") as provider:
        assert provider.base_url == f"{provider.origin}/openai/deployments/d"
        assert await got(provider, "/openai/deployments/d/chat/completions") == "from openai"


@pytest.mark.parametrize(
    ("wire", "path", "base"),
    [
        ("anthropic", "/v1/messages", ""),
        ("anthropic", "/apps/claude/v1/messages", "/apps/claude"),
        ("openai_chat", "/api/v2/chat/completions", "/api/v2"),
        ("openai_responses", "/responses", ""),
        ("ollama", "/behind/api/chat", "/behind"),
    ],
)
async def test_the_address_has_what_stood_before_the_wires_own_path(
    wire: str, path: str, base: str, tmp_path: Path
) -> None:
    keep(tmp_path, 1, path, b"recorded")
    async with replay(tmp_path) as provider:
        assert provider.base_url == f"{provider.origin}{base}"
        assert await got(provider, path) == "recorded"


@pytest.mark.parametrize("size", [None, 1, 7, 100_000])
async def test_a_plain_body_is_served_in_pieces_of_any_size(size: int | None, tmp_path: Path) -> None:
    (tmp_path / "some.sse").write_bytes(b"".join(encode("openai_chat", [Text("Hé", size=1), ToolCall("a", PARIS)])))
    async with replay(tmp_path / "some.sse", wire="openai_chat", size=size) as provider, client_of(provider) as client:
        # Recorded with the usage that this client did not ask for, so the helper that expects a choice is not used.
        stream = await client.chat.completions.create(model="m", messages=[], stream=True)
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        assert provider.base_url.endswith("/v1")
    assert text == "Hé"


async def test_a_plain_body_that_is_no_stream_is_json(tmp_path: Path) -> None:
    (tmp_path / "some.json").write_bytes(b'{"a": 1}')
    async with replay(tmp_path / "some.json", wire="gemini") as provider, httpx.AsyncClient(verify=False) as client:
        answer = await client.post(f"{provider.base_url}/v1/models/any:generateContent", json={})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"a": 1}


@pytest.mark.parametrize(
    ("place", "options", "message"),
    [
        ("nothing", {}, "is not there"),
        ("empty", {}, "which has none"),
        ("body.sse", {}, "state it as wire="),
        ("broken.json", {}, "expected a recording"),
        ("odd", {}, "the read sizes sum to 3"),
        ("bodiless", {}, "expected a recording"),
        ("elsewhere", {}, "expected recordings of one wire, got .'None'."),
        ("body.sse", {"wire": "gemini", "size": 0}, "expected size"),
        ("body.sse", {"wire": "morse"}, "expected one of the wires"),
        ("good", {"wire": "gemini"}, "expected recordings of the wire 'gemini'"),
    ],
)
def test_mistakes_are_told(place: str, options: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "body.sse").write_bytes(b"data: {}\n\n")
    (tmp_path / "broken.json").write_text("{}")
    keep(tmp_path / "odd", 1, "/v1/messages", b"four", read_sizes=[3])
    keep(tmp_path / "bodiless", 1, "/v1/messages", b"four", body="lost")
    keep(tmp_path / "elsewhere", 1, "/v1/embeddings", b"four")
    keep(tmp_path / "good", 1, "/v1/messages", b"four")
    with pytest.raises(UsageError, match=message):
        replay(tmp_path / place, **options)


def test_a_recording_can_be_made_by_hand() -> None:
    assert Recording("POST", "/v1/messages", 200, "x.body", []).complete


@each_capture(*WIRES)
async def test_recorded_streams_are_served_as_they_were(capture: Capture) -> None:
    if capture.file.endswith(".jsonl"):
        pytest.skip("only its payloads were kept")
    place = folder()
    assert place is not None
    wire = next(name for name, recorded_as in captures.WIRES.items() if recorded_as == capture.wire)
    file = place / capture.file
    async with replay(file, wire=wire, size=997) as provider, httpx.AsyncClient(verify=False) as client:
        path = {
            "gemini": "/v1beta/models/m:streamGenerateContent",
            "anthropic": "/v1/messages",
            "openai_chat": "/v1/chat/completions",
            "openai_responses": "/v1/responses",
        }[wire]
        answer = await client.post(provider.origin + path, json={"stream": True})
    assert answer.content == await asyncio.to_thread(file.read_bytes)
