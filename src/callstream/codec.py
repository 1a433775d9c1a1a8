"""JSON text in and out, and the four things about it that are decided once, here.

**Lone surrogates.** JSON can spell half of a surrogate pair (``"\\ud83d"``), and models and servers that cut UTF-16 text in
two do send it; UTF-8 cannot express it, and msgspec refuses it. All reading here tolerates it, and all writing spells it as
an escape again, so that no other code has to care. Text that is not JSON cannot spell it: there, halves that come in two
pieces are joined, and one that stays alone becomes U+FFFD.

**Line ends.** Python, and SDKs that split a stream into lines as Python does, take U+0085, U+2028 and U+2029 for the end
of a line. Where JSON is written on one line, they are escaped.

**Names that come twice.** RFC 8259 leaves open what ``{"a": 1, "a": 2}`` means, and readers disagree. In the arguments of a
call it is a mistake: a preview would have to take back the first value, and a hook would have seen a value that the tool
never gets.

**What an error says about JSON that cannot be read.** Errors get into logs, and the texts in JSON may be private:
``outline``.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn, TypeVar

import msgspec

_T = TypeVar("_T")


def plain(value: Any) -> Any:
    """Text or a number of a subclass, such as numpy's or an HTML parser's, as the plain type. A hook for msgspec."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_encoder = msgspec.json.Encoder(enc_hook=plain)
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(
    rb"\\\\"  # a backslash that is itself escaped: no escape begins with it
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_LINE_ENDS = {line_end.encode(): f"\\u{ord(line_end):04x}".encode() for line_end in "\x85\u2028\u2029"}


def utf8(text: str) -> bytes:
    """Text as bytes that also keep a lone surrogate.

    Text that grows is kept in this form: as strings, its short pieces would take several times the memory.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def from_utf8(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "surrogatepass")


def encode(value: Any) -> bytes:
    """Compact JSON. ``msgspec.Raw`` in it is JSON already and stays as it is."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), default=_to_builtins).encode()


def encode_line(value: Any) -> bytes:
    """Compact JSON without anything that a reader could take for the end of its line."""
    data = encode(value)
    for line_end, escape in _LINE_ENDS.items():
        if line_end in data:
            data = data.replace(line_end, escape)
    return data


def decode(data: bytes | str, type_: type[_T] | Any = Any) -> _T:
    """The value of a JSON text, as that type. Text that is not JSON, or has another type, raises ValueError.

    A surrogate in the name of a field raises UnicodeEncodeError, which is also a ValueError.
    """
    try:
        return msgspec.json.decode(data, type=type_)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        return msgspec.convert(json.loads(data), type_)


def replace_surrogates(data: bytes) -> bytes:
    """JSON text with U+FFFD for every escape of half a surrogate pair."""
    return _ESCAPED_SURROGATE.sub(lambda found: rb"\ufffd" if found["half"] else found[0], data)


def escape_surrogates(text: str) -> str:
    """JSON text with each half of a surrogate pair as its escape: halves in two pieces still form one character."""
    return _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_NOT_JSON = "the arguments are not JSON"
_STRICT = json.JSONDecoder(parse_constant=_no_constant)


def decode_strict(text: str) -> Any:
    """The value of a JSON document by RFC 8259: ValueError for ``NaN`` and ``Infinity``, which Python would accept."""
    return _STRICT.decode(text)


def is_strict(text: str) -> bool:
    """Whether the text is one JSON document by RFC 8259, and no deeper or longer than Python can hold."""
    try:
        _STRICT.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def repeated_name(name: str) -> str:
    """What is wrong with an object that has two members with this name."""
    return f"the name {name!r} comes twice in an object"


class _RepeatedName(ValueError):
    """A document has a repeated name, and no other mistake in the part that was read."""


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise _RepeatedName(repeated_name(next(name for name in names if names.count(name) > 1)))


_UNIQUE = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_unique)


_STRING = re.compile(rb'("[a-z_]*type"\s*:\s*"[\w.]*"|"(?:[^"\\]|\\.)*"\s*:)|"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)
"""A JSON string, whole or cut off. The group matches if it is the name of a field, or names a type."""
_MAX_OUTLINED, _MAX_OUTLINE = 2000, 200
"""How many bytes are looked at, and how many are shown."""


def outline(data: bytes) -> str:
    """The beginning of JSON that cannot be read, or was not expected: its fields and types, without any text of a model.

    It is for errors, which get into logs.
    """
    return repr(_STRING.sub(lambda found: found[1] or b'"..."', data[:_MAX_OUTLINED])[:_MAX_OUTLINE])


def mistake_in(arguments: str) -> str | None:
    """Why a text cannot be the arguments of a call; None if it can. Every call is judged here, whichever way it came."""
    try:
        _UNIQUE.decode(arguments)
    except _RepeatedName as repeated:
        return str(repeated) if is_strict(arguments) else _NOT_JSON
    except (ValueError, RecursionError):
        return _NOT_JSON
    return None


class SurrogateJoin:
    """Joins surrogate pairs that are cut in two in plain text: a first half waits, one that stays alone becomes U+FFFD."""

    def __init__(self) -> None:
        self._high = ""

    def feed(self, text: str) -> str:
        if not self._high and not _SURROGATE.search(text):
            return text
        text = (self._high + text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        self._high = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return _SURROGATE.sub("\ufffd", text.removesuffix(self._high) if self._high else text)

    def end(self) -> str:
        rest, self._high = self._high, ""
        return "\ufffd" if rest else ""


def _to_builtins(value: Any) -> Any:
    return json.loads(bytes(value)) if isinstance(value, msgspec.Raw) else msgspec.to_builtins(value, enc_hook=plain)
