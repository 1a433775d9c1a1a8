"""What a model is told of arguments that do not fit: every fault, in the same words whichever library found it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt

from callstream import tool
from callstream.errors import InvalidArguments, UsageError
from callstream.tools.check import faults


@dataclass
class Trip:
    name: str
    leaves: datetime
    length: timedelta = timedelta()


class Ticket(BaseModel):
    model_config = ConfigDict(extra="forbid")
    seats: Annotated[list[int], Field(min_length=1)]
    code: Annotated[str, Field(pattern="^a", min_length=1, max_length=3)] = "a"
    price: Annotated[float, Field(gt=0, lt=10)] = 1
    until: date | None = None


class Seat(msgspec.Struct, forbid_unknown_fields=True):
    row: int
    number: int = 1


class Trunk(msgspec.Struct):
    ticket: Ticket
    weight: int


@tool
def travel(
    title: str,
    trips: list[Trip] | None = None,
    ticket: Ticket | None = None,
    seat: Seat | None = None,
    trunk: Trunk | None = None,
) -> None: ...


def refusal(**args: Any) -> str:
    with pytest.raises(InvalidArguments) as refused:
        travel.arguments.convert(args)
    return str(refused.value).removeprefix("travel did not run: ").partition("; its arguments are")[0]


def test_every_fault_is_told_whoever_finds_it() -> None:
    assert refusal(trips=[{"name": 3, "leaves": "x", "length": 5}], zz=1).split(". ") == [
        "the argument 'title' is missing",
        "There is no argument 'zz'",
        "The argument 'trips[0].name' should be a string, got the number 3",
        "The argument 'trips[0].leaves' should be a date and time such as 2026-01-31T09:30:00Z, got the string 'x'",
        "The argument 'trips[0].length' should be a duration such as PT5M, got the number 5",
    ]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (Cat | Dog, {"kind": "dog"}, ["the argument 'pet.tricks' is missing"]),
        (Cat | int, {"kind": "cat"}, ["the argument 'pet.lives' is missing"]),
        (Cat | Dog, 5, ["the argument 'pet' should be an object, got the number 5"]),
        (PositiveInt | Literal["all"], -1, ["the argument 'pet' should be greater than 0 or 'all', got the number -1"]),
        (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "cat"}, ["the argument 'pet.lives' is missing"]),
        (
            list[Cat | Dog],
            [{"kind": "cat"}, {"kind": "cat", "lives": 9}, {"kind": "dog", "tricks": 3}],
            [
                "the argument 'pet[0].lives' is missing",
                "The argument 'pet[2].tricks' should be an array, got the number 3",
            ],
        ),
        (
            dict[PositiveInt, Cat],
            {"-1": {"kind": "cat", "lives": 9}},
            ["the argument \"pet['-1']\" should be greater than 0, got the string '-1'"],
        ),
        (
            Annotated[str, AfterValidator(int)] | PositiveInt,
            "",
            [
                "the argument 'pet': invalid literal for int() with base 10: '', got the string ''",
                "The argument 'pet' should be an integer, got the string ''",
            ],
        ),
    ],
)
def test_the_place_of_a_fault_is_one_of_the_arguments(annotation: Any, value: Any, expected: list[str]) -> None:
    """Whatever pydantic calls the alternatives of a union."""

    def keep(pet: Any) -> None: ...

    keep.__annotations__["pet"] = annotation
    with pytest.raises(InvalidArguments) as refused:
        tool(keep).arguments.convert({"pet": value})
    text = str(refused.value).removeprefix("keep did not run: ").partition("; its arguments are")[0]
    assert text.split(". ") == expected


def test_faults_of_a_model_in_a_struct_are_told_beside_those_of_the_struct() -> None:
    text = refusal(title="a", trunk={"ticket": {"seats": "x"}, "weight": "y"})
    assert "'trunk.weight' should be an integer" in text
    assert "'trunk.ticket.seats' should be an array" in text


def test_a_host_is_told_wrong_names_beside_wrong_values() -> None:
    @tool
    def act(title: str, context, count: int = 1) -> None: ...  # type: ignore[no-untyped-def]

    assert act.arguments.convert({"zz": 1}, check_names=False) == {"zz": 1}
    with pytest.raises(InvalidArguments) as refused:
        act.arguments.convert({"count": "x", "zz": 1}, check_names=False)
    assert [fault.path for fault in refused.value.faults] == [("title",), ("zz",), ("count",)]


def test_an_unknown_field_is_told_with_those_that_there_are() -> None:
    told = "there is no field 'z' in the argument 'seat', whose fields are row, number"
    assert refusal(title="a", seat={"row": 1, "z": 1}) == told
    told = "there is no field 'z' in the argument 'ticket', whose fields are seats, code, price, until"
    assert refusal(title="a", ticket={"seats": [1], "z": 1}) == told


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ({"seats": "x"}, "the argument 'ticket.seats' should be an array, got the string 'x'"),
        ({"seats": [1.5]}, "the argument 'ticket.seats[0]' should be an integer, got the number 1.5"),
        ({"seats": ["x"]}, "the argument 'ticket.seats[0]' should be an integer, got the string 'x'"),
        ({"code": "b"}, "the argument 'ticket.code' should be a string that matches '^a', got the string 'b'"),
        ({"code": "abcd"}, "the argument 'ticket.code' should be at most 3 characters long, got the string 'abcd'"),
        ({"code": ""}, "the argument 'ticket.code' should be at least 1 characters long, got the string ''"),
        ({"price": 0}, "the argument 'ticket.price' should be greater than 0.0, got the number 0"),
        ({"price": 10}, "the argument 'ticket.price' should be less than 10.0, got the number 10"),
        ({"until": "x"}, "the argument 'ticket.until' should be a date such as 2026-01-31, got the string 'x'"),
    ],
)
def test_faults_that_pydantic_finds_are_told_as_others(field: dict[str, Any], sentence: str) -> None:
    assert refusal(title="a", ticket={"seats": [1], **field}) == sentence


class Car(BaseModel):
    kind: Literal["car"]
    doors: int = 4


class Bike(BaseModel):
    kind: Literal["bike", "tandem"]
    gears: int


class Bus(msgspec.Struct, tag="bus"):
    seats: int = 1


class Tram(msgspec.Struct, tag="tram"):
    line: int


class Garage(BaseModel):
    tagged: Annotated[Car | Bike, Field(discriminator="kind")] | None = None
    plain: Car | Bike | None = None


@tool
def park(garage: Garage | None = None, struct: Bus | Tram | None = None, lone: Car | None = None) -> None: ...


def parking_refusals(args: dict[str, Any]) -> list[str]:
    """Of the same arguments: whole, by their types and by the schema, and while they are written."""
    with pytest.raises(InvalidArguments) as refused:
        park.arguments.convert(args)
    schema = park.schema("anthropic")["input_schema"]
    check = park.arguments.stream_check()
    for character in json.dumps(args):
        check.feed(character)
    return [str(found[0]) for found in (refused.value.faults, faults(schema, args), check.faults)]


@pytest.mark.parametrize(
    ("args", "field", "tags"),
    [
        ({"garage": {"tagged": {"kind": "boat", "doors": 2}}}, "garage.tagged.kind", ("car", "bike", "tandem")),
        ({"garage": {"tagged": {"kind": "boat", "gears": 2}}}, "garage.tagged.kind", ("car", "bike", "tandem")),
        ({"garage": {"plain": {"kind": "boat"}}}, "garage.plain.kind", ("car", "bike", "tandem")),
        ({"struct": {"type": "boat", "seats": 2}}, "struct.type", ("bus", "tram")),
        ({"struct": {"type": "boat", "line": 2}}, "struct.type", ("bus", "tram")),
    ],
)
def test_a_wrong_tag_is_told_with_all_that_are_allowed(args: dict[str, Any], field: str, tags: tuple[str, ...]) -> None:
    whole, judged, written = parking_refusals(args)
    for sentence in (whole, judged, written):
        assert sentence.startswith(f"the argument {field!r} should be ")
        assert all(tag in sentence.partition(", got ")[0] for tag in tags)
    assert whole.endswith(", got the string 'boat'")
    assert judged.endswith(", got the string 'boat'")
    assert written.endswith(", got a string that begins with 'bo'")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({"garage": {"tagged": {"doors": 2}}}, "the argument 'garage.tagged.kind' is missing"),
        ({"garage": {"tagged": {"kind": "bike"}}}, "the argument 'garage.tagged.gears' is missing"),
        ({"garage": {"plain": {"kind": "bike"}}}, "the argument 'garage.plain.gears' is missing"),
        ({"struct": {"type": "tram", "line": "x"}}, "the argument 'struct.line' should be an integer, got "),
    ],
)
def test_the_tag_says_which_alternative_is_meant(args: dict[str, Any], sentence: str) -> None:
    assert all(told.startswith(sentence) for told in parking_refusals(args))


def test_a_wrong_choice_without_alternatives_is_no_tag() -> None:
    with pytest.raises(InvalidArguments) as refused:
        park.arguments.convert({"lone": {"kind": "boat", "doors": "x"}})
    assert [fault.path for fault in refused.value.faults] == [("lone", "kind"), ("lone", "doors")]
    wrong = faults(park.schema("anthropic")["input_schema"], {"lone": {"kind": "boat", "doors": "x"}})
    assert [fault.path for fault in wrong] == [("lone", "kind"), ("lone", "doors")]


def test_limits_name_their_unit() -> None:
    @tool
    def limit(items: Annotated[list[int], Meta(min_length=1)], pair: tuple[int, int]) -> None: ...

    with pytest.raises(InvalidArguments) as refused:
        limit.arguments.convert({"items": [], "pair": [1]})
    assert [(fault.expected, fault.got) for fault in refused.value.faults] == [
        ("an array of at least 1 item", "one of 0 items"),
        ("an array of at least 2 items", "one of 1 item"),
    ]


class Plain:
    pass


def test_a_class_that_has_no_schema_is_named_as_it_was_written() -> None:
    @tool
    def act(plains: list[Plain]) -> None: ...

    with pytest.raises(UsageError) as refused:
        act.schema("anthropic")
    assert str(refused.value) == (
        "parameter 'plains' of tool 'act': no JSON Schema can be made of list[Plain]; "
        "take a dataclass, a TypedDict, a msgspec struct or a pydantic model"
    )


def test_a_class_that_only_its_meta_describes_passes_as_it_is() -> None:
    @tool
    def act(plain: Annotated[Plain, Meta(extra_json_schema={"type": "object"})]) -> Any:
        return plain

    assert act.schema("anthropic")["input_schema"]["properties"] == {"plain": {"type": "object"}}
    assert act(plain={"a": 1}) == {"a": 1}  # type: ignore[arg-type]
