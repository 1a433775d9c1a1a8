"""aiobotocore through its event hooks. It brings aiohttp, and is not part of the usual environment of the tests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from callstream import CallState, Callstream, Reject
from callstream.errors import CallRejected
from callstream.testing import Failure, Finish, ScriptedProvider, Text, ToolCall
from tests.sdks.bedrock import KEYS, MESSAGES, TOOLS, fold_converse, fold_whole
from tests.tap.test_boto import ANTHROPIC, ARGS, BETA, SCRIPT, WRITE
from tests.tap.test_signed import recomputed

aiobotocore = pytest.importorskip("aiobotocore.session")


@asynccontextmanager
async def client_of(provider: ScriptedProvider, cs: Callstream | None = None, **options: Any) -> AsyncIterator[Any]:
    session = aiobotocore.get_session()
    if cs is not None and options.pop("by_session", False):
        cs.tap_boto(session, **options)
        cs = None
    async with session.create_client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=provider.base_url,
        aws_access_key_id=KEYS["aws_access_key"],
        aws_secret_access_key=KEYS["aws_secret_key"],
    ) as client:
        yield client if cs is None else cs.tap_boto(client, **options)


async def ask(client: Any, **more: Any) -> Any:
    response = await client.converse_stream(modelId="us.anthropic.c", messages=MESSAGES, toolConfig=TOOLS, **more)
    return fold_converse([pair async for event in response["stream"] for pair in event.items()])


@pytest.mark.parametrize("by_session", [True, False])
@pytest.mark.parametrize("collapse", ["all", "none"])
async def test_the_sdk_puts_together_what_it_would_without_the_tap(collapse: Any, by_session: bool) -> None:
    seen: list[str] = []
    async with Callstream() as cs:
        cs.on_args_delta("write", lambda delta, signal: seen.append(delta.text))
        async with ScriptedProvider("bedrock_converse", SCRIPT) as provider:
            async with client_of(provider) as client:
                plain = await ask(client)
            async with (
                cs.run("thread") as run,
                client_of(provider, cs, collapse=collapse, by_session=by_session) as client,
            ):
                tapped = await ask(client)
            assert tapped.told == plain.told
            assert (tapped.pieces == 2) is (collapse == "all")
            assert [call.args for call in run.calls] == [ARGS, {"title": "x"}]
            assert json.loads("".join(seen)) == ARGS
            for request in provider.requests:
                assert recomputed(request)[0] == recomputed(request)[1]


async def test_truncated_failed_and_rejected_calls() -> None:
    def refuse(call: Any, signal: Any) -> None:
        raise Reject("not today")

    cut = ToolCall("other", ARGS, stop_after=2)
    for end, error in ((Finish("length"), None), (Failure("Too slow."), Exception)):
        async with Callstream() as cs, ScriptedProvider("bedrock_converse", [cut, end]) as provider:
            async with cs.run("thread") as run, client_of(provider, cs, collapse="all") as client:
                if error is None:
                    assert (await ask(client)).calls == []
                else:
                    with pytest.raises(error, match=r"Too slow\."):
                        await ask(client)
            assert [call.state for call in run.calls] == [CallState.DISCARDED]
    async with Callstream() as cs, ScriptedProvider("bedrock_converse", [WRITE]) as provider:
        cs.on_args_complete("write", refuse)
        async with cs.run("thread"), client_of(provider, cs, collapse="all") as client:
            with pytest.raises(CallRejected, match="not today"):
                await ask(client)


async def test_whole_answers_are_read() -> None:
    async with Callstream() as cs, ScriptedProvider("bedrock_converse", SCRIPT) as provider:
        async with cs.run("thread") as run, client_of(provider, cs) as client:
            answer = fold_whole(await client.converse(modelId="claude", messages=MESSAGES))
        assert [name for _, name, _ in answer.calls] == ["write", "other"]
        assert [call.args for call in run.calls] == [ARGS, {"title": "x"}]
    async with Callstream() as cs, ScriptedProvider("bedrock_invoke", SCRIPT) as provider:
        async with cs.run("thread") as run, client_of(provider, cs, stream_arguments=True, collapse="all") as client:
            response = await client.invoke_model(modelId="claude", body=json.dumps(ANTHROPIC))
            content = json.loads(await response["body"].read())["content"]
        assert [block["input"] for block in content if block["type"] == "tool_use"] == [ARGS, {"title": "x"}]
        assert [call.args for call in run.calls] == [ARGS, {"title": "x"}]
        assert provider.requests[0].json["anthropic_beta"] == [BETA]


async def test_leaving_early_ends_the_reading() -> None:
    script = [Text("Hi."), ToolCall("write", ARGS, call_id="c1", size=1), Text("and so on. " * 200, size=1)]
    async with Callstream() as cs, ScriptedProvider("bedrock_converse", script, deltas_per_second=200) as provider:
        async with cs.run("thread") as run, client_of(provider, cs, collapse="all") as client:
            response = await client.converse_stream(modelId="claude", messages=MESSAGES, toolConfig=TOOLS)
            async for event in response["stream"]:
                if "contentBlockDelta" in event:
                    break
            response["stream"].close()
        assert [call.state for call in run.calls] in ([], [CallState.DISCARDED], [CallState.RELEASED])
