"""Scripts as JSON, and the provider as a process of its own that serves one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from callstream import testing
from callstream.errors import UsageError
from callstream.testing import (
    Cut,
    Delay,
    Failure,
    Finish,
    HttpError,
    Parallel,
    Text,
    Thought,
    ToolCall,
    Truncated,
    encode,
    encode_whole,
    provider,
    script_from_json,
    script_to_json,
)
from tests.captures import ROOT
from tests.testing.asking import WIRES, Said, ask, client_of

EVERY_STEP: list[Any] = [
    Text("a", size=1),
    Thought("b", signature="c2ln"),
    ToolCall("c", {"d": [1, None]}, call_id="", stop_after=1),
    Parallel([ToolCall("e"), ToolCall("f", text="{}")]),
    Delay(0.5),
    Finish("length"),
    Failure("g", "h"),
    Truncated(),
    Cut(reset=True),
    HttpError(429, retry_after=1.5),
]


@pytest.mark.parametrize("script", [EVERY_STEP, [[step] for step in EVERY_STEP], []], ids=["one", "many", "empty"])
def test_scripts_come_back_from_json(script: Any) -> None:
    assert script_from_json(script_to_json(script)) == script


def test_scripts_can_be_written_by_hand() -> None:
    text = '[{"step": "text", "text": "Hi"}, {"step": "call", "name": "a", "args": {"b": 1}}, {"step": "cut"}]'
    assert script_from_json(text) == [Text("Hi"), ToolCall("a", {"b": 1}), Cut()]
    assert script_from_json('[{"step": "refusal", "status": 503}]') == [HttpError(503)]


def test_the_names_that_steps_had_before_still_work() -> None:
    with pytest.warns(DeprecationWarning, match=r"(Call is called ToolCall|Refusal is called HttpError) now") as warned:
        assert (testing.Call, testing.Refusal) == (ToolCall, HttpError)
    assert [warning.filename for warning in warned] == [__file__] * 2


@pytest.mark.parametrize("text", ["{", "{}", '[{"step": "jump"}]', '[{"step": "text"}]', "[1]", b"\xff"])
def test_what_is_no_script_is_told(text: Any) -> None:
    with pytest.raises(UsageError, match="expected a script"):
        script_from_json(text)


@pytest.mark.parametrize("wire", WIRES)
def test_a_refusal_has_a_body_and_no_stream(wire: str) -> None:
    assert b"Slow down" in encode_whole(wire, [HttpError(429, "Slow down")])
    with pytest.raises(UsageError, match="has no stream"):
        encode(wire, [HttpError(429)])


# -- as a process ------------------------------------------------------------------------------------------------------


@pytest.mark.subprocess
async def test_a_process_of_its_own_serves_a_script_until_it_is_told_to_end(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_bytes(script_to_json([Text("From far away.", size=2)]))
    command = [sys.executable, "-W", "error", "-m", "callstream.testing.provider", "--wire", "anthropic"]
    command += ["--script", str(tmp_path / "script.json"), "--port", "0", "--encoding", "gzip"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)
    try:
        assert server.stdout is not None
        address = (await server.stdout.readline()).decode().strip()
        async with client_of(_Served("anthropic", address)) as client:  # type: ignore[arg-type]
            said: Said = await ask(client, "anthropic")
    finally:
        server.terminate()
        out, err = await server.communicate()
    assert said.text == "From far away."
    assert (server.returncode, out, err) == (0, b"", b"")


class _Served:
    """What a client needs to know of a provider."""

    def __init__(self, wire: str, base_url: str) -> None:
        self.wire = wire
        self.base_url = base_url


def test_main_tells_what_is_wrong_with_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "script.json"
    arguments = ["--wire", "gemini", "--script", str(file), "--strict-signatures"]
    assert provider.main(arguments) == 2
    assert "script.json" in capsys.readouterr().err
    file.write_text("[]")
    assert provider.main(arguments) == 2
    assert "expected a script" in capsys.readouterr().err


@pytest.mark.parametrize("fails", [False, True])
def test_main_ends_when_it_is_told_to(
    fails: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: the signal is sent when the address is printed."""
    file = tmp_path / "script.json"
    file.write_bytes(script_to_json([Text("Hi")]))
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    if fails:
        monkeypatch.setattr(provider.ScriptedProvider, "_raise_errors", _fail)
    with monkeypatch.context() as changed:
        changed.setattr(sys.stdout, "flush", lambda: os.kill(os.getpid(), signal.SIGTERM))
        try:
            assert provider.main(["--wire", "openai_chat", "--script", str(file)]) == int(fails)
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)
    printed = capsys.readouterr()
    assert printed.out.startswith("http://127.0.0.1:")
    assert printed.out.endswith("/v1\n")
    assert printed.err == ("it failed\n" if fails else "")


def _fail(self: Any) -> None:
    raise UsageError("it failed")


# -- what the package gives --------------------------------------------------------------------------------------------


def test_public_names_are_there_and_nothing_else_is() -> None:
    from callstream import testing

    assert [name for name in testing.__all__ if not hasattr(testing, name)] == []
    assert set(testing.__all__) <= set(dir(testing))
    with pytest.raises(AttributeError, match="no attribute 'Telepathy'"):
        testing.Telepathy  # noqa: B018
