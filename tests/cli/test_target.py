"""``module:name``, in all its forms."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from callstream.cli.output import CommandError
from callstream.cli.target import load_target


@pytest.fixture(autouse=True)
def own_modules() -> Iterator[None]:
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path


def refused(given: str, **options: str) -> tuple[int, str]:
    with pytest.raises(CommandError) as raised:
        load_target(given, **options)
    return raised.value.code, str(raised.value)


def test_a_module_in_this_folder(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("class shelf: agent = 'deep'\nagent = 'shallow'\napp = 'whole'\n")
    assert load_target("shop:agent").found == "shallow"
    assert load_target("shop:shelf.agent").found == "deep"
    target = load_target("shop")
    assert (target.found, target.name, target.file) == ("whole", "app", tmp_path / "shop.py")


def test_a_file_anywhere_with_what_lies_beside_it(tmp_path: Path) -> None:
    place = tmp_path / "far" / "away"
    place.mkdir(parents=True)
    (place / "beside.py").write_text("NAME = 'neighbour'\n")
    (place / "my-agent.py").write_text("import beside\nroot_agent = beside.NAME\n")
    assert load_target("far/away/my-agent.py:root_agent").found == "neighbour"
    assert load_target(str(place / "my-agent.py")).name == "root_agent"


def test_an_agent_folder_as_google_adk_has_it(tmp_path: Path) -> None:
    folder = tmp_path / "helper"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import agent\n")
    (folder / "words.py").write_text("NAME = 'relative'\n")
    (folder / "agent.py").write_text("from .words import NAME\nroot_agent = NAME\n")
    assert load_target("helper").found == "relative"
    assert load_target("helper/").found == "relative"
    assert load_target("helper/agent.py:root_agent").found == "relative"


def test_the_variables_beside_it_are_loaded_where_they_are_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SET_BEFORE", "mine")
    monkeypatch.delenv("FROM_FILE", raising=False)
    (tmp_path / ".env").write_text("SET_BEFORE=theirs\nFROM_FILE=theirs\n")
    (tmp_path / "shop.py").write_text("import os\napp = os.environ['FROM_FILE'], os.environ['SET_BEFORE']\n")
    assert load_target("shop.py").found == ("theirs", "mine")
    monkeypatch.delenv("FROM_FILE")
    (tmp_path / "other.env").write_text("FROM_FILE=other\n")
    assert load_target("shop.py", env_file="other.env").found == ("other", "mine")
    monkeypatch.delenv("FROM_FILE")
    assert os.environ["SET_BEFORE"] == "mine"
    assert refused("shop.py", env_file="gone.env") == (2, "file gone.env not found")


def test_what_is_not_there_is_said_with_what_is(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("root_agent = 1\n")
    (tmp_path / "bare.py").write_text("x = 1\n")
    assert refused("shopp:app") == (2, "no module 'shopp' in this folder or on Python's path")
    assert refused("gone.py:app") == (2, "file gone.py not found")
    folder = tmp_path / "no agent"
    folder.mkdir()
    assert refused(str(folder)) == (2, f"folder {folder} has no agent.py, which the folder of a google-adk agent has")
    assert refused("shop:app") == (2, "shop has no 'app'; it has root_agent")
    code, sentence = refused("bare")
    assert (code, sentence) == (2, "bare has none of app, root_agent, agent: name the agent, as in bare:my_agent")


def test_a_module_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "worse.py").write_text("def\n")
    assert refused("broken:app") == (
        1,
        "broken cannot be imported: ModuleNotFoundError: No module named 'nothing_of_that_name'",
    )
    assert "ModuleNotFoundError" in refused("broken.py:app")[1]
    assert "SyntaxError" in refused("worse:app")[1]
