"""The npm package's transport for the AI SDK: connections are cut, and the chat does not notice."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callstream import Callstream
from callstream.testing import Finish, Parallel, Text, Thought, ToolCall
from tests.adk.hosting import Models
from tests.agui.judge import NodeProgram
from tests.uistream.conftest import ai_sdk

from .scenes import LONG, PAINT
from .test_chat import END, PICK, SIGN, WRITE, plain, staged, tool_part

__all__ = ["ai_sdk"]


@pytest.fixture(scope="module")
def chats(ai_sdk: Path) -> Iterator[NodeProgram]:
    with NodeProgram("chat.mjs", ai_sdk) as program:
        yield program


def test_what_it_does_with_streams_that_break(ai_sdk: Path) -> None:
    run = subprocess.run(
        ["node", "--test", "transport.test.mjs"], cwd=ai_sdk, capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stdout[-3000:]


def expect_unnoticed(told: dict[str, Any], messages: Any) -> None:
    assert (told["status"], told["errors"]) == ("ready", [])
    assert [finished["isDisconnect"] for finished in told["finished"]] == [False] * len(told["finished"])
    assert plain(told["messages"]) == plain(messages)


AGAIN_AND_AGAIN = [2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("sdk", "cuts"),
    [
        (6, [[3], AGAIN_AND_AGAIN]),
        (7, [[1], [4], [7], [10], AGAIN_AND_AGAIN]),
        pytest.param(7, [[number] for number in range(1, 24)], marks=pytest.mark.slow),
    ],
)
async def test_chat_does_not_notice_where_its_connection_is_cut(
    cs: Callstream, models: Models, chats: NodeProgram, sdk: int, cuts: list[list[int]]
) -> None:
    two = [
        Thought("Two."),
        Text("Now."),
        Parallel([ToolCall("write", LONG), ToolCall("write", {"title": "t", "body": ""})]),
    ]
    script = [[*two, Finish()], [ToolCall("slow", {"steps": 3}), Finish()], END]
    scripts = [each for _ in cuts for each in script]
    async with staged(cs, models, chats, *scripts, pace=300) as stage:
        for number, drop in enumerate(cuts):
            chat = f"chat-{number}"
            told = await stage.live({"drop": drop, "send": "Go"}, sdk=sdk, chat=chat, survives=1)
            expect_unnoticed(told, await stage.messages(chat, sdk))
            assert len(await stage.runs(chat)) == 1
        assert len(stage.ran) == 3 * len(cuts)


async def test_cut_when_the_run_has_ended_meanwhile(cs: Callstream, models: Models, chats: NodeProgram) -> None:
    async with staged(cs, models, chats, WRITE, END, pace=2000) as stage:
        told = await stage.live({"drop": 1, "send": "Go"}, survives=700)
        expect_unnoticed(told, await stage.messages())
        assert tool_part(told, "write")["output"] == {"written": True}
        assert len(await stage.runs()) == 1


@pytest.mark.parametrize("drop", [[1, 1], [0, 1, 2], [2, 2, 3], [3, 4, 1]])
async def test_client_tool_is_run_once_and_its_answer_continues_the_message(
    cs: Callstream, models: Models, chats: NodeProgram, drop: list[int]
) -> None:
    async with staged(cs, models, chats, PICK, WRITE, END, pace=200) as stage:
        given: dict[str, Any] = {"body": {"tools": [PAINT]}, "answers": {"paint": {"painted": "123"}}}
        told = await stage.live({"drop": drop, "send": "Go"}, survives=1, **given)
        assert told["calls"].count("paint") == 1
        expect_unnoticed(told, await stage.messages())
        assert [message["role"] for message in told["messages"]] == ["user", "assistant"]
        assert len(await stage.runs()) == 2


async def test_approval_after_a_cut(cs: Callstream, models: Models, chats: NodeProgram) -> None:
    async with staged(cs, models, chats, SIGN, END, pace=200) as stage:
        told = await stage.live({"drop": [2, 3], "send": "Sign"}, {"drop": [1, 1], "approve": True}, survives=1)
        expect_unnoticed(told, await stage.messages())
        assert stage.ran == [("sign", {"name": "Ada"})]


@pytest.mark.parametrize("drop", [[1, 1], [2, 1], [4, 2, 3]])
async def test_cut_again_after_a_reload(cs: Callstream, models: Models, chats: NodeProgram, drop: list[int]) -> None:
    """Of the reload the stream begins with the turn; of the cut after it, with the run."""
    first = [Text("I paint."), ToolCall("paint", {"color": "red"}), Finish()]
    async with staged(cs, models, chats, first, WRITE, END, pace=60) as stage:
        given: dict[str, Any] = {"body": {"tools": [PAINT]}, "answers": {"paint": {"painted": True}}}
        await stage.live({"drop": [0, 4], "send": "Go"}, **given)
        told = await stage.live({"drop": drop, "reload": True, "resume": True}, survives=1, **given)
        expect_unnoticed(told, await stage.messages())
        assert len(await stage.runs()) == 2


async def test_what_cannot_be_had_again_is_an_error(cs: Callstream, models: Models, chats: NodeProgram) -> None:
    async with staged(cs, models, chats, WRITE, END, pace=60) as stage:
        refused = await stage.live({"send": "Go"}, chat="bad chat id \u0000", survives=1)
        assert (refused["status"], len(refused["errors"])) == ("error", 1)
        unknown = await stage.server.client.get("/ui/chat/stream", headers={"x-run-id": "nobody"})
        assert unknown.status_code == 204


@pytest.mark.parametrize("sdk", [6, 7])
@pytest.mark.parametrize("parts", [1, 2])
async def test_stop_stops_the_run_and_the_next_message_runs_at_once(
    cs: Callstream, models: Models, chats: NodeProgram, sdk: int, parts: int
) -> None:
    """By itself the SDK only disconnects, and the next message waits for the run's end."""
    endless = [Text("I write. " * 200, size=4), Finish()]
    async with staged(cs, models, chats, endless, END, END, pace=40) as stage:
        told = await stage.live({"send": "Go", "stop": parts}, {"send": "And now?"}, sdk=sdk, survives=1)
        assert (told["status"], told["errors"]) == ("ready", [])
        second, first = await stage.runs()
        assert (first.outcome, first.reason) == ("cancelled", "stopped by the client")
        assert second.outcome == "finished"
        assert told["messages"][-1]["parts"][-1]["text"] == "Done."
