"""Answers kept and given again, by a program that knows of nothing but an address."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from callstream.testing import Cut, ScriptedProvider, Text, ToolCall, recording_proxy

from .commands import Ran, ran, serving

Run = Callable[..., Ran]

PROGRAM = """
import os, sys
import anthropic
client = anthropic.Anthropic(max_retries=0)
with client.messages.stream(model="claude", max_tokens=99, messages=[{"role": "user", "content": "Hi"}]) as stream:
    message = stream.get_final_message()
print([block.input for block in message.content if block.type == "tool_use"])
sys.exit(7)
"""
SCRIPT = [Text("Let me look."), ToolCall("get_weather", {"city": "Paris"})]
BODY = {"model": "claude", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.slow
@pytest.mark.subprocess
def test_a_program_is_recorded_and_then_runs_without_its_provider(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    program = ("--", sys.executable, "program.py")
    with ScriptedProvider("anthropic", SCRIPT) as provider:
        arguments = ("record", "answers", "--wire", "anthropic", "--upstream", provider.base_url)
        done = ran(*arguments, *program, cwd=tmp_path, env={"ANTHROPIC_API_KEY": "sk-hush"})
        assert "sk-hush" in str(provider.requests[0].headers)
    assert done.out == "[{'city': 'Paris'}]\n"
    assert done.code == 7, done.err
    assert "1 exchange recorded in answers" in done.err
    kept = json.loads((tmp_path / "answers" / "0001.json").read_text())
    assert kept["path"] == "/v1/messages"
    assert "complete" not in kept  # it says so only of those that are not
    assert "sk-hush" not in (tmp_path / "answers" / "0001.json").read_text()

    again = ran("replay", "answers", *program, cwd=tmp_path)
    assert (again.code, again.out) == (7, "[{'city': 'Paris'}]\n")
    assert "1 request answered" in again.err


BEDROCK_PROGRAM = """
import boto3
client = boto3.client("bedrock-runtime")
messages = [{"role": "user", "content": [{"text": "Hi"}]}]
for event in client.converse_stream(modelId="claude", messages=messages)["stream"]:
    print(*event.get("contentBlockDelta", {}).get("delta", {}).get("text", ""), sep="", end="")
"""
ANTHROPIC_ON_BEDROCK_PROGRAM = """
import anthropic
client = anthropic.AnthropicBedrock(max_retries=0)
with client.messages.stream(model="claude", max_tokens=99, messages=[{"role": "user", "content": "Hi"}]) as stream:
    print(stream.get_final_message().content[0].text, end="")
"""


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("wire", "place", "program"),
    [
        ("bedrock_converse", "converse-stream", BEDROCK_PROGRAM),
        ("bedrock_invoke", "invoke-with-response-stream", ANTHROPIC_ON_BEDROCK_PROGRAM),
    ],
)
def test_a_program_for_bedrock_runs_without_keys_of_its_own(
    tmp_path: Path, wire: str, place: str, program: str
) -> None:
    (tmp_path / "program.py").write_text(program)
    with (
        ScriptedProvider(wire, [Text("Let me look.")]) as provider,
        recording_proxy(tmp_path / "a", provider.base_url) as proxy,
    ):
        asked = {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}
        if wire == "bedrock_invoke":
            asked = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 99, **asked}
        httpx.post(f"{proxy.origin}/model/claude/{place}", json=asked)
    done = ran("replay", "a", "--", sys.executable, "program.py", cwd=tmp_path, env={"AWS_BEARER_TOKEN_BEDROCK": "key"})
    assert (done.code, done.out) == (0, "Let me look."), done.err


@pytest.mark.slow
@pytest.mark.subprocess
def test_replay_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    with ScriptedProvider("anthropic", SCRIPT) as provider, recording_proxy(tmp_path / "a", provider.base_url) as proxy:
        first = httpx.post(f"{proxy.origin}/v1/messages", json=BODY)
    with serving("replay", "a", "--repeat", "--size", "7", cwd=tmp_path) as server:
        for _ in range(2):
            assert httpx.post(f"{server.url}/v1/messages", json=BODY).content == first.content
        assert server.end(signal.SIGINT) == 130
    with serving("replay", "a", cwd=tmp_path) as server:
        assert httpx.post(f"{server.url}/v1/messages", json=BODY).content == first.content
        assert httpx.post(f"{server.url}/v1/messages", json=BODY).status_code == 500
        assert server.end() == 1  # a program asked for more than there was
    assert any("is answered already (requests: " in line for line in server.lines)


ASKING = """
import os, sys, httpx
body = {"model": "claude", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
httpx.post(f"{os.environ[sys.argv[1]]}/v1/messages", json=body).raise_for_status()
"""


@pytest.mark.subprocess
def test_the_server_that_the_environment_names_is_recorded(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedProvider("anthropic", SCRIPT) as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", f"{provider.origin}/apps/claude/")
        program = ("--", sys.executable, "-c", ASKING, "ANTHROPIC_BASE_URL")
        done = run("record", "answers", "--wire", "anthropic", *program)
        assert [request.path for request in provider.requests] == ["/apps/claude/v1/messages"], done.err
    assert done.code == 0
    assert f"recording {provider.origin} into answers\n1 exchange recorded in answers" in done.err
    again = run("replay", "answers", *program)
    assert (again.code, "1 request answered" in again.err) == (0, True), again.err


@pytest.mark.subprocess
@pytest.mark.parametrize(("command", "code"), [("record a --wire anthropic", 0), ("replay a", 7)])
def test_a_program_that_names_its_server_itself_is_told_what_to_do(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, code: int
) -> None:
    with ScriptedProvider("anthropic", SCRIPT) as provider:
        with recording_proxy(tmp_path / "a", provider.base_url) as proxy:
            httpx.post(f"{proxy.origin}/v1/messages", json=BODY)
        monkeypatch.setenv("ITS_OWN", provider.base_url)
        done = run(*command.split(), "--", sys.executable, "-c", f"{ASKING}\nsys.exit({code})", "ITS_OWN")
        assert len(provider.requests) == 2
    assert done.code == (code or 1)  # the program's own, unless it says that all went well
    assert "ed: the program sent no request to the address in ANTHROPIC_BASE_URL" in done.err
    assert f"run `callstream {command} " in done.err
    assert "--port N` and put the address that this prints there" in done.err


@pytest.mark.parametrize(
    ("wire", "variables", "words"),
    [
        (
            "ollama",
            {"OLLAMA_HOST": "0.0.0.0:11434"},
            "in OLLAMA_HOST, got '0.0.0.0:11434'; --upstream takes precedence",
        ),
        ("anthropic", {"ANTHROPIC_BASE_URL": "http://me:hush@host"}, "in ANTHROPIC_BASE_URL, got 'http://me:…@host'"),
        ("anthropic", {"ANTHROPIC_BASE_URL": "http://host:x"}, "is not a valid address"),
        (
            "bedrock_invoke",
            {"AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "http://a", "ANTHROPIC_BEDROCK_BASE_URL": "http://b"},
            "AWS_ENDPOINT_URL_BEDROCK_RUNTIME and ANTHROPIC_BEDROCK_BASE_URL name different servers: give --upstream",
        ),
    ],
)
def test_an_environment_that_names_no_server_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch, wire: str, variables: dict[str, str], words: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = run("record", "a", "--wire", wire, "--", "true")
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "hush" not in done.err


def test_the_proxy_passes_bytes_as_they_come(tmp_path: Path) -> None:
    with ScriptedProvider("anthropic", SCRIPT, encoding="gzip") as provider:
        direct = httpx.post(f"{provider.base_url}/v1/messages", json=BODY)
        with recording_proxy(tmp_path, provider.base_url) as proxy:
            passed = httpx.post(f"{proxy.origin}/v1/messages?beta=true", json=BODY, headers={"x-api-key": "hush"})
        assert provider.requests[-1].query == {"beta": "true"}
    assert passed.headers["content-encoding"] == "gzip"
    assert passed.text.replace("msg_2", "msg_1").replace("toolu_2", "toolu_1") == direct.text
    assert proxy.exchanges == 1


def test_an_answer_that_breaks_off_breaks_off_here_too_and_is_kept_as_such(tmp_path: Path) -> None:
    with ScriptedProvider("anthropic", [Text("Once upon"), Cut()]) as provider:
        with recording_proxy(tmp_path, provider.base_url) as proxy:
            with pytest.raises(httpx.RemoteProtocolError):
                httpx.post(f"{proxy.origin}/v1/messages", json=BODY)
    kept = json.loads((tmp_path / "0001.json").read_text())
    assert kept["complete"] is False
    assert b"Once upon" in (tmp_path / "0001.body").read_bytes()


def test_a_provider_that_cannot_be_reached_is_an_answer(tmp_path: Path) -> None:
    with recording_proxy(tmp_path, "http://127.0.0.1:1") as proxy:
        answer = httpx.post(f"{proxy.origin}/v1/messages", json=BODY)
    assert answer.status_code == 502
    assert "could not reach http://127.0.0.1:1" in answer.json()["error"]["message"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "nowhere"], "which is not there"),
        (["record", "a", "--wire", "anthropic", "--upstream", "llm.example"], "expected the address of a provider"),
        (["record", "a", "--wire", "anthropic", "--", "no-such-program"], "command 'no-such-program' not found"),
        (["record", __file__, "--wire", "anthropic"], "expected a folder that can be written"),
        (["record", f"{__file__}/a", "--wire", "anthropic"], "expected a folder that can be written"),
        (["record", "a"], "the following arguments are required: --wire"),
    ],
)
def test_wrong_usage_is_one_sentence(run: Run, arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert words in done.err
