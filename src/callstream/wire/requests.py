"""What a request says: the tools that it declares, the results of tools, and the new messages of its user.

A request carries the whole conversation. Its last turn is what follows the last word of the model (words that the
request puts into the model's mouth, at its very end, do not count). Results are given from the whole conversation, in
order, those of the last turn marked ``latest``; messages from the last turn alone. A result without a name gets that of
the call before it with its id, because ids are used again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import msgspec

from callstream import codec
from callstream.errors import WireError
from callstream.events import MessageReceived, RequestEvent, ResultReceived

MODEL = "model"
"""The role of whatever the model said, on every wire."""

KnownSignature: TypeAlias = Callable[[str | None, str | None], str | None]
"""The signature that came with the call of that id and name, None if none is known."""

Notes: TypeAlias = Mapping[str, str]
"""Sentences for the model about calls that it made, by the calls' ids in the wire."""
Asks: TypeAlias = Callable[[str], bool]
"""Whether the provider is to be asked to stream the arguments of the tool of that name."""

_Body = TypeVar("_Body", bound=msgspec.Struct)


class RefusedCall(msgspec.Struct, frozen=True):
    """A call that the program never got, as it is written back for the model: with the refusal in place of a result.

    ``args`` are its arguments, none where they were cut off or are not JSON: providers refuse a history with half a call.
    ``provider_id`` is None where the provider sent no id. ``beside``: the ids of the calls of the same response that the
    program has.
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
        return msgspec.json.encode(self.args).decode()


def all_tools(name: str) -> bool:
    """Asks for every tool."""
    return True


class Request:
    """A request on its way to a provider: where it goes, and its body."""

    def __init__(self, path: str, body: bytes) -> None:
        self.path = path.rstrip("/")
        self.body = body

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The object that the body is; an empty one if it is anything else, which is the provider's to refuse."""
        try:
            fields = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return {}
        return fields if isinstance(fields, dict) else {}

    def rewritten(self) -> Request:
        """The request with a body that says what ``fields`` say by now."""
        return Request(self.path, msgspec.json.encode(self.fields))


class Turn(msgspec.Struct):
    """One entry of the conversation, in no wire's words. ``calls`` are the (id, name) that a model's entry made."""

    role: str
    events: list[RequestEvent]
    calls: list[tuple[str | None, str]] = []


def last_turn(conversation: Iterable[Turn]) -> list[RequestEvent]:
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
    """The body as a struct of its wire. Raises WireError if it is none."""
    try:
        try:
            return msgspec.json.decode(body, type=type_)
        except msgspec.DecodeError:
            return msgspec.json.decode(codec.replace_surrogates(body), type=type_)
    except (ValueError, RecursionError) as error:
        # Not a word of the conversation, since this reaches the log.
        raise WireError(
            f"expected the body of a {wire} request, got {len(body)} bytes that are none: {error}"
        ) from None


def user_message(text: str, attachments: list[str]) -> list[RequestEvent]:
    return [MessageReceived("user", text, attachments=tuple(attachments))] if text or attachments else []


def without_blocks(request: Request, is_superfluous: Callable[[dict[str, Any]], bool]) -> Request:
    """The request without some blocks of the model's messages.

    A message that has no others goes too; then the user's messages around it become one, since some providers want turns.
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
    """Puts an item after the last of those that belong together from ``start`` on. False if there is none of them."""
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
    """The objects of a list; none where it is no list."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def schemas(declarations: Iterable[tuple[dict[str, Any], Any]]) -> dict[str, dict[str, Any]]:
    """The JSON Schemas of tools by name, from their declarations and what stands there for a schema."""
    return {
        declared["name"]: schema if isinstance(schema, dict) else {}
        for declared, schema in declarations
        if isinstance(declared.get("name"), str)
    }
