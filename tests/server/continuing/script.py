"""What the models say: a function of what they are asked."""

from __future__ import annotations

import re
from collections import Counter

from callstream import results_in
from callstream.events import ResultReceived
from callstream.testing import Finish, Parallel, ReceivedRequest, Script, Text, ToolCall

BODY = "Lorem ipsum dolor sit amet, consetetur sadipscing elitr, sed diam nonumy."
ASKS = {"long_running": "order", "confirmation": "sign"}
"""The tool of each kind whose calls await a person."""


class Models:
    """``asked``: how often each agent was asked for each step of each run."""

    def __init__(self, wire: str, kind: str) -> None:
        self._wire = wire
        self._asks = ASKS.get(kind)
        self.asked: Counter[tuple[str, str, int]] = Counter()

    def script(self, request: ReceivedRequest) -> Script:
        text = request.body.decode()
        label = re.search(r"run-\d+", text)[0]  # type: ignore[index]
        name = re.findall(r"You are (\w+)\.", text)[-1]
        results = [event for event in results_in(self._wire, request.body) if isinstance(event, ResultReceived)]
        step = min(len(results), 3) if name in ("first", "second") else min(len(results), 1)
        self.asked[label, name, step] += 1
        return says(name, label, step, self._asks)


def says(name: str, label: str, step: int, asks: str | None = None) -> Script:
    match name, step:
        case ("head", 0):
            return [Text("Over to first. ", size=5), ToolCall("transfer_to_agent", {"agent_name": "first"}), Finish()]
        case ("outer", 0):
            return [Text("I ask first. ", size=5), ToolCall("first", {"request": label}), Finish()]
        case (_, 0):
            return [Text(f"{name} looks. ", size=4), ToolCall(f"{name}_look", {"label": label}), Finish()]
        case ("first" | "second", 1 | 2):
            calls = [ToolCall(f"{name}_write", {"label": f"{label}{each}", "body": BODY}) for each in "ab"]
            if asks is not None:
                calls[0] = ToolCall(f"{name}_{asks}", {"label": label})
            return [Text(f"{name} writes twice. ", size=6), Parallel(calls), Finish()]
        case _:
            return [Text(f"{name} is done with {label}.", size=5), Finish()]


def texts(kind: str, label: str, runs: int) -> Counter[str]:
    """What a thread of that kind says in so many runs, all in all."""

    def one(name: str) -> list[str]:
        return [f"{name} looks. ", f"{name} writes twice. ", f"{name} is done with {label}."]

    match kind:
        case "sequential" | "parallel" | "workflow":
            said = one("first") + one("second")
        case "loop":
            said = [*one("first"), f"first is done with {label}."]
        case "transfer":
            said = ["Over to first. ", *one("first")]
        case "agent_tool":
            said = ["I ask first. ", *one("first"), f"outer is done with {label}."]
        case "long_running":  # the model hears twice of what was ordered
            said = [*one("first"), *[f"first is done with {label}."] * (runs - 1)]
        case _:
            said = one("first")
    return Counter(said)
