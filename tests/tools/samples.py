"""Types and tools that several tests declare."""

from __future__ import annotations

import dataclasses
import enum
import typing
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec

from callstream.tools import Progress, no_progress, tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Place(TypedDict, total=False):
    street: typing.Required[str]
    number: int


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Item(msgspec.Struct):
    """One line of an order."""

    title: str
    price: float | None = None


async def write_document(title: str, content: str, progress: Progress = no_progress) -> dict[str, Any]:
    """Writes a document.

    It is kept.

    Args:
        title: What it is called,
            in a few words.
        content (str): The text.
        progress: Where to report.

    Returns:
        Its id.
    """
    await progress(1, 2, "half")
    return {"title": title, "content": content}


@tool
def order(
    text: str,
    count: int,
    place: Place,
    points: list[Point],
    colour: Colour,
    kind: Literal["a", "b"] = "a",
    limit: Optional[int] = None,  # noqa: UP045  # both spellings are tried
    ratio: float | None = 0.5,
    items: tuple[Item, ...] = (),
    tags: dict[str, int] | None = None,
    size: Size = Size.LARGE,
    number: Annotated[int, "An even number."] = 2,
    whatever: Any = None,
    progress: Progress = no_progress,
) -> None:
    """Orders things.

    Args:
        text: What for.
        number: Not this text.
    """


class Part(TypedDict):
    title: str
    children: list[Part]


@tool
def draw(
    parts: list[Part], colours: dict[str, str], anything: Any, pair: tuple[int, str], note: str | None = None
) -> None: ...
