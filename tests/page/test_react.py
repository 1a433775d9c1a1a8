"""The page of React that `make js` builds, in a real browser: a document grows in components of its own."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from callstream import Callstream
from callstream.server.app import PAGE
from tests.captures import ROOT
from tests.page.inspector import Inspector
from tests.page.stage import DOCUMENT, Stage

pytestmark = pytest.mark.skipif(
    not (PAGE / "react" / "index.html").is_file(), reason="the page of React is not built; `make js` builds it"
)
TEXT = '[aria-label="Text of the document"]'


@pytest.fixture
def react(page: Page, stage: Stage, watch: object) -> Iterator[Inspector]:
    opened = Inspector(page, stage)
    opened.open("/page/react/index.html")
    expect(page.get_by_role("status")).to_have_text("ready")
    yield opened
    stage.provider.release()


def _runs(stage: Stage, page: Page) -> list[str | None]:
    async def outcomes(cs: Callstream) -> list[str | None]:
        return [row.outcome for row in await cs.journal.runs(thread_id=page.url.partition("#")[2])]

    return stage.call(outcomes)


def _wait_for_an_end(stage: Stage, page: Page) -> None:
    pause = threading.Event()
    for _ in range(600):
        if None not in _runs(stage, page):
            return
        pause.wait(0.05)
    raise AssertionError("the run has not ended")


def test_document_grows_survives_a_reload_and_ends_exact(react: Inspector, stage: Stage, page: Page) -> None:
    stage.provider.hold(after=180)
    react.send("Write down how tides work.")
    react.count_steps(TEXT)
    assert stage.provider.held.wait(30)
    box = page.locator(TEXT)
    expect(box).to_contain_text("Spring and neap")
    expect(page.get_by_role("heading", name="Tides")).to_be_visible()
    shown = react.text_of(box)
    assert DOCUMENT.startswith(shown)
    before = react.steps()

    page.reload()
    react.count_steps(TEXT)
    expect(box).to_contain_text("Spring and neap")
    assert react.text_of(box) == shown
    expect(page.get_by_role("status")).to_have_text("live")

    stage.provider.release()
    expect(page.get_by_role("status")).to_have_text("ready")
    assert react.text_of(box) == DOCUMENT
    after = react.steps()
    assert min(after - {0}) >= len(shown)  # the element is there before its first text
    assert len(before | after) >= 20
    expect(page.locator(".document")).to_have_attribute("data-state", "done")
    assert _runs(stage, page) == ["finished"]


def test_a_lost_connection_heals_while_somebody_looks(react: Inspector, stage: Stage, page: Page) -> None:
    stage.provider.hold(after=120)
    react.send("write")
    react.count_steps(TEXT)
    assert stage.provider.held.wait(30)
    box = page.locator(TEXT)
    expect(box).not_to_be_empty()
    shown = react.text_of(box)
    page.context.set_offline(True)
    stage.cut()
    expect(page.get_by_role("status")).to_have_text("connection lost, trying again")
    assert react.text_of(box) == shown
    stage.provider.release()
    _wait_for_an_end(stage, page)
    page.evaluate("window.steps.clear()")
    page.context.set_offline(False)
    expect(page.get_by_role("status")).to_have_text("ready")
    assert react.text_of(box) == DOCUMENT
    assert min(react.steps()) >= len(shown)  # nothing was taken away in between
    assert _runs(stage, page) == ["finished"]


@pytest.mark.parametrize(("button", "state"), [("Approve", "done"), ("Reject", "failed")])
def test_approving_and_rejecting(react: Inspector, stage: Stage, page: Page, button: str, state: str) -> None:
    react.send("approve it")
    page.get_by_role("button", name=button).click()
    expect(page.get_by_role("status")).to_have_text("ready")
    publish = page.locator(".call", has=page.get_by_text("publish", exact=True))
    expect(publish).to_have_attribute("data-state", state)
    page.reload()
    expect(publish).to_have_attribute("data-state", state)
    assert _runs(stage, page) == ["finished", "finished"]


def test_stopping(react: Inspector, stage: Stage, page: Page) -> None:
    react.send("endless")
    expect(page.locator(TEXT)).to_contain_text("The moon pulls")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator(".document")).to_have_attribute("data-state", "failed")
    assert _runs(stage, page) == ["cancelled"]


@pytest.mark.parametrize("place", ["js/demo", "tests/js/client"])  # React 19 and React 18
def test_only_what_changed_is_rendered(react: Inspector, page: Page, place: str) -> None:
    """Real React in a real browser: a component is rendered when what its hooks return has changed, and not otherwise."""
    if not (ROOT / place / "node_modules" / "react").is_dir():
        pytest.skip("`make js` installs React")
    command = [
        str(ROOT / "js" / "demo" / "node_modules" / ".bin" / "esbuild"),
        str(ROOT / "tests" / "page" / "react" / "renders.jsx"),
        *("--bundle", "--format=iife", "--global-name=judge", "--jsx=automatic", "--log-level=warning"),
        f"--alias:callstream={ROOT / 'js' / 'index.js'}",
        f"--alias:callstream/react={ROOT / 'js' / 'react.js'}",
        '--define:process.env.NODE_ENV="production"',
    ]
    environment = {**os.environ, "NODE_PATH": str(ROOT / place / "node_modules")}
    bundle = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
    seen = page.evaluate(f"(async () => {{ {bundle}; return judge.renders(); }})()")
    assert seen["texts"] == ["c", "running", "Tides", '{"n":2}']
    assert (seen["isExact"], seen["isExactAgain"]) == (True, True)
    assert seen["blocks"] > 5
    assert seen["shown"] == sorted(set(seen["shown"]))
    assert seen["frames"] > 90
    grown = {name: seen["after"][name] - seen["before"][name] for name in seen["after"]}
    # The id came once; the state began and ended writing; the title and the row came in one frame each.
    once = {"ids": 1, "state": 2, "title": 1, "row": 1}
    assert grown == {**once, "content": seen["frames"], "growing": 0}
