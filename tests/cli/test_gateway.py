"""``callstream gateway`` as people run it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from callstream.testing import Finish, ScriptedProvider, Text, ToolCall
from tests.gated import PATIENCE

from .commands import Ran, environment, ran, serving


def test_the_gateway_serves_its_upstreams_and_says_their_addresses(tmp_path: Path) -> None:
    with ScriptedProvider("anthropic", [Text("Hello."), Finish()]) as provider:
        upstream = f"anthropic={provider.origin}/v1"
        further = [f"--upstream={name}={provider.origin}/v1" for name in ("vllm", "groq", "azure")]
        with serving("gateway", "--port", "0", "--upstream", upstream, *further, cwd=tmp_path) as server:
            body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
            answer = httpx.post(f"{server.url}/anthropic/v1/messages", json=body, headers={"x-api-key": "secret"})
            assert answer.json()["content"][0]["text"] == "Hello."
            [run] = httpx.get(f"{server.url}/api/runs").json()["runs"]
            assert run["run_id"] == answer.headers["callstream-run"]
            assert "secret" not in (tmp_path / "callstream.db").read_bytes().decode("latin-1")
        bases = [line.removeprefix("base URL for ") for line in server.lines if line.startswith("base URL")]
        paths = {"anthropic": "anthropic", "openai": "openai/v1", "gemini": "gemini"}
        paths |= {name: name for name in ("vllm", "groq", "azure")}
        assert bases == [f"{name}: {server.url}/{path}" for name, path in paths.items()]


def _runs(url: str) -> list[dict[str, Any]]:
    """The newest first."""
    return list(httpx.get(f"{url}/api/runs").json()["runs"])


@pytest.mark.slow
def test_after_a_gateway_was_killed_the_same_request_gets_a_new_answer(tmp_path: Path) -> None:
    script = [Text("The moon pulls at the sea. " * 20, size=9), Finish()]
    with ScriptedProvider("anthropic", [script, script], deltas_per_second=10) as provider:
        arguments = ("gateway", "--port", "0", "--linger", "60", "--upstream", f"anthropic={provider.origin}/v1")
        body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        with serving(*arguments, cwd=tmp_path) as server:
            with httpx.stream("POST", f"{server.url}/anthropic/v1/messages", json=body) as answer:
                next(answer.iter_raw())
            time.sleep(1)  # it sees that its client has left
            server.process.kill()
            server.process.wait()
        with serving(*arguments, cwd=tmp_path) as server:
            again = httpx.post(f"{server.url}/anthropic/v1/messages", json=body, timeout=120)
            assert b"message_stop" in again.content
            assert len(provider.requests) == 2
            until = time.monotonic() + PATIENCE
            while (runs := _runs(server.url))[0]["outcome"] is None and time.monotonic() < until:
                time.sleep(0.05)  # the run ends a moment after its answer
        assert [(run["outcome"], run["thread_id"].startswith("callstream kept")) for run in runs] == [
            ("finished", False),
            ("failed", False),
        ]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_key_is_logged(tmp_path: Path, log_format: str) -> None:
    with ScriptedProvider("gemini", [Text("Hello."), Finish()]) as provider:
        arguments = ("--upstream", f"gemini={provider.origin}", "--verbose", "--log-format", log_format)
        with serving("gateway", "--port", "0", *arguments, cwd=tmp_path) as server:
            url = f"{server.url}/gemini/v1beta/models/g:generateContent?key=xyzzy"
            answer = httpx.post(url, json={"contents": []}, headers={"authorization": "Bearer plugh"})
            assert answer.status_code == 200
    logged = "\n".join(server.lines)
    assert "generateContent" in logged
    assert "xyzzy" not in logged
    assert "plugh" not in logged


def test_a_log_format_that_there_is_not(run: Callable[..., Ran]) -> None:
    done = run("gateway", "--auth", "--log-format", "xml")
    assert done.code == 2
    assert "expected text or json, got 'xml'" in done.err


def test_guards_are_rules_and_policies_in_files_and_functions(tmp_path: Path) -> None:
    policies = "permit (principal, action, resource) unless { context.args has loud };"
    (tmp_path / "policies.cedar").write_text(policies, encoding="utf-8")
    (tmp_path / "rules.yaml").write_text("rules: [{name: keys, pattern: sk-, message: No keys.}]", encoding="utf-8")
    guard = "from callstream.guards import deny\n\ndef small(call):\n    return deny('Too long.') if 'long' in call.args else None\n"
    (tmp_path / "guarding.py").write_text(guard, encoding="utf-8")
    scripts = [[ToolCall("write", {"a": "sk-1"}), Finish()], [ToolCall("write", {"long": 1}), Finish()]]
    scripts.append([ToolCall("write", {"loud": 1}), Finish()])
    with ScriptedProvider("anthropic", scripts) as provider:
        arguments = (
            "--upstream",
            f"anthropic={provider.origin}/v1",
            "--guard",
            "rules.yaml",
            "--guard",
            "guarding:small",
            "--guard",
            "policies.cedar",
        )
        with serving("gateway", "--port", "0", *arguments, cwd=tmp_path) as server:
            said = []
            for text in ("Hi", "Ho", "Hey"):
                body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
                answer = httpx.post(f"{server.url}/anthropic/v1/messages", json=body)
                said.append([block.get("text") for block in answer.json()["content"]])
    reasons = ("No keys.", "Too long.", "no policy permits this call")
    assert said == [[f"write was refused: {reason}"] for reason in reasons]


@pytest.mark.subprocess
@pytest.mark.parametrize("absent", ["starlette", "ag_ui", "uvicorn"])
def test_an_extra_that_is_missing_is_named_in_one_sentence(absent: str) -> None:
    program = f"import sys; sys.modules[{absent!r}] = None; from callstream.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "gateway", "--journal", "memory:", "--port", "0"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    said = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout) == (2, "")
    assert said.startswith("callstream gateway: ")
    assert "pip install 'callstream[server]'" in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--host", "0.0.0.0"), "give --auth, or --open"),
        (("--auth",), "CALLSTREAM_GATEWAY_KEY, which is not set"),
        (("--upstream", "vllm"), "expected --upstream NAME=URL"),
        (("--upstream", "vllm=ftp://x"), "expected an upstream such as vllm="),
        (("--guard", "rules.yaml"), "could not read the rules in rules.yaml"),
        (("--guard", "none.cedar"), "could not read Cedar policies"),
        (("--guard", "json:decoder"), "which cannot be called"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_served(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    refused = ran("gateway", "--port", "0", *arguments, cwd=tmp_path)
    assert (refused.code, complaint in refused.err) == (2, True)
