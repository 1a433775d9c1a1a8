"""What the model says: a function of the conversation that it is sent, so it does not matter who asks, and how often.

A turn has four responses: a call of a tool of the server; one of such a tool and one of the client's at once; a call that
somebody has to approve; and a last word.
"""

from __future__ import annotations

import random
import time
from typing import Any

from callstream.runtime.continuing import INTERRUPTED
from callstream.testing import Finish, Parallel, ReceivedRequest, Script, Text, Thought, ToolCall

WORDS = [
    "wave",
    "🌊",
    "stone",
    '"quoted"',
    "tree\n",
    "back\\slash",
    "é",
    "light",
    "{brace}",
    "[list]",
    "7",
    "null",
    "true",
]

PAINT = {
    "name": "paint",
    "description": "Paints the page.",
    "parameters": {"type": "object", "properties": {"label": {"type": "string"}, "body": {"type": "string"}}},
}


def body_of(label: str, words: int = 12) -> str:
    return " ".join(random.Random(label).choices(WORDS, k=words))


def args_of(label: str) -> dict[str, Any]:
    return {"label": label, "body": body_of(label)}


def question_of(label: str) -> str:
    """What a turn's call that has to be approved is labelled with."""
    return f"{label} step 2"


class Plan:
    """``script`` answers a request. ``wrong`` says what was wrong with requests.

    A tool whose process was killed in it failed, and the model is told so: ``interrupted`` has the thread and the tool,
    which may be the client's, if its call was about to be handed over.
    Where a crash kept the pending answer to a question from the session, it is told that there is no answer yet:
    ``unanswered`` has what was asked, and when the model was told. Whether both are the truth the journal knows.
    """

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.evidence: dict[str, list[dict[str, Any]]] = {}
        """What a thread's model was sent when it was first told something wrong."""
        self.interrupted: set[tuple[str, str]] = set()
        self.unanswered: list[tuple[str, float]] = []
        self.requests = 0

    def script(self, request: ReceivedRequest) -> Script:
        self.requests += 1
        contents = request.json["contents"]
        asked = max(place for place, content in enumerate(contents) if _said(content))
        label = _said(contents[asked])
        since = contents[asked + 1 :]
        step = sum(content["role"] == "model" for content in since)
        for content in since:
            for part in content["parts"]:
                if "functionResponse" in part:
                    self._check(label, part["functionResponse"], contents)
        name = f"{label} step {step}"
        match step:
            case 0:
                return [
                    Thought(f"What is {label}?", size=8),
                    Text(f"I begin with {label}.", size=8),
                    ToolCall("work", args_of(name)),
                    Finish(),
                ]
            case 1:
                both = [ToolCall("work", args_of(f"{name}a")), ToolCall("paint", args_of(f"{name}b"))]
                return [Text("Two at once. "), Parallel(both), Finish()]
            case 2:
                return [Text("May I? "), ToolCall("approve", args_of(question_of(label))), Finish()]
            case _:
                return [Text(f"Done with {label}.", size=8), Finish()]

    def _check(self, label: str, response: dict[str, Any], contents: list[dict[str, Any]]) -> None:
        told = response["response"]
        if told in ({"error": "interrupted"}, {"error": INTERRUPTED}):
            self.interrupted.add((label.partition(" ")[0], response["name"]))
            return
        if told == {"status": "no answer yet"} and response["name"] == "approve":
            self.unanswered.append((question_of(label), time.time()))
            return
        fits = {
            "work": told.get("result") == "worked",
            "paint": told.get("said") == "first",
            "approve": told.get("said") == "first" or told.get("status") == "pending",
        }
        if not fits[response["name"]]:
            self.wrong.append(f"{label}: the model was told {told} of {response['name']}")
            self.evidence.setdefault(label.partition(" ")[0], contents)


def _said(content: dict[str, Any]) -> str:
    if content["role"] != "user":
        return ""
    return "".join(part.get("text", "") for part in content["parts"])
