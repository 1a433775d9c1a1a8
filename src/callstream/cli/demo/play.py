"""The scripted model: its answer depends on what was said and done since the user's last message.

It knows three documents. Every user message gets the whole sequence again: it looks up two things at once, writes a
document, typesets it, asks a person for approval, and publishes it if the person agrees.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

import msgspec

from callstream.cli.output import one_line
from callstream.events import MessageReceived, ResultReceived
from callstream.testing.httpserver import ReceivedRequest
from callstream.testing.script import Parallel, Script, Text, Thought, ToolCall
from callstream.wire import provider_of

LABEL = "scripted provider"


class _Document(msgspec.Struct, frozen=True):
    """A subject that the script can write about. It is chosen by words in the user's message, or else in turn."""

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
    events = [event for turn in provider_of("gemini").turns(request.body) for event in turn.events]
    spoken = [(place, event.text) for place, event in enumerate(events) if isinstance(event, MessageReceived)]
    start, said = spoken[-1] if spoken else (0, "")
    done = {event.name: event.content for event in events[start:] if isinstance(event, ResultReceived)}
    return _next(_choose(said, len(spoken)), said, done)


def _next(piece: _Document, said: str, done: Mapping[str | None, Any]) -> Script:
    """``done``: the tools' results since the user's last message."""
    failed = next((name for name, result in done.items() if isinstance(result, dict) and "error" in result), None)
    if failed is not None:
        return [Text(f"{failed} did not work, so I stop here. Ask me again, and I will start over.", size=4)]
    if "publish" in done:
        return [
            Text(f"“{piece.title}” is published. Ask for something else: I also know tides, tea and paper.", size=4)
        ]
    if "ask_approval" in done:
        if is_approval(done["ask_approval"]):
            return [Text("Thank you. I publish it now.", size=4), ToolCall("publish", {"title": piece.title})]
        return [
            Text(
                f"Then “{piece.title}” stays unpublished. It is written and typeset, should you want it later.", size=4
            )
        ]
    if "typeset" in done:
        summary = f"{len(piece.content.split())} words in {piece.content.count('## ')} chapters, checked and typeset."
        return [
            Text("It is ready. I do not publish anything before a person has agreed.", size=4),
            ToolCall("ask_approval", {"title": piece.title, "summary": summary}),
        ]
    if "write_document" in done:
        return [Text("Now it is typeset, which takes a moment.", size=4), ToolCall("typeset", {"title": piece.title})]
    if "look_up" in done:
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


def is_approval(answer: Any) -> bool:
    """Whether a person's answer is a yes, in any of the forms that user interfaces send."""
    if isinstance(answer, dict):
        words = ("approved", "confirmed", "accepted", "ok", "answer", "decision", "result")
        return any(is_approval(answer[word]) for word in words if word in answer)
    if isinstance(answer, str):
        return answer.strip().lower() in ("y", "yes", "true", "ok", "approve", "approved", "accept", "accepted")
    return answer is True
