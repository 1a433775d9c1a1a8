"""What the examples share: a scripted model to talk to where there is no key, and a look into the journal afterwards."""

from __future__ import annotations

import json
from typing import Any

from callstream import Callstream
from callstream.testing import ScriptedProvider, Text, ToolCall

DOCUMENT = {
    "title": "Tea",
    "content": "# Tea\n\nBoil the water.\nWarm the pot.\nWait four minutes.\n" + "Pour, and wait again.\n" * 8,
}


def scripted(wire: str) -> ScriptedProvider:
    """A model that writes a document, looks two things up at once, and says that it is done."""
    lookups = [ToolCall("look_up", {"topic": topic}, call_id=f"look_{topic}") for topic in ("water", "leaves")]
    return ScriptedProvider(
        wire,
        [
            [Text("I will write it down."), ToolCall("write_document", DOCUMENT, call_id="write_1", size=12)],
            [*lookups],
            [Text("The document is written.")],
        ],
        stream_args_unasked=True,
    )


async def show(cs: Callstream) -> None:
    """Prints every call that the journal has: in how many pieces it came, and what became of it."""
    for run in reversed(await cs.journal.runs()):
        pieces: dict[str, int] = {}
        async for record in cs.journal.read(run.run_id):
            event: Any = record.event
            if type(event).__name__ == "ArgsAppended":
                pieces[event.call_id] = pieces.get(event.call_id, 0) + 1
        for call in await cs.journal.calls(run_id=run.run_id):
            whole = await cs.journal.call(call.call_id)
            assert whole is not None
            size = len(whole.args_json or "")
            result = json.dumps(call.result, ensure_ascii=False)
            print(f"{call.name}: {call.state}, {size} characters in {pieces[call.call_id]} pieces, result {result}")
