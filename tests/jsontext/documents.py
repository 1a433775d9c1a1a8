"""Documents as JSON text, cut anywhere, and what a consumer makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from callstream.errors import WireError
from callstream.jsontext.stream import Change, JsonStream
from tests.examples import examples

relaxed = examples(200)


awkward_text = st.text(
    st.sampled_from(["a", "é", "😀", "\ud83d", "\ude00", '"', "\\", "/", "u", "\n", "\x00", "\x1f", "\x7f", "\u2028"]),
    max_size=8,
)
strings = st.text(max_size=12) | awkward_text
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**30, max_value=10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | strings
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4), max_leaves=12
)


@st.composite
def documents(draw: st.DrawFn, of: st.SearchStrategy[Any] = values) -> str:
    """A JSON text in any formatting."""
    text = json.dumps(
        draw(of),
        indent=draw(st.sampled_from([None, None, 0, 2, "\t"])),
        separators=draw(st.sampled_from([None, (",", ":"), (" ,\r\n", "\t: ")])),
        ensure_ascii=draw(st.booleans()),
    )
    return draw(st.sampled_from(["", " ", "\n\t"])) + text + draw(st.sampled_from(["", " ", "\r\n"]))


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A JSON text with something left out, put in or written over."""
    text = draw(documents())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(junk) + text[at + draw(st.integers(0, 2)) :]
    return text


junk = st.sampled_from(
    [
        *"{}[]:,\"\\/0123456789-+.eEtfnuN \t\n\x00\x0b\xa0'",
        "true",
        "nul",
        "NaN",
        "Infinity",
        "\\ud83d",
        "\\uDE00",
        "\\u00",
        "",
    ]
)
jsonish = st.lists(junk, max_size=14).map("".join)
any_text = documents() | mutated() | jsonish


@st.composite
def split(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> list[str]:
    """A text in pieces; some of them are empty."""
    text = draw(texts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def outcome(pieces: Iterable[str], **limits: int) -> tuple[list[Change], Any]:
    """All changes, and the value that close() gave or the (text, position) of the error."""
    stream = JsonStream(**limits)
    changes: list[Change] = []
    try:
        for piece in pieces:
            changes += stream.feed(piece)
        return changes, ("value", repr(stream.close()))
    except WireError as error:
        assert stream.error is error
        return changes, ("error", str(error), error.position)


def merged(changes: list[Change]) -> list[Change]:
    """The changes with adjacent appends to one path joined."""
    result: list[Change] = []
    for change in changes:
        if change.kind == "append" and result and result[-1].kind == "append":
            assert result[-1].path == change.path
            result[-1] = Change(change.path, "append", result[-1].value + change.value)
        else:
            result.append(change)
    return result
