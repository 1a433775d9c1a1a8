"""Documents as pieces at paths."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from callstream.jsontext.writer import JsonWriter


def ending(text: str) -> str:
    """What ends the beginning of a document: the quote and the brackets that are open in it."""
    closers: list[str] = []
    in_string = False
    characters = iter(text)
    for character in characters:
        if in_string and character == "\\":
            next(characters)
        elif character == '"':
            in_string = not in_string
        elif not in_string and character in "{[":
            closers.append("}" if character == "{" else "]")
        elif not in_string and character in "}]":
            assert closers.pop() == character
    return '"' * in_string + "".join(reversed(closers))


def shown(text: str) -> Any:
    """What the beginning of a document shows. Fails where it is not the beginning of one, or has a name twice."""
    return loads_unique(text + ending(text)) if text else {}


def exact(value: Any) -> str:
    """A text that tells 1 from true, and whole floats not from integers, because JSON does not."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(value[key]) for key in sorted(value)}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return repr(plain(value))


def written(writes: list[tuple[Any, Any, bool]], schema: dict[str, Any] | None = None) -> list[str]:
    """The text of each write and of close(), after checking that every prefix is the beginning of a document."""
    writer = JsonWriter(schema)
    texts: list[str] = []
    for write in writes:
        texts.append(writer.write(*write))
        text = "".join(texts)
        assert not text or json.loads(text + ending(text)) is not ...
    texts.append(writer.close())
    "".join(texts).encode()
    return texts


def loads_unique(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), f"a name was written twice: {text}"
        return dict(pairs)

    return json.loads(text, object_pairs_hook=unique)


scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
words = st.text(max_size=6) | st.text(alphabet='ab"\\/\n\x00\x7f\u2028é😀', max_size=12)
documents = st.dictionaries(
    words,
    st.recursive(
        scalars | words,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
        max_leaves=12,
    ),
    max_size=5,
)
