"""A gateway, seen working: ``make demo-gateway``. No account is needed, and no real model is asked.

A scripted provider writes a document in a call. Anthropic's SDK for Node reads it through the gateway, its connection is cut
in the middle, and it asks the same again: the answer is whole, and the provider was asked once. The inspector stays open.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from callstream import Callstream
from callstream.gateway import GatewaySettings, create_gateway
from callstream.server.serving import config_for
from callstream.testing import Finish, ScriptedProvider, Text, ToolCall
from tests.gateway.gates import Cutter, Node
from tests.server.serving import running

WORDS = "The moon pulls at the sea, and the sea follows it around the world. " * 6
SCRIPT = [
    Text("I will write that down. ", size=6),
    ToolCall("write_document", {"title": "Tides", "text": WORDS}, size=9),
]


async def show(port: int, pace: float, *, stays: bool) -> int:
    scripts = [[*SCRIPT, Finish()]] * 100
    async with ScriptedProvider("anthropic", scripts, deltas_per_second=pace) as provider, Node() as node:
        settings = GatewaySettings(linger=60.0)
        app = create_gateway(Callstream("memory:"), upstreams={"anthropic": f"{provider.origin}/v1"}, settings=settings)
        async with running(config_for(app, host="127.0.0.1", port=port, log_level="error")) as server:
            origin = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            print(f"gateway    {origin}/anthropic   (a scripted provider is behind it)")
            print(f"inspector  {origin}/")
            async with Cutter(int(origin.rpartition(":")[2])) as cutter:
                cutter.next_cut = 30
                print("client     @anthropic-ai/sdk in Node: asks, and its connection breaks after 30 events …")
                first = await node.ask("anthropic", f"{cutter.origin}/anthropic")
                print(f"client     {first['error']['name']}: {first['error']['message']}")
                print("client     asks the same again …")
                again = await node.ask("anthropic", f"{cutter.origin}/anthropic")
            [name, written] = again["events"][-1]["calls"][0]
            print(f"client     has {name} with {len(written['text'])} of {len(WORDS)} characters")
            print(f"provider   was asked {len(provider.requests)} time(s)")
            if stays:
                print("\nThe inspector stays open; press Ctrl-C to end.")
                await asyncio.Event().wait()
            return 0 if written["text"] == WORDS and len(provider.requests) == 1 else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--pace", type=float, default=20.0, help="deltas a second")
    parser.add_argument("--once", action="store_true", help="end when it has been shown")
    options = parser.parse_args()
    try:
        return asyncio.run(show(options.port, options.pace, stays=not options.once))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
