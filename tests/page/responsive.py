"""How responsive the page of React stays while 1 MB of arguments arrives: ``python -m tests.page.responsive``.

A task of more than 100 ms is what a person notices. The browser's own list of long tasks is asked, while the arguments are
written as fast as the server can send them and after a reload, when all of them arrive at once. The work of other processes
counts too, so there are three rounds; it fails if a task was longer in each.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callstream.server.app import PAGE
from tests.page.conftest import DESKTOP, FLAGS, NAMES
from tests.page.stage import VERSE, Stage

if TYPE_CHECKING:
    from playwright.sync_api import Page

LONGEST = 100
WANTED = len(VERSE * 14_800)
_WATCH = """
window.longTasks = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.longTasks.push(Math.round(entry.duration));
}).observe({ type: "longtask", buffered: true });
"""
_LENGTH = """document.querySelector('[aria-label="Text of the document"]')?.textContent.length ?? 0"""


def main() -> int:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None or not (PAGE / "react" / "index.html").is_file():
        print("skipped: needs a browser, and the page of React that `make js` builds")
        return 0
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, Stage(Path(folder)) as stage, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        for _ in range(3):
            context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
            longest = _watch(context.new_page(), stage.url)
            context.close()
            if longest <= LONGEST:
                return 0
        browser.close()
    return 1


def _watch(page: Page, url: str) -> int:
    page.add_init_script(_WATCH)
    page.goto(f"{url}/page/react/index.html")
    page.get_by_label("Message", exact=True).fill("megabyte")
    page.wait_for_timeout(500)
    page.evaluate("window.longTasks.length = 0")  # what loading React took
    page.keyboard.press("Enter")
    written = _report(page, "while they are written")
    page.reload()
    return max(written, _report(page, "after a reload"))


def _report(page: Page, what: str) -> int:
    for _ in range(1200):
        if page.evaluate(_LENGTH) == WANTED:
            break
        page.wait_for_timeout(250)
    else:
        raise SystemExit(f"{what}: the document did not arrive")
    tasks: list[Any] = page.evaluate("window.longTasks")
    longest = max(tasks, default=0)
    told = f"{len(tasks)} over 50 ms, the longest {longest} ms" if tasks else "none over 50 ms"
    print(f"{WANTED:,} characters of arguments, {what}: tasks {told}")
    return int(longest)


if __name__ == "__main__":
    sys.exit(main())
