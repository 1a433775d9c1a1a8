"""Values of a tool's annotated types, made of the JSON that a model wrote."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from datetime import UTC, date, datetime
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from callstream import Progress, no_progress, tool
from callstream.errors import InvalidArguments, UsageError


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    x: int
    y: int = 0


@dataclasses.dataclass
class Person:
    name: str
    born: date


class Options(TypedDict):
    deep: bool


class Order(pydantic.BaseModel):
    count: int = pydantic.Field(ge=1)
    on: date | None = None


class StrictOrder(Order):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")


class Basket(msgspec.Struct):
    orders: list[Order]


@dataclasses.dataclass
class Shelf:
    order: Order
    label: str


class Even(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def check(cls, number: int) -> int:
        if number == 13:
            raise LookupError("nobody counts that far")
        if number % 2:
            raise ValueError("must be even")
        return number


@tool
def anything(
    count: int = 0,
    ratio: float = 0.0,
    text: str = "",
    day: date | None = None,
    at: datetime | None = None,
    key: UUID | None = None,
    color: Color = Color.RED,
    mode: Literal["fast", "slow"] = "fast",
    point: Point | None = None,
    person: Person | None = None,
    options: Options = {"deep": False},  # noqa: B006
    order: Order | None = None,
    strict: StrictOrder | None = None,
    orders: list[Order] | None = None,
    basket: Basket | None = None,
    shelf: Shelf | None = None,
    even: Even | None = None,
    by_number: dict[int, str] | None = None,
    few: Annotated[int, msgspec.Meta(ge=1, le=3, description="how many")] = 1,
    many: Annotated[int, pydantic.Field(ge=10, description="how many more")] = 10,
    free: Any = None,
    bare=None,  # type: ignore[no-untyped-def]
) -> dict[str, Any]:
    """Gives its arguments back."""
    return {name: value for name, value in locals().items() if value is not None}


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("count", 5, 5),
        ("ratio", 5, 5.0),
        ("day", "2026-01-31", date(2026, 1, 31)),
        ("at", "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("key", "12345678123456781234567812345678", UUID(int=0x12345678123456781234567812345678)),
        ("color", "blue", Color.BLUE),
        ("mode", "slow", "slow"),
        ("point", {"x": 1}, Point(1)),
        ("person", {"name": "Ann", "born": "1990-05-01"}, Person("Ann", date(1990, 5, 1))),
        ("options", {"deep": True}, {"deep": True}),
        ("order", {"count": 2, "on": "2026-01-31"}, Order(count=2, on=date(2026, 1, 31))),
        ("order", {"count": "2"}, Order(count=2)),  # its config is not strict
        ("strict", {"count": 2, "on": "2026-01-31"}, StrictOrder(count=2, on=date(2026, 1, 31))),
        ("orders", [{"count": 2}], [Order(count=2)]),
        ("basket", {"orders": [{"count": 2}]}, Basket([Order(count=2)])),
        ("shelf", {"order": {"count": "2"}, "label": "a"}, Shelf(Order(count=2), "a")),
        ("by_number", {"1": "one"}, {1: "one"}),
        ("few", 3, 3),
        ("many", 11, 11),
        ("free", {"a": [1]}, {"a": [1]}),
        ("bare", "5", "5"),
        ("text", "half a pair: \ud800", "half a pair: \ud800"),
    ],
)
def test_what_a_model_wrote_becomes_a_value_of_the_annotated_type(name: str, written: Any, value: Any) -> None:
    assert anything(**{name: written})[name] == value
    typed = anything.arguments.convert({name: written})
    assert typed == {name: value}
    assert type(typed[name]) is type(value)
    assert anything.arguments.convert_one(name, typed[name]) == value, "a value that has its type passes"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({"count": "5"}, "the argument 'count' should be an integer, got the string '5'"),
        ({"count": True}, "the argument 'count' should be an integer, got true"),
        ({"count": 5.5}, "the argument 'count' should be an integer, got the number 5.5"),
        ({"day": "soon"}, "the argument 'day' should be a date such as 2026-01-31 or null, got the string 'soon'"),
        ({"at": "noon"}, "the argument 'at' should be a date and time such as 2026-01-31T09:30:00Z or null, got the string 'noon'"),
        ({"key": "1"}, "the argument 'key' should be a UUID such as 123e4567-e89b-42d3-a456-426614174000 or null, got the string '1'"),
        ({"color": "green"}, "the argument 'color' should be one of \"red\", \"blue\", got the string 'green'"),
        ({"mode": "medium"}, "the argument 'mode' should be one of \"fast\", \"slow\", got the string 'medium'"),
        ({"point": {"x": "1"}}, "the argument 'point.x' should be an integer, got the string '1'"),
        ({"person": {"name": "Ann"}}, "the argument 'person.born' is missing"),
        ({"orders": [{"count": 1}, {"count": 0}]}, "the argument 'orders[1].count' should be at least 1, got the number 0"),
        ({"strict": {"count": "2"}}, "the argument 'strict.count' should be an integer, got the string '2'"),
        ({"strict": {"count": 2, "color": 1}}, "there is no field 'color' in the argument 'strict', whose fields are count, on"),
        ({"strict": {}}, "the argument 'strict.count' is missing"),
        ({"basket": {"orders": [{"count": 0}]}}, "the argument 'basket.orders[0].count' should be at least 1"),
        ({"shelf": {"order": {"count": 1}, "label": 5}}, "the argument 'shelf.label' should be a string, got"),
        ({"even": {"number": 3}}, "the argument 'even.number': must be even, got the number 3"),
        ({"even": {"number": 13}}, "the argument 'even': it could not be validated (LookupError: nobody counts that far)"),
        ({"few": 4}, "the argument 'few' should be at most 3, got the number 4"),
        ({"many": 9}, "the argument 'many' should be at least 10, got the number 9"),
        ({"many": "11"}, "the argument 'many' should be an integer, got the string '11'"),
        ({"by_number": {"1": 1}}, "the argument \"by_number['1']\" should be a string, got the number 1"),
        ({"by_number": {"one": "1"}}, "the argument 'by_number'"),
        ({"size": 1}, "there is no argument 'size'"),
        ({"count": "5", "day": 5, "size": 1}, "There is no argument 'size'. The argument 'count'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_in_a_sentence(args: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        anything.arguments.convert(args)
    text = str(refused.value)
    assert text.startswith("anything did not run: ")
    assert sentence.lower() in text.lower()
    assert "; its arguments are count, ratio" in text
    assert all(fault.expected for fault in refused.value.faults)
    if "size" not in args:
        with pytest.raises(InvalidArguments):
            anything(**args)


def test_every_fault_has_its_place() -> None:
    with pytest.raises(InvalidArguments) as refused:
        anything.arguments.convert({"strict": {"count": "2", "on": 5, "x": 1}, "count": "5"})
    places = {fault.path: (fault.expected, fault.got) for fault in refused.value.faults}
    assert places.keys() == {("strict", "count"), ("strict", "on"), ("strict", "x"), ("count",)}
    assert places["count",] == ("an integer", "the string '5'")


def test_what_is_too_deep_is_refused() -> None:
    @tool
    def walk(tree: dict[str, Any], nodes: list[list[int]]) -> None: ...

    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidArguments, match="'nodes'"):
        walk(tree={"deep": deep}, nodes=deep)


def test_only_some_faults_are_told() -> None:
    names = ["count", "few", "many", "day", "at", "key", "point"]
    with pytest.raises(InvalidArguments, match="There are 2 more faults like these; its arguments") as refused:
        anything.arguments.convert(dict.fromkeys(names, "no"))
    assert len(refused.value.faults) == 7


def test_null_for_an_argument_with_a_default_is_one_left_out() -> None:
    assert anything(count=None, color=None)["count"] == 0
    assert anything.arguments.convert({"few": None, "many": None, "free": None}) == {"few": 1, "many": 10, "free": None}


def test_tools_of_every_kind_get_their_types() -> None:
    @tool
    async def asynchronous(day: date, *, progress: Progress = no_progress) -> int:
        await progress(1)
        return day.year

    @tool
    def steps(progress: Progress, day: date) -> Any:
        yield day.month

    class Calendar:
        @tool
        def weekday(self, day: date, *rest: int, **more: Any) -> Any:
            return day.isoweekday(), rest, more

    async def items(day: date) -> Any:
        yield day

    async def collect() -> list[Any]:
        return [item async for item in tool(items)(day="2026-02-01")]

    assert asyncio.run(asynchronous("2026-02-01")) == 2026  # type: ignore[arg-type]
    assert list(steps("2026-02-01")) == [2]  # type: ignore[call-arg, arg-type]
    assert Calendar().weekday("2026-02-01", 5, a=1) == (7, (5,), {"a": 1})  # type: ignore[arg-type]
    assert asyncio.run(collect()) == [date(2026, 2, 1)]
    with pytest.raises(InvalidArguments):
        asyncio.run(asynchronous(day="no"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="multiple values"):
        anything(1, count=1)


def test_what_cannot_be_judged_passes() -> None:
    class Context:
        pass

    @tool
    def act(context: Context, later: NotYet, either: Point | Person) -> Any:  # type: ignore[name-defined]  # noqa: F821
        return context, later, either

    assert act(1, 2, 3) == (1, 2, 3)  # type: ignore[arg-type]


def test_an_object_of_the_class_passes_as_it_is() -> None:
    person = Person(name=5, born=date(1990, 5, 1))  # type: ignore[arg-type]  # nobody has judged it
    order = Order(count=1)
    assert anything(person=person)["person"] is person
    assert anything(order=order)["order"] is order
    assert anything(orders=[order])["orders"] == [order]


def test_a_program_without_pydantic_needs_none() -> None:
    program = """
import sys
sys.modules["pydantic"] = None  # importing it fails
from dataclasses import dataclass
from callstream import tool
@dataclass
class Point:
    x: int
def move(to: Point, by: list[int] = []): return to.x + sum(by)
move = tool(move)
assert move(to={"x": 1}, by=[1]) == 2
assert move.schema("anthropic")["input_schema"]["required"] == ["to"]

from enum import Enum
class Step(Enum):
    FIRST = 1
    LAST = "last"
@tool
def go(step: Step): return step
assert go(step=Step.LAST) is Step.LAST
try:
    go(step="last")
except ValueError as error:
    assert "only pydantic can read, and pydantic is not installed" in str(error)
else:
    raise AssertionError("it ran")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


class Step(Enum):
    FIRST = 1
    LAST = "last"


class Ratio(float, Enum):
    HALF = 0.5
    WHOLE = 1.0


class Switch(Enum):
    ON = True
    OFF = False


@dataclasses.dataclass
class Dial:
    step: Step
    switch: Switch = Switch.OFF


class Panel(pydantic.BaseModel):
    ratio: Ratio
    switches: list[Switch] = []
    fixed: Literal[1, "none"] = 1


class Lever(msgspec.Struct):
    step: Step


class Opaque(Enum):
    ONE = object()


@tool
def turn(
    step: Step = Step.FIRST,
    ratio: Ratio = Ratio.HALF,
    switch: Switch | None = None,
    steps: list[Step] = [],  # noqa: B006
    named: dict[str, Ratio] = {},  # noqa: B006
    either: Step | bool = False,
    noted: Annotated[Step, pydantic.Field(description="where to go")] = Step.FIRST,
    dial: Dial | None = None,
    panel: Panel | None = None,
) -> dict[str, Any]:
    """Turns things."""
    return dict(locals())


class TestEnumsThatMsgspecDoesNotKnow:
    @pytest.mark.parametrize(
        ("name", "written", "value"),
        [
            ("step", 1, Step.FIRST),
            ("step", 1.0, Step.FIRST),
            ("step", "last", Step.LAST),
            ("ratio", 0.5, Ratio.HALF),
            ("ratio", 1, Ratio.WHOLE),
            ("switch", True, Switch.ON),
            ("switch", False, Switch.OFF),
            ("switch", None, None),
            ("steps", [1, "last"], [Step.FIRST, Step.LAST]),
            ("named", {"a": 0.5, "b": 1}, {"a": Ratio.HALF, "b": Ratio.WHOLE}),
            ("either", True, True),
            ("either", 1, Step.FIRST),
            ("noted", "last", Step.LAST),
            ("dial", {"step": "last", "switch": True}, Dial(Step.LAST, Switch.ON)),
            ("panel", {"ratio": 1, "switches": [True]}, Panel(ratio=Ratio.WHOLE, switches=[Switch.ON])),
        ],
    )
    def test_the_tool_gets_members(self, name: str, written: Any, value: Any) -> None:
        made = turn(**{name: written})[name]
        assert repr(made) == repr(value)
        assert repr(turn(**{name: made})[name]) == repr(value), "a value that has its type passes"

    @pytest.mark.parametrize(
        ("args", "sentence"),
        [
            ({"step": True}, "the argument 'step' should be one of 1, \"last\", got true"),
            ({"step": 2}, "the argument 'step' should be 1 or 'last', got the number 2"),
            ({"step": "1"}, "the argument 'step' should be 1 or 'last', got the string '1'"),
            ({"ratio": True}, "the argument 'ratio' should be a number, got true"),
            ({"ratio": 0.25}, "the argument 'ratio' should be 0.5 or 1.0, got the number 0.25"),
            ({"switch": 1}, "the argument 'switch' should be true or false or null, got the number 1"),
            ({"switch": 0.0}, "the argument 'switch' should be true or false or null, got the number 0"),
            ({"steps": [1, True]}, "the argument 'steps[1]' should be one of 1, \"last\", got true"),
            ({"named": {"a": True}}, "the argument 'named.a' should be a number, got true"),
            ({"noted": True}, "the argument 'noted' should be one of 1, \"last\", got true"),
            ({"dial": {"step": True}}, "the argument 'dial.step' should be one of 1, \"last\", got true"),
            ({"dial": {"step": 3}}, "the argument 'dial.step' should be 1 or 'last', got the number 3"),
            ({"panel": {"ratio": 1, "switches": [0]}}, "the argument 'panel.switches[0]' should be true or false"),
            ({"panel": {"ratio": 1, "fixed": True}}, "the argument 'panel.fixed' should be one of 1, \"none\", got true"),
        ],
    )  # fmt: skip
    def test_anything_else_is_refused_and_true_is_not_1(self, args: dict[str, Any], sentence: str) -> None:
        with pytest.raises(InvalidArguments) as refused:
            turn(**args)
        assert sentence in str(refused.value)

    def test_the_model_is_told_the_values(self) -> None:
        schema = turn.schema("anthropic")["input_schema"]
        told = schema["$defs"]
        assert told["Step"]["enum"] == [1, "last"]
        assert told["Ratio"]["enum"] == [0.5, 1.0]
        assert repr(told["Switch"]["enum"]) == "[True, False]"
        assert schema["properties"]["ratio"]["default"] == 0.5

    def test_a_value_that_nothing_can_make_never_reaches_the_tool(self) -> None:
        @tool
        def pull(lever: Lever) -> Any:
            return lever

        @tool
        def look(at: Opaque) -> Any:
            return at

        with pytest.raises(InvalidArguments, match=r"'lever': no value fits its type.* pydantic cannot read the rest"):
            pull(lever={"step": 1})  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="no JSON Schema can be made of Lever"):
            pull.schema("anthropic")
        with pytest.raises(UsageError, match="no JSON Schema can be made of Opaque"):
            look.schema("anthropic")
        with pytest.raises(InvalidArguments, match="'at' should be"):
            look(at="one")  # type: ignore[arg-type]
        lever = Lever(Step.FIRST)
        assert pull(lever=lever) is lever


class TestSchema:
    def test_limits_and_descriptions_are_told(self) -> None:
        properties = anything.schema("anthropic")["input_schema"]["properties"]
        few = properties["few"]
        assert (few["minimum"], few["maximum"], few["description"]) == (1, 3, "how many")
        many = properties["many"]
        assert (many["minimum"], many["description"], many["default"]) == (10, "how many more", 10)
        assert properties["day"]["anyOf"][0] == {"type": "string", "format": "date"}

    def test_models_inside_of_other_types_are_defined(self) -> None:
        schema = anything.schema("anthropic")["input_schema"]
        assert {"Order", "StrictOrder", "Basket", "Shelf", "Point", "Person"} <= schema["$defs"].keys()
        assert schema["$defs"]["Order"]["properties"]["count"]["minimum"] == 1
        assert schema["properties"]["orders"]["anyOf"][0]["items"] == {"$ref": "#/$defs/Order"}


class StrictRoom(pydantic.BaseModel, strict=True):
    beds: int


def test_a_whole_number_is_an_integer_however_it_is_written() -> None:
    """As JSON Schema says, and as Gemini's streamed values arrive."""

    @tool
    def book(nights: int, scores: dict[str, int], rooms: list[StrictRoom], price: float) -> Any:
        return nights, scores, [room.beds for room in rooms], price

    made = book(nights=5.0, scores={"who": 1.0}, rooms=[{"beds": 2.0}], price=5.0)
    assert repr(made) == "(5, {'who': 1}, [2], 5.0)"
    with pytest.raises(InvalidArguments, match=r"the argument 'scores.who' should be an integer, got the number 1.5"):
        book(nights=5, scores={"who": 1.5}, rooms=[], price=1)
