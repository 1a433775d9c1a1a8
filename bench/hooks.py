"""What hooks add to a delta: ``python -m bench.hooks``.

A reader gives one delta of eight characters to a call's hooks and then lets other tasks run, as one that reads from a
socket does. The same loop without the call is taken off, so a row is what the hooks add, their own calls included. The
hooks do nothing, or look at what their row says. A tool without hooks adds so little that the loop would hide it: there
the deltas alone are timed. A sync hook falls behind such a reader and gets its deltas merged. Rows run in turns, and
the best of seven rounds counts.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

from callstream.calls import Call, opened
from callstream.events import CallStarted
from callstream.hooks import CallHooks
from callstream.hooks.deltas import ArgsDelta, FieldDelta
from callstream.tools import AbortSignal, Hooks

DELTA = 8
ROUNDS = 7
SIZES = {"16 KB": 16_000, "64 KB": 64_000}
LIMIT_NO_HOOK = 1.0  # microseconds
LIMIT_GROWTH = 2.0  # of the cost of a delta when the arguments are four times as long; one that reads all again has 4


async def nothing(subject: Any, signal: AbortSignal) -> None:
    pass


async def look_at_args(delta: ArgsDelta, signal: AbortSignal) -> None:
    assert delta.args is not None


async def look_at_value(field: FieldDelta, signal: AbortSignal) -> None:
    assert field.value is not None


def in_thread(delta: ArgsDelta, signal: AbortSignal) -> None:
    pass


def hooks_with(register: Callable[[Hooks], Any]) -> Hooks:
    hooks = Hooks()
    register(hooks)
    return hooks


ROWS: dict[str, Hooks] = {
    "one raw hook": hooks_with(lambda hooks: hooks.on_args_delta(nothing)),
    "one raw hook, asks for args": hooks_with(lambda hooks: hooks.on_args_delta(look_at_args)),
    "one field hook": hooks_with(lambda hooks: hooks.on_field("content")(nothing)),
    "one field hook, asks for value": hooks_with(lambda hooks: hooks.on_field("content")(look_at_value)),
    "one sync raw hook": hooks_with(lambda hooks: hooks.on_args_delta(in_thread)),
}


def arguments(size: int) -> list[str]:
    text = json.dumps({"title": "Notes", "content": "The quick brown fox.\n" * (size // 22)})
    return [text[at : at + DELTA] for at in range(0, len(text), DELTA)]


async def bare(pieces: list[str]) -> float:
    begin = perf_counter()
    for _ in pieces:
        await asyncio.sleep(0)
    return perf_counter() - begin


async def unhooked(pieces: list[str]) -> float:
    calls = CallHooks(opened(CallStarted("c1", "write")), Hooks())
    begin = perf_counter()
    for piece in pieces:
        calls.push(piece)
    return perf_counter() - begin


async def hooked(pieces: list[str], hooks: Hooks) -> float:
    call: Call = opened(CallStarted("c1", "write"))
    begin = perf_counter()
    calls = CallHooks(call, hooks)
    for piece in pieces:
        calls.push(piece)
        await asyncio.sleep(0)
    calls.complete(call)
    await calls.settled()
    assert calls.claim()
    return perf_counter() - begin


async def added(pieces: list[str]) -> dict[str, float]:
    """Microseconds per delta that each row adds."""
    least = dict.fromkeys(["bare", "no hook", *ROWS], float("inf"))
    for _ in range(ROUNDS):
        least["bare"] = min(least["bare"], await bare(pieces))
        least["no hook"] = min(least["no hook"], await unhooked(pieces))
        for name, hooks in ROWS.items():
            least[name] = min(least[name], await hooked(pieces, hooks))
    rows = {"no hook": least["no hook"]} | {name: least[name] - least["bare"] for name in ROWS}
    return {name: seconds / len(pieces) * 1e6 for name, seconds in rows.items()}


def check(what: str, measured: float, limit: float) -> bool:
    passed = measured <= limit
    print(f"{'PASS' if passed else 'FAIL'}  {what}: {measured:.2f} (at most {limit:g})")
    return passed


def main() -> int:
    print(f"Python {sys.version.split()[0]}, deltas of {DELTA} characters, best of {ROUNDS}\n")
    results = {label: asyncio.run(added(arguments(size))) for label, size in SIZES.items()}
    print(f"{'hooks: µs added per delta':34}" + "".join(f"{label:>10}" for label in SIZES))
    for name in results["64 KB"]:
        print(f"{name:34}" + "".join(f"{results[label][name]:10.2f}" for label in SIZES))
    print()
    short, long = results["16 KB"], results["64 KB"]
    passed = [check("µs per delta, no hook", long["no hook"], LIMIT_NO_HOOK)]
    for name in ("one raw hook", "one field hook", "one field hook, asks for value"):
        passed.append(check(f"growth from 16 to 64 KB, {name}", long[name] / short[name], LIMIT_GROWTH))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
