from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import captures as module
from tests.captures import ROOT, WIRES, Capture, body, captures, declared_tools, each_capture, raw_body, reads

SELF_TEST = """
from tests.captures import each_capture

@each_capture("anthropic")
def test_it(capture):
    raise AssertionError("must not run")

def test_folder(wires):
    raise AssertionError("must not run")
"""


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of two small captures in place of the real one."""
    (tmp_path / "a.sse").write_bytes(b"data: 1\r\n\r\ndata: 2\n\n")
    (tmp_path / "b.jsonl").write_bytes(b'{"x": "\xe2\x80\xa8"}\n\n{"y": 2}\r\n')
    (tmp_path / "b.eventstream").write_bytes(b"\x00\x01")
    (tmp_path / "tools.json").write_bytes(b'[{"name": "t"}]')
    (tmp_path / "MANIFEST.jsonl").write_text(
        '{"file": "a.sse", "provider": "p", "wire": "anthropic_messages", "tool_calls": [], "read_sizes": [4, 16]}\n'
        '{"file": "b.jsonl", "provider": "p", "wire": "openai_chat", "raw_file": "b.eventstream", "model": "m",'
        ' "tools_file": "tools.json", "tool_calls": ['
        '{"id": "1", "name": "t", "kind": "function", "complete": true, "final_args_json": "{}"},'
        '{"id": null, "name": "s", "kind": "mcp_call", "complete": false}]}\n'
    )
    monkeypatch.setenv("CALLSTREAM_WIRES", str(tmp_path))
    module.folder.cache_clear()
    module._manifest.cache_clear()
    yield tmp_path
    module.folder.cache_clear()
    module._manifest.cache_clear()


def test_captures_by_either_name_of_the_wire(recorded: Path) -> None:
    assert [capture.file for capture in captures()] == ["a.sse", "b.jsonl"]
    assert captures("anthropic") == captures("anthropic_messages") == captures()[:1]


def test_body_is_raw_for_sse_and_framed_for_jsonl(recorded: Path) -> None:
    sse, jsonl = captures()
    assert body(sse) == b"data: 1\r\n\r\ndata: 2\n\n"
    # U+2028 is no line end here, and the carriage return of a CRLF file stays inside its frame, where SSE ignores it.
    assert body(jsonl) == b'data: {"x": "\xe2\x80\xa8"}\n\ndata: {"y": 2}\r\n\n'


def test_reads_are_the_body_in_pieces(recorded: Path) -> None:
    sse, jsonl = captures()
    assert reads(sse) == [b"data", b": 1\r\n\r\ndata: 2\n\n"]
    assert reads(jsonl) is None


def test_what_else_the_manifest_tells(recorded: Path) -> None:
    sse, jsonl = captures()
    assert [call.id for call in jsonl.client_calls] == ["1"]
    assert jsonl.entry["model"] == "m"
    assert (raw_body(sse), raw_body(jsonl)) == (None, b"\x00\x01")
    assert (declared_tools(sse), declared_tools(jsonl)) == ([], [{"name": "t"}])


def test_unknown_wire_is_an_error_not_an_empty_test(recorded: Path) -> None:
    with pytest.raises(LookupError, match="cohere_v2"):
        each_capture("cohere_v2")


def test_named_folder_that_is_not_there_is_an_error(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLSTREAM_WIRES", str(recorded / "nothing"))
    module.folder.cache_clear()
    with pytest.raises(FileNotFoundError, match="nothing"):
        module.folder()


@pytest.mark.subprocess
def test_absent_folder_skips_with_a_reason(tmp_path: Path) -> None:
    """A checkout without recorded streams beside it: both ways of asking for them skip, and say why."""
    (tmp_path / "checkout" / "tests").mkdir(parents=True)
    for name in ("__init__.py", "captures.py", "conftest.py", "examples.py"):
        (tmp_path / "checkout" / "tests" / name).write_bytes((ROOT / "tests" / name).read_bytes())
    (tmp_path / "checkout" / "tests" / "test_self.py").write_text(SELF_TEST)
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--rootdir=.",
            "-c",
            ROOT / "pyproject.toml",
            "tests",
        ],
        cwd=tmp_path / "checkout",
        env={"PYTHONPATH": f"{tmp_path / 'checkout'}:{ROOT / 'src'}", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 skipped" in run.stdout, run.stdout + run.stderr
    assert run.stdout.count(module.NOT_THERE) >= 1


@pytest.mark.parametrize("wire", WIRES)
def test_every_capture_can_be_read(wire: str, wires: Path) -> None:
    found = captures(wire)
    assert found, f"no capture of {wire}"
    for capture in found:
        assert body(capture)
        pieces = reads(capture)
        assert pieces is None or b"".join(pieces) == body(capture)


@each_capture("openai_responses")
def test_parametrized_over_captures(capture: Capture) -> None:
    assert capture.wire == "openai_responses"
