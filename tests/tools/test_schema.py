"""Declarations: what each provider is told about a tool."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass, make_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from botocore.validate import ParamValidator
from pydantic import BaseModel

from callstream.errors import UsageError
from callstream.tools import AbortSignal, tool
from callstream.wire import WIRES, provider_of
from callstream.wire.requests import Request
from tests.sdks.bedrock import bedrock_client

from .samples import Colour, Place, draw, order


class Node(msgspec.Struct):
    text: str
    children: list[Node] = []


ORDER_PROPERTIES = {
    "text": {"type": "string", "description": "What for."},
    "count": {"type": "integer"},
    "place": {"$ref": "#/$defs/Place"},
    "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}},
    "colour": {"$ref": "#/$defs/Colour"},
    "kind": {"enum": ["a", "b"], "default": "a"},
    "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "ratio": {"anyOf": [{"type": "number"}, {"type": "null"}], "default": 0.5},
    "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}, "default": []},
    "tags": {"anyOf": [{"type": "object", "additionalProperties": {"type": "integer"}}, {"type": "null"}]},
    "size": {"$ref": "#/$defs/Size", "default": 2},
    "number": {"type": "integer", "description": "An even number.", "default": 2},
    "whatever": {},
}


def test_schema_for_anthropic_and_openai() -> None:
    declared = order.schema("anthropic")
    assert (declared["name"], declared["description"]) == ("order", "Orders things.")
    schema = declared["input_schema"]
    assert schema["properties"] == ORDER_PROPERTIES
    assert schema["required"] == ["text", "count", "place", "points", "colour"]
    assert set(schema["$defs"]) == {"Place", "Point", "Colour", "Item", "Size"}
    assert schema["$defs"]["Place"]["required"] == ["street"]
    assert schema["$defs"]["Point"]["properties"]["y"] == {"type": "number", "default": 0.0}
    assert schema["$defs"]["Item"]["description"] == "One line of an order."
    chat, responses = order.schema("openai"), order.schema("openai_responses")
    assert chat == {
        "type": "function",
        "function": {"name": "order", "description": "Orders things.", "parameters": schema},
    }
    assert responses == {"type": "function", **chat["function"], "strict": False}
    json.dumps([declared, chat, responses])
    spec = {"name": "order", "description": "Orders things.", "inputSchema": {"json": schema}}
    assert order.schema("bedrock") == {"toolSpec": spec}


@pytest.mark.parametrize("wire", WIRES)
def test_schema_takes_the_name_of_every_wire(wire: Any) -> None:
    """And its request declares the tool then. Providers refuse a description that is empty."""

    @tool
    def write(title: str) -> None: ...

    declared = write.schema(wire)
    assert "description" not in json.dumps(declared)
    tools: Any = [{"functionDeclarations": [declared]}] if wire == "gemini" else [declared]
    body = {"tools": tools, "toolConfig": {"tools": tools}, "anthropic_version": "bedrock-2023-05-31"}
    [(name, schema)] = (
        provider_of(wire).declared_tools(Request("/model/anthropic.claude/invoke", json.dumps(body).encode())).items()
    )
    assert (name, schema["required"]) == ("write", ["title"])


def test_a_tool_without_a_description_is_declared_to_bedrock() -> None:
    @tool
    def write(title: str) -> None: ...

    client = bedrock_client("http://127.0.0.1:1")
    model = client.meta.service_model.operation_model("ConverseStream").input_shape
    given = {"modelId": "claude", "messages": [], "toolConfig": {"tools": [write.schema("bedrock")]}}
    assert not ParamValidator().validate(given, model).has_errors()


def test_schema_for_gemini_is_written_out() -> None:
    declared = order.schema("gemini")
    properties = declared["parameters"]["properties"]
    assert "$ref" not in json.dumps(declared)
    assert "$defs" not in json.dumps(declared)
    assert "default" not in json.dumps(declared)
    assert "additionalProperties" not in json.dumps(declared)
    assert properties["place"]["properties"] == {"street": {"type": "string"}, "number": {"type": "integer"}}
    assert properties["points"]["items"]["required"] == ["x"]
    assert properties["colour"] == {"title": "Colour", "type": "string", "enum": ["red", "blue"]}
    assert properties["kind"] == {"type": "string", "enum": ["a", "b"]}
    assert properties["limit"] == {"type": "integer", "nullable": True}
    assert properties["tags"] == {"type": "object", "nullable": True}
    assert properties["size"] == {"title": "Size", "type": "integer", "description": "One of: 1, 2."}
    assert properties["items"]["items"]["properties"]["price"] == {"type": "number", "nullable": True}


def test_schema_for_gemini_of_odd_shapes() -> None:
    @tool
    def odd(
        pair: tuple[int, str],
        same: tuple[int, int],
        either: int | str | None,
        choice: Literal["a", None],
        mixed: Annotated[Literal[1, "b"], "Pick."],
        positive: Annotated[int, msgspec.Meta(ge=1, multiple_of=2)],
        unique: set[str],
    ) -> None: ...

    properties = odd.schema("gemini")["parameters"]["properties"]
    assert properties["pair"]["items"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert (properties["pair"]["minItems"], properties["pair"]["maxItems"]) == (2, 2)
    assert properties["same"]["items"] == {"type": "integer"}
    assert properties["either"] == {"anyOf": [{"type": "integer"}, {"type": "string"}], "nullable": True}
    assert properties["choice"] == {"type": "string", "enum": ["a"], "nullable": True}
    assert properties["mixed"]["description"].startswith("Pick. One of: ")
    assert properties["positive"] == {"type": "integer", "minimum": 1, "description": "A multiple of 2."}
    assert properties["unique"] == {"type": "array", "items": {"type": "string"}}


def test_schema_of_a_tool_without_parameters() -> None:
    @tool
    def ping() -> None:
        """Answers."""

    assert ping.schema("gemini") == {"name": "ping", "description": "Answers."}
    assert ping.schema("anthropic")["input_schema"] == {"type": "object", "properties": {}}


def test_schema_of_a_method_leaves_out_what_it_is_bound_to() -> None:
    class Shop:
        @tool
        def buy(self, title: str) -> str:
            """Buys."""
            return title

        @classmethod
        @tool
        def open(cls, place: Colour) -> None: ...

    assert Shop().buy.schema("anthropic")["input_schema"] == {
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
    }
    assert list(Shop.open.schema("openai")["function"]["parameters"]["properties"]) == ["place"]


def test_schema_of_a_partial_is_that_of_its_function() -> None:
    def paint(colour: Colour, title: str) -> str:
        """Paints."""
        return title

    painted = tool(functools.partial(functools.partial(paint), title="door"))
    assert painted.schema("gemini") == {
        "name": "paint",
        "description": "Paints.",
        "parameters": {
            "type": "object",
            "properties": {
                "colour": {"title": "Colour", "type": "string", "enum": ["red", "blue"]},
                "title": {"type": "string"},
            },
            "required": ["colour"],
        },
    }


def test_schema_of_callable_objects_and_classes_resolves_their_annotations() -> None:
    class Painter:
        def __init__(self, colour: Colour) -> None: ...

        def __call__(self, place: Place) -> None: ...

    made: tuple[Any, ...] = (tool(Painter(Colour.RED)), tool(Painter))
    assert [list(one.schema("openai")["function"]["parameters"]["properties"]) for one in made] == [
        ["place"],
        ["colour"],
    ]


def test_schema_of_recursive_types() -> None:
    @tool
    def plant(tree: Node) -> None: ...

    schema = plant.schema("anthropic")["input_schema"]
    assert schema["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    with pytest.raises(UsageError, match="'Node' contains itself"):
        plant.schema("gemini")


def test_schema_refuses_what_it_cannot_describe() -> None:
    @tool
    def open_ended(*names: str) -> None: ...

    @tool
    def strange(signal: AbortSignal) -> None: ...

    with pytest.raises(UsageError, match=r"takes \*names: 'str'|takes \*names: str"):
        open_ended.schema("openai")
    with pytest.raises(UsageError, match="parameter 'signal' of tool 'strange': no JSON Schema"):
        strange.schema("openai")
    with pytest.raises(UsageError, match="expected one of the providers anthropic, openai, openai_chat"):
        order.schema("mistral")  # type: ignore[arg-type]


@dataclass
class Draft:
    author: NotYet  # type: ignore[name-defined]  # noqa: F821


class Letter(BaseModel):
    author: NotYet  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("class_", [Draft, Letter])
def test_a_class_that_lacks_its_fields_is_not_described_and_not_judged(class_: Any) -> None:
    def publish_it(title: str, draft: Any) -> None: ...

    publish_it.__annotations__["draft"] = class_
    publish = tool(publish_it)
    with pytest.raises(UsageError, match=f"parameter 'draft' of .* no JSON Schema can be made of {class_.__name__} "):
        publish.schema("anthropic")
    publish.on_field("draft")(lambda field, signal: None)
    assert publish.arguments.stream_check().feed('{"draft": {"author": 1}') is False
    assert publish.arguments.stream_check().feed('{"title": 1,') is True


@dataclass
class Patience:
    seconds: float = math.inf


class Pace(BaseModel):
    most: float = math.inf
    default: float = 1.0


def test_a_default_that_no_json_can_express_is_left_out() -> None:
    @tool
    def wait(pace: Pace, least: float = math.nan, patience: Patience = Patience(), steps: float = 2.0) -> None: ...  # noqa: B008

    schema = wait.schema("anthropic")["input_schema"]
    json.dumps(schema, allow_nan=False)
    properties = schema["properties"]
    assert properties["least"] == {"type": "number"}
    assert properties["patience"] == {"$ref": "#/$defs/Patience"}
    assert properties["steps"] == {"type": "number", "default": 2.0}
    assert schema["$defs"]["Patience"]["properties"] == {"seconds": {"type": "number"}}
    assert properties["pace"]["properties"]["default"]["default"] == 1.0
    assert "default" not in properties["pace"]["properties"]["most"]


def test_schema_tells_two_types_of_one_name_apart() -> None:
    def a_class(field: str) -> Any:
        return msgspec.defstruct("Thing", [(field, int)])

    one, two = a_class("x"), a_class("y")

    def both(a: Any, b: Any) -> None: ...

    both.__annotations__ = {"a": one, "b": two}
    with pytest.raises(UsageError, match="two different types are named 'Thing'"):
        tool(both).schema("openai")


def test_the_wire_of_chat_completions_is_a_name_for_its_schema() -> None:
    assert draw.schema("openai_chat") == draw.schema("openai")


class Early(msgspec.Struct, tag=True):
    at: time


class Late(msgspec.Struct, tag=True):
    at: time | None
    of: Literal["z", "a"] = "z"


@dataclass
class Visit:
    when: datetime
    before: Visit | None = None


class Note(TypedDict):
    on: Annotated[datetime, msgspec.Meta(description="When.")]


class Span(NamedTuple):
    start: datetime
    end: datetime


@tool
def plan(
    visits: list[Visit],
    slot: Early | Late | datetime | None,
    note: Note,
    span: Span,
    pairs: dict[str, tuple[int, time]],
    key: UUID,
    day: date,
    length: timedelta,
    price: Decimal,
    colour: Colour,
    order: Literal["medium", "high", "low"],
) -> None: ...


def test_types_of_text_have_a_format_wherever_they_occur() -> None:
    schema = plan.schema("anthropic")["input_schema"]
    parts, definitions = schema["properties"], schema["$defs"]
    moment, clock = {"type": "string", "format": "date-time"}, {"type": "string", "format": "time"}
    assert definitions["Visit"]["properties"]["when"] == moment
    assert definitions["Early"]["properties"]["at"] == clock
    assert definitions["Late"]["properties"]["at"]["anyOf"][0] == clock
    assert definitions["Note"]["properties"]["on"] == {**moment, "description": "When."}
    assert definitions["Span"]["prefixItems"] == [moment, moment]
    assert parts["slot"]["anyOf"][0] == moment
    assert parts["pairs"]["additionalProperties"]["prefixItems"][1] == clock
    formats = [parts[name]["format"] for name in ("key", "day", "length", "price")]
    assert formats == ["uuid", "date", "duration", "decimal"]


def test_choices_are_in_the_order_of_their_declaration() -> None:
    schema = plan.schema("anthropic")["input_schema"]
    assert schema["properties"]["order"]["enum"] == ["medium", "high", "low"]
    assert schema["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert schema["$defs"]["Late"]["properties"]["of"]["enum"] == ["z", "a"]


def test_gemini_is_told_in_words_what_its_schema_has_no_words_for() -> None:
    @tool
    def plan_day(
        day: date,
        key: UUID,
        at: datetime,
        count: Annotated[int, msgspec.Meta(gt=0, lt=5)],
        ratio: Annotated[float, msgspec.Meta(gt=0, lt=1, description="A share.")],
        even: Annotated[int, msgspec.Meta(gt=1, multiple_of=2)],
    ) -> None: ...

    parts = plan_day.schema("gemini")["parameters"]["properties"]
    assert parts["day"] == {"type": "string", "description": "Expected: a date such as 2026-01-31."}
    assert parts["key"]["description"].startswith("Expected: a UUID such as ")
    assert parts["at"] == {"type": "string", "format": "date-time"}
    assert parts["count"] == {"type": "integer", "minimum": 1, "maximum": 4}
    assert parts["ratio"] == {"type": "number", "description": "A share. Greater than 0. Less than 1."}
    assert parts["even"] == {"type": "integer", "minimum": 2, "description": "A multiple of 2."}


def test_a_class_is_looked_into_once_however_many_fields_it_is_the_type_of() -> None:
    from callstream.tools.schema import parts_of

    level: Any = int
    for number in range(12):
        level = make_dataclass(f"Level{number}", [("left", level), ("right", level)])

    assert len(list(parts_of(level))) == 1 + 2 * 12
