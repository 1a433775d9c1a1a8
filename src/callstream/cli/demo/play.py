"""The model's part, where no real model plays it: what is answered depends on what was said and done since the user spoke.

It knows three documents. Every message of the user gets the whole play again: two things looked up at once, a document
written, typeset, shown to a person for approval, and published if the person agrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

import msgspec

from callstream.cli.output import one_line
from callstream.testing.httpserver import ReceivedRequest
from callstream.testing.script import Parallel, Script, Text, Thought, ToolCall

LABEL = "scripted provider"


class _Document(msgspec.Struct, frozen=True):
    """One thing that the play can write about. It is chosen by its words, or by its turn."""

    file: str
    words: tuple[str, ...]
    topics: tuple[str, str]

    @property
    def content(self) -> str:
        """Paragraphs are one line each: the width is decided where they are shown."""
        return resources.files(__package__).joinpath("documents", self.file).read_text("utf-8")

    @property
    def title(self) -> str:
        return self.content.partition("\n")[0].removeprefix("# ")


PIECES = (
    _Document("how-tides-work.md", ("tide", "sea", "moon", "ocean", "ebb"), ("the moon", "the sun")),
    _Document("a-good-cup-of-tea.md", ("tea", "cup", "brew", "kettle", "drink"), ("the leaf", "the water")),
    _Document("what-paper-is.md", ("paper", "book", "print", "page"), ("the fibre", "the press")),
)


def play(request: ReceivedRequest) -> Script:
    """The next answer of the model."""
    contents = request.json.get("contents")
    messages = [content for content in contents if isinstance(content, dict)] if isinstance(contents, list) else []
    spoken = [number for number, content in enumerate(messages) if _user_text(content)]
    start = spoken[-1] if spoken else 0
    said = _user_text(messages[start]) if messages else ""
    piece = _choose(said, len(spoken))
    done = list(_results(messages[start + 1 :]))
    return _next(piece, said, done)


def _next(piece: _Document, said: str, done: Sequence[tuple[str, Any]]) -> Script:
    names = [name for name, _ in done]
    failed = next((name for name, result in done if isinstance(result, dict) and "error" in result), None)
    if failed is not None:
        return [Text(f"{failed} did not work, so I stop here. Ask me again, and I begin anew.", size=4)]
    if "publish" in names:
        return [
            Text(f"“{piece.title}” is published. Ask for something else: I also know tides, tea and paper.", size=4)
        ]
    if "ask_approval" in names:
        if is_approval(dict(done)["ask_approval"]):
            return [Text("Thank you. I publish it now.", size=4), ToolCall("publish", {"title": piece.title})]
        return [
            Text(
                f"Then “{piece.title}” stays unpublished. It is written and typeset, should you want it later.", size=4
            )
        ]
    if "typeset" in names:
        summary = f"{len(piece.content.split())} words in {piece.content.count('## ')} chapters, checked and typeset."
        return [
            Text("It is ready. I do not publish anything before a person has agreed.", size=4),
            ToolCall("ask_approval", {"title": piece.title, "summary": summary}),
        ]
    if "write_document" in names:
        return [Text("Now it is typeset, which takes a moment.", size=4), ToolCall("typeset", {"title": piece.title})]
    if "look_up" in names:
        return [
            Text("That is enough to begin with.", size=4),
            ToolCall("write_document", {"title": piece.title, "content": piece.content}, size=8),
        ]
    return [
        Thought(f"“{one_line(said, 80)}” I am a script, so it will be “{piece.title}”.", size=6),
        Text(f"I will write “{piece.title}”. First I look two things up.", size=4),
        Parallel([ToolCall("look_up", {"topic": topic}, size=4) for topic in piece.topics]),
    ]


def _choose(said: str, turn: int) -> _Document:
    words = said.lower()
    for piece in PIECES:
        if any(word in words for word in piece.words):
            return piece
    return PIECES[max(turn - 1, 0) % len(PIECES)]


def _user_text(content: dict[str, Any]) -> str:
    """What a user's message says; nothing for one that only carries results."""
    if content.get("role") != "user":
        return ""
    return " ".join(str(part["text"]) for part in _parts(content) if part.get("text")).strip()


def _results(contents: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    for content in contents:
        for part in _parts(content):
            found = part.get("functionResponse") or part.get("function_response")
            if isinstance(found, dict):
                yield str(found.get("name")), found.get("response")


def _parts(content: dict[str, Any]) -> list[dict[str, Any]]:
    parts = content.get("parts")
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def is_approval(answer: Any) -> bool:
    """Whether a person's answer is a yes, in any of the forms that interfaces give it."""
    if isinstance(answer, dict):
        words = ("approved", "confirmed", "accepted", "ok", "answer", "decision", "result")
        return any(is_approval(answer[word]) for word in words if word in answer)
    if isinstance(answer, str):
        return answer.strip().lower() in ("y", "yes", "true", "ok", "approve", "approved", "accept", "accepted")
    return answer is True
