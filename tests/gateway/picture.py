"""Takes the picture of Claude Code in the inspector that docs/howto/gateway.md shows: ``python -m tests.gateway.picture``.

It is the real program, which reads through a gateway what a scripted provider writes; nothing is set but a base URL and a key.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.async_api import async_playwright

from callstream.testing import Finish, ReceivedRequest, Text, ToolCall
from tests.gateway.coding import FOLDER, PROGRAMS, UNSHARED, answered, in_own_network, started
from tests.gateway.gates import Gate, gate
from tests.npm import install
from tests.page.conftest import FLAGS, NAMES

FILE = Path("docs/img/claude-code.png")
PROMPT = "Find out how the tides of today were, and write them down in tides.md."
WORDS = (
    "# The tides of today\n\nThe moon pulls at the sea, and the sea follows it around the world. High water came at 6:12 "
    "and at 18:37, low water at 0:02 and at 12:24. "
)
TURNS: list[list[Any]] = [
    [
        Text("I let somebody look at the sea first. "),
        ToolCall(
            "Agent",
            {
                "description": "Look at the sea",
                "prompt": "How is the sea today?",
                "subagent_type": "general-purpose",
            },
        ),
    ],
    [
        Text("Calm. Now the date. "),
        ToolCall("Bash", {"command": "date +%A", "description": "Says which day it is"}),
    ],
    [Text("Now I write it down. "), ToolCall("Write", {"file_path": "tides.md", "content": WORDS * 40}, size=6)],
]


def script(request: ReceivedRequest) -> list[Any]:
    if "x-claude-code-agent-id" in request.headers:
        return [Text("The sea is calm, and it was high at 6:12."), Finish()]
    return [*TURNS[min(answered(request.json), len(TURNS) - 1)], Finish()]


async def main() -> int:
    program = PROGRAMS[0]
    async with gate(program.wire, script, deltas_per_second=25) as gateway:
        async with started(program, gateway, gateway.server.port, PROMPT):
            await take(gateway)
    return 0


async def take(gateway: Gate) -> None:
    """When the last call is being written."""
    browsers = [found for name in NAMES if (found := shutil.which(name)) is not None]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=browsers[0], args=FLAGS)
        page = await browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="light")
        async with asyncio.timeout(120):
            while len(gateway.provider.requests) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        thread_id = min((run.thread_id for run in await gateway.runs()), key=len)
        await page.goto(f"http://127.0.0.1:{gateway.server.port}/#/threads/{quote(thread_id, safe='')}")
        card = page.locator("article.card").last
        await card.get_by_text("High water came at 6:12").wait_for(timeout=60_000)
        await page.screenshot(path=FILE)
        await browser.close()


if __name__ == "__main__":
    if UNSHARED not in os.environ:
        install(FOLDER)
        in_own_network("tests.gateway.picture")
    sys.exit(asyncio.run(main()))
