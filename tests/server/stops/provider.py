"""The model, in a process of its own, so that what it keeps does not count: ``python -m tests.server.stops.provider``.

It prints its URL and serves until its standard input ends.
"""

from __future__ import annotations

import json
import sys

from callstream.testing import Delay, Finish, ReceivedRequest, Script, ScriptedProvider, Text, ToolCall

PAUSE = Delay(0.02)


def script(request: ReceivedRequest) -> Script:
    """Does what the last word of the conversation says."""
    parts = json.loads(request.body)["contents"][-1]["parts"]
    said = " ".join(part.get("text", "") for part in parts)
    if "work" in said:
        return [Text("I work."), PAUSE, ToolCall("work", {"label": "tide " * 8}), PAUSE, Finish()]
    if "count" in said:
        return [PAUSE, ToolCall("count", {"upto": 3}), Finish()]
    if "ask" in said:
        return [PAUSE, ToolCall("approve", {"what": "everything"}), Finish()]
    return [Text("All "), PAUSE, Text("is "), PAUSE, Text("done."), Finish()]


def main() -> None:
    with ScriptedProvider("gemini", script, stream_args_unasked=True) as provider:
        print(provider.base_url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
