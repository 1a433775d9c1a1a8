"""The README's example runs, prints what the README says, and the README promises nothing that is not there."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import pkgutil
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from callstream import open_journal
from callstream.testing import ScriptedProvider, ToolCall
from tests.captures import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Anthropic's first piece is always empty.
ARGUMENTS = ["", '{"title": "Ti', 'des", "content": "The mo', 'on pulls."}']


DECODING = (ROOT / "docs" / "howto" / "decoding.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def anthropic_response(arguments: Iterable[str]) -> list[bytes]:
    """One call of write_document on Anthropic's wire, one server-sent event an item."""
    payloads: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "claude",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {"input_tokens": 9, "output_tokens": 1},
            },
        },
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": "toolu_1", "name": "write_document", "input": {}},
        },
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": text},
            }
            for text in arguments
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 30},
        },
        {"type": "message_stop"},
    ]
    return [f"event: {payload['type']}\ndata: {json.dumps(payload)}\n\n".encode() for payload in payloads]


def printed_for(chunks: Iterable[bytes]) -> str:
    namespace: dict[str, Any] = {}
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(blocks("python", DECODING)[0], "decoding.md", "exec"), namespace)
        namespace["watch"](chunks)
    return output.getvalue()


async def test_the_example_with_the_sdk_shows_content_while_it_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first block as it stands, with the SDK's own environment variables pointing to a scripted provider."""
    document = {"title": "Tides", "content": "The moon pulls.\n" * 20}
    async with ScriptedProvider("anthropic", [ToolCall("write_document", document, call_id="c1")]) as provider:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.base_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
        namespace: dict[str, Any] = {}
        exec(compile(blocks("python")[0], "README.md", "exec"), namespace)
        tools = [namespace["write_document"].schema("anthropic")]
        asked = {"model": "claude", "max_tokens": 100, "messages": [{"role": "user", "content": "go"}], "tools": tools}
        async with namespace["client"] as client, client.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
        assert message.content[0].input == document
        assert capsys.readouterr().out == document["content"]
        kept = await namespace["cs"].journal.call("c1")
        assert kept.args == document
        await namespace["cs"].aclose()
    assert (tmp_path / "calls.db").exists()


def test_example_prints_what_the_readme_says() -> None:
    [shown] = blocks("text", DECODING)
    assert printed_for(anthropic_response(ARGUMENTS)) == shown


def test_example_does_not_depend_on_how_bytes_are_cut() -> None:
    [shown] = blocks("text", DECODING)
    body = b"".join(anthropic_response(ARGUMENTS))
    assert printed_for([body[at : at + 1] for at in range(len(body))]).splitlines()[-1] == shown.splitlines()[-1]
    assert printed_for([body]).splitlines()[-1] == shown.splitlines()[-1]


def test_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", README, re.MULTILINE))
    assert {"test", "demo", "bench"} <= {name for names in named for name in names if name} <= targets


def test_what_there_is_can_be_imported() -> None:
    modules = re.findall(r"^\| `(callstream[\w.]*)` \|", README, re.MULTILINE)
    assert len(modules) >= 8
    for module in modules:
        assert importlib.import_module(module).__doc__, f"{module} is not there"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_links_lead_somewhere(document: Any) -> None:
    text = document.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("https://")]
    for link in links:
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.is_file(), f"{link} in {document.name}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [heading.lower().replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("room", ["", ".adk", ".ag_ui_adk", ".agui", ".server", ".testing"])
def test_every_public_name_is_in_the_reference(room: str) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    told = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    module = importlib.import_module(f"callstream{room}")
    homes = [importlib.import_module(name) for name in ("callstream.errors", "callstream.testing.script")]
    elsewhere = {name for home in homes if home.__name__ in told for name in vars(home)}
    named = {name.rpartition(".")[2] for name in told} | elsewhere
    assert [name for name in module.__all__ if name not in named] == []


def test_the_reference_tells_of_nothing_that_is_not_there() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", pages, re.MULTILINE):
        pkgutil.resolve_name(name)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_options_of_journal_urls_are_known(document: Any) -> None:
    text = document.read_text(encoding="utf-8")
    for query in re.findall(r"\?((?:durability|listen|statement_cache_size)=[\w&=]+)", text):
        open_journal(("sqlite:///x.db?" if query.startswith("durability") else "postgresql://host/x?") + query)


@pytest.mark.parametrize("page", ["hooks", "journal"])
def test_the_code_of_a_how_to_runs(page: str) -> None:
    text = (ROOT / "docs" / "howto" / f"{page}.md").read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found
    names: dict[str, Any] = {}
    for block in found:
        exec(compile(block, f"{page}.md", "exec"), names)
