"""``callstream answer`` and ``stop``: commands that need the server that has the run.

An answer goes through the server, never straight into the journal: the agent has to get it and continue. Only a question
whose asker looks for the answer in the journal can be answered there (``runtime/questions.py``).
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from callstream import Callstream, codec
from callstream.calls import HAS_OUTCOME, Call, CallState
from callstream.cli.options import Commands, add_json, add_server, add_source, place_of
from callstream.cli.output import CommandError, Printer, misused
from callstream.cli.sources import JournalSource, RecordSource, ServerSource, server_of
from callstream.events import CallProgressed
from callstream.guards import APPROVAL
from callstream.runtime.questions import check_answer, thread_of_questions

_QUESTIONS = 100


def add_to(commands: Commands) -> None:
    _add_answer(commands)
    _add_stop(commands)


def _add_answer(commands: Commands) -> None:
    parser = commands.add(
        "answer",
        answer,
        summary="answer a call that is waiting for one",
        description="""Sends an answer to a call in state awaiting, and waits for the run in which the agent continues. The
            answer is JSON, as an argument or on standard input. An update of a job that continues is delivered, but the
            call still awaits its result. This needs --server (or CALLSTREAM_SERVER). Only the question about an
            interrupted tool, callstream_approval, can also be answered in the journal of a program without a server.""",
        examples="""
            callstream answer call_3 '{"approved": true}' --server http://127.0.0.1:8000
            callstream answer call_4 '{"confirmed": true}' --journal sqlite:///calls.db
            callstream answer call_3 '"Use the blue one."'
            callstream answer call_3 < answer.json
            callstream answer call_3 --error "the customer said no" """,
    )
    parser.add_argument("call_id", metavar="CALL", help="the call's id; callstream calls --state awaiting lists them")
    parser.add_argument("answer", nargs="?", metavar="JSON", help="the answer (default: read from standard input)")
    parser.add_argument("--error", metavar="TEXT", help="answer that the call failed, and why")
    add_source(parser)
    add_json(parser, "the outcome as one JSON document")


def _add_stop(commands: Commands) -> None:
    parser = commands.add(
        "stop",
        stop,
        summary="stop a run of a running server",
        description="""Asks a server to stop a run, in whichever process it is active: hooks are aborted, open calls
            discarded, the model's stream closed. This needs --server (or CALLSTREAM_SERVER).""",
        examples="""
            callstream stop run_8a1f --server http://127.0.0.1:8000
            callstream stop run_8a1f --server http://127.0.0.1:8000 --reason "wrong document" """,
    )
    parser.add_argument("stopped", metavar="RUN", help="the run's id")
    parser.add_argument("--reason", default="stopped", help="the reason for the journal (default: stopped)")
    add_server(parser)
    add_json(parser, "the server's answer, one JSON document")


async def answer(options: argparse.Namespace, out: Printer) -> int:
    message: dict[str, Any] = {"id": f"answer_{uuid.uuid4().hex}", "role": "tool", "toolCallId": options.call_id}
    if options.error is None:
        message["content"] = _json_text(options.answer)
    elif options.answer is not None:
        raise misused("expected an answer or --error, not both")
    else:
        message |= {"content": options.error, "error": options.error}
    if options.journal is not None:
        return await _answer_question(options, message, out)
    source = server_of(options)
    call = await source.call(options.call_id)
    assert call is not None  # a server answers 404, which has been raised
    _check_awaiting(call)
    await _check_not_asked_about(source, call)
    run_id, failure = await _send(source, call, message)
    call = await source.call(call.call_id)
    assert call is not None
    is_update = call.state is CallState.AWAITING and await _is_delivered(source, call, run_id)
    if call.state is CallState.AWAITING and not is_update:
        reason = failure or f"the agent did not take it, and call {call.call_id} is still waiting"
        raise CommandError(f"the answer was not accepted: {reason}")
    fate = f"update delivered; call {call.call_id} still awaits its result" if is_update else _fate(call)
    ended = "failed" if failure else "finished"
    out.result(_answered(call, run_id, failure), f"{fate}; run {run_id} {ended}")
    if failure:
        raise CommandError(f"the answer was accepted, but run {run_id} failed: {failure}")
    return 0


async def _answer_question(options: argparse.Namespace, message: dict[str, Any], out: Printer) -> int:
    """Writes the answer to the journal, where the process that asked finds it."""
    if options.server is not None:
        raise misused("give --journal or --server, not both")
    async with place_of(options).open() as journal:
        call = await journal.call(options.call_id)
        if call is None:
            raise CommandError(f"the journal has no call {options.call_id}")
        _check_awaiting(call)
        if call.name != APPROVAL:
            await _check_not_asked_about(JournalSource(journal, ""), call)
            raise CommandError(f"an agent has to get the answer to call {call.call_id}: send it to a server, --server")
        result = None if options.error is not None else json.loads(message["content"])
        check_answer(call.call_id, result, options.error)
        (row,) = await journal.runs(run_id=call.run_id, limit=1)
        async with Callstream(journal).run(str(call.thread_id), principal=row.principal) as run:
            await run.answer(call, result, error=options.error, message_id=message["id"])
        answered = await journal.call(call.call_id)
        assert answered is not None
    out.result(_answered(answered, run.run_id), _fate(answered))
    return 0


def _answered(call: Call, run_id: str, failure: str | None = None) -> dict[str, Any]:
    return {"call_id": call.call_id, "state": str(call.state), "run_id": run_id, "error": failure}


def _fate(call: Call) -> str:
    return f"call {call.call_id} {call.state}"


async def _is_delivered(source: ServerSource, call: Call, run_id: str) -> bool:
    """Whether the run got an update of a job that continues."""
    try:
        async with aclosing(source.follow(run_id)) as records:
            async for record in records:
                event = None if record is None else record.event
                if isinstance(event, CallProgressed) and event.call_id == call.call_id:
                    return True
    except CommandError:
        pass  # there is no such run: the answer was refused before a run began
    return False


def _json_text(argument: str | None) -> str:
    if argument is None:
        if sys.stdin.isatty():
            raise misused("expected an answer: JSON as an argument or on standard input, or --error TEXT")
        argument = sys.stdin.read()
    try:
        codec.decode_strict(argument)
    except ValueError as error:
        raise misused(f"expected JSON (a text needs quotes: '\"yes\"'), got {argument[:40]!r}: {error}") from None
    return argument


def _check_awaiting(call: Call) -> None:
    if call.state in HAS_OUTCOME:
        raise CommandError(f"call {call.call_id} of tool {call.name} already has its answer: it {call.state}")
    if call.state is not CallState.AWAITING:
        raise CommandError(f"call {call.call_id} of tool {call.name} is not waiting for an answer: it is {call.state}")


async def _check_not_asked_about(source: RecordSource, call: Call) -> None:
    """Refuses a call of an interrupted tool: the question about it is a separate call, which has to be answered instead."""
    beside = thread_of_questions(str(call.thread_id))
    for found in await source.calls(run_id=None, thread_id=beside, states=[CallState.AWAITING], limit=_QUESTIONS):
        question = await source.call(found.call_id) if found.name == APPROVAL else None
        if question is not None and json.loads(question.args_json or "{}").get("tool") == call.name:
            raise CommandError(
                f"call {call.call_id} of tool {call.name} waits for the answer to a question about it: answer call "
                f"{found.call_id}"
            )


async def _send(source: ServerSource, call: Call, message: dict[str, Any]) -> tuple[str, str | None]:
    """Runs the agent with the answer. Returns the run's id and, if it failed, why."""
    run_id, failure = f"run_{uuid.uuid4().hex}", None
    body: dict[str, Any] = {
        "threadId": call.thread_id,
        "runId": run_id,
        "protocolVersion": "1.0",
        "messages": [message],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
    }
    async with aclosing(source.events("/agui", body=body)) as events:
        async for _, data in events:
            event = json.loads(data)
            match event.get("type"):
                case "RUN_STARTED":
                    run_id = event.get("runId", run_id)
                case "RUN_ERROR":
                    failure = str(event.get("message") or event.get("code") or "no reason given")
    return run_id, failure


async def stop(options: argparse.Namespace, out: Printer) -> int:
    path = f"/runs/{quote(options.stopped, safe='')}/stop"
    answer = await server_of(options).ask(path, body={"reason": options.reason})
    outcome = answer.get("outcome") if isinstance(answer, dict) else None
    out.result(answer, f"run {options.stopped} " + (f"has ended: {outcome}" if outcome else "is stopping"))
    return 0
