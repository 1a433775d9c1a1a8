"""The program of the page on Amazon Bedrock, with boto3 and a scripted provider."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from callstream.testing import Finish, ScriptedProvider, Text, ToolCall
from tests.tap.test_signed import KEYS, recomputed
from tests.test_quickstarts import DOCUMENT, executed

TURN = [
    [Text("I write."), ToolCall("write_document", DOCUMENT, call_id="c1"), ToolCall("write_document", {"title": 1}, call_id="c2")],
    [ToolCall("write_document", DOCUMENT, stop_after=2), Finish("length")],
    [ToolCall("wrote_document", DOCUMENT, call_id="c3", size=4)],
    [Text("Written.")],
]  # fmt: skip


def test_the_page_on_amazon_bedrock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with ScriptedProvider("bedrock_converse", TURN) as provider:
        monkeypatch.setenv("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", provider.base_url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["aws_access_key"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["aws_secret_key"])
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        page = executed("howto/bedrock.md")
        assert page["turn"]("Write of tides.") == "Written."
        assert capsys.readouterr().out.startswith(DOCUMENT["content"])
        states = [call.state for call in asyncio.run(page["cs"].journal.calls())]
        page["cs"].close()
        assert sorted(states) == ["completed", "discarded", "discarded", "discarded"]
        results = provider.requests[1].json["messages"][-1]["content"]
        assert results[0]["toolResult"]["status"] == "success"
        assert "title" in str(results[1])
        [answer] = provider.requests[3].json["messages"][-1]["content"]
        assert "there is no tool wrote_document" in str(answer["toolResult"])
        for request in provider.requests:
            assert request.json["additionalModelRequestFields"] == {
                "anthropic_beta": ["fine-grained-tool-streaming-2025-05-14"]
            }
            assert recomputed(request)[0] == recomputed(request)[1]
