"""Table "decode": from the bytes of a response to its events, per delta, beside the official SDK on the same bytes.

One call of 20,000 deltas of 8 characters on each wire, fed in reads of 16 KiB. The SDK gets the same bytes in the same
reads through the real client's transport, and its own raw stream is iterated (not its accumulating helper, which is
slower). CPU time of this process, both in turns for about eight seconds a wire, at least twice; the best counts.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2

from bench.table import Table
from callstream.testing import ToolCall, encode
from callstream.wire import decoder_for

DELTAS = 20_000
SIZE = 8
READ = 16 * 1024
SECONDS = 8.0
ROUNDS = 2
WANTED = 10.0


def body(wire: str) -> bytes:
    """One call whose argument text comes in ``DELTAS`` pieces."""
    text = "def f(x):\n    return x + 1\n" * (DELTAS * SIZE // 26 + 1)
    return b"".join(encode(wire, [ToolCall("write", {"content": text[: (DELTAS - 1) * SIZE]}, size=SIZE)]))


def reads(data: bytes) -> Iterator[bytes]:
    return (data[start : start + READ] for start in range(0, len(data), READ))


def ours(wire: str, data: bytes) -> float:
    decoder = decoder_for(wire)
    began = time.process_time()
    for piece in reads(data):
        decoder.feed(piece)
    decoder.end()
    return time.process_time() - began


class _Reads(httpx.SyncByteStream, httpx2.SyncByteStream):
    def __init__(self, data: bytes) -> None:
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        return reads(self._data)


def _transport(library: Any, data: bytes) -> Any:
    headers = {"content-type": "text/event-stream"}
    return library.MockTransport(lambda request: library.Response(200, headers=headers, stream=_Reads(data)))


def _iterated(open_stream: Callable[[], Any]) -> float:
    began = time.process_time()
    for _ in open_stream():
        pass
    return time.process_time() - began


def anthropic(data: bytes) -> float:
    from anthropic import Anthropic

    client = Anthropic(api_key="none", http_client=httpx2.Client(transport=_transport(httpx2, data)))
    message = {"role": "user", "content": "x"}
    return _iterated(lambda: client.messages.create(model="m", max_tokens=1, messages=[message], stream=True))


def openai_chat(data: bytes) -> float:
    from openai import OpenAI

    client = OpenAI(api_key="none", http_client=httpx.Client(transport=_transport(httpx, data)))
    message: Any = {"role": "user", "content": "x"}
    return _iterated(lambda: client.chat.completions.create(model="m", messages=[message], stream=True))


def openai_responses(data: bytes) -> float:
    from openai import OpenAI

    client = OpenAI(api_key="none", http_client=httpx.Client(transport=_transport(httpx, data)))
    return _iterated(lambda: client.responses.create(model="m", input="x", stream=True))


def gemini(data: bytes) -> float:
    from google import genai

    client = genai.Client(
        api_key="none",
        http_options=genai.types.HttpOptions(httpx_client=httpx.Client(transport=_transport(httpx, data))),
    )
    return _iterated(lambda: client.models.generate_content_stream(model="m", contents="x"))


SDKS = {"gemini": gemini, "anthropic": anthropic, "openai_chat": openai_chat, "openai_responses": openai_responses}


def in_turns(wire: str, sdk: Callable[[bytes], float]) -> list[tuple[float, float]]:
    """CPU seconds of each, in turns, because what else runs on the machine hits both."""
    data = body(wire)
    rounds: list[tuple[float, float]] = []
    end = time.monotonic() + SECONDS
    while len(rounds) < ROUNDS or time.monotonic() < end:
        rounds.append((ours(wire, data), sdk(data)))
        own, other = (seconds / DELTAS * 1e6 for seconds in rounds[-1])
        print(f"{wire}, round {len(rounds)}: {own:.2f} and {other:.1f} µs", file=sys.stderr, flush=True)
    return rounds


def main() -> int:
    warnings.simplefilter("ignore")
    table = Table(
        f"decode: {DELTAS:,} deltas of {SIZE} characters, bytes to events, CPU µs per delta, best round",
        ["wire", "rounds", "callstream", "official SDK", "times faster", f"wanted: {WANTED:g}"],
    )
    passed = True
    for wire, sdk in SDKS.items():
        rounds = in_turns(wire, sdk)
        own, other = (min(times) for times in zip(*rounds, strict=True))
        ratio = other / own
        passed = passed and ratio >= WANTED
        table.row(
            wire, len(rounds), own / DELTAS * 1e6, other / DELTAS * 1e6, ratio, "PASS" if ratio >= WANTED else "FAIL"
        )
    table.print()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
