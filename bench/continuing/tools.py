"""The tools of every program. They note what they do, and stay where the folder's file ``hang`` says.

No host's package is imported here: the programs run in environments of their own.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

FOLDER = Path(os.environ["CONTINUING_FOLDER"])
PROVIDER = os.environ["CONTINUING_PROVIDER"]
INSTRUCTION = "You are a writer."


async def _reach(place: str) -> None:
    with (FOLDER / "tools.log").open("a") as log:
        log.write(place + "\n")
    hang = FOLDER / "hang"
    if hang.exists() and hang.read_text() == place:
        await asyncio.sleep(3600)


async def look_up(topic: str) -> str:
    """Looks a topic up."""
    await _reach("look_up begins")
    await asyncio.sleep(0.1)
    await _reach("look_up has done it")
    return f"{topic} is long."


async def write_document(title: str) -> str:
    """Writes a document."""
    await _reach("write_document begins")
    await asyncio.sleep(0.1)
    await _reach("write_document has done it")
    return f"{title} is written."
