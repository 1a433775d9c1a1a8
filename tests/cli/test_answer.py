"""A call that waits is answered from the command line, and the agent continues with the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from callstream import Callstream
from callstream.calls import CallState
from callstream.events import CallCompleted, CallStarted, Question
from callstream.runtime import Run as CallstreamRun
from callstream.runtime.questions import Decision, QuestionRef, Questions
from callstream.testing import Finish, HttpError, ScriptedProvider, Text, ToolCall

from .commands import PATIENCE, Ran, Server, ran, serving

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]
Run = Callable[..., Ran]

AGENT = '''
from google.adk.agents import Agent
from google.adk.tools import LongRunningFunctionTool

def approve(action: str) -> None:
    """Asks a person whether this may be done."""

def look(at: str) -> str:
    """Looks."""
    return "seen"

def build(what: str) -> dict:
    """Starts a job."""
    return {"status": "pending"}

root_agent = Agent(
    name="asker",
    model="gemini-2.5-flash",
    tools=[LongRunningFunctionTool(approve), look, LongRunningFunctionTool(build)],
)

def user_of(request):
    return {"Bearer one": "ada"}.get(request.headers.get("authorization"))
'''
heard: list[Any] = []


def script(request: Any) -> list[Any]:
    last = request.json["contents"][-1]["parts"]
    responses = [part["functionResponse"] for part in last if "functionResponse" in part]
    if not responses:
        if last[0]["text"] == "build":
            return [ToolCall("build", {"what": "it"}), Finish()]
        return [ToolCall("look", {"at": "it"}), ToolCall("approve", {"action": last[0]["text"]}), Finish()]
    answers = [response["response"] for response in responses if response["name"] == "approve"]
    if responses[0]["name"] == "build":
        heard.extend(response["response"] for response in responses)
    if not answers or answers[0] in ({"result": None}, {"status": "pending"}):
        return [Text("I wait."), Finish()]
    heard.extend(answers)
    return [HttpError(400, "out of order")] if answers == [{"break": True}] else [Text("Done."), Finish()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("asker")
    (folder / "agent.py").write_text(AGENT)
    with ScriptedProvider("gemini", script) as provider:
        env = {"GOOGLE_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": provider.base_url}
        arguments = ("serve", "agent.py", "--auth", "agent.py:user_of", "--port", "0")
        with serving(*arguments, env=env, cwd=folder) as made:
            yield made


@pytest.fixture
def asked(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Has the agent ask in a thread of its own, and gives the calls of the thread by the name of their tools."""
    monkeypatch.setenv("CALLSTREAM_SERVER", server.url)
    monkeypatch.setenv("CALLSTREAM_TOKEN", "one")
    thread = tmp_path.name

    def ask(said: str = "publish") -> dict[str, str]:
        message = {"id": "m", "role": "user", "content": said}
        given = {"threadId": thread, "runId": f"r-{thread}", "messages": [message], "tools": [], "context": []}
        headers = {"authorization": "Bearer one"}
        body = {**given, "state": {}, "forwardedProps": {}}
        assert httpx.post(f"{server.url}/agui", json=body, headers=headers, timeout=PATIENCE).status_code == 200
        calls = httpx.get(f"{server.url}/api/calls?thread_id={thread}", headers=headers).json()["calls"]
        return {call["name"]: call["call_id"] for call in calls}

    return ask


def test_an_answer_reaches_the_agent(asked: Callable[[], dict[str, str]], run: Run) -> None:
    call_id = asked()["approve"]
    assert call_id in run("calls", "--state", "awaiting").out
    heard.clear()
    done = run("answer", call_id, '{"approved": true}')
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"call {call_id} completed; run run_")
    assert done.out.endswith(" finished\n")
    assert heard == [{"approved": True}]
    shown = json.loads(run("show", call_id, "--json").out)
    assert (shown["state"], shown["result"]) == ("completed", {"approved": True})
    again = run("answer", call_id, "1")
    assert (again.code, again.out) == (1, "")
    assert again.err == f"callstream answer: call {call_id} of tool approve already has its answer: it completed\n"


def test_news_of_a_job_is_delivered(asked: Callable[..., dict[str, str]], run: Run) -> None:
    call_id = asked("build")["build"]
    heard.clear()
    done = run("answer", call_id, '{"status": "pending", "percent": 50}')
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"update delivered; call {call_id} still awaits its result; run run_")
    assert heard == [{"status": "pending", "percent": 50}]
    done = run("answer", call_id, '{"status": "pending", "percent": 60}', "--json")
    assert (done.code, json.loads(done.out)["state"]) == (0, "awaiting")
    done = run("answer", call_id, '{"status": "done"}')
    assert done.out.startswith(f"call {call_id} completed; run run_")


def test_an_answer_may_come_from_standard_input(asked: Callable[[], dict[str, str]], server: Server) -> None:
    call_id = asked()["approve"]
    env = {"CALLSTREAM_SERVER": server.url, "CALLSTREAM_TOKEN": "one"}
    done = ran("answer", call_id, "--json", env=env, given='"yes, but slowly"\n')
    assert done.code == 0, done.err
    made = json.loads(done.out)
    assert (made["call_id"], made["state"], made["error"]) == (call_id, "completed", None)
    nothing = ran("answer", call_id, env=env)
    assert (nothing.code, "expected JSON (a text needs quotes" in nothing.err) == (2, True)


def test_an_answer_may_say_that_it_failed(asked: Callable[[], dict[str, str]], run: Run) -> None:
    call_id = asked()["approve"]
    done = run("answer", call_id, "--error", "nobody is there")
    assert done.code == 0, done.err
    shown = json.loads(run("show", call_id, "--json").out)
    assert (shown["state"], shown["error"]) == ("failed", "nobody is there")


def test_a_run_that_fails_after_the_answer_is_told(asked: Callable[[], dict[str, str]], run: Run) -> None:
    call_id = asked()["approve"]
    done = run("answer", call_id, '{"break": true}')
    assert done.code == 1
    assert done.out.startswith(f"call {call_id} completed; run run_")
    assert "the answer was accepted, but run run_" in done.err


def test_what_cannot_be_answered_is_one_sentence(asked: Callable[[], dict[str, str]], run: Run) -> None:
    calls = asked()
    looked = run("answer", calls["look"], "1")
    assert (looked.code, looked.err) == (
        1,
        f"callstream answer: call {calls['look']} of tool look already has its answer: it completed\n",
    )
    unknown = run("answer", "nothing", "1")
    assert unknown.code == 1
    assert "No such call" in unknown.err
    wrong = run("answer", calls["approve"], "yes")
    assert (wrong.code, "expected JSON (a text needs quotes: '\"yes\"'), got 'yes'" in wrong.err) == (2, True)
    assert run("answer", calls["approve"], "NaN").code == 2
    both = run("answer", calls["approve"], "1", "--error", "no")
    assert (both.code, "expected an answer or --error, not both" in both.err) == (2, True)
    assert json.loads(run("show", calls["approve"], "--json").out)["state"] == "awaiting"


def test_an_answer_needs_a_server(run: Run) -> None:
    done = run("answer", "call", "1")
    assert (done.code, done.out) == (2, "")
    assert done.err == "callstream answer: expected a server: give --server URL or set CALLSTREAM_SERVER\n"


async def test_a_question_without_an_agent_is_answered_in_the_journal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'calls.db'}"
    asked = QuestionRef("question", "thread", None)
    async with Callstream(url) as cs:
        questions = Questions(cs.journal, partial(CallstreamRun.start, cs.engine, as_current=False))
        await questions.ask(asked, {"tool": "pay"}, Question("confirmation", "May it run?"))
        async with cs.run("thread") as run:
            await run.record([CallStarted("paused", "pay"), CallCompleted("paused", "{}")])
            await run.await_answer("paused", is_paused=True)
        other = await asyncio.to_thread(ran, "answer", "paused", "true", "--journal", url)
        assert other.code == 1
        assert "waits for the answer to a question about it: answer call question" in other.err
        answer = partial(asyncio.to_thread, ran, "answer", "question", "--journal", url)
        unclear = await answer(given='"perhaps"')
        assert (unclear.code, "question asks for yes or no: expected true, false or" in unclear.err) == (1, True)
        assert (await cs.journal.call("question")).state is CallState.AWAITING  # type: ignore[union-attr]
        clear = await answer(given='"yes"')
        assert (clear.code, clear.out) == (0, "call question completed\n")
        assert Decision.of(await questions.answer(asked)).is_yes
