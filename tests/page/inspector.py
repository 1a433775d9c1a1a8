"""What a person does with the inspector, in words."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.page.stage import Stage

expect.set_options(timeout=30_000)

_SAMPLE = """
(selector) => {
  window.steps = new Set();
  const look = () => {
    const box = document.querySelector(selector);
    if (box !== null) window.steps.add(box.textContent.length);
    requestAnimationFrame(look);
  };
  look();
}
"""


class Inspector:
    def __init__(self, page: Page, stage: Stage) -> None:
        self.page = page
        self.stage = stage

    def open(self, path: str = "/") -> None:
        self.page.goto(self.stage.url + path)

    def send(self, text: str) -> None:
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")

    def card(self, name: str, index: int = -1) -> Locator:
        """A call's card; the latest, where several have that name.

        By its heading: to look for a name of a role, Playwright works out the names of all elements, however many.
        """
        heading = self.page.locator(".card-name", has_text=re.compile(f"^{re.escape(name)}$"))
        cards = self.page.locator("article.card", has=heading)
        return cards.last if index == -1 else cards.nth(index)

    def expect_state(self, name: str, state: str) -> Locator:
        card = self.card(name)
        expect(card.locator(".badge")).to_have_text(f"State: {state}")
        return card

    def expect_outcome(self, outcome: str) -> None:
        """Of the last run."""
        expect(self.page.locator(".run .run-head .badge").last).to_have_text(f"Outcome: {outcome}")

    def string(self, card: Locator, name: str) -> Locator:
        """The box of a long string."""
        return card.get_by_role("group", name=name, exact=True)

    def count_steps(self, selector: str) -> None:
        """From now on, how long the text is in each frame is noted."""
        self.page.evaluate(_SAMPLE, selector)

    def steps(self) -> set[int]:
        lengths: list[int] = self.page.evaluate("[...window.steps]")
        return set(lengths)

    def text_of(self, locator: Locator) -> str:
        """The text, character by character; Playwright's own functions tidy white space up."""
        text: str = locator.evaluate("(element) => element.textContent")
        return text

    def import_and(self, module: str, function: str, argument: Any = None) -> Any:
        """Calls a JavaScript function with a module of the page and an argument."""
        call = f"async ([module, argument]) => ({function})(await import(`/page/${{module}}`), argument)"
        return self.page.evaluate(call, [module, argument])

    def is_responsive(self) -> bool:
        """The page draws frames and answers to a click."""
        before = self.page.evaluate("document.documentElement.dataset.theme")
        self.page.get_by_role("button", name="Use the").click()
        after = self.page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => done(document.documentElement.dataset.theme)))"
        )
        return {before, after} == {"light", "dark"}

    def overflows(self) -> bool:
        """Whether anything is wider than the window."""
        wide: bool = self.page.evaluate(
            "document.documentElement.scrollWidth > innerWidth || main.scrollWidth > main.clientWidth"
        )
        return wide
