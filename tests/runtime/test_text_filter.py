"""Filters of text: what they take out is in no piece that is shown, however the text is cut."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream import Callstream, UsageError
from callstream.events import (
    ArgsAppended,
    CallStarted,
    MessageEnded,
    MessageStarted,
    ReasoningAppended,
    ResponseEnded,
    TextAppended,
    WireEvent,
)
from callstream.runtime.response import FilteredText
from callstream.tap import TextFilter
from callstream.testing import Finish, ScriptedProvider, Text, Thought

KEY = re.compile(r"\bsk-[a-z0-9]{4,}\b")
KEYS = TextFilter.redacting(KEY, "[key]", hold=8)


def shown_of(filter_: TextFilter, pieces: list[str]) -> list[str]:
    passage = filter_.passage()
    return [*(passage.feed(piece, False) for piece in pieces), passage.feed("", True)]


def test_a_secret_that_is_cut_anywhere_never_passes() -> None:
    text = "The key is sk-abc123, keep it."
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            shown = shown_of(KEYS, [text[:first], text[first:second], text[second:]])
            assert "".join(shown) == "The key is [key], keep it."
            assert not any("sk-" in piece for piece in shown)


@given(st.lists(st.text("sk-ab1 .", max_size=12), max_size=8))
def test_what_is_shown_does_not_depend_on_how_the_text_was_cut(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert "".join(shown_of(KEYS, pieces)) == KEYS.whole(text) == KEY.sub("[key]", text)


@given(st.lists(st.text("abc", max_size=5), max_size=8), st.sets(st.text("abc", min_size=1, max_size=4), min_size=1))
def test_known_secrets_need_no_length(pieces: list[str], secrets: set[str]) -> None:
    text = "".join(pieces)
    shown = shown_of(TextFilter.redacting(secrets, "*"), pieces)
    longest_first = "|".join(sorted(map(re.escape, secrets), key=len, reverse=True))
    assert "".join(shown) == re.sub(longest_first, "*", text)


def test_most_of_a_long_text_is_shown_before_it_ends() -> None:
    passage = TextFilter.redacting("hunter2").passage()
    shown = "".join(passage.feed(piece, False) for piece in ["It rises", " and it ", "falls, and ", "so on."])
    assert shown == "It rises and it falls, and "[: len("It rises and it falls, and so on.") - len("hunter2")]


def test_a_match_that_grows_is_held_until_it_has_ended() -> None:
    passage = KEYS.passage()
    assert passage.feed("see sk-" + "a" * 200, False) == "see "
    assert passage.feed(" and more of it", False) == "[key] and mo"


def test_the_replacement_may_be_made_of_the_match() -> None:
    masked = TextFilter.redacting(KEY, lambda match: match[0][:4] + "…", hold=8)
    assert masked.whole("sk-abc123 and sk-xyz789") == "sk-a… and sk-x…"


def test_a_function_says_what_is_shown_and_what_is_held() -> None:
    @TextFilter
    def whole_words(text: str, is_end: bool) -> tuple[str, str]:
        cut = len(text) if is_end else text.rfind(" ") + 1
        return KEY.sub("[key]", text[:cut]), text[cut:]

    assert shown_of(whole_words, ["a sk-a", "bc1", "23 b", "c"]) == ["a ", "", "[key] ", "", "bc"]


@pytest.mark.parametrize(
    ("secrets", "fault"),
    [
        (re.compile("sk-.*"), "a pattern needs hold="),
        (re.compile("a*"), "matches the empty text"),
        ("", "expected secrets that are not empty"),
        ([], "expected secrets that are not empty"),
    ],
)
def test_what_cannot_be_a_filter(secrets: re.Pattern[str] | str | list[str], fault: str) -> None:
    hold = 8 if fault.startswith("matches") else None
    with pytest.raises(UsageError, match=re.escape(fault)):
        TextFilter.redacting(secrets, hold=hold)


@pytest.mark.parametrize("judge", [3, lambda text: text, lambda text, is_end, more: (text, "")])
def test_a_filter_that_cannot_judge_is_refused_at_once(judge: Any) -> None:
    with pytest.raises(UsageError, match="expected a filter that takes \\(text, is_end\\), got "):
        TextFilter(judge)


def test_passages_end_where_their_message_or_a_call_says_so() -> None:
    filtered = FilteredText([TextFilter.redacting("secret", "***"), TextFilter.redacting("***", "+")])
    events: list[WireEvent] = [
        MessageStarted("m"),
        ReasoningAppended("m", "sec"),
        ReasoningAppended("m", "ret?"),
        TextAppended("m", "a sec"),
        CallStarted("c", "tool", message_id="m"),
        ArgsAppended("c", "{}"),
        TextAppended("m", "se"),
        ArgsAppended("c", ""),
        TextAppended("m", "cret"),
        MessageEnded("m"),
        ResponseEnded("stop"),
    ]
    one_by_one = [event for each in events for event in filtered.apply([each])]
    assert one_by_one == [
        MessageStarted("m"),
        ReasoningAppended("m", "+?"),
        TextAppended("m", "a sec"),
        CallStarted("c", "tool", message_id="m"),
        ArgsAppended("c", "{}"),
        ArgsAppended("c", ""),
        TextAppended("m", "+"),
        MessageEnded("m"),
        ResponseEnded("stop"),
    ]


async def test_a_tapped_client_journals_what_the_filter_shows(cs: Callstream) -> None:
    from anthropic import AsyncAnthropic

    script = [[Thought("Is it hunt"), Thought("er2?"), Text("It is hun"), Text("ter2."), Finish()]]
    async with ScriptedProvider("anthropic", script) as provider:
        http = cs.http_client(text_filter=TextFilter.redacting("hunter2"))
        client = AsyncAnthropic(api_key="none", base_url=provider.base_url, http_client=http)
        async with cs.run("t") as run:
            answer = await client.messages.create(
                model="m", max_tokens=100, messages=[{"role": "user", "content": "Go"}], stream=True
            )
            said = "".join(
                [
                    event.delta.text
                    async for event in answer
                    if getattr(event, "delta", None) and hasattr(event.delta, "text")
                ]
            )
        await client.close()
    assert said == "It is hunter2."  # the program has all of it
    told = [record.event async for record in cs.journal.read(run.run_id)]
    assert "".join(event.text for event in told if isinstance(event, TextAppended)) == "It is [redacted]."
    assert "".join(event.text for event in told if isinstance(event, ReasoningAppended)) == "Is it [redacted]?"


async def test_a_filter_that_fails_shows_nothing(cs: Callstream) -> None:
    from anthropic import AsyncAnthropic

    @TextFilter
    def broken(text: str, is_end: bool) -> tuple[str, str]:
        raise LookupError("no rules")

    async with ScriptedProvider("anthropic", [[Text("secret"), Finish()]]) as provider:
        client = AsyncAnthropic(
            api_key="none", base_url=provider.base_url, http_client=cs.http_client(text_filter=broken), max_retries=0
        )
        async with cs.run("t") as run:
            with pytest.raises(Exception, match="no rules"):
                async with client.messages.stream(
                    model="m", max_tokens=100, messages=[{"role": "user", "content": "Go"}]
                ) as stream:
                    await stream.get_final_message()
        await client.close()
    told = [record.event async for record in cs.journal.read(run.run_id)]
    assert not any(isinstance(event, TextAppended) for event in told)
