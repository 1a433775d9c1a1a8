"""Settings: arguments, environment, and the table in the documentation."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from callstream import Callstream
from callstream.errors import UsageError
from callstream.journal import JournalSettings
from callstream.server import ServerSettings, create_app

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture(scope="module")
def documented() -> ModuleType:
    spec = importlib.util.spec_from_file_location("settings_table", DOCS / "settings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_table_in_the_documentation_is_that_of_the_code(documented: ModuleType) -> None:
    page = (DOCS / "howto" / "server.md").read_text(encoding="utf-8")
    assert documented.with_table(page) == page, "run python docs/settings.py"


def test_every_setting_is_described(documented: ModuleType) -> None:
    texts = documented.described()
    assert set(texts) == set(ServerSettings.__struct_fields__)
    assert [name for name, text in texts.items() if not text.endswith(".")] == []


@pytest.mark.parametrize("field", msgspec.structs.fields(ServerSettings), ids=lambda field: field.name)
def test_every_setting_is_a_variable(field: Any) -> None:
    variable = f"CALLSTREAM_{field.name.upper()}"
    for text, value in _samples(field):
        made = ServerSettings.from_env({variable: text})
        assert getattr(made, field.name) == value
        assert made == ServerSettings(**{field.name: value})
    for text in _wrong(field):
        with pytest.raises(UsageError, match=f"(?<![A-Z_]){variable}(?![A-Z_])"):
            ServerSettings.from_env({variable: text})
    assert ServerSettings.from_env({variable: "nonsense"}, **{field.name: field.default}) == ServerSettings()


def _samples(field: Any) -> list[tuple[str, Any]]:
    if field.type == tuple[str, ...]:
        return [("http://a, http://b,", ("http://a", "http://b")), ("", ())]
    if field.type is bool:
        return [("off", False), ("TRUE", True), ("0", False), ("1", True)]
    if field.type in (int, float):
        return [("7", 7)]
    if field.type in (int | None, float | None):
        return [("7", 7), ("0", None), ("None", None), (" 8 ", 8)]
    return [(choice, choice) for choice in field.type.__args__]


def _wrong(field: Any) -> list[str]:
    if field.name == "allowed_hosts":
        return []  # any text may be a name
    return ["nonsense", "-1", "nan"] if field.type in (int, float, int | None, float | None) else ["nonsense"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_runs": 0}, "max_runs must be more than 0"),
        ({"max_runs": -1}, r"max_runs must be more than 0 \(or None for no limit\), got -1"),
        ({"max_runs": "5"}, r"invalid value for max_runs: expected a whole number \(or None for no limit\); got '5'"),
        ({"when_busy": "perhaps"}, "invalid value for when_busy: expected 'wait' or 'refuse'; got 'perhaps'"),
        ({"busy_wait": -1.0}, "busy_wait must not be negative"),
        ({"stall_seconds": float("nan")}, "stall_seconds must be a finite number"),
        ({"run_seconds": float("inf")}, "run_seconds must be a finite number"),
        ({"max_depth": 0}, "max_depth must be more than 0, got 0"),
        ({"heartbeat_seconds": float("nan")}, "heartbeat_seconds must be a finite number, got nan"),
    ],
)
def test_wrong_settings_say_what_is_wrong(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        ServerSettings(**given)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("CALLSTREAM_MAX_RUNS", "many"),
        ("CALLSTREAM_MAX_RUNS", "1.5"),
        ("CALLSTREAM_RUN_SECONDS", "soon"),
        ("CALLSTREAM_INSPECTOR", "perhaps"),
        ("CALLSTREAM_ON_DISCONNECT", "explode"),
    ],
)
def test_wrong_variables_are_named(variable: str, text: str) -> None:
    with pytest.raises(UsageError, match=variable):
        ServerSettings.from_env({variable: text})


@pytest.mark.parametrize(
    ("variable", "text", "told"),
    [
        ("MAX_RUNS", "-1", "CALLSTREAM_MAX_RUNS must be more than 0 (or None for no limit), got -1"),
        ("MAX_ATTEMPTS", "0", "CALLSTREAM_MAX_ATTEMPTS must be more than 0, got 0"),
        ("BUSY_WAIT", "-2", "CALLSTREAM_BUSY_WAIT must not be negative, got -2.0"),
        ("RUN_SECONDS", "nan", "CALLSTREAM_RUN_SECONDS must be a finite number (or None for no limit), got nan"),
        ("RUN_SECONDS", "30s", "CALLSTREAM_RUN_SECONDS='30s': expected a number (or None for no limit)"),
        ("MAX_DEPTH", "deep", "CALLSTREAM_MAX_DEPTH='deep': expected a whole number"),
        ("API", "perhaps", "CALLSTREAM_API='perhaps': expected true or false"),
    ],
)
def test_wrong_variables_are_told_what_is_right(variable: str, text: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        ServerSettings.from_env({f"CALLSTREAM_{variable}": text})
    assert str(refused.value).endswith(told)


def test_a_wrong_choice_is_told_the_right_ones() -> None:
    with pytest.raises(UsageError, match="CALLSTREAM_ON_DISCONNECT='explode': expected 'continue' or 'stop'"):
        ServerSettings.from_env({"CALLSTREAM_ON_DISCONNECT": "explode"})


def test_variables_of_others_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    assert ServerSettings.from_env({"CALLSTREAM_JOURNAL": "memory:", "CALLSTREAM_COLOUR": "blue"}) == ServerSettings()
    assert caplog.text == ""


def test_a_misspelt_variable_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert ServerSettings.from_env({"CALLSTREAM_MAX_RUN": "7"}) == ServerSettings()
    assert "CALLSTREAM_MAX_RUN; did you mean CALLSTREAM_MAX_RUNS?" in caplog.text


@pytest.mark.parametrize("page", ["howto", "quickstart", "README.md"])
def test_every_variable_of_the_documentation_is_known(page: str, caplog: pytest.LogCaptureFixture) -> None:
    """With a letter missing it is warned of, so that nobody waits for ever for what a variable should have done."""
    at = DOCS.parent / page if page.endswith(".md") else DOCS / page
    pages = [at] if at.is_file() else sorted(at.rglob("*.md"))
    named = {
        name for each in pages for name in re.findall(r"CALLSTREAM_[A-Z_]*[A-Z]", each.read_text(encoding="utf-8"))
    }
    for name in named - {"CALLSTREAM_LIVE_MODEL"}:
        caplog.clear()
        ServerSettings.from_env({f"{name[:-2]}{name[-1]}": ""})
        assert f"did you mean {name}?" in caplog.text


def test_an_empty_variable_counts_as_not_set() -> None:
    assert ServerSettings.from_env({"CALLSTREAM_RUN_SECONDS": "", "CALLSTREAM_CORS_ORIGINS": " "}) == ServerSettings()


def test_origins_are_what_browsers_send() -> None:
    made = ServerSettings.from_env({"CALLSTREAM_CORS_ORIGINS": "https://App.example.com/, http://localhost:3000"})
    assert made.cors_origins == ("https://app.example.com", "http://localhost:3000")
    assert ServerSettings(cors_origins=("https://app.example.com/",)).cors_origins == ("https://app.example.com",)


@pytest.mark.parametrize("wrong", ["app.example.com", "https://app.example.com/shop", "https://me@app.example.com"])
def test_what_is_no_origin_is_refused(wrong: str) -> None:
    """No browser sends that, so no page could use the server."""
    with pytest.raises(UsageError, match="invalid value for cors_origins: expected an origin such as"):
        ServerSettings(cors_origins=("https://b.example", wrong))
    with pytest.raises(
        UsageError, match="the environment variable CALLSTREAM_CORS_ORIGINS: expected an origin such as"
    ):
        ServerSettings.from_env({"CALLSTREAM_CORS_ORIGINS": f"https://b.example, {wrong}"})


def test_origins_of_files_and_of_apps_are_origins() -> None:
    known = ("*", "null", "capacitor://localhost", "http://[::1]:3000")
    assert ServerSettings(cors_origins=known).cors_origins == known


def test_settings_of_something_else_are_refused() -> None:
    async def agent(given: Any) -> None: ...

    with pytest.raises(UsageError, match=r"expected settings to be a ServerSettings, got callstream\.journal"):
        create_app(agent, callstream=Callstream(), settings=JournalSettings())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"expected settings to be .*, got callstream\.server\.settings"):
        Callstream(settings=ServerSettings())  # type: ignore[arg-type]
