"""The model's part, where no real model plays it: what is answered depends on what was said and done since the user spoke.

It knows three documents. Every message of the user gets the whole play again: two things looked up at once, a document
written, typeset, shown to a person for approval, and published if the person agrees.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from callstream.cli.output import one_line
from callstream.testing.httpserver import ReceivedRequest
from callstream.testing.script import Parallel, Script, Text, Thought, ToolCall

LABEL = "scripted provider"


class _Document(msgspec.Struct, frozen=True):
    """One thing that the play can write about. It is chosen by its words, or by its turn."""

    title: str
    words: tuple[str, ...]
    topics: tuple[str, str]
    content: str


PIECES = (
    _Document(
        "How tides work",
        ("tide", "sea", "moon", "ocean", "ebb"),
        ("the moon", "the sun"),
        """# How tides work

Twice a day the sea comes up the beach, and twice a day it goes away again. Nobody pushes it. The moon pulls.

## The moon

The moon pulls at everything on earth, but not equally. The sea below it is nearer than the earth's middle, and is
pulled more; the sea on the far side is farther away, and is pulled less. So the water gathers in two bulges, one towards
the moon and one away from it. The bulges stay where they are. It is the earth that turns beneath them, once a day,
and each coast passes through both: high water, low water, high water, low water.

## The sun

The sun does the same, from much farther away and less than half as strongly. At new and at full moon the two pull in
one line, and the tide runs high: a *spring tide*. At half moon they pull crosswise, and the tide hardly runs at all: a
*neap tide*.

## The coast

On the open ocean the bulge is less than a metre high. What makes it ten metres in one bay and nothing in the next is
the shape of the coast, which lets the water swing as a cup lets tea swing when it is carried.

- High water comes about 50 minutes later every day, because the moon has moved on meanwhile.
- A tide table is the sum of some forty swings, each as regular as a clock.
- Write it down, and the next page is ready before the ink is dry.
""",
    ),
    _Document(
        "A good cup of tea",
        ("tea", "cup", "brew", "kettle", "drink"),
        ("the leaf", "the water"),
        """# A good cup of tea

Tea is leaves and water, so there is little to do and little to hide behind.

## The water

Draw it fresh. Water that has boiled for long has lost its air, and tea made of it tastes flat. For black tea take it
just off the boil; green tea wants it cooler, or it turns bitter.

## The leaf

A teaspoon for each cup, and room to open: a leaf swells to five times its size. Do not crush it into a basket that is
too small for it.

## The time

1. Warm the pot, and pour the water away.
2. Put the leaves in, and the water on them.
3. Wait four minutes. Before three there is colour but no taste; after five there is mostly tannin.
4. Take the leaves out, or pour the tea off them.

Milk first or tea first is a question of the cup: thin old porcelain could crack in the heat, and milk kept it whole.
Drink it while somebody tells you something.
""",
    ),
    _Document(
        "What paper is",
        ("paper", "book", "print", "page"),
        ("the fibre", "the press"),
        """# What paper is

Take a plant apart until nothing is left but its fibres, stir them into a great deal of water, and let the water run away
through a sieve. What stays on the sieve is paper.

## Why it holds

No glue holds it. The fibres are cellulose, and where two of them dry against each other they hold on by themselves, by
bonds that water makes and water undoes. That is why wet paper falls apart, and why old paper can be made into new.

## How it is made

- The pulp is nearly all water: of a hundred litres, one is fibre.
- The sieve shakes, so that the fibres lie every way.
- The press takes half of the water, and heat the rest.
- Starch or gelatine on top keeps the ink where it was put.

A sheet has a side that lay on the sieve and one that did not, and the fibres lie more along than across. Tear a newspaper
down, and then across, and you can tell which way it ran.
""",
    ),
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
            ToolCall("write_document", {"title": piece.title, "content": _unwrap(piece.content)}, size=8),
        ]
    return [
        Thought(f"“{one_line(said, 80)}” I am a script, so it will be “{piece.title}”.", size=6),
        Text(f"I will write “{piece.title}”. First I look two things up.", size=4),
        Parallel([ToolCall("look_up", {"topic": topic}, size=4) for topic in piece.topics]),
    ]


def _unwrap(text: str) -> str:
    """Paragraphs as one line each: the width is decided where they are shown."""
    return re.sub(r"(?<=[^\n])\n(?![\n#-]|\d\.|$)", " ", text)


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
