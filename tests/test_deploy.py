"""The image and the compose file, as far as they can be checked without Docker."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from starlette.requests import Request

from bench.nats import nats_program
from callstream.cli.program import _parser
from callstream.server import ServerSettings
from tests.captures import ROOT

DEPLOY = ROOT / "deploy"
OWN = {"CALLSTREAM_JOURNAL", "CALLSTREAM_FORGET_AFTER", "CALLSTREAM_LOG_FORMAT", "CALLSTREAM_GATEWAY_KEY"}


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


@pytest.fixture(scope="module", params=["compose.yaml", "gateway.yaml"])
def compose(request: pytest.FixtureRequest) -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((DEPLOY / request.param).read_text())
    made["service"] = next(service for name, service in made["services"].items() if name != "postgres")
    return made


def test_what_the_image_copies_is_there_and_not_ignored(instructions: list[tuple[str, str]]) -> None:
    copied = [rest.split()[:-1] for name, rest in instructions if name == "COPY" and "--from" not in rest]
    sources = [source for each in copied for source in each]
    assert "src" in sources
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for source in sources:
        assert (ROOT / source).exists()
        assert source in kept


def test_the_image_installs_extras_that_exist(instructions: list[tuple[str, str]]) -> None:
    [install] = [rest for name, rest in instructions if name == "RUN" and "pip install" in rest]
    [wanted] = re.findall(r'"\.\[([\w,]+)\]"', install)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(wanted.split(",")) <= set(extras)


def test_the_image_serves_its_agent_as_a_user_without_rights(instructions: list[tuple[str, str]]) -> None:
    said = dict(instructions)
    assert json.loads(said["ENTRYPOINT"]) == ["callstream"]
    options = _parser().parse_args(json.loads(said["CMD"]))
    assert (options.command, options.target, options.auth) == ("serve", "agent.py:root_agent", "agent.py:user_of")
    assert (options.host, str(options.port)) == ("0.0.0.0", said["EXPOSE"])
    assert said["USER"] == "callstream"
    assert f"127.0.0.1:{options.port}/healthz" in said["HEALTHCHECK"]
    assert "CALLSTREAM_LOG_FORMAT=json" in shlex.split(said["ENV"])


def test_the_compose_file_has_a_server_and_its_database(compose: dict[str, Any]) -> None:
    server, postgres = compose["service"], compose["services"]["postgres"]
    assert (DEPLOY / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    assert server["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert "healthcheck" in postgres
    assert all(port.startswith("127.0.0.1:") for port in server["ports"])
    kept = [volume.partition(":")[0] for volume in postgres["volumes"]]
    assert kept == list(compose["volumes"])
    user, database = postgres["environment"]["POSTGRES_USER"], postgres["environment"]["POSTGRES_DB"]
    assert server["environment"]["CALLSTREAM_JOURNAL"] == (
        f"postgresql://{user}:${{POSTGRES_PASSWORD:?}}@postgres/{database}"
    )


def test_the_compose_file_sets_variables_that_mean_something(compose: dict[str, Any]) -> None:
    known = OWN | {f"CALLSTREAM_{field.name.upper()}" for field in msgspec.structs.fields(ServerSettings)}
    given = compose["service"]["environment"]
    assert {name for name in given if name.startswith("CALLSTREAM_")} <= known
    grace = int(compose["service"]["stop_grace_period"].removesuffix("s"))
    assert grace >= ServerSettings().shutdown_seconds + 10


def test_the_gateway_listens_where_the_image_looks_for_its_health(instructions: list[tuple[str, str]]) -> None:
    gateway = yaml.safe_load((DEPLOY / "gateway.yaml").read_text())["services"]["gateway"]
    options = _parser().parse_args(gateway["command"])
    assert (options.command, options.host, options.auth) == ("gateway", "0.0.0.0", True)
    assert f"127.0.0.1:{options.port}/healthz" in dict(instructions)["HEALTHCHECK"]
    assert gateway["ports"] == [f"127.0.0.1:8100:{options.port}"]


def test_the_agent_of_the_image_knows_its_users(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("google.adk")
    monkeypatch.setenv("TOKENS", "ada=one bob=two=2")
    spec = importlib.util.spec_from_file_location("deployed_agent", DEPLOY / "agent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def asking(**headers: str) -> str | None:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        found: str | None = module.user_of(Request({"type": "http", "headers": raw}))
        return found

    assert asking(authorization="Bearer one") == "ada"
    assert asking(authorization="Bearer two=2") == "bob"
    assert asking(authorization="Bearer two") is None
    assert asking() is None
    assert module.root_agent.name == "assistant"


def test_the_servers_of_a_log_keep_what_they_acknowledge(tmp_path: Path) -> None:
    """Their configuration is one that the real server reads, and one that a journal does not refuse."""
    made: dict[str, Any] = yaml.safe_load((DEPLOY / "nats.yaml").read_text())
    assert [service["environment"]["NAME"] for service in made["services"].values()] == list(made["services"])
    assert list(made["volumes"]) == list(made["services"]) == ["n1", "n2", "n3"]
    assert all(port.startswith("127.0.0.1:") for service in made["services"].values() for port in service["ports"])
    [command] = made["x-server"]["command"]
    text = command.partition("<<END\n")[2].partition("\nEND\n")[0].replace("$$NAME", "n1")
    assert "sync_interval: always" in text
    for name in made["services"]:
        assert f"nats://{name}:6222" in text
    program = nats_program()
    if program is not None:
        config = tmp_path / "nats.conf"
        config.write_text(text.replace("/data", str(tmp_path)))
        subprocess.run([program, "-t", "-c", config], check=True, timeout=60, capture_output=True)
