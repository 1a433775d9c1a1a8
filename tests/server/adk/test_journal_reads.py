"""How often the journal is asked on a turn's way to the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from callstream import Callstream
from callstream.testing import Finish, Text, ToolCall
from tests.server.serving import run_input, tool_message
from tests.walks import PAINT, serving_agent

READS = ("runs", "calls", "call_log", "page", "read_whole", "taken", "has_forgotten")


async def test_an_answer_reaches_the_model_with_five_reads(tmp_path: Path) -> None:
    """One for an earlier run of the same request, one for the thread's runs, two for the call (before the run begins, when
    an answer is refused, and when it is given to google-adk), and one for the client's stream.
    """
    reads: list[str] = []
    asked = read_before_the_model = 0

    def scripts(request: Any) -> list[Any]:
        nonlocal asked, read_before_the_model
        asked += 1
        read_before_the_model = len(reads)
        return [ToolCall("paint", {"color": "red"}) if asked == 1 else Text("Done."), Finish()]

    async with Callstream(f"sqlite:///{tmp_path / 'journal.db'}") as cs, serving_agent(cs, scripts) as server:
        async with server.run("Go", tools=[PAINT]) as stream:
            events = await stream.all()
        (started,) = [event for event in events if event["type"] == "TOOL_CALL_START"]
        reader: Any = cs.journal._store.reader

        def count(name: str, read: Any) -> Any:
            async def counted(*args: Any) -> Any:
                reads.append(name)
                return await read(*args)

            return counted

        for name in READS:
            setattr(reader, name, count(name, getattr(reader, name)))
        answer = tool_message(started["toolCallId"], {"painted": True})
        given = run_input(None, messages=[answer], tools=[PAINT])
        async with server.stream("POST", "/agui", json=given) as stream:
            assert (await stream.all())[-1]["outcome"] == {"type": "success"}
    assert asked == 2
    assert read_before_the_model <= 5, reads[:read_before_the_model]
