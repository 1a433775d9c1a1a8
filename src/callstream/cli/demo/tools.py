"""The tools of the demo's agent, as an application would write them."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from callstream.calls import Call
from callstream.tools import AbortSignal, Tool, tool
from callstream.tools.delta import FieldDelta
from callstream.tools.parameters import Progress, no_progress

FACTS = {
    "moon": "The moon's pull raises the sea on the side that faces it, and on the far side as well: two bulges, "
    "under which the earth turns.",
    "sun": "The sun pulls less than half as much as the moon; in line with it, at new and full moon, tides run highest.",
    "leaf": "Black tea gives its taste in about four minutes; after that it mostly gives tannin.",
    "water": "Water just off the boil, about 95 °C, draws black tea best; green tea wants 75 °C.",
    "fibre": "Paper is a mat of cellulose fibres that hold to each other without glue, by hydrogen bonds.",
    "press": "A sheet leaves the mould almost all water; pressing takes half of it, drying the rest.",
}
_PAGES = 24


class Workshop:
    """Where the agent's documents are. ``pause`` is how long the slow things take, for each of their steps."""

    def __init__(self, folder: Path, *, pause: float = 0.12) -> None:
        self.folder = folder
        self.pause = pause
        self.published: list[str] = []

    def tools(self) -> list[Tool[Any]]:
        return [self._look_up(), self._write_document(), self._typeset()]

    def document(self, title: str) -> Path:
        return self.folder / f"{_slug(title)}.md"

    def _look_up(self) -> Tool[Any]:
        @tool
        async def look_up(topic: str) -> dict[str, str]:
            """Looks a topic up in the library.

            Args:
                topic: What to look up, a word or two.
            """
            await asyncio.sleep(self.pause * 6)
            known = next((fact for word, fact in FACTS.items() if word in topic.lower()), None)
            return {"topic": topic, "found": known or f"The library has nothing on {topic}; use what you know."}

        return look_up

    def _write_document(self) -> Tool[Any]:
        @tool
        async def write_document(title: str, content: str) -> dict[str, Any]:
            """Writes a document and keeps it.

            Args:
                title: The document's title.
                content: The whole document, as Markdown.
            """
            file = self.document(title)
            file.write_text(content, encoding="utf-8")
            return {"title": title, "characters": len(content), "words": len(content.split()), "file": file.name}

        @write_document.on_field("content")
        def preview(field: FieldDelta, signal: AbortSignal) -> None:
            """The preview grows while the model still writes; the tool has not run yet."""
            with self._preview(field.call_id).open("a", encoding="utf-8") as file:
                file.write(field.text)

        @write_document.on_args_complete
        def done(call: Call, signal: AbortSignal) -> None:
            self._preview(call.call_id).unlink(missing_ok=True)

        @write_document.on_args_abort
        def given_up(call: Call, reason: str) -> None:
            """The rest will not come, so half a document is not left lying about."""
            self._preview(call.call_id).unlink(missing_ok=True)

        return write_document

    def _typeset(self) -> Tool[Any]:
        @tool
        async def typeset(title: str, progress: Progress = no_progress) -> dict[str, Any]:
            """Typesets a document that was written before. This takes a while.

            Args:
                title: The document's title.
            """
            if not self.document(title).is_file():
                return {"error": f"there is no document {title!r}; write it first"}
            for page in range(1, _PAGES + 1):
                await asyncio.sleep(self.pause)
                await progress(page, _PAGES, "typesetting")
            return {"title": title, "pages": _PAGES}

        return typeset

    def _preview(self, call_id: str) -> Path:
        return self.folder / f"preview-{_slug(call_id)}.md"


def is_approval(answer: Any) -> bool:
    """Whether a person's answer is a yes, in any of the forms that interfaces give it."""
    if isinstance(answer, dict):
        words = ("approved", "confirmed", "accepted", "ok", "answer", "decision", "result")
        return any(is_approval(answer[word]) for word in words if word in answer)
    if isinstance(answer, str):
        return answer.strip().lower() in ("y", "yes", "true", "ok", "approve", "approved", "accept", "accepted")
    return answer is True


def _slug(text: str) -> str:
    """A file's name, whatever a model calls its document."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60] or "untitled"
