"""Amazon Bedrock: anthropic's client for InvokeModel over HTTP, and boto3 for Converse."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from io import BytesIO
from typing import Any

import anthropic
import boto3
from botocore.awsrequest import AWSResponse
from botocore.config import Config

from tests.sdks.anthropic import AnthropicSdk
from tests.sdks.sdk import NAMES, SCHEMA, Answer, loads

KEYS = {"aws_access_key": "AKIDEXAMPLE", "aws_secret_key": "a secret", "aws_region": "us-east-1"}
TOOLS = {"tools": [{"toolSpec": {"name": name, "inputSchema": {"json": SCHEMA}}} for name in NAMES]}
MESSAGES: Any = [{"role": "user", "content": [{"text": "go"}]}]


class BedrockInvokeSdk(AnthropicSdk):
    """anthropic's client, which signs each request before the transport sees it."""

    stream_type = "application/vnd.amazon.eventstream"

    def client(self, base_url: str, http: Any, retries: int) -> Any:
        return anthropic.AsyncAnthropicBedrock(**KEYS, base_url=base_url, http_client=http, max_retries=retries)

    def raw(self, base_url: str) -> tuple[str, dict[str, Any]]:
        return (
            f"{base_url}/model/claude/invoke-with-response-stream",
            {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 1, "messages": []},
        )


def bedrock_client(endpoint: str, *, retries: int = 0, **options: Any) -> Any:
    """A client of boto3 that signs with made-up keys. It reads no configuration of the machine."""
    config = Config(retries={"total_max_attempts": retries + 1, "mode": "standard"}, **options)
    return _session().client("bedrock-runtime", endpoint_url=endpoint, config=config)


@cache
def _session() -> boto3.Session:
    """One for all: it keeps the descriptions of the service, which take long to read."""
    return boto3.Session(
        aws_access_key_id=KEYS["aws_access_key"], aws_secret_access_key=KEYS["aws_secret_key"], region_name="us-east-1"
    )


def converse_events(client: Any, **more: Any) -> list[tuple[str, Any]]:
    """The events of a streamed answer to a request that declares tools: type and payload."""
    request = {"modelId": "claude", "messages": MESSAGES, "toolConfig": TOOLS, **more}
    return [pair for event in client.converse_stream(**request)["stream"] for pair in event.items()]


def fold_converse(events: list[tuple[str, Any]]) -> Answer:
    """boto3 hands the events on; programs put them together by index, as here."""
    answer = Answer()
    calls: dict[int, list[Any]] = {}
    for kind, event in events:
        match kind:
            case "contentBlockStart" if "toolUse" in event["start"]:
                use = event["start"]["toolUse"]
                assert event["contentBlockIndex"] not in calls
                calls[event["contentBlockIndex"]] = [use["toolUseId"], use["name"], ""]
            case "contentBlockDelta":
                delta = event["delta"]
                answer.text += delta.get("text", "")
                answer.thoughts += delta.get("reasoningContent", {}).get("text", "")
                if "toolUse" in delta:
                    calls[event["contentBlockIndex"]][2] += delta["toolUse"]["input"]
                    answer.pieces += bool(delta["toolUse"]["input"])
            case "messageStop":
                answer.finish = event["stopReason"]
    answer.calls = [(call_id, name, loads(text)) for call_id, name, text in calls.values()]
    answer.events = len(events)
    return answer


def fold_whole(response: Any) -> Answer:
    answer = Answer()
    answer.finish = response["stopReason"]
    for block in response["output"]["message"]["content"]:
        answer.text += block.get("text", "")
        answer.thoughts += block.get("reasoningContent", {}).get("reasoningText", {}).get("text", "")
        if "toolUse" in block:
            use = block["toolUse"]
            answer.calls.append((use["toolUseId"], use["name"], use["input"]))
    return answer


class _Body(BytesIO):
    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()


def read_converse(body: bytes, *, stream: bool = True) -> Answer:
    """What boto3 makes of the body of a response."""
    kind = "application/vnd.amazon.eventstream" if stream else "application/json"

    def answered(request: Any, **_: Any) -> AWSResponse:
        return AWSResponse(request.url, 200, {"content-type": kind}, _Body(body))

    client = bedrock_client("http://127.0.0.1:9")
    client.meta.events.register("before-send.bedrock-runtime", answered)
    if stream:
        return fold_converse(converse_events(client))
    return fold_whole(client.converse(modelId="claude", messages=MESSAGES))
