"""``callstream serve --workers``: several processes behind one address, started, joined, killed, reloaded and ended."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from callstream.testing import Delay, Finish, ScriptedProvider, Text, ToolCall
from tests.journal.server import postgres_server

from .commands import PATIENCE, Ran, Server, eventually, ran, serving

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]
_READY = re.compile(r"worker \[(\d+)\] is ready")

ADK = '''
import os
from google.adk.agents import Agent
from google.adk.tools import LongRunningFunctionTool

def who() -> dict:
    """Tells the process."""
    return {"pid": os.getpid()}

def approve(what: str) -> None:
    """Asks a person."""

root_agent = Agent(name="asker", model="gemini-2.5-flash", tools=[who, LongRunningFunctionTool(approve)])
'''
PLAIN = """
import asyncio, os
VERSION = 1
async def agent(input):
    count = int(input.messages[-1].content)
    for number in range(count):
        yield {"type": "TEXT_MESSAGE_CHUNK", "messageId": input.run_id, "delta": f"{os.getpid()} {VERSION} "}
        await asyncio.sleep(0.05)
"""


def ready(server: Server, count: int) -> list[int]:
    """The workers that have said that they are ready, when there are so many."""

    def found() -> list[int]:
        return [int(match[1]) for line in server.lines if (match := _READY.search(line))]

    return eventually(lambda: found() if len(found()) >= count else [])  # type: ignore[no-any-return]


class Client:
    """One connection, and so one worker."""

    def __init__(self, server: Server) -> None:
        self.http = httpx.Client(
            base_url=server.url, timeout=PATIENCE, limits=httpx.Limits(max_connections=1), trust_env=False
        )

    @contextmanager
    def stream(self, path: str, given: Any = None) -> Iterator[Iterator[dict[str, Any]]]:
        with self.http.stream("POST", path, json=given) as response:
            assert response.status_code == 200, response.read()
            yield (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: "))

    def all(self, path: str, given: Any = None) -> list[dict[str, Any]]:
        with self.stream(path, given) as events:
            return list(events)


@contextmanager
def clients_of(server: Server, workers: list[int], who: Callable[[Client], int]) -> Iterator[list[Client]]:
    """A connection to each of these workers, in their order."""
    found: dict[int, Client] = {}
    made: list[Client] = []
    try:
        while set(workers) - found.keys():
            made.append(client := Client(server))
            found.setdefault(who(client), client)
        yield [found[worker] for worker in workers]
    finally:
        for client in made:
            client.http.close()


def given(said: Any, thread: str = "t", run: str = "", messages: list[Any] | None = None) -> dict[str, Any]:
    run = run or f"{thread}-{time.monotonic_ns()}"
    return {
        "threadId": thread,
        "runId": run,
        "messages": messages or [{"id": f"m-{run}", "role": "user", "content": str(said)}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
    }


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


# -- a google-adk agent: runs and followers in different workers --


_asked: set[str] = set()


def answers(request: Any) -> list[Any]:
    turn = request.json["contents"][-1]["parts"]
    said = "".join(part.get("text", "") for part in turn)
    if said == "who":
        return [ToolCall("who", {}), Finish()]
    if said == "ask":
        return [Text("I ask."), ToolCall("approve", {"what": "the plan"}), Finish()]
    if said.startswith("once ") and said in _asked:
        return [Text("Gone on."), Finish()]
    _asked.add(said)
    if said == "wait" or said.startswith("once "):
        return [Text("Now "), Delay(600.0), Finish()]
    if said == "write":
        return [Text("one two three four five six seven eight nine ten", size=4), Finish()]
    return [Text("Thank you."), Finish()]


def pid_by_tool(client: Client) -> int:
    events = client.all("/agui", given("who", f"who-{time.monotonic_ns()}"))
    [result] = [event["content"] for event in events if event["type"] == "TOOL_CALL_RESULT"]
    return int(json.loads(result)["pid"])


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "sqlite":
        yield "sqlite:///calls.db"
        return
    with postgres_server() as server:
        yield server.get_uri()


def test_runs_are_joined_stopped_answered_and_survived_in_other_workers(tmp_path: Path, place: str) -> None:
    (tmp_path / "agent.py").write_text(ADK)
    with ScriptedProvider("gemini", answers, deltas_per_second=10) as provider:
        env = {
            "GOOGLE_API_KEY": "none",
            "GOOGLE_GEMINI_BASE_URL": provider.base_url,
            "CALLSTREAM_JOURNAL": place,
            "CALLSTREAM_LEASE_TTL": "3",
        }
        with serving("serve", "agent.py", "--workers", "2", "--port", "0", env=env, cwd=tmp_path) as server:
            workers = ready(server, 2)
            with clients_of(server, workers, pid_by_tool) as (one, other):
                # A run of one worker, joined at the other while the model writes.
                with one.stream("/agui", given("write")) as events:
                    next(event for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
                    joined = other.all("/threads/t/connect")
                    rest = list(events)
                assert text_of(joined) == "one two three four five six seven eight nine ten"
                assert joined[-1]["type"] == rest[-1]["type"] == "RUN_FINISHED"

                # A stop, asked of the other.
                with one.stream("/agui", given("wait", "stopped", "r-stopped")) as events:
                    next(event for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
                    assert other.http.post("/runs/r-stopped/stop").status_code == 202
                    assert list(events)[-1]["outcome"] == {"type": "cancelled"}

                # An answer, given to the other.
                asked = one.all("/agui", given("ask", "asked"))
                [pending] = asked[-1]["outcome"]["pendingToolCallIds"]
                answer = {"id": "m2", "role": "tool", "toolCallId": pending, "content": '{"approved": true}'}
                assert text_of(other.all("/agui", given("", "asked", messages=[answer]))) == "Thank you."

                # kill -9: who watches at the other sees the run go on there, and the thread, too; a new worker comes.
                with one.stream("/agui", given(f"once {time.monotonic_ns()}", "killed")) as events:
                    next(event for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
                    with other.stream("/threads/killed/connect") as watched:
                        next(event for event in watched if event["type"] == "TEXT_MESSAGE_CONTENT")
                        os.kill(workers[0], signal.SIGKILL)
                        rest = list(watched)
                    with pytest.raises(httpx.TransportError):
                        list(events)
                assert text_of(rest) == "Gone on."
                assert (rest[-1]["type"], rest[-1]["outcome"]) == ("RUN_FINISHED", {"type": "success"})
                assert text_of(other.all("/agui", given("hello", "killed"))) == "Thank you."
            third = ready(server, 3)[2]
            with clients_of(server, [workers[1], third], pid_by_tool) as (other, new):
                shown = new.all("/threads/killed/connect")
                [messages] = [event["messages"] for event in shown if event["type"] == "MESSAGES_SNAPSHOT"]
                assert messages[-1]["content"] == "Thank you."
                assert pid_by_tool(other) == workers[1]
            assert server.end() == 0
    assert f"ERROR callstream.server: worker [{workers[0]}] was killed by SIGKILL; starting another" in server.lines
    said = [line.partition(":")[0] for line in server.lines if line.startswith(("journal:", "sessions:", "http:"))]
    assert said == ["journal", "sessions", "http"]  # once, and not by each worker
    assert not any("Traceback" in line for line in server.lines)


# -- a plain agent: how workers end and are replaced --


def pid_by_text(client: Client) -> int:
    return int(text_of(client.all("/agui", given(1, f"who-{time.monotonic_ns()}"))).split()[0])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "plain.py").write_text(PLAIN)
    with serving("serve", "plain:agent", "--workers", "2", "--port", "0", cwd=tmp_path) as server:
        ready(server, 2)
        yield server


def test_connections_go_to_the_workers_in_turn(served: Server) -> None:
    workers = ready(served, 2)
    clients = [Client(served) for _ in range(10)]
    found = [pid_by_text(client) for client in clients]
    assert sorted(found) == sorted(workers * 5)
    for client in clients:
        client.http.close()


@pytest.mark.parametrize(("sig", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_active_runs_of_all_workers_finish_before_the_end(served: Server, sig: int, code: int) -> None:
    workers = ready(served, 2)
    with clients_of(served, workers, pid_by_text) as (one, other), Client(served).http as late:
        with one.stream("/agui", given(60, "a")) as first, other.stream("/agui", given(60, "b")) as second:
            next(first), next(second)
            served.process.send_signal(sig)
            eventually(lambda: late.get("/readyz").status_code == 503)
            refused = late.post("/agui", json=given(1, "late"))
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            for events, worker in ((first, workers[0]), (second, workers[1])):
                seen = list(events)
                assert seen[-1]["type"] == "RUN_FINISHED"
                assert text_of(seen).count(str(worker)) >= 59
    assert served.process.wait(PATIENCE) == code


def test_the_second_signal_ends_the_waiting(served: Server) -> None:
    with Client(served).http as late:
        client = Client(served)
        with client.stream("/agui", given(100_000)) as events:
            next(events)
            served.process.terminate()
            eventually(lambda: late.get("/readyz").status_code == 503)
            assert served.process.poll() is None
            served.process.terminate()
            assert list(events)[-1]["outcome"] == {"type": "cancelled"}
        client.http.close()
    assert served.process.wait(PATIENCE) == 0


def test_a_signal_to_all_processes_at_once_is_one_signal(served: Server) -> None:
    """As systemd sends it."""
    workers = ready(served, 2)
    client = Client(served)
    with client.stream("/agui", given(60)) as events:
        next(events)
        for pid in (*workers, served.process.pid):
            os.kill(pid, signal.SIGTERM)
        assert list(events)[-1]["outcome"] == {"type": "success"}
    client.http.close()
    assert served.process.wait(PATIENCE) == 0


def test_a_reload_serves_new_code_and_lets_runs_finish(served: Server, tmp_path: Path) -> None:
    workers = ready(served, 2)
    client = Client(served)
    with client.stream("/agui", given(60, "before")) as events:
        next(events)
        (tmp_path / "plain.py").write_text(PLAIN.replace("VERSION = 1", "VERSION = 2"))
        served.process.send_signal(signal.SIGHUP)
        versions = set()
        while not all(not is_alive(worker) for worker in workers):  # no request fails in between
            other = Client(served)
            versions.add(text_of(other.all("/agui", given(1, f"during-{time.monotonic_ns()}"))).split()[1])
            other.http.close()
        seen = list(events)
    client.http.close()
    assert seen[-1]["type"] == "RUN_FINISHED"
    assert text_of(seen).split()[1::2].count("1") >= 59
    assert "1" in versions
    other = Client(served)
    assert text_of(other.all("/agui", given(1, "after"))).split()[1] == "2"
    other.http.close()
    assert len(ready(served, 4)) == 4
    assert served.end() == 0


def test_a_reload_that_fails_leaves_the_workers_alone(served: Server, tmp_path: Path) -> None:
    workers = ready(served, 2)
    (tmp_path / "plain.py").write_text("raise RuntimeError('half written')")
    served.process.send_signal(signal.SIGHUP)
    eventually(lambda: any("did not start; the other workers stay as they are" in line for line in served.lines))
    assert any("plain cannot be imported: RuntimeError: half written" in line for line in served.lines)
    with clients_of(served, workers, pid_by_text) as (one, other):
        assert [pid_by_text(one), pid_by_text(other)] == workers
    # A worker that dies now cannot be replaced, and is tried again; the other one serves.
    os.kill(workers[0], signal.SIGKILL)
    eventually(lambda: sum("ended with exit code 1; starting another" in line for line in served.lines) >= 2)
    client = Client(served)
    assert pid_by_text(client) == workers[1]
    client.http.close()
    assert served.end() == 0


def test_workers_are_added_and_removed(served: Server) -> None:
    served.process.send_signal(signal.SIGTTIN)
    workers = ready(served, 3)
    with clients_of(served, workers, pid_by_text):
        pass
    for left in (2, 1, 1):
        served.process.send_signal(signal.SIGTTOU)
        eventually(lambda: sum(map(is_alive, workers)) == left)  # noqa: B023
    client = Client(served)
    assert is_alive(pid_by_text(client))
    client.http.close()
    assert served.end() == 0


def test_workers_do_not_outlive_their_supervisor(served: Server) -> None:
    workers = ready(served, 2)
    client = Client(served)
    with client.stream("/agui", given(60)) as events:
        next(events)
        served.process.kill()
        served.process.wait(PATIENCE)
        with socket.create_server(("127.0.0.1", int(served.url.rpartition(":")[2]))):
            pass  # a successor has the port at once
        assert list(events)[-1]["type"] == "RUN_FINISHED"
    client.http.close()
    eventually(lambda: not any(map(is_alive, workers)))


# -- what cannot be served by several --


@pytest.mark.parametrize("how", ["option", "variable"])
def test_a_journal_in_memory_is_refused(tmp_path: Path, how: str) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    options = ("--workers", "2") if how == "option" else ()
    env = {} if how == "option" else {"CALLSTREAM_WORKERS": "2"}
    done = ran("serve", "plain:agent", "--port", "0", "--journal", "memory:", *options, env=env, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("callstream serve:") == 1
    assert "other processes cannot see one in memory: use sqlite:///FILE or postgresql://…" in done.err


def test_a_journal_in_memory_is_the_reason_though_sessions_are_beside_it(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(ADK)
    done = ran("serve", "agent.py", "--port", "0", "--workers", "2", "--journal", "memory:", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "all processes share one journal, and other processes cannot see one in memory" in done.err


def test_sessions_in_memory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(ADK)
    done = ran("serve", "agent.py", "--port", "0", "--workers", "2", "--sessions", "memory:", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "all processes share google-adk's sessions, and those of agent.py are in memory" in done.err


def test_what_is_wrong_with_the_application_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("raise RuntimeError('broken')")
    done = ran("serve", "plain:agent", "--port", "0", "--workers", "3", cwd=tmp_path)
    assert (done.code, done.out) == (1, "")
    assert done.err == "callstream serve: plain cannot be imported: RuntimeError: broken\n"


def test_a_number_of_workers_is_one_or_more(run: Callable[..., Ran]) -> None:
    done = run("serve", "plain:agent", "--workers", "0")
    assert done.code == 2
    assert "argument --workers: expected a number of 1 or more, got '0'" in done.err
