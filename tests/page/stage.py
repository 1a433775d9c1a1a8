"""The inspector with all that it needs: an agent of google-adk, its model played by a script over real HTTP, a journal in
a file, and the real server; all of it on an event loop in a thread of its own, so that a browser can be driven beside it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvicorn
from anthropic import AsyncAnthropic
from google.adk.agents import LlmAgent
from google.adk.models.anthropic_llm import AnthropicLlm
from google.adk.tools.function_tool import FunctionTool

from callstream import Callstream, Progress, no_progress, tool
from callstream.adk import ADKAgent
from callstream.server import ServerSettings, create_app
from callstream.testing import Delay, Finish, ReceivedRequest, Script, ScriptedProvider, Text, Thought, ToolCall
from callstream.testing.httpserver import Frame, HttpAnswer
from callstream.testing.provider import Route
from tests.server.serving import running

T = TypeVar("T")

VERSE = "The moon pulls, and the sea follows: twice a day up, twice a day down. "
DOCUMENT = """# How tides work

The moon pulls at the sea, and the sea follows. On the side of the earth that faces the moon the water is drawn a little \
towards it; on the far side it is left a little behind. So there are two swells, and the earth turns beneath them: that is \
why most coasts have high water twice a day, about twelve hours and twenty-five minutes apart.

## Spring and neap

The sun pulls as well, a little less than half as strongly. At full moon and at new moon the two pull along one line, and \
the tide runs high: a “spring” tide, which has nothing to do with the season. At half moon they pull across each other, \
and the range is small: a “neap” tide. From one to the other it takes a week.

## Why the coast matters

A swell in the open ocean is less than a metre high. What makes a tide of fifteen metres is the shape of the shore: a bay \
that narrows and grows shallow pushes the water up, and one whose length fits the rhythm of the tide swings along with it, \
as water does in a bath when you move at the right moment. In the Bay of Fundy both come together.

## What a sailor does with it

1. He looks up the height and the hour for the harbour, and not for the ocean.
2. He counts in twelfths: in the six hours of a rising tide the water climbs 1, 2, 3, 3, 2 and 1 twelfths of its range.
3. He leaves a hand's breadth under the keel for the wind, because a steady wind from the land can hold the water off.
4. He does not argue with the current at the narrows; he waits an hour, and has it behind him.

Write it down, and the next page is ready before the ink is dry. 🌊
"""
HOSTILE = (
    "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
    "</textarea></script>&lt;b&gt; javascript:alert(1) \u2028 \u0000 " + "W" * 3000 + " "
)
RIGHT_TO_LEFT = "\u200fהים נענה לירח: פעמיים ביום עולה, פעמיים ביום יורד. \u202eesrever\u202c مرحبا بالعالم"
FIVE_MB = ("unbroken" * 12_500 + "\n" + "line by line, and on\n" * 2_500) * 33
"""More than five million characters; most of them in lines of a hundred thousand."""
MANY = {"rows": [{"number": number, "name": f"row {number}", "ok": number % 2 == 0} for number in range(1500)]}
BIG_INTEGER = 12345678901234567890123


@tool
async def write_document(title: str, content: str) -> dict[str, Any]:
    """Writes a document."""
    return {"title": title, "characters": len(content), "serial": BIG_INTEGER}


@tool
async def look_up(topic: str) -> str:
    """Looks a topic up."""
    return f"what is known of {topic}"


@tool
async def print_copies(copies: int, progress: Progress = no_progress) -> str:
    """Prints copies, slowly."""
    for done in range(1, copies + 1):
        await asyncio.sleep(0.04)
        await progress(done, copies, "printing")
    return f"{copies} copies"


@tool
async def store(payload: dict[str, Any]) -> str:
    """Stores anything."""
    return "stored"


async def publish(title: str, audience: list[str]) -> dict[str, Any]:
    """Publishes a document, after somebody has agreed."""
    return {"published": title, "to": len(audience)}


async def fail(why: str) -> str:
    """Fails."""
    raise ValueError(f"it could not be done: {why}")


_PUBLISH = ToolCall("publish", {"title": "Tides", "audience": ["sailors", "fishermen", "moonstruck poets"]}, size=6)
SCRIPTS: dict[str, list[Script]] = {
    "write": [
        [
            Thought("They want to know how tides work. I will write it down first.", size=9),
            Text("I will write that down.", size=5),
            ToolCall("write_document", {"title": "Tides", "content": DOCUMENT}, size=5),
        ],
        [Text("Written. Is there anything else?", size=6)],
    ],
    "everything": [
        [
            Thought("A document first, then some facts, then print it, then ask before it is published.", size=9),
            Text("I will write that down.", size=5),
            ToolCall("write_document", {"title": "Tides", "content": DOCUMENT}, size=24),
        ],
        [ToolCall("look_up", {"topic": "the moon"}), ToolCall("look_up", {"topic": "the sun"})],
        [ToolCall("print_copies", {"copies": 20})],
        [Text("Before it is published, somebody has to agree.", size=8), _PUBLISH],
        [Text("Published. The sailors will be glad.", size=6)],
    ],
    "approve": [[Text("May I?"), _PUBLISH], [Text("Published.")]],
    "fail": [[ToolCall("fail", {"why": "no paper"})], [Text("It failed.")]],
    "slow": [[ToolCall("print_copies", {"copies": 10_000})], [Text("Printed.")]],
    "endless": [[ToolCall("write_document", {"title": "Endless", "content": VERSE * 3000}, size=4)], [Text("Done.")]],
    "cut": [[ToolCall("write_document", {"title": "Cut", "content": VERSE * 3}, stop_after=12), Finish("length")]],
    "hostile": [
        [
            Text(HOSTILE),
            ToolCall(
                "store", {"payload": {"text": HOSTILE, "rtl": RIGHT_TO_LEFT, HOSTILE: [HOSTILE, None, True, 1.5e300]}}
            ),
        ],
        [Text(RIGHT_TO_LEFT)],
    ],
    "huge": [[ToolCall("store", {"payload": {"text": FIVE_MB}}, size=200_000)], [Text("Huge.")]],
    "long": [[ToolCall("write_document", {"title": "Long", "content": VERSE * 1450}, size=80)], [Text("Long.")]],
    "megabyte": [[ToolCall("write_document", {"title": "Long", "content": VERSE * 14_800}, size=80)], [Text("Long.")]],
    "many": [[ToolCall("store", {"payload": MANY}, size=100)], [Text("Many.")]],
}
UNPACED = {"huge", "long", "megabyte", "many", "hostile"}


class PlayedProvider(ScriptedProvider):
    """Plays the script that the user's last message begins with the name of.

    ``hold(after)``: from then on an answer stops after so many frames, until ``release``. What is unpaced comes as fast
    as it can.
    """

    def __init__(self, pace: float) -> None:
        super().__init__("anthropic", self._play, deltas_per_second=pace)
        self._hold_after: int | None = None
        self._released = threading.Event()
        self.held = threading.Event()

    def hold(self, after: int) -> None:
        self._hold_after = after
        self._released.clear()
        self.held.clear()

    def release(self) -> None:
        self._hold_after = None
        self._released.set()

    async def answer(self, request: ReceivedRequest, route: Route) -> HttpAnswer:
        answer = await super().answer(request, route)
        name, _ = _asked(request)
        pace = None if name in UNPACED else answer.frames_per_second
        return msgspec.structs.replace(answer, frames=self._held(answer.frames), frames_per_second=pace)

    def _held(self, frames: Iterable[Frame]) -> Iterator[Frame]:
        for number, frame in enumerate(frames):
            if number == self._hold_after:
                self.held.set()
                while not self._released.is_set():
                    yield Delay(0.02)
            yield frame

    def _play(self, request: ReceivedRequest) -> Script:
        name, turn = _asked(request)
        return SCRIPTS[name][min(turn, len(SCRIPTS[name]) - 1)]


def _asked(request: ReceivedRequest) -> tuple[str, int]:
    """The first word of what the user said last, and how often the model has answered since."""
    turn = 0
    for message in reversed(request.json["messages"]):
        if message["role"] == "assistant":
            turn += 1
            continue
        content = message["content"]
        texts = [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]
        if texts:
            return texts[-1].split()[0].lower(), turn
    raise AssertionError("nobody asked anything")


class Stage:
    """``url`` is where the inspector is. ``stop`` and ``start`` take the server away and bring it back, journal and all."""

    def __init__(self, folder: Path, *, pace: float = 160, token: str | None = None) -> None:
        self.folder = folder
        self._token = token
        self.provider = PlayedProvider(pace)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stage", daemon=True)
        self._running: AsyncExitStack | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._do(self._start())

    def stop(self) -> None:
        self._do(self._stop())

    def cut(self) -> None:
        """Breaks every connection that is open."""
        for connection in list(self._server.server_state.connections):
            self._loop.call_soon_threadsafe(connection.transport.abort)

    def call(self, function: Callable[[Callstream], Coroutine[Any, Any, T]]) -> T:
        """Does something with the journal's own Callstream, on its loop."""
        return self._do(function(self.callstream))

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(60)

    async def _start(self) -> None:
        self._running = AsyncExitStack()
        self.callstream = await self._running.enter_async_context(
            Callstream(f"sqlite:///{self.folder}/calls.db", tools=[write_document, look_up, print_copies, store])
        )
        client = AsyncAnthropic(api_key="none", base_url=self.provider.base_url, max_retries=0)
        self._running.push_async_callback(client.close)
        agent = LlmAgent(
            name="writer",
            model=AnthropicLlm(model="claude-scripted", client=client),
            tools=[
                write_document,
                look_up,
                print_copies,
                store,
                fail,
                FunctionTool(publish, require_confirmation=True),
            ],
        )
        served = ADKAgent(adk_agent=agent, app_name="stage", user_id="user", callstream=self.callstream)
        wanted = self._token
        app = create_app(
            served,
            auth=None if wanted is None else lambda request: _principal(request.headers.get("authorization"), wanted),
            settings=ServerSettings(when_busy="refuse", shutdown_seconds=0.2),
            name="writer",
            label="scripted provider",
        )
        config = uvicorn.Config(
            app, host="127.0.0.1", port=self._port, lifespan="on", log_level="error", timeout_graceful_shutdown=1
        )
        self._server = await self._running.enter_async_context(running(config))
        self._port = self._server.servers[0].sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        if self._running is not None:
            await self._running.aclose()
            self._running = None

    def __enter__(self) -> Stage:
        self._thread.start()
        self.provider.start()
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.provider.release()
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self.provider.close()


def _principal(header: str | None, wanted: str) -> str | None:
    return "user" if header == f"Bearer {wanted}" else None
