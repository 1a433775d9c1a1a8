"""The inspector with hostile and long text, by keyboard, on a phone, and behind a token."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page.conftest import DESKTOP
from tests.page.inspector import Inspector
from tests.page.stage import FIVE_MB, HOSTILE, MANY, RIGHT_TO_LEFT, VERSE, Stage

pytestmark = pytest.mark.slow

_DIGEST = """
async (box) => {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(box.textContent));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
"""


# -- text that means no good --------------------------------------------------------------------------------------------


def test_hostile_argument_is_text(inspector: Inspector, page: Page) -> None:
    assert page.title() == "Callstream"
    inspector.send("hostile " + HOSTILE.replace("\0", ""))
    card = inspector.expect_state("store", "completed")
    inspector.expect_outcome("finished")
    assert inspector.text_of(card.locator('[aria-label="payload › text"]')) == HOSTILE
    assert inspector.text_of(card.get_by_role("group", name="payload › rtl")) == RIGHT_TO_LEFT
    assert inspector.text_of(card.locator(".members .members > li:nth-child(3) .key")) == HOSTILE
    assert HOSTILE in inspector.text_of(page.locator(".saying.text").first)
    for view, part in (("Text", '"text": "<img src=x'), ("Records", '"text":"{\\"payl')):
        card.locator("label", has_text=view).click()
        assert part in inspector.text_of(card.locator(".card-panel"))
    page.locator(".run-records summary").click()
    assert page.locator("#main img, #main script, #main iframe, #main b, #threads img, #threads script").count() == 0
    assert page.title() == f"{page.url.split('/')[-1]} · Callstream"  # its thread, and nothing that it was told
    assert not inspector.overflows()
    page.set_viewport_size({"width": 360, "height": 780})
    assert not inspector.overflows()
    assert inspector.is_responsive()


def test_five_megabytes_are_text_too(inspector: Inspector, page: Page) -> None:
    inspector.send("huge")
    card = inspector.expect_state("store", "completed")
    inspector.expect_outcome("finished")
    box = inspector.string(card, "payload › text")
    foot = card.locator(".card-panel .growing-foot")
    shown = inspector.text_of(box)
    assert FIVE_MB.startswith(shown)
    assert 100_000 < len(shown) < 300_000
    expect(foot).to_contain_text(f"{len(FIVE_MB):,} characters, the first {len(shown):,} shown")
    assert inspector.is_responsive()
    assert not inspector.overflows()
    card.get_by_role("button", name="Show all of payload › text").click()
    expect(foot).not_to_contain_text("shown")
    assert box.evaluate(_DIGEST) == hashlib.sha256(FIVE_MB.encode()).hexdigest()
    assert inspector.is_responsive()
    page.reload()
    inspector.expect_state("store", "completed")
    assert inspector.is_responsive()


def test_hundred_kilobytes_and_a_thousand_records(inspector: Inspector, page: Page) -> None:
    inspector.send("long")
    card = inspector.expect_state("write_document", "completed")
    inspector.expect_outcome("finished")
    assert inspector.text_of(inspector.string(card, "content")) == VERSE * 1450
    page.locator(".run-records summary").click()
    rows = page.locator(".run-records .records li")
    expect(rows).to_have_count(200)
    page.locator(".run-records").get_by_role("button", name="Show more").click()
    expect(rows).to_have_count(400)
    assert json.loads(inspector.text_of(rows.nth(0).locator("code")))["event"]["type"] == "run_started"
    expect(page.locator(".run-facts")).to_contain_text("1,")
    assert inspector.is_responsive()


def test_big_tree_waits_for_a_click(inspector: Inspector) -> None:
    inspector.send("many")
    card = inspector.expect_state("store", "completed")
    rows = card.locator(".card-panel .row")
    expect(rows).to_have_count(3000)
    card.get_by_role("button", name="Show more than 3,000 values").click()
    expect(rows).to_have_count(6000)
    card.get_by_role("button", name="Show more than 6,000 values").click()
    expect(rows).to_have_count(2 + 4 * len(MANY["rows"]))
    expect(card.get_by_role("button", name="Show more than")).to_be_hidden()


# -- keyboard, theme, phone ----------------------------------------------------------------------------------------------


def test_keyboard_is_enough(inspector: Inspector, page: Page) -> None:
    inspector.send("everything")
    inspector.expect_state("publish", "awaiting an answer")
    page.reload()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the timeline")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    inspector.expect_state("publish", "awaiting an answer")
    page.keyboard.press("j")
    expect(inspector.card("write_document")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(inspector.card("look_up", 0)).to_be_focused()
    page.keyboard.press("k")
    expect(inspector.card("write_document")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    expect(page.locator('.thread-link[aria-current="page"]')).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".run-link").first).to_be_focused()
    page.keyboard.press("Home")
    expect(page.locator(".thread-link").first).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.type("sn?")
    expect(page.get_by_label("Message", exact=True)).to_have_value("sn?")


def test_single_keys_can_be_turned_off(inspector: Inspector) -> None:
    """A word that somebody says to his computer is keys, and one of them stops the run."""
    page = inspector.page
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Keyboard shortcuts").click()
    box = dialog.get_by_label("Single keys are shortcuts").bounding_box()
    words = dialog.get_by_text("Single keys are shortcuts").bounding_box()
    assert box is not None
    assert words is not None
    assert box["width"] < 40  # it stands in the line of its words
    assert words["height"] < 2 * box["height"] + 12
    dialog.get_by_label("Single keys are shortcuts").uncheck()
    page.keyboard.press("Escape")
    for _ in range(2):
        page.locator("body").press("?")
        expect(dialog).to_be_hidden()
        page.reload()
    page.get_by_role("button", name="Keyboard shortcuts").click()
    dialog.get_by_label("Single keys are shortcuts").check()
    page.keyboard.press("Escape")
    page.locator("body").press("?")
    expect(dialog).to_be_visible()


def test_theme_is_kept(inspector: Inspector, page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="Use the light theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_threads_are_a_drawer_on_a_phone(inspector: Inspector, page: Page) -> None:
    inspector.send("fail quickly")
    inspector.expect_state("fail", "failed")
    page.set_viewport_size({"width": 390, "height": 844})
    link = page.get_by_role("link", name="fail quickly")
    expect(link).to_be_hidden()
    opener = page.get_by_role("button", name="Threads")
    opener.click()
    expect(link).to_be_visible()
    expect(opener).to_have_attribute("aria-expanded", "true")
    link.press("Escape")
    expect(link).to_be_hidden()
    expect(opener).to_be_focused()
    assert not inspector.overflows()


# -- who asks ------------------------------------------------------------------------------------------------------------


def test_token_is_asked_for(browser: Browser, tmp_path: Path) -> None:
    with Stage(tmp_path, token="open sesame") as guarded:
        context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
        page = context.new_page()
        inspector = Inspector(page, guarded)
        inspector.open()
        dialog = page.get_by_role("dialog", name="This server asks who you are")
        for token in ("wrong", "open sesame"):
            expect(dialog).to_be_visible()
            dialog.get_by_label("Token").fill(token)
            dialog.get_by_role("button", name="Continue").click()
        expect(page.get_by_text("scripted provider")).to_be_visible()
        expect(dialog).to_be_hidden()
        inspector.send("approve")
        inspector.expect_state("publish", "awaiting an answer")
        page.reload()
        inspector.expect_state("publish", "awaiting an answer")
        context.close()
