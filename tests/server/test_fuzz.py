"""Whatever is sent: 4xx with a clear body or a run, never 500, never a dead server."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import quote, quote_from_bytes

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callstream import Callstream
from callstream.adk import ADKAgent, AGUIToolset
from callstream.server import ServerSettings
from callstream.testing import Finish, Text
from tests.adk.conftest import IGNORED
from tests.adk.hosting import Models, agent_of, scripted
from tests.journal.conftest import drop_schema, schema_url

from .agents import Stepping
from .background import Background, in_background
from .serving import Server, run_input, served, tool_message

pytestmark = [pytest.mark.filterwarnings(warning) for warning in IGNORED]

LIMITS = ServerSettings(max_body_bytes=50_000, body_seconds=5, busy_wait=1, max_messages=50, max_tools=50)
EXAMPLES = int(os.environ.get("CALLSTREAM_FUZZ_EXAMPLES", "60"))
fuzzed = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
GETS = ["/api/threads", "/api/runs", "/api/calls", "/api/agent", "/healthz", "/readyz", "/"]
PATHS = [
    "/agui",
    "/threads/{}/connect",
    "/runs/{}/events",
    "/runs/{}/stop",
    "/copilotkit/agent/default/run",
    "/copilotkit/agent/default/connect",
    "/copilotkit/agent/default/stop/{}",
    "/api/runs/{}",
    "/api/calls/{}",
    "/page/{}",
    "/{}",
]


@asynccontextmanager
async def function_agent(url: str, limits: ServerSettings = LIMITS) -> AsyncIterator[Server]:
    async with Callstream(url) as cs, served(Stepping(free=True), callstream=cs, settings=limits) as server:
        yield server


@asynccontextmanager
async def adk_agent(url: str) -> AsyncIterator[Server]:
    async with Callstream(url) as cs, scripted("gemini", [Text("Done."), Finish()]) as provider:
        models = Models(cs)
        agent = ADKAgent(agent_of(models(provider), AGUIToolset()), callstream=cs)
        async with served(agent, settings=LIMITS) as server:
            yield server
        await models.aclose()


@contextmanager
def journal(kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('fuzz')}/calls.db"
        return
    server = request.getfixturevalue("postgres_url")
    schema = f"fuzz_{uuid.uuid4().hex[:12]}"
    yield schema_url(server, schema)
    asyncio.run(drop_schema(server, schema))


POSTGRES = pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.slow])


@pytest.fixture(scope="module", params=["sqlite", POSTGRES])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    with (
        journal(request.param, request, tmp_path_factory) as url,
        in_background(lambda: function_agent(url)) as background,
    ):
        yield background
        background.still_serves()


@pytest.fixture(scope="module", params=["sqlite", POSTGRES])
def adk_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    with journal(request.param, request, tmp_path_factory) as url, in_background(lambda: adk_agent(url)) as background:
        yield background
        background.still_serves()


def well_refused(status: int, body: bytes, headers: Any) -> None:
    """A refusal says what is wrong, in our form; an answer is an answer."""
    assert status < 500, (status, body[:500])
    if status >= 400:
        error = json.loads(body)["error"]
        assert set(error) == {"code", "message"}
        assert error["code"]
        assert len(error["message"]) > 5
        assert headers["x-content-type-options"] == "nosniff"
        assert b"Traceback" not in body


# -- bodies --

TEXT = st.text(st.characters(blacklist_categories=()), max_size=30) | st.sampled_from(
    ["\0", "\ud800", "a\udc00b", "\u202e", "x" * 300, "user", "tool", "assistant", "thread", "..", "💥", ""]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True, allow_infinity=True)
    | TEXT
)
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)


def valid() -> dict[str, Any]:
    return run_input(
        "Go",
        thread=f"t-{uuid.uuid4().hex}",
        messages=[
            {"id": "u", "role": "user", "content": "Go"},
            {
                "id": "a",
                "role": "assistant",
                "content": "",
                "toolCalls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            tool_message("c", {"x": 1}),
            {"id": "u2", "role": "user", "content": [{"type": "text", "text": "More"}]},
        ],
        tools=[{"name": "f", "description": "d", "parameters": {"type": "object"}}],
        context=[{"description": "d", "value": "v"}],
        resume=[{"interruptId": "c", "status": "resolved", "payload": {"x": 1}}],
    )


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A valid input, of which some places hold something else."""
    made: Any = valid()
    for _ in range(draw(st.integers(1, 3))):
        place: Any = made
        while True:
            keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            inside = place[key]
            if isinstance(inside, dict | list) and inside and draw(st.booleans()):
                place = inside
                continue
            match draw(st.sampled_from(["replace", "remove", "add"])):
                case "replace":
                    place[key] = draw(JSON)
                case "remove":
                    del place[key]
                case _ if isinstance(place, dict):
                    place[draw(TEXT)] = draw(JSON)
                case _:
                    place.append(draw(JSON))
            break
    return made


def as_bytes(value: Any) -> bytes:
    """JSON as somebody writes it who does not care: with NaN, lone surrogates as escapes."""
    return json.dumps(value).encode()


@given(given_input=mutated() | JSON)
@fuzzed
def test_inputs_that_are_wrong_somewhere(server: Background, given_input: Any) -> None:
    well_refused(*server.request("POST", "/agui", as_bytes(given_input)))


@given(given_input=mutated())
@fuzzed
def test_inputs_that_are_wrong_somewhere_for_google_adk(adk_server: Background, given_input: Any) -> None:
    well_refused(*adk_server.request("POST", "/agui", as_bytes(given_input)))


@given(body=st.binary(max_size=200), path=st.sampled_from(["/agui", "/runs/x/stop", "/threads/x/connect"]))
@fuzzed
def test_bodies_that_are_no_json(server: Background, body: bytes, path: str) -> None:
    well_refused(*server.request("POST", path, body))


@given(text=TEXT, data=st.data())
@fuzzed
def test_any_text_in_any_id(server: Background, text: str, data: st.DataObject) -> None:
    made = valid()
    place = data.draw(st.sampled_from(["threadId", "runId", "message", "call", "tool", "interrupt", "content"]))
    match place:
        case "threadId" | "runId":
            made[place] = text
        case "message":
            made["messages"][0]["id"] = text
        case "call":
            made["messages"][2]["toolCallId"] = text
        case "tool":
            made["tools"][0]["name"] = text
        case "interrupt":
            made["resume"][0]["interruptId"] = text
        case _:
            made["messages"][0]["content"] = text
    status, body, headers = server.request("POST", "/agui", as_bytes(made))
    well_refused(status, body, headers)


@pytest.mark.parametrize("text", ["a\0b", "tail\0", "smile 💥", "\u2028", "line\nline", "\x1b[31m"])
def test_any_text_in_messages_is_kept(server: Background, text: str) -> None:
    """Text is text: also what a database would stumble over."""
    made = run_input(text, thread=f"t-{uuid.uuid4().hex}")
    assert server.request("POST", "/agui", as_bytes(made))[0] == 200
    status, body, _ = server.request("POST", f"/threads/{made['threadId']}/connect")
    assert status == 200
    snapshot = next(line for line in body.decode().split("\n") if '"MESSAGES_SNAPSHOT"' in line)
    messages = json.loads(snapshot.removeprefix("data: "))["messages"]
    assert messages[0]["content"] == text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"',
        b"{",
        b'{"a":1',
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b'{"threadId":"\xff"}',
        b'{"threadId":"\\ud800"}',
        b'{"threadId":"\\u0000"}',
        b"[" * 49_000,
        b'{"a":' * 9_000,
        b"1" * 40_000,
        b"1e999999",
        b"NaN",
        b"-",
        b'{"threadId":"a","threadId":"b"}',
        b"x" * 60_000,
    ],
    ids=lambda body: str(body[:12]),
)
def test_bodies_of_ill_repute(server: Background, body: bytes) -> None:
    status, answer, headers = server.request("POST", "/agui", body)
    assert 400 <= status < 500
    well_refused(status, answer, headers)


# -- paths, methods, queries, headers --

METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "FOO", "get"])
PATH_TEXT = st.binary(max_size=40).map(quote_from_bytes) | TEXT.map(lambda text: quote(text, errors="surrogatepass"))


@given(method=METHODS, path=st.sampled_from(PATHS), text=PATH_TEXT)
@fuzzed
def test_any_path_and_method(server: Background, method: str, path: str, text: str) -> None:
    status, body, headers = server.request(method, path.format(text))
    if method == "HEAD":
        assert status < 500
    else:
        well_refused(status, body, headers)


@given(
    path=st.sampled_from([*GETS, "/runs/unknown/events", "/api/runs/x", "/api/calls/x"]),
    query=st.lists(
        st.tuples(
            st.sampled_from(["limit", "thread_id", "run_id", "state", "active", "after", "x"]) | PATH_TEXT,
            st.sampled_from(["0", "-1", "1e3", "9" * 30, "true", "awaiting", "%00", "%ff", "%ED%A0%80", "%D9%A3", ""])
            | PATH_TEXT,
        ),
        max_size=4,
    ),
)
@fuzzed
def test_any_query(server: Background, path: str, query: list[tuple[str, str]]) -> None:
    text = "&".join(f"{name}={value}" for name, value in query)
    well_refused(*server.request("GET", f"{path}?{text}"))


@pytest.fixture(scope="module")
def run_id(server: Background) -> str:
    _, _, headers = server.request("POST", "/agui", as_bytes(run_input(thread="to follow")))
    return str(headers["x-run-id"])


HEADER = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, blacklist_characters="\x7f"), max_size=40)


@given(last=HEADER | st.integers().map(str), after=PATH_TEXT | st.integers().map(str))
@fuzzed
def test_any_place_to_follow_from(server: Background, run_id: str, last: str, after: str) -> None:
    headers = {"last-event-id": last.encode("latin-1")}
    status, body, answered = server.request("GET", f"/runs/{run_id}/events?after={after}", headers=headers)
    well_refused(status, body, answered)
    if status == 200:
        assert body.endswith(b"event: end\ndata: {}\n\n")


@given(
    headers=st.dictionaries(
        st.sampled_from(
            ["host", "origin", "accept", "content-type", "expect", "sec-fetch-site", "authorization", "cookie", "range"]
            + ["x-forwarded-for", "x-forwarded-proto", "connection", "upgrade", "if-none-match", "content-encoding"]
        ),
        HEADER,
        max_size=4,
    )
)
@fuzzed
def test_any_header(server: Background, headers: dict[str, str]) -> None:
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    status, body, _ = server.request("GET", "/api/runs", headers=sent)
    assert status < 500, body
