"""Requests that an SDK signs for AWS before the transport sees them: the signature still fits behind the tap."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from openai.providers import bedrock

from callstream import Callstream
from callstream.testing import ReceivedRequest, ScriptedProvider, ToolCall

from .clients import ASK

KEYS = {"aws_access_key": "AKIDEXAMPLE", "aws_secret_key": "a secret", "aws_region": "us-east-1"}
CREDENTIALS = Credentials("AKIDEXAMPLE", "a secret")
WRITE = ToolCall("write", {"title": "T", "content": "some text"}, call_id="c1")


def bedrock_client(url: str, http: Any) -> Any:
    return anthropic.AsyncAnthropicBedrock(**KEYS, base_url=url, http_client=http, max_retries=0)


def mantle_client(url: str, http: Any) -> Any:
    return anthropic.AsyncAnthropicBedrockMantle(**KEYS, base_url=f"{url}/anthropic", http_client=http, max_retries=0)


def aws_client(url: str, http: Any) -> Any:
    return anthropic.AsyncAnthropicAWS(**KEYS, workspace_id="w", base_url=url, http_client=http, max_retries=0)


def openai_client(url: str, http: Any) -> openai.AsyncOpenAI:
    provider = bedrock(
        base_url=f"{url}/openai/v1",
        region="us-east-1",
        access_key_id=CREDENTIALS.access_key,
        secret_access_key=CREDENTIALS.secret_key,
    )
    return openai.AsyncOpenAI(provider=provider, http_client=http, max_retries=0)


CLIENTS = {
    "AsyncAnthropicBedrock": ("bedrock_invoke", bedrock_client, ASK["bedrock_invoke"]),
    "AsyncAnthropicBedrockMantle": ("anthropic", mantle_client, ASK["anthropic"]),
    "AsyncAnthropicAWS": ("anthropic", aws_client, ASK["anthropic"]),
    "AsyncOpenAI, chat": ("openai_chat", openai_client, ASK["openai_chat"]),
    "AsyncOpenAI, responses": ("openai_responses", openai_client, ASK["openai_responses"]),
}


def recomputed(request: ReceivedRequest) -> tuple[str, str]:
    """The signature that a request brought, and the one that botocore makes for what arrived."""
    scheme, _, rest = request.headers["authorization"].partition(" ")
    assert scheme == "AWS4-HMAC-SHA256"
    fields = dict(field.strip().split("=", 1) for field in rest.split(","))
    _, _, region, service, _ = fields["Credential"].split("/")
    signed = {name: request.headers[name] for name in fields["SignedHeaders"].split(";")}
    arrived = AWSRequest(
        request.method, f"http://{request.headers['host']}{request.target}", headers=signed, data=request.body
    )
    arrived.context["timestamp"] = request.headers["x-amz-date"]
    signer = SigV4Auth(CREDENTIALS, service, region)
    return fields["Signature"], signer.signature(
        signer.string_to_sign(arrived, signer.canonical_request(arrived)), arrived
    )


@pytest.mark.parametrize("coding", [None, "gzip"])
@pytest.mark.parametrize("client", CLIENTS)
async def test_signed_untouched(client: str, coding: Any) -> None:
    """The answer is read all the same, and a provider that compresses because the client allowed it is understood."""
    wire, make, ask = CLIENTS[client]
    async with Callstream(journal="memory:") as cs, ScriptedProvider(wire, [WRITE], encoding=coding) as provider:
        async with cs.run("thread") as run, cs.httpx2_client(collapse="all") as http:
            answer = await ask(make(provider.base_url.removesuffix("/v1"), http))
        (request,) = provider.requests
        brought, made = recomputed(request)
        assert brought == made
        assert "accept-encoding" in request.headers["authorization"]
        assert answer.calls == [("c1", "write", WRITE.args)]
        assert [json.loads(call.args_json or "") for call in run.calls] == [WRITE.args]


@pytest.mark.parametrize(
    ("query", "authorization"),
    [
        ("?X-Amz-SignedHeaders=accept-encoding&X-Amz-Signature=00", None),
        ("", "AWS4-ECDSA-P256-SHA256 Credential=c, SignedHeaders=accept-encoding, Signature=00"),
    ],
)
async def test_other_forms_of_signatures_are_known(query: str, authorization: str | None) -> None:
    """A signature in the query, and one for several regions."""
    async with Callstream() as cs, ScriptedProvider("anthropic", [WRITE]) as provider:
        async with cs.httpx2_client(collapse="all") as http:
            body = b'{"messages": [ ], "tools": [{"name": "write", "input_schema": {}}]}'
            headers = {} if authorization is None else {"authorization": authorization}
            answer = await http.post(f"{provider.base_url}/v1/messages{query}", content=body, headers=headers)
            assert answer.status_code == 200
        (request,) = provider.requests
        assert request.body == body
        assert request.headers["accept-encoding"] != "identity"
        assert await cs.journal.call("c1") is not None
