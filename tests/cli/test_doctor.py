from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import pytest

from callstream.events import InputKept, RunStarted

from .commands import Ran
from .conftest import filled

Run = Callable[..., Ran]
WAITS = (
    "1 run left open by a dead process, to be continued within an hour of the last record; start the server or callstream work, "
    "or run callstream sweep --all"
)

AGENTS = """
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.apps import App
from google.adk.models import BaseLlm, Gemini
from google.adk.tools.agent_tool import AgentTool
from google.adk.workflow import START, Workflow

class Own(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        yield None

poet = LlmAgent(name="poet", model="gemini-3-flash-preview")
child = LlmAgent(name="child", description="has its parent's model")
other = LlmAgent(name="other", model=Own(model="homemade"))
root_agent = LlmAgent(name="root", model=Gemini(model="gemini-3-pro"), tools=[AgentTool(poet)], sub_agents=[child, other])
app = App(name="shop", root_agent=root_agent)
node = LlmAgent(name="node", model="gemini-3-flash-preview")
flow = Workflow(name="flow", edges=[(START, node)])
number = 7
"""
HOSTED = """
from callstream import Callstream
from callstream.adk import ADKAgent
from callstream.server import ServerSettings, create_app
from google.adk.sessions import InMemorySessionService

adk_agent = ADKAgent(poet, app_name="poetry")
with_sessions = ADKAgent(poet, app_name="poetry", session_service=InMemorySessionService())
with_journal = ADKAgent(poet, app_name="poetry", callstream=Callstream())

async def function(given):
    pass

served = create_app(function, callstream=Callstream(), settings=ServerSettings(continue_runs=False))
"""
GOES_ON = "\nserved with callstream serve, a run goes on in another process if its own dies\n"
STAYS = "\nserved with callstream serve, a run does not go on in another process if its own dies: "
JOURNAL, SESSIONS = "the journal is in memory", "google-adk's sessions are in memory"


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Path]:
    modules, path = set(sys.modules), list(sys.path)
    file = tmp_path / "doctored_agents.py"
    file.write_text(AGENTS)
    yield file
    for name in set(sys.modules) - modules:
        if name.startswith(("doctored_agents", "callstream_target")):
            del sys.modules[name]
    sys.path[:] = path


def test_a_journal_that_is_none_is_not_said_to_be_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLSTREAM_JOURNAL", "mysql://x")
    done = run("doctor")
    assert (done.code, done.out) == (2, "")
    assert "expected memory:, sqlite:///file.db or postgresql://…, got 'mysql://x'" in done.err


def examined(run: Run, *arguments: str) -> tuple[int, dict[str, object]]:
    done = run("doctor", "--json", *arguments)
    return done.code, json.loads(done.out)


def test_it_tells_versions_and_extras(run: Run) -> None:
    code, found = examined(run)
    assert code == 0
    assert found["packages"]["google-adk"] == metadata.version("google-adk")  # type: ignore[index]
    assert found["packages"]["litellm"] is None  # type: ignore[index]
    extras = ("adk", "server", "postgres", "nats", "archive", "sessions", "cli", "telemetry", "guards", "cedar")
    assert found["extras"] == dict.fromkeys(extras, True)
    assert (found["models"], found["journal"], found["problems"]) == (None, None, [])
    text = run("doctor").out
    assert "all extras are installed" in text
    assert text.endswith("no problems found\n")


def test_it_tells_where_each_model_is_read(run: Run, agents: Path) -> None:
    for name in ("root_agent", "app"):
        code, found = examined(run, f"{agents}:{name}")
        assert code == 0
        assert [(m["agent"], m["model"], m["path"]) for m in found["models"]] == [  # type: ignore[attr-defined]
            ("root", "gemini-3-pro", "wire"),
            ("poet", "gemini-3-flash-preview", "wire"),
            ("other", "homemade", "partial events"),
        ]
    _, found = examined(run, f"{agents}:flow")
    assert [(m["agent"], m["path"]) for m in found["models"]] == [("node", "wire")]  # type: ignore[attr-defined]
    assert "homemade                Own     partial events" in run("doctor", f"{agents}:app").out


def test_a_model_that_cannot_be_made_is_a_problem(run: Run, agents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    agents.write_text(
        "from google.adk.agents import LlmAgent\nroot_agent = LlmAgent(name='lost', model='no-such-model')\n"
    )
    code, found = examined(run, str(agents))
    assert code == 1
    assert "the model of agent lost cannot be created" in found["problems"][0]  # type: ignore[index]


def test_what_is_not_of_google_adk_has_no_models_to_tell_of(run: Run, agents: Path) -> None:
    code, found = examined(run, f"{agents}:number")
    assert code == 1
    assert "is of type int, not a google-adk app or agent" in found["problems"][0]  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "variables", "obstacles"),
    [
        ("app", {}, []),
        ("adk_agent", {}, []),
        ("app", {"JOURNAL": "sqlite:///other.db", "SESSIONS": "sqlite:///s.db"}, []),
        ("app", {"JOURNAL": "memory:"}, [JOURNAL, SESSIONS]),
        ("adk_agent", {"JOURNAL": "memory:", "SESSIONS": "sqlite:///s.db"}, [JOURNAL]),
        ("app", {"CONTINUE_RUNS": "off", "SESSIONS": "memory:"}, ["CALLSTREAM_CONTINUE_RUNS is off", SESSIONS]),
        ("with_sessions", {}, [SESSIONS]),
        ("with_journal", {"JOURNAL": "sqlite:///not_its_own.db"}, [JOURNAL, SESSIONS]),
        (
            "served",
            {},
            [
                "continue_runs (CALLSTREAM_CONTINUE_RUNS) is off",
                "it is a function that create_app(…, continues=True) does not serve",
            ],
        ),
    ],
)
def test_it_tells_whether_runs_go_on_in_another_process(
    run: Run, agents: Path, monkeypatch: pytest.MonkeyPatch, name: str, variables: dict[str, str], obstacles: list[str]
) -> None:
    with agents.open("a") as file:
        file.write(HOSTED)
    for variable, value in variables.items():
        monkeypatch.setenv(f"CALLSTREAM_{variable}", value)
    done = run("doctor", f"{agents}:{name}")
    assert (f"{STAYS}{'; '.join(obstacles)}\n" if obstacles else GOES_ON) in done.out
    assert list(agents.parent.glob("*.db")) == []
    monkeypatch.delenv("CALLSTREAM_JOURNAL", raising=False)
    assert examined(run, f"{agents}:number")[1]["obstacles"] is None


def test_a_journal_that_redacts_keeps_runs_from_going_on(run: Run, agents: Path) -> None:
    with agents.open("a") as file:
        file.write("from callstream import Callstream, open_journal\nfrom callstream.adk import ADKAgent\n")
        file.write("cs = Callstream(open_journal('sqlite:///a.db', redact=lambda event: event))\n")
        file.write("agent = ADKAgent(poet, app_name='poetry', callstream=cs)\n")
    assert examined(run, f"{agents}:agent")[1]["obstacles"] == ["the journal has a redact", SESSIONS]


def test_it_tells_how_the_journal_is(run: Run, journal_url: str) -> None:
    code, found = examined(run, "--journal", journal_url)
    journal = found["journal"]
    assert code == 0
    assert journal["stored_bytes"] > 0  # type: ignore[index, operator]
    assert {name: journal[name] for name in journal if name not in ("stored_bytes", "url")} == {  # type: ignore[attr-defined, index]
        "schema_version": 3,
        "oldest_code": 1,
        "runs": 2,
        "active_runs": 0,
        "calls": 5,
        "records": 36,
        "live_writers": 0,
        "orphaned_runs": 0,
        "waiting_runs": 0,
        "pending_bytes": 0,
    }
    assert (
        "  2 runs (0 active), 5 calls, 36 records\n  0 processes using it"
        in run("doctor", "--journal", journal_url).out
    )


def test_runs_that_a_dead_process_left_are_a_problem(run: Run, journal_url: str) -> None:
    filled(journal_url, left=[RunStarted("t")])
    done = run("doctor", "--journal", journal_url)
    assert done.code == 1
    assert done.out.endswith("! 1 run left open by a dead process; run callstream sweep\n")
    assert run("sweep", "--journal", journal_url).code == 0
    assert run("doctor", "--journal", journal_url).code == 0


def test_runs_that_wait_for_another_process_are_told_from_those_that_sweep_ends(run: Run, journal_url: str) -> None:
    filled(journal_url, kept=[RunStarted("t"), InputKept("app", "input")], left=[RunStarted("t")])
    code, found = examined(run, "--journal", journal_url)
    assert code == 1
    assert found["problems"] == ["1 run left open by a dead process; run callstream sweep", WAITS]
    assert run("sweep", "--journal", journal_url).code == 0
    done = run("doctor", "--journal", journal_url)
    assert (done.code, done.out.splitlines()[-1]) == (1, f"! {WAITS}")
    assert run("sweep", "--all", "--journal", journal_url).code == 0
    assert run("doctor", "--journal", journal_url).code == 0


def test_a_journal_that_cannot_be_opened_is_a_problem(run: Run, tmp_path: Path) -> None:
    (tmp_path / "callstream.db").write_text("nonsense" * 100)
    code, found = examined(run)
    assert code == 1
    assert found["journal"] == {"url": "sqlite:///callstream.db"}
    assert "could not be used" in found["problems"][0]  # type: ignore[index]
