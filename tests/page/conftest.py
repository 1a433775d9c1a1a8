"""A real Chromium, driven by Playwright, before the real server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from tests.npm import Unavailable, install
from tests.page.stage import Stage

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Request

    from tests.page.inspector import Inspector

CLIENT = Path(__file__).parent / "client"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESKTOP = {"width": 1280, "height": 860}
PATIENCE = 30_000
"""Milliseconds until something that does not come counts as missing; nothing is measured by it."""


def pytest_pycollect_makemodule(module_path: Path) -> None:
    if CLIENT.parent in module_path.parents and find_spec("playwright") is None:
        unavailable("the page is tested with playwright, and it is not installed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if CLIENT.parent in item.path.parents:  # google-adk warns of features of its own that it uses itself
            item.add_marker(pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]"))


def unavailable(reason: str) -> NoReturn:
    """Skips, but never in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must have it: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One a module, and no longer: while Playwright's is there, no test can run an event loop of its own."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        unavailable(f"the page is tested in a browser, and there is none of {', '.join(NAMES)}")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage")) as started:
        yield started


class Watch:
    """What a page did besides showing: its requests, and its complaints."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []

    @contextmanager
    def over(self, page: Any) -> Iterator[None]:
        heard = {"request": self._asked, "console": self._said, "pageerror": self._failed, "dialog": self._opened}
        for event, listener in heard.items():
            page.on(event, listener)
        yield
        for event, listener in heard.items():
            page.remove_listener(event, listener)

    def _asked(self, request: Request) -> None:
        self.requests.append(request.url)

    def _said(self, message: Any) -> None:
        # What the browser says of a connection that was refused or lost is no complaint of the page's.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def _failed(self, error: Any) -> None:
        self.complaints.append(str(error))

    def _opened(self, dialog: Any) -> None:
        self.complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()


@pytest.fixture
def watch(page: Page) -> Iterator[Watch]:
    watch = Watch()
    with watch.over(page):
        yield watch


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One for all tests of a module, so that the page's files are fetched once."""
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    context.set_default_timeout(PATIENCE)
    yield context
    context.close()


@pytest.fixture(scope="module")
def tab(context: BrowserContext) -> Page:
    """One for all tests of a module too: each would be a process of its own, which takes longer than most tests."""
    return context.new_page()


@pytest.fixture
def page(context: BrowserContext, tab: Page) -> Iterator[Page]:
    yield tab
    context.set_offline(False)
    if tab.url.startswith("http"):
        tab.evaluate("localStorage.clear(); sessionStorage.clear()")
    tab.goto("about:blank")
    tab.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
    tab.emulate_media(color_scheme="light", reduced_motion="no-preference")


@pytest.fixture
def inspector(page: Page, stage: Stage, watch: Watch) -> Iterator[Inspector]:
    """The page, opened."""
    from tests.page.inspector import Inspector

    opened = Inspector(page, stage)
    opened.open()
    yield opened
    stage.provider.release()


@pytest.fixture(autouse=True)
def well_behaved(request: pytest.FixtureRequest) -> Iterator[None]:
    """In every test: no request leaves the server's own address, and neither a script nor the CSP complains."""
    if "watch" not in request.fixturenames:
        yield
        return
    watch: Watch = request.getfixturevalue("watch")
    stage: Stage = request.getfixturevalue("stage")
    yield
    assert [url for url in watch.requests if not url.startswith((f"{stage.url}/", "data:"))] == []
    assert watch.requests != []
    assert watch.complaints == []


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    try:
        install(CLIENT)
    except Unavailable as reason:
        unavailable(str(reason))
    return (CLIENT / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
