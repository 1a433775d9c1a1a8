"""The three main views, at desktop and phone width, light and dark: pictures to look at, and axe-core's verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.captures import ROOT
from tests.page.conftest import DESKTOP, Watch
from tests.page.inspector import Inspector
from tests.page.stage import Stage

pytestmark = pytest.mark.slow
PICTURES = ROOT / "screenshots"
SIZES = {"desktop": DESKTOP, "phone": {"width": 390, "height": 844}}


@pytest.fixture
def inspector(page: Page, stage: Stage, watch: Watch) -> Inspector:
    return Inspector(page, stage)


def looked_at(page: Page, axe: str, name: str, sizes: Sequence[str] = ("desktop",)) -> list[str]:
    """Takes the pictures, and returns what axe-core finds serious or critical at these sizes, light and dark."""
    found: list[str] = []
    page.evaluate(axe)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme, reduced_motion="reduce")
        for size, viewport in SIZES.items():
            page.set_viewport_size(viewport)  # type: ignore[arg-type]
            page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            page.screenshot(path=PICTURES / f"{name}-{size}-{theme}.png")
            if size not in sizes:
                continue
            found += [f"{name} {size} {theme}: {fault}" for fault in serious(page)]
    page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
    return found


def serious(page: Page) -> list[str]:
    verdict: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{violation['id']}: {node['target']}: {node['failureSummary']}"
        for violation in verdict["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"][:3]
    ]


def test_axe_finds_nothing_serious(inspector: Inspector, stage: Stage, page: Page, axe: str) -> None:
    inspector.open()
    expect(page.get_by_text("scripted provider")).to_be_visible()
    found = looked_at(page, axe, "welcome")

    stage.provider.hold(after=60)
    inspector.send("everything about tides, please")
    card = inspector.expect_state("write_document", "writing arguments")
    assert stage.provider.held.wait(30)
    expect(inspector.string(card, "content")).to_contain_text("Why the coast matters")
    found += looked_at(page, axe, "live")

    stage.provider.release()
    inspector.expect_state("publish", "awaiting an answer")
    inspector.expect_outcome("finished")
    found += looked_at(page, axe, "approval", ("desktop", "phone"))

    card = inspector.card("publish")
    card.get_by_role("button", name="Approve").click()
    inspector.expect_state("publish", "completed")
    expect(page.get_by_role("heading", name="Run 2")).to_be_visible()
    inspector.expect_outcome("finished")
    inspector.card("look_up", 0).locator("label", has_text="Records").click()
    inspector.card("look_up", 1).locator("label", has_text="Text").click()
    page.evaluate("document.querySelector('#main').scrollTop = 0")
    found += looked_at(page, axe, "finished")
    page.get_by_role("button", name="Keyboard shortcuts").click()
    found += looked_at(page, axe, "help")
    assert found == []


def test_every_view_has_one_heading_of_the_first_level(inspector: Inspector, page: Page) -> None:
    first = page.get_by_role("heading", level=1)
    inspector.open()
    expect(first).to_have_text("Tool calls, while they are written")
    inspector.send("approve")
    inspector.expect_outcome("finished")
    expect(first).to_have_text("Thread")


def test_axe_would_find_something(inspector: Inspector, page: Page, axe: str) -> None:
    inspector.open()
    page.evaluate("document.querySelector('#message').removeAttribute('aria-label')")
    page.evaluate("document.querySelector('#message').removeAttribute('placeholder')")
    page.evaluate(axe)
    assert any("label" in each for each in serious(page))
