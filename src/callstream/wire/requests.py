"""What a request says: the tools that it declares, the results of tools, and the new messages of its user.

A request carries the whole conversation. Its last turn is everything after the model's last message (words that the
request puts into the model's mouth, at its very end, do not count). Results are taken from the whole conversation, in
order, those of the last turn marked ``latest``; messages only from the last turn. A result without a name gets that of
the nearest earlier call with its id, because ids are reused.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import groupby
from typing import Any, TypeAlias, TypeVar

import msgspec

from callstream import codec
from callstream.errors import WireError
from callstream.events import MessageReceived, RequestEvent, ResultReceived

MODEL = "model"
"""The role of everything the model said, on every wire."""

KnownSignature: TypeAlias = Callable[[str | None, str | None], str | None]
"""The signature that came with the call with that id and name, None if none is known."""

Notes: TypeAlias = Mapping[str, str]
"""Sentences for the model about calls that it made, by the calls' ids on the wire."""
Asks: TypeAlias = Callable[[str], bool]
"""Whether to ask the provider to stream the arguments of the tool with that name."""

_Body = TypeVar("_Body", bound=msgspec.Struct)


class RefusedCall(msgspec.Struct, frozen=True):
    """A call that the program never got, as it is written back for the model: with the refusal as its result.

    ``args`` are its arguments, empty where they were cut off or are not JSON: providers refuse a history with half a call.
    ``provider_id`` is None where the provider sent no id. ``beside``: the ids of the calls of the same response that the
    program did get.
    """

    wire_id: str
    name: str
    args: dict[str, Any]
    text: str
    provider_id: str | None = None
    signature: str | None = None
    beside: tuple[str, ...] = ()

    @property
    def args_json(self) -> str:
        return codec.encode(self.args).decode()


_MOST_LONE = 10_000


class LoneReasoning:
    """Reasoning that led to nothing, because the calls that it led to were left out.

    It is forwarded as it comes, before it is known what becomes of the calls after it. Providers refuse a history in which
    reasoning leads to nothing, so the latest of its names are remembered, and it is removed from later requests
    (``Provider.without_lone_reasoning``). Names are signatures, ids, whatever identifies reasoning in requests.
    """

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._names)

    def has(self, *names: object) -> bool:
        """Whether one of these values of a request, which may be of any type, is the name of lone reasoning."""
        return any(isinstance(name, str) and name in self._names for name in names)

    def add(self, name: str) -> None:
        self._names[name] = None
        if len(self._names) > _MOST_LONE:
            self._names.popitem(last=False)

    def discard(self, name: str) -> None:
        """Forgets a name: servers that do not sign reuse names."""
        self._names.pop(name, None)


def all_tools(name: str) -> bool:
    """Asks for every tool."""
    return True


_NOT_ASKED = frozenset({"metadata", "client_metadata", "user", "prompt_cache_key", "safety_identifier"})
"""Fields that may differ between two processes that ask the same thing, and that no answer depends on."""
_MINTED = re.compile(
    r"(?:adk-|adk_tool_call_|pyd_ai_|call_|toolu_)?[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}"
)
"""An id that a framework makes up, a new one in every run."""


class Digest(msgspec.Struct, frozen=True):
    """Identifies a request by its content. ``parts``: the digests of its fields, and of the entries of its lists."""

    whole: str
    parts: dict[str, str]

    @classmethod
    def of(cls, path: str, fields: dict[str, Any]) -> Digest:
        """Keys are sorted, JSON in strings is parsed, ids that frameworks make up are numbered as they appear.

        The order of user messages that follow one another does not count: in these, google-adk tells an agent what parallel
        agents said, in the order in which they finished.
        """
        said = _canonical({name: value for name, value in fields.items() if name not in _NOT_ASKED}, {})
        said.update({name: _in_any_order(value) for name, value in said.items() if isinstance(value, list)})
        parts: dict[str, str] = {"path": _digest(path)}
        for name, value in said.items():
            if isinstance(value, list):
                parts.update({f"{name}/{number}": _digest(entry) for number, entry in enumerate(value)})
            else:
                parts[name] = _digest(value)
        return cls(_digest([path, said]), {name: digest[:8] for name, digest in parts.items()})

    def first_difference(self, before: Mapping[str, str]) -> str:
        """The first part that differs from before."""
        named = [*self.parts, *(name for name in before if name not in self.parts)]
        return next((name for name in named if self.parts.get(name) != before.get(name)), "the order of its parts")


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:32]


def _canonical(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _canonical(value[name], ids) for name in sorted(value)}
    if isinstance(value, list):
        return [_canonical(entry, ids) for entry in value]
    if not isinstance(value, str):
        return value
    if value[:1] in ("{", "["):
        try:
            return _canonical(msgspec.json.decode(value), ids)
        except (msgspec.DecodeError, RecursionError):
            return value
    return ids.setdefault(value, f"id {len(ids)}") if _MINTED.fullmatch(value) else value


def _in_any_order(entries: list[Any]) -> list[Any]:
    """The entries of a list, with user entries that follow one another in an order that depends on their content alone."""
    found: list[Any] = []
    for is_users, group in groupby(entries, lambda entry: isinstance(entry, dict) and entry.get("role") == "user"):
        together = list(group)
        found += sorted(together, key=_digest) if is_users else together
    return found


class Request:
    """A request on its way to a provider: where it goes, and its body."""

    def __init__(self, path: str, body: bytes) -> None:
        self.path = path.rstrip("/")
        self.body = body

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The body as an object; an empty one if it is anything else, which is for the provider to refuse."""
        try:
            fields = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}
        return fields if isinstance(fields, dict) else {}

    @cached_property
    def digest(self) -> Digest:
        """What the request says, independent of credentials and of the order of keys."""
        return Digest.of(self.path, self.fields) if self.fields else Digest(_digest([self.path, self.body.hex()]), {})

    def drop_fields(self) -> None:
        """Frees memory: fields take several times that of the body, an answer may last minutes, and they can be reread."""
        vars(self).pop("fields", None)

    def rewritten(self) -> Request:
        """The request with a body made of ``fields`` as they are now."""
        return Request(self.path, codec.encode(self.fields))


class RequestTurn(msgspec.Struct):
    """One entry of the conversation, whatever the wire. ``calls``: (id, name) of each call in an entry of the model."""

    role: str
    events: list[RequestEvent]
    calls: list[tuple[str | None, str]] = []


def last_turn(conversation: Iterable[RequestTurn]) -> list[RequestEvent]:
    """All tool results of a conversation and the messages of its last turn, in order."""
    turns = list(conversation)
    end = len(turns)
    while end and turns[end - 1].role == MODEL:
        end -= 1
    start = max((index + 1 for index in range(end) if turns[index].role == MODEL), default=0)
    found: list[RequestEvent] = []
    names: dict[str | None, str] = {}
    for index, turn in enumerate(turns[:end]):
        names.update(turn.calls)
        for event in turn.events:
            if isinstance(event, ResultReceived):
                name = event.name or (names.get(event.provider_id) if event.provider_id else None)
                found.append(msgspec.structs.replace(event, name=name, latest=index >= start))
            elif index >= start:
                found.append(event)
    return found


def read_body(wire: str, body: bytes, type_: type[_Body]) -> _Body:
    """The body as a struct of its wire. Raises WireError if it is not one."""
    try:
        try:
            return msgspec.json.decode(body, type=type_)
        except msgspec.DecodeError:
            return msgspec.json.decode(codec.replace_surrogates(body), type=type_)
    except (ValueError, RecursionError) as error:
        # Not a word of the conversation, since this reaches the log.
        raise WireError(
            f"expected the body of a {wire} request, got {len(body)} bytes that are not one: {error}"
        ) from None


def user_message(text: str, attachments: list[str]) -> list[RequestEvent]:
    return [MessageReceived("user", text, attachments=tuple(attachments))] if text or attachments else []


def without_blocks(request: Request, is_superfluous: Callable[[dict[str, Any]], bool]) -> Request:
    """The request without some blocks of the model's messages.

    A message left without blocks is removed too. The user messages around it are then merged, since some providers want
    user and model to alternate.
    """
    messages = objects_in(request.fields.get("messages"))
    left: list[dict[str, Any]] = []
    has_changed = is_gap = False
    for message in messages:
        content = message.get("content")
        if message.get("role") == "assistant" and isinstance(content, list):
            blocks = [block for block in content if not (isinstance(block, dict) and is_superfluous(block))]
            has_changed = has_changed or len(blocks) < len(content)
            is_gap = not blocks and bool(content)
            if not is_gap:
                left.append({**message, "content": blocks})
            continue
        before = left[-1].get("content") if left else None
        if is_gap and isinstance(before, list) and isinstance(content, list):
            left[-1] = {**left[-1], "content": [*before, *content]}
        else:
            left.append(message)
        is_gap = False
    if not has_changed:
        return request
    request.fields["messages"] = left
    return request.rewritten()


def insert_after_last(items: list[Any], start: int, added: Any, belongs: Callable[[Any], bool]) -> bool:
    """Inserts an item after the run of items from ``start`` on that belong together. False if that run is empty."""
    end = start
    while end < len(items) and belongs(items[end]):
        end += 1
    if end > start:
        items.insert(end, added)
    return end > start


def note_text(notes: Notes) -> str:
    """The sentences as one text."""
    return "\n".join(notes.values())


def objects_in(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; empty if the value is not a list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def schemas(declarations: Iterable[tuple[dict[str, Any], Any]]) -> dict[str, dict[str, Any]]:
    """The JSON Schemas of tools by name, from pairs of a declaration and the value that it has as its schema."""
    return {
        declared["name"]: schema if isinstance(schema, dict) else {}
        for declared, schema in declarations
        if isinstance(declared.get("name"), str)
    }


# -- contents as OpenAI, and others that follow it, write them ---------------------------------------------------------


def functions_in(request: Request) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The entries of the request's tools that declare a function, and the functions."""
    entries = objects_in(request.fields.get("tools"))
    return [(entry, function) for entry in entries if isinstance(function := entry.get("function"), dict)]


def content_message(content: Any) -> list[RequestEvent]:
    if not isinstance(content, list):
        return user_message(content if isinstance(content, str) else "", [])
    parts = [part for part in content if isinstance(part, dict)]
    media = [str(part.get("type")) for part in parts if part.get("type") not in ("text", "input_text")]
    return user_message("".join(_texts(parts)), media)


def content_text(content: Any) -> Any:
    """Content as one text where all of it is text; anything else as it is."""
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        texts = _texts(content)
        return "".join(texts) if len(texts) == len(content) else content
    return content


def _texts(parts: list[dict[str, Any]]) -> list[str]:
    return [text for part in parts if isinstance(text := part.get("text"), str)]
