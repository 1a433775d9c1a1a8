"""boto3 through its own event hooks, against scripted providers over real HTTP, with signed requests."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import boto3
import botocore.session
import pytest
from botocore.exceptions import ClientError, EventStreamError

from callstream import CallState, Callstream, Reject
from callstream.errors import CallRejected, UsageError
from callstream.tap import Limits, TapSettings
from callstream.testing import (
    Cut,
    Delay,
    Failure,
    Finish,
    HttpError,
    Parallel,
    ScriptedProvider,
    Text,
    Thought,
    ToolCall,
)
from tests.sdks.bedrock import (
    MESSAGES,
    TOOLS,
    bedrock_client,
    converse_events,
    fold_converse,
    fold_whole,
)
from tests.sdks.sdk import SCHEMA
from tests.tap.test_signed import recomputed

ARGS = {"title": "Notes", "content": "one two three"}
WRITE = ToolCall("write", ARGS, call_id="c1", size=4)
SCRIPT = [Thought("Hm."), Text("Let me write."), WRITE, ToolCall("other", {"title": "x"}, call_id="c2")]


@pytest.fixture
def cs() -> Iterator[Callstream]:
    with Callstream() as made:
        yield made


def client_of(provider: ScriptedProvider, cs: Callstream | None = None, **options: Any) -> Any:
    client = bedrock_client(provider.base_url, retries=options.pop("retries", 0))
    return client if cs is None else cs.tap_boto(client, **options)


def ask(provider: ScriptedProvider, cs: Callstream | None = None, **options: Any) -> Any:
    return fold_converse(converse_events(client_of(provider, cs, **options)))


# -- streams --


@pytest.mark.parametrize("collapse", ["known", "all", "none"])
def test_the_sdk_puts_together_what_it_would_without_the_tap(cs: Callstream, collapse: Any) -> None:
    cs.on_args_delta("write", lambda delta, signal: None)
    with ScriptedProvider("bedrock_converse", SCRIPT) as provider:
        plain = ask(provider)
        with cs.run("thread") as run:
            tapped = ask(provider, cs, collapse=collapse)
        assert tapped.told == plain.told
        others = plain.pieces - len(json.dumps(ARGS, separators=(",", ":"))) // 4
        assert tapped.pieces <= {"all": 2, "known": 1 + others, "none": plain.pieces}[collapse]
        assert [(call.call_id, call.args) for call in run.calls] == [("c1", ARGS), ("c2", {"title": "x"})]
        for request in provider.requests:
            brought, made = recomputed(request)
            assert brought == made


def test_hooks_run_in_order_and_before_the_call_arrives(cs: Callstream) -> None:
    seen: list[Any] = []
    cs.on_args_delta("write", lambda delta, signal: seen.append(delta.text))
    cs.on_args_complete("write", lambda call, signal: seen.append("complete"))
    with ScriptedProvider("bedrock_converse", [WRITE]) as provider, cs.run("thread"):
        for kind, event in _events(client_of(provider, cs)):
            if kind == "contentBlockStart":
                assert seen[-1] == "complete"
                seen.append("arrived")
            if kind == "contentBlockDelta":
                assert json.loads(event["delta"]["toolUse"]["input"]) == ARGS
    assert "".join(seen[:-2]) == json.dumps(ARGS, separators=(",", ":"))
    assert len(seen) > 4
    assert seen[-2:] == ["complete", "arrived"]


def _events(client: Any, **more: Any) -> Iterator[tuple[str, Any]]:
    request = {"modelId": "claude", "messages": MESSAGES, "toolConfig": TOOLS, **more}
    for event in client.converse_stream(**request)["stream"]:
        yield from event.items()


def test_a_loop_of_turns(cs: Callstream) -> None:
    """Results go back in the next request, and end their calls."""
    with ScriptedProvider("bedrock_converse", [[WRITE], [Text("Done.")]]) as provider:
        client = client_of(provider, cs, collapse="all")
        with cs.run("thread") as run:
            assert ask_with(client, MESSAGES).calls == [("c1", "write", ARGS)]
            use = {"toolUse": {"toolUseId": "c1", "name": "write", "input": ARGS}}
            result = {"toolResult": {"toolUseId": "c1", "content": [{"text": "written"}]}}
            turns = [*MESSAGES, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
            assert ask_with(client, turns).text == "Done."
        (call,) = run.calls
        assert (call.state, call.result) == (CallState.COMPLETED, [{"text": "written"}])


def ask_with(client: Any, messages: Any) -> Any:
    return fold_converse(converse_events(client, messages=messages))


def test_a_model_may_be_named_by_its_arn(cs: Callstream) -> None:
    arn = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-v1:0"
    with ScriptedProvider("bedrock_converse", [WRITE]) as provider, cs.run("thread") as run:
        client = client_of(provider, cs, collapse="all")
        assert fold_converse(converse_events(client, modelId=arn)).calls == [("c1", "write", ARGS)]
    assert len(run.calls) == 1


def test_truncated_never_runs(cs: Callstream) -> None:
    for end in (Finish("length"), Finish("malformed_tool_use")):
        script = [Text("Hi."), ToolCall("write", ARGS, stop_after=2 if end.reason == "length" else None), end]
        with ScriptedProvider("bedrock_converse", script) as provider, cs.run("thread") as run:
            answer = ask(provider, cs, collapse="all")
        assert (answer.text, answer.calls, answer.finish) == ("Hi.", [], ask_finish(end))
        assert [call.state for call in run.calls] == [CallState.DISCARDED]


def ask_finish(end: Finish) -> str:
    return {"length": "max_tokens"}.get(end.reason or "", end.reason or "")


def test_an_exception_in_the_stream_is_the_sdk_s_to_raise(cs: Callstream) -> None:
    script = [
        Text("Hi."),
        ToolCall("write", ARGS, call_id="c1", stop_after=3),
        Failure("Too slow.", "modelStreamErrorException"),
    ]
    with ScriptedProvider("bedrock_converse", script) as provider:
        with cs.run("thread") as run, pytest.raises(EventStreamError, match=r"modelStreamErrorException.*Too slow\."):
            ask(provider, cs, collapse="all")
        assert [(call.state, call.reason) for call in run.calls] == [(CallState.DISCARDED, "interrupted")]


def test_a_broken_connection_is_the_sdk_s_error(cs: Callstream) -> None:
    with ScriptedProvider("bedrock_converse", [Text("Hi."), ToolCall("write", ARGS, stop_after=3), Cut()]) as provider:
        with pytest.raises(Exception) as plain:
            ask(provider)
        with cs.run("thread") as run, pytest.raises(type(plain.value)):
            ask(provider, cs, collapse="all")
        assert [(call.state, call.reason) for call in run.calls] == [(CallState.DISCARDED, "interrupted")]


def test_leaving_early_ends_the_reading(cs: Callstream) -> None:
    script = [Text("Hi."), ToolCall("write", ARGS, call_id="c1", stop_after=2), Delay(60)]
    with ScriptedProvider("bedrock_converse", script) as provider, cs.run("thread") as run:
        stream = client_of(provider, cs, collapse="all").converse_stream(
            modelId="claude", messages=MESSAGES, toolConfig=TOOLS
        )["stream"]
        for event in stream:
            if "contentBlockDelta" in event:
                break
        stream.close()
        assert [(call.state, call.reason) for call in run.calls] in ([], [(CallState.DISCARDED, "aborted")])


def test_a_rejected_call_raises_out_of_the_stream(cs: Callstream) -> None:
    def refuse(call: Any, signal: Any) -> None:
        raise Reject("not today")

    cs.on_args_complete("write", refuse)
    with ScriptedProvider("bedrock_converse", SCRIPT) as provider:
        with cs.run("thread") as run, pytest.raises(CallRejected, match="not today"):
            ask(provider, cs, collapse="all")
        assert run.calls[0].state is CallState.DISCARDED
        with cs.run("thread", rejected="forward") as run:
            assert [name for _, name, _ in ask(provider, cs, collapse="all").calls] == ["write", "other"]


def test_a_held_call_keeps_the_stream_alive(cs: Callstream) -> None:
    """Events of a type that the service does not have come while a hook runs, and botocore passes over them."""
    gate = threading.Event()
    cs.on_args_delta("write", lambda delta, signal: gate.wait(5))
    with ScriptedProvider("bedrock_converse", [WRITE]) as provider:
        client = bedrock_client(provider.base_url)
        cs._tap.boto(client, TapSettings("bedrock_converse", "all", limits=Limits(keep_alive_every=0.01)))
        kept: list[bytes] = []

        def count(response_dict: Any, **_: Any) -> None:
            chunks = response_dict["body"].stream()

            def counted() -> Iterator[bytes]:
                for chunk in chunks:
                    kept.append(chunk)
                    if sum(b"keepAlive" in each for each in kept) == 3:
                        gate.set()
                    yield chunk

            response_dict["body"].stream = counted

        client.meta.events.register_last("before-parse.bedrock-runtime", count)
        assert fold_converse(converse_events(client)).calls == [("c1", "write", ARGS)]
    assert sum(b"keepAlive" in chunk for chunk in kept) >= 3


# -- whole answers and errors --


def test_whole_answers_are_read(cs: Callstream) -> None:
    with ScriptedProvider("bedrock_converse", SCRIPT) as provider, cs.run("thread") as run:
        plain = fold_whole(client_of(provider).converse(modelId="claude", messages=MESSAGES))
        tapped = fold_whole(client_of(provider, cs).converse(modelId="claude", messages=MESSAGES))
        assert tapped.told == plain.told
    assert [call.args for call in run.calls] == [ARGS, {"title": "x"}]


def test_a_refused_request_is_tried_again_and_read_once(cs: Callstream) -> None:
    with ScriptedProvider("bedrock_converse", [[HttpError(503)], [WRITE]]) as provider, cs.run("thread") as run:
        assert ask(provider, cs, retries=1, collapse="all").calls == [("c1", "write", ARGS)]
        assert len(provider.requests) == 2
    assert len(run.calls) == 1
    with ScriptedProvider("bedrock_converse", [HttpError(400, "no such model")]) as provider, cs.run("thread") as run:
        with pytest.raises(ClientError, match=r"ValidationException.*no such model"):
            ask(provider, cs)


# -- InvokeModel --

ANTHROPIC = {
    "anthropic_version": "bedrock-2023-05-31",
    "max_tokens": 10,
    "messages": [{"role": "user", "content": "go"}],
    "tools": [{"name": "write", "input_schema": SCHEMA}, {"name": "other", "input_schema": SCHEMA}],
}


@pytest.mark.parametrize("body", [json.dumps(ANTHROPIC), json.dumps(ANTHROPIC).encode()])
def test_invoke_model_with_response_stream(cs: Callstream, body: Any) -> None:
    with ScriptedProvider("bedrock_invoke", SCRIPT) as provider, cs.run("thread") as run:
        client = client_of(provider, cs, collapse="all")
        stream = client.invoke_model_with_response_stream(modelId="anthropic.claude", body=body)["body"]
        events = [json.loads(event["chunk"]["bytes"]) for event in stream]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        texts = [delta["partial_json"] for delta in deltas if delta["type"] == "input_json_delta"]
        assert [json.loads(text) for text in texts] == [ARGS, {"title": "x"}]
        assert recomputed(provider.requests[0])[0] == recomputed(provider.requests[0])[1]
    assert [call.args for call in run.calls] == [ARGS, {"title": "x"}]


def test_invoke_model(cs: Callstream) -> None:
    with ScriptedProvider("bedrock_invoke", SCRIPT) as provider, cs.run("thread") as run:
        answers = [
            json.loads(client.invoke_model(modelId="anthropic.claude", body=json.dumps(ANTHROPIC))["body"].read())
            for client in (client_of(provider), client_of(provider, cs))
        ]
        assert [block["type"] for block in answers[0]["content"]] == [block["type"] for block in answers[1]["content"]]
        assert answers[0]["content"][1:] == answers[1]["content"][1:]
    assert [call.args for call in run.calls] == [ARGS, {"title": "x"}]


# -- sessions, threads, loops --


@pytest.mark.parametrize("kind", ["boto3", "botocore"])
def test_a_session_taps_the_clients_that_it_makes(cs: Callstream, kind: str) -> None:
    keys = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "a secret"}
    with ScriptedProvider("bedrock_converse", [WRITE]) as provider, cs.run("thread") as run:
        if kind == "boto3":
            session = cs.tap_boto(boto3.Session(region_name="us-east-1", **keys), collapse="all")
            client = session.client("bedrock-runtime", endpoint_url=provider.base_url)
        else:
            session = cs.tap_boto(botocore.session.get_session(), collapse="all")
            client = session.create_client(
                "bedrock-runtime", region_name="us-east-1", endpoint_url=provider.base_url, **keys
            )
        assert fold_converse(converse_events(cs.tap_boto(client))).calls == [("c1", "write", ARGS)]
    assert len(run.calls) == 1


def test_what_cannot_be_tapped(cs: Callstream) -> None:
    with pytest.raises(UsageError, match="expected a client of bedrock-runtime, got one of sts"):
        cs.tap_boto(boto3.Session(region_name="us-east-1").client("sts"))
    with pytest.raises(UsageError, match="expected a client or a session of boto3, botocore or aiobotocore, got 'x'"):
        cs.tap_boto("x")


def test_from_several_threads_at_once(cs: Callstream) -> None:
    with ScriptedProvider("bedrock_converse", [Parallel([WRITE, ToolCall("other", {"title": "x"})])]) as provider:
        client = client_of(provider, cs, collapse="all")
        found: list[Any] = []

        def work(number: int) -> None:
            with cs.run(f"thread-{number}") as run:
                found.append((fold_converse(converse_events(client)).calls[0][2], [call.args for call in run.calls]))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [(ARGS, [ARGS, {"title": "x"}])] * 5


async def test_in_a_thread_of_an_async_program() -> None:
    async with Callstream() as cs:
        with ScriptedProvider("bedrock_converse", [WRITE]) as provider:
            client = client_of(provider, cs, collapse="all")
            async with cs.run("thread") as run:
                events = await asyncio.to_thread(converse_events, client)
            assert fold_converse(events).calls == [("c1", "write", ARGS)]
            assert [call.args for call in run.calls] == [ARGS]
            fold_converse(converse_events(client))  # blocks this loop: a run of its own
        assert len(await cs.journal.runs()) == 2


# -- asking for pieces --

BETA = "fine-grained-tool-streaming-2025-05-14"


@pytest.mark.parametrize(
    ("model", "collapse", "extra", "expected"),
    [
        ("us.anthropic.claude", "all", None, {"anthropic_beta": [BETA]}),
        ("us.anthropic.claude", "all", {"anthropic_beta": ["other"], "k": 1}, {"anthropic_beta": ["other", BETA], "k": 1}),
        ("us.anthropic.claude", "all", {"anthropic_beta": [BETA]}, {"anthropic_beta": [BETA]}),
        ("us.anthropic.claude", "all", {"anthropic_beta": "odd"}, {"anthropic_beta": "odd"}),
        ("us.anthropic.claude", "known", None, None),  # one of the tools would reach the program in pieces
        ("us.amazon.nova", "all", None, None),
    ],
)  # fmt: skip
def test_the_beta_is_asked_for_where_all_tools_are_collapsed(
    cs: Callstream, model: str, collapse: Any, extra: Any, expected: Any
) -> None:
    cs.on_args_delta("write", lambda delta, signal: None)
    more = {} if extra is None else {"additionalModelRequestFields": extra}
    with ScriptedProvider("bedrock_converse", [WRITE]) as provider:
        client = client_of(provider, cs, collapse=collapse, stream_arguments=True)
        converse_events(client, modelId=model, **more)
        converse_events(client_of(provider, cs, collapse=collapse), modelId=model, **more)
        asked, silent = provider.requests
        assert asked.json.get("additionalModelRequestFields") == expected
        assert silent.json.get("additionalModelRequestFields") == extra
        assert recomputed(asked)[0] == recomputed(asked)[1]


def test_the_beta_of_invoke_model(cs: Callstream) -> None:
    with ScriptedProvider("bedrock_invoke", [WRITE]) as provider:
        for body in (ANTHROPIC, {**ANTHROPIC, "anthropic_beta": ["other"]}, {**ANTHROPIC, "tools": []}):
            client = client_of(provider, cs, collapse="all", stream_arguments=True)
            client.invoke_model(modelId="anthropic.claude", body=json.dumps(body))["body"].read()
        betas = [request.json.get("anthropic_beta") for request in provider.requests]
        assert betas == [[BETA], ["other", BETA], None]


def test_the_model_is_told_of_calls_that_never_reached_the_program(cs: Callstream) -> None:
    bad = ToolCall("write", {"title": 5}, call_id="c1")
    with ScriptedProvider("bedrock_converse", [[bad], [Text("Sorry.")]]) as provider:
        client = client_of(provider, cs, collapse="all")
        with cs.run("thread") as run:
            assert ask_with(client, MESSAGES).calls == []
            assert ask_with(client, MESSAGES).text == "Sorry."
        assert [(call.state, call.reason) for call in run.calls] == [(CallState.DISCARDED, "invalid")]
        told = provider.requests[1].json["messages"][-1]["content"]
        assert told[0] == {"text": "go"}
        assert "write" in told[1]["text"]
        assert recomputed(provider.requests[1])[0] == recomputed(provider.requests[1])[1]


@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_with_nothing_but_refused_calls_arrives_without_them(cs: Callstream, streamed: bool) -> None:
    """Nothing is raised, since botocore alone can send a request: the program tells the model, or the next request does."""
    unfit = ToolCall("write", {"title": 3, "content": "x"}, call_id="bad")
    cs.on_args_delta("write", lambda delta, signal: None)
    with ScriptedProvider("bedrock_converse", [[Text("Hm."), unfit], [Text("Sorry.")]]) as provider, cs.run("t") as run:
        client = client_of(provider, cs)

        def answer() -> Any:
            if streamed:
                return fold_converse(converse_events(client))
            return fold_whole(client.converse(modelId="claude", messages=MESSAGES, toolConfig=TOOLS))

        first = answer()
        assert (first.calls, first.text) == ([], "Hm.")
        assert len(provider.requests) == 1
        assert [(call.call_id, call.reason) for call in run.calls] == [("bad", "invalid")]
        answer()
        assert "should be a string" in provider.requests[1].body.decode()
