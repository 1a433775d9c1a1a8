"""The examples of the how-to are tests; all of them pass, together, as a user would have them."""

from __future__ import annotations

import re

import pytest

from callstream.testing.provider import base_path
from tests.captures import ROOT

pytest_plugins = ["pytester"]

HOWTO = (ROOT / "docs" / "howto" / "testing.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.subprocess
def test_examples_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", HOWTO, re.MULTILINE | re.DOTALL)
    assert len(examples) == HOWTO.count("```python") > 8
    pytester.makeini(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
        "pythonpath = .\n"
    )
    for name, source in examples:
        (pytester.path / name).write_text(source, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    # Not in this process, where the SDKs would be imported a second time.
    outcome = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    outcome.assert_outcomes(passed=len(re.findall(r"^(?:async )?def test_", HOWTO, re.MULTILINE)))


def test_every_step_and_every_wire_is_told() -> None:
    from callstream import testing
    from callstream.testing import script

    steps = {step.__name__ for step in script.Step.__args__}
    assert steps <= set(re.findall(r"^\| `(\w+)\(", HOWTO, re.MULTILINE))
    assert all(f"`{wire}`" in HOWTO and base_path(wire) is not None for wire in testing.WIRES)
