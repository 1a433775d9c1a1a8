"""One trace per run under google-adk, in which every agent and every tool appears once; and what the log says of a run.

google-adk uses the process's own tracer provider, so all of it happens in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from tests.adk.tracing import PARENT, TRACE

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What ``tests/adk/tracing.py`` prints: spans and log lines by scene."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.adk.tracing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    return made


SCENES = ("served", "traceparent", "runner", "inside", "rejected", "endpoint stop", "endpoint continue")


@pytest.mark.parametrize("scene", SCENES)
def test_a_run_is_one_trace_in_which_nothing_appears_twice(told: dict[str, Any], scene: str) -> None:
    spans = told[scene]["spans"]
    assert len({span["trace"] for span in spans}) == 1
    names = Counter(span["name"] for span in spans)
    assert names["invoke_agent writer"] == 1
    assert names["execute_tool look_up"] == 1
    assert names["tool_arguments look_up"] == 1
    operations = Counter(span["attributes"].get("gen_ai.operation.name") for span in spans)
    assert operations["execute_tool"] == 1
    own = [span["name"] for span in spans if span["scope"] == "callstream"]
    assert sorted(own) == sorted(["tool_arguments look_up", "invoke_agent" if scene == "inside" else "run"])


def test_google_adks_spans_are_inside_the_run(told: dict[str, Any]) -> None:
    spans = told["served"]["spans"]
    [run] = [span for span in spans if span["name"] == "run"]
    roots = [span for span in spans if span["scope"] == "gcp.vertex.agent" and span["parent"] == run["id"]]
    assert len(roots) == 1
    known = {span["id"] for span in spans}
    assert run["parent"] is None
    assert all(span["parent"] in known for span in spans if span is not run)


@pytest.mark.parametrize("scene", ["traceparent", "endpoint stop", "endpoint continue"])
def test_a_run_belongs_to_the_trace_that_the_client_names(told: dict[str, Any], scene: str) -> None:
    [run] = [span for span in told[scene]["spans"] if span["name"] == "run"]
    assert run["trace"] == TRACE
    if scene == "traceparent":  # FastAPI may have a span of its own in between
        assert run["parent"] == PARENT


def test_the_span_of_a_tool_names_the_call(told: dict[str, Any]) -> None:
    spans = {span["name"]: span["attributes"] for span in told["served"]["spans"]}
    call_id = spans["tool_arguments look_up"]["callstream.call.id"]
    assert spans["execute_tool look_up"]["callstream.call.id"] == call_id


def test_a_rejected_call_says_so(told: dict[str, Any]) -> None:
    [span] = [span for span in told["rejected"]["spans"] if span["name"] == "tool_arguments look_up"]
    assert span["status"] == "ERROR"
    assert span["attributes"]["callstream.call.discard_reason"] == "rejected"


def test_a_run_that_failed_is_logged_once_with_its_traceback(told: dict[str, Any]) -> None:
    own = [line for line in told["failed"]["log"] if line["logger"].startswith("callstream")]
    failed = [line for line in own if "failed" in line["message"]]
    assert [(line["level"], line["traceback"]) for line in failed] == [("ERROR", True)]


def test_nothing_else_is_wrong_in_the_log(told: dict[str, Any]) -> None:
    lines = [line for scene in SCENES if scene != "rejected" for line in told[scene]["log"]]
    assert [line for line in lines if line["level"] in ("WARNING", "ERROR")] == []
