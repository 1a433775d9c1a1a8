"""The code of docs/howto/streamed.md runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from anthropic import AsyncAnthropic

from callstream import CallState
from callstream.testing import Call, Finish, ScriptedProvider, Text
from tests.gated import GatedProvider
from tests.test_quickstarts import executed

CONTENT = "It rises and it falls, twice a day."


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def take_document() -> str | None:
    """What was written, which then is gone."""
    path = Path("Tides.md")
    text = path.read_text(encoding="utf-8") if path.exists() else None
    path.unlink(missing_ok=True)
    return text


async def test_the_page_writes_a_document_while_the_model_does() -> None:
    names = executed("howto/streamed.md")
    await names["test_a_document_is_written"]()
    assert take_document() == "The moon pulls.The moon pulls."
    script = [
        [
            Call("write_document", {"title": "Tides", "content": CONTENT}, size=4),
            Call("add_to_cart", {"items": [{"name": "apples", "amount": 2}]}),
            Call("get_weather", {"city": "Paris"}),
        ],
        [Text("Written.")],
    ]
    cs = names["cs"]
    cs.add_tool(names["get_weather"])
    async with GatedProvider("anthropic", script, held=20) as provider:

        async def append(self: object, piece: str) -> None:
            provider.open()
            await written(self, piece)

        written, names["Document"].append = names["Document"].append, append
        async with AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=cs.http_client()) as client:
            assert await names["ask"](client, "Write about tides.") == "Written."
    assert provider.was_opened
    assert take_document() == CONTENT
    calls = await cs.journal.calls()
    assert {call.state for call in calls} == {CallState.COMPLETED}
    assert all(call.ran_early for call in calls)
    await cs.aclose()


async def test_the_page_takes_back_what_the_model_did_not_finish() -> None:
    names = executed("howto/streamed.md")
    call = Call("write_document", {"title": "Tides", "content": CONTENT}, size=4, stop_after=14)
    cs = names["cs"]
    async with ScriptedProvider("anthropic", [[call, Finish("max_tokens")], [Text("Sorry.")]]) as provider:
        async with AsyncAnthropic(base_url=provider.base_url, api_key="none", http_client=cs.http_client()) as client:
            assert await names["ask"](client, "Write about tides.") == "Sorry."
    assert take_document() is None
    [kept] = await cs.journal.calls()
    assert (kept.state, kept.reason) == (CallState.DISCARDED, "truncated")
    await cs.aclose()
