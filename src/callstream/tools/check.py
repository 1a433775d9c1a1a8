"""Whether the arguments of a call fit the JSON Schema that the tool was declared with, at the end or while they are written.

The comment at ``Judge`` says which keywords are judged, and why a verdict is final. A schema that cannot be judged must not
keep a tool from running, so everything else fits. An optional argument may be null, because models write null for arguments
that they leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from callstream.codec import repeated_name
from callstream.errors import WireError
from callstream.events import DiscardReason
from callstream.jsontext import Change, JsonStream
from callstream.jsontext.patch import equality_key
from callstream.jsontext.path import Path, format_path, resolve
from callstream.tools.keywords import (
    alternatives_of,
    choices_of,
    expected_types,
    is_of,
    kind_of,
    matches,
    scalar_faults,
    string_faults,
)
from callstream.tools.schema import limit, part_list, part_map

# A fault in a call's arguments: where it is, what was expected there and what came, in a sentence for the model.

_MAX_SHOWN: Final = 40
_MAX_SENTENCES: Final = 5


class Fault(msgspec.Struct, frozen=True):
    """One thing that does not fit. ``got`` is None where there is nothing at ``path``.

    ``rule`` is a sentence about the value that "should be …" cannot express, such as a validator's own message.
    """

    path: Path
    expected: str
    got: str | None = None
    rule: str | None = None

    def __str__(self) -> str:
        subject = f"the argument {_name(self.path)!r}" if self.path else "the arguments"
        if self.rule is not None:
            return f"{subject}: {self.rule}" if self.got is None else f"{subject}: {self.rule}, got {self.got}"
        if self.got is None:
            return f"{subject} is missing" if self.path else "the arguments are missing"
        return f"{subject} should be {self.expected}, got {self.got}"


class UnknownArgument(Fault, frozen=True):
    """A name that the tool, or the object around it, does not have. ``known`` are those that the object has."""

    known: tuple[str, ...] = ()

    def __str__(self) -> str:
        if len(self.path) == 1:
            return f"there is no argument {_name(self.path)!r}"
        text = f"there is no field {self.path[-1]!r} in the argument {_name(self.path[:-1])!r}"
        return f"{text}, whose fields are {', '.join(self.known)}" if self.known else text


class WrongChoice(Fault, frozen=True):
    """A value that is none of those that a schema lists. If every alternative lists others, it is a tag."""


class Misfit(ValueError):
    """A value does not fit its annotation. The paths of the faults begin at the value."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = faults

    def within(self, path: Path) -> list[Fault]:
        """The faults with their paths extended: the value is at this path."""
        return [msgspec.structs.replace(fault, path=(*path, *fault.path)) for fault in self.faults]


def _name(path: Path) -> str:
    """``guest.rooms[0]``: a path as written in Python, without the root."""
    return str(path[0]) if len(path) == 1 else format_path(path).removeprefix("$.")


def describe(faults: Sequence[Fault], names: Iterable[str] = ()) -> str:
    """The faults for the model, one sentence each, and the names of the tool's arguments if there are any."""
    sentences = [str(fault) for fault in faults[:_MAX_SENTENCES]]
    text = ". ".join([sentences[0], *(sentence[0].upper() + sentence[1:] for sentence in sentences[1:])])
    if len(faults) > len(sentences):
        text += f". There are {len(faults) - len(sentences)} more faults like these"
    listed = ", ".join(names)
    return f"{text}; its arguments are {listed}" if listed else text


def show(value: Any) -> str:
    """A JSON value as sentences name it."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value!r:.{_MAX_SHOWN}}"
        case str():
            return f"the string {value!r}" if len(value) <= _MAX_SHOWN else f"the string {value[:_MAX_SHOWN]!r}…"
        case list() | tuple():
            return "an array"
        case dict():
            return "an object"
        case _:
            return f"{type(value).__name__} {value!r:.{_MAX_SHOWN}}"


# A JSON Schema against a value that is still being written: a fault is found as soon as nothing that follows can mend it.
#
# ``Judge`` is fed a value in the order of its text: ``begin``, ``append`` for strings, what is inside, ``end``.
# Only certain faults are added to ``faults``, so the rest of the document cannot overturn any; at the end of the root
# ``faults`` is the verdict. Why that holds: every schema that applies to a value has one ``_SchemaVerdict`` there. It fails
# because of a keyword that the text so far decides (a type by the first character, a maximum by one item too many), or
# because a schema that it needs has failed; ``anyOf`` has failed when all its branches have, and ``not`` or ``contains``
# are decided when their value ends.
#
# One value has one verdict per schema, however many paths lead to that schema, so the work is linear in the document.
#
# Not judged, so anything fits them: ``dependentSchemas``, ``propertyNames``, ``unevaluatedItems``,
# ``unevaluatedProperties``, dynamic references and anchors, references that lead out of the schema or nowhere, and patterns
# that Python cannot compile. Types may be in Gemini's capitals, and ``nullable`` is known.
#
# Hand-written, because no library judges a value that is not whole. In ``python -m bench.byhand`` a wrong second field is
# certain after 32 of 4,070 characters; jsonschema could only say so at the end. For whole values jsonschema is five times
# as fast (100 µs against 500), and knows the keywords that are left out here, but the core does not depend on it: see
# ``adk.calls``.

OnVerdict: TypeAlias = Callable[[list[Fault] | None], None]
"""Called with each fault of a check when it is found, or once with None if the value fits."""

_OUTLINE: Final = frozenset({"type", "format", "nullable", "$ref", "allOf", "anyOf", "oneOf"})
_ROOT_OUTLINE: Final = _OUTLINE | {"properties", "required"}
_CONTAINERS: Final = {
    "object": ("an object", "field", "minProperties", "maxProperties"),
    "array": ("an array", "item", "minItems", "maxItems"),
}
"""The words for a container and for its elements, and the keywords that limit their number."""

_MAX_FAULTS: Final = 100
"""The most faults that are kept; more are not worth reading."""
_MAX_NESTED: Final = 100
"""How many schemas may refer to each other in a chain at one value."""


class Judge:
    """``eager``: the first fault is enough, as early as it is certain. Otherwise all faults are collected.

    ``lenient``: a member of the root that is not required may be null, because models write null for arguments that they
    leave out. ``outline``: only the types of the root and of its members are judged, and which members are required.
    ``formats``: strings have to fit the formats in ``FORMATS``, as msgspec reads them.
    """

    def __init__(
        self, schema: Any, *, eager: bool = False, lenient: bool = False, outline: bool = False, formats: bool = False
    ) -> None:
        self.root = schema
        self.eager = eager
        self.lenient = lenient
        self.outline = outline
        self.formats = formats
        self.faults: list[Fault] = []
        self._frames: list[_ValueFrame] = []

    def begin(self, step: str | int | None, kind: str, got: str) -> None:
        """A value begins: the root (``step`` is None), or a member or an item of the open container.

        ``kind`` is its type as JSON Schema names it, with integers as numbers; ``got`` names the value in sentences.
        """
        if step is None:
            frame = _ValueFrame(self, (), kind, got)
            frame.check(self.root, self._on_root_verdict)
        else:
            parent = self._frames[-1]
            frame = _ValueFrame(self, (*parent.path, step), kind, got)
            parent.begin_child(step, frame)
        self._frames.append(frame)
        for check in [*frame.checks.values()]:
            check.begin()

    def append(self, text: str) -> None:
        """More of the string that is open."""
        self._frames[-1].append(text)

    def end(self, value: Any) -> None:
        """The open value is whole."""
        frame = self._frames.pop()
        frame.got = show(value) if frame.kind == "string" else frame.got
        for check in [*frame.checks.values()]:
            check.decide(value)
        if self._frames:
            self._frames[-1].end_child(value)

    def read(self, value: Any, step: str | int | None = None) -> None:
        """All of a value at once."""
        kind = kind_of(value)
        self.begin(step, kind, show(value))
        if self.outline and step is not None:
            pass  # the inside is not judged, and may be deep
        elif kind == "string":
            self.append(value)
        elif kind == "object":
            for name, member in value.items():
                self.read(member, name)
        elif kind == "array":
            for index, item in enumerate(value):
                self.read(item, index)
        self.end(value)

    def _on_root_verdict(self, faults: list[Fault] | None) -> None:
        if len(self.faults) < _MAX_FAULTS:
            self.faults += [fault for fault in faults or () if fault not in self.faults]


class _ValueFrame(msgspec.Struct, eq=False):
    """One open value: how much of it has come, and a check for each schema that applies to it."""

    judge: Judge
    path: Path
    kind: str
    got: str
    names: set[str] = set()
    count: int = 0
    length: int = 0
    text: str | None = ""
    seen: set[Any] = set()
    checks: dict[int, _SchemaVerdict] = {}

    def check(self, schema: Any, on_verdict: OnVerdict, nested: int = 0) -> _SchemaVerdict:
        """The check of that schema, with one more listener."""
        found = self.checks.get(id(schema))
        if found is None:
            found = self.checks[id(schema)] = _SchemaVerdict(self, schema)
            found.listeners.append(on_verdict)
            if nested < _MAX_NESTED:
                found.expand(nested + 1)
        elif found.is_expanding:
            return found  # it refers to itself with nothing in between, which requires nothing
        else:
            found.listeners.append(on_verdict)
        return found

    def begin_child(self, step: str | int, child: _ValueFrame) -> None:
        self.count += 1
        if isinstance(step, str):
            self.names.add(step)
        for check in self.checks.values():
            check.begin_child(step, child)

    def end_child(self, value: Any) -> None:
        if self.kind != "array":
            return
        watching = [check for check in self.checks.values() if check.wants_unique]
        if watching:
            key = equality_key(value)
            if key in self.seen:
                for check in watching:
                    check.fail(Fault(self.path, "an array without equal items", f"two of {show(value)}"))
            self.seen.add(key)

    def append(self, text: str) -> None:
        self.length += len(text)
        watching = [check for check in self.checks.values() if check.watches_text]
        if watching:
            self.text = None if self.text is None else self.text + text
            for check in watching:
                check.append()


class _SchemaVerdict(msgspec.Struct, eq=False):
    """One schema at one value. ``fits`` is None while that is open."""

    frame: _ValueFrame
    schema: Any
    fits: bool | None = None
    faults: list[Fault] = []
    listeners: list[OnVerdict] = []
    is_expanding: bool = False
    is_silent: bool = False
    is_decided: bool = False
    watches_text: bool = False
    contained: int = 0
    subs: list[_SchemaVerdict] = []
    then: list[Callable[[], None]] = []
    types: list[tuple[str, str]] = []
    choices: list[Any] | None = None

    def __post_init__(self) -> None:
        self.is_silent = self.schema is False
        known = part_map(self.schema)
        if self.frame.judge.outline:
            outline = _OUTLINE if self.frame.path else _ROOT_OUTLINE
            known = {word: part for word, part in known.items() if word in outline}
        if known.get("nullable") is True and self.frame.kind == "null":
            known = {}
        self.schema, self.types, self.choices = known, expected_types(known), choices_of(known)

    @property
    def wants_unique(self) -> bool:
        return self.schema.get("uniqueItems") is True

    # -- as the value arrives --

    def expand(self, nested: int) -> None:
        """Finds the schemas that apply to the same value."""
        self.is_expanding = True
        schema, frame = self.schema, self.frame

        def add(part: Any, on_verdict: OnVerdict) -> _SchemaVerdict:
            self.subs.append(frame.check(part, on_verdict, nested))
            return self.subs[-1]

        if "$ref" in schema:
            add(resolve(frame.judge.root, schema["$ref"]), self._need)
        for part in part_list(schema.get("allOf")):
            add(part, self._need)
        for word in ("anyOf", "oneOf"):
            branches = part_list(schema.get(word))
            if branches:
                self._expand_choice(branches, word == "oneOf" and not frame.judge.outline, add)
        if "not" in schema:
            excluded = add(schema["not"], _ignore)
            self.then.append(lambda: self._exclude(excluded))
        if "if" in schema:
            self._expand_condition(schema, add)
        self.is_expanding = False

    def _expand_choice(
        self, branches: list[Any], only_one: bool, add: Callable[[Any, OnVerdict], _SchemaVerdict]
    ) -> None:
        checks: list[_SchemaVerdict] = []
        has_failed = False

        def on_verdict(faults: list[Fault] | None) -> None:
            if faults is not None and self.frame.judge.eager:
                fail_if_none_is_left(faults)

        def fail_if_none_is_left(latest: Sequence[Fault] = ()) -> None:
            nonlocal has_failed
            if not has_failed and len(checks) == len(branches) and all(check.fits is False for check in checks):
                has_failed = True
                self.fail(*nearest([check.faults for check in checks], self.frame.path, latest))

        def decide() -> None:
            fail_if_none_is_left()
            if only_one and sum(check.fits is True for check in checks) > 1:
                self.fail(Fault(self.frame.path, "what only one of the alternatives allows", self.frame.got))

        for branch in branches:
            checks.append(add(branch, on_verdict))
        self.then.append(decide)

    def _expand_condition(self, schema: dict[str, Any], add: Callable[[Any, OnVerdict], _SchemaVerdict]) -> None:
        """``else`` counts as soon as ``if`` has failed, ``then`` when ``if`` has turned out to fit, at the end."""
        parts: dict[str, _SchemaVerdict] = {}

        def on_if(faults: list[Fault] | None) -> None:
            if faults is not None and "else" in parts and not parts["if"].has_failed_before(faults):
                self._need(parts["else"].faults or None)

        def on_else(faults: list[Fault] | None) -> None:
            if parts["if"].fits is False:
                self._need(faults)

        def decide() -> None:
            if parts["if"].fits is True and "then" in parts:
                self._need(parts["then"].faults or None)

        listeners: dict[str, OnVerdict] = {"if": on_if, "then": _ignore, "else": on_else}
        for word, on_verdict in listeners.items():
            if word in schema:
                parts[word] = add(schema[word], on_verdict)
        self.then.append(decide)

    def begin(self) -> None:
        """The first character has come: the type is known."""
        frame = self.frame
        choices = self.choices
        if self.is_silent:
            fault = UnknownArgument if frame.path and isinstance(frame.path[-1], str) else Fault
            self.fail(fault(frame.path, "left out", frame.got))
        elif self.types and not any(is_of(type_, frame.kind) for type_, _ in self.types):
            self._fail_and_stop(self._expected_type(), frame.got)
        elif choices is not None and not any(kind_of(choice) == frame.kind for choice in choices):
            self._fail_and_stop(alternatives_of(choices), frame.got, WrongChoice)
        elif frame.kind == "string":
            self.watches_text = choices is not None or limit(self.schema, "maxLength") is not None

    def begin_child(self, step: str | int, child: _ValueFrame) -> None:
        """A member or an item begins."""
        if self.is_silent:
            return
        container, unit, _, word = _CONTAINERS[self.frame.kind]
        most = limit(self.schema, word)
        if most is not None and self.frame.count == int(most) + 1:
            limited = _count(most, unit)
            self.fail(Fault(self.frame.path, f"{container} of at most {limited}", f"more than {limited}"))
        for part in self._parts_at(step, child.kind):
            child.check(part, self._need_known if part is False and isinstance(step, str) else self._need)
        if isinstance(step, int) and "contains" in self.schema:
            child.check(self.schema["contains"], self._on_contained_verdict)

    def append(self) -> None:
        if self.is_silent:
            return
        frame = self.frame
        most = limit(self.schema, "maxLength")
        if most is not None and frame.length > most:
            got = frame.got if not frame.judge.eager else f"a string of more than {_count(most, 'character')}"
            self._fail_and_stop(f"at most {most:g} characters long", got)
        elif (choices := self.choices) is not None:
            text = frame.text or ""
            if not any(isinstance(choice, str) and choice.startswith(text) for choice in choices):
                got = frame.got if not frame.judge.eager else f"a string that begins with {text!r}"
                self._fail_and_stop(alternatives_of(choices), got, WrongChoice)

    # -- verdicts --

    def decide(self, value: Any) -> None:
        """The value is whole."""
        if self.is_decided:
            return
        self.is_decided = True
        for sub in self.subs:
            sub.decide(value)
        if not self.is_silent:
            for found in self._end_faults(value):
                self.fail(found)
        for decide in self.then:
            decide()
        if self.fits is None:
            self.fits = True
            for on_verdict in self.listeners:
                on_verdict(None)

    def fail(self, *faults: Fault) -> None:
        self.fits = False
        self.faults += faults
        for on_verdict in self.listeners:
            on_verdict(list(faults))

    def _fail_and_stop(self, expected: str, got: str, kind: type[Fault] = Fault) -> None:
        """Fails with a fault after which nothing else about the value is worth saying."""
        self.is_silent = True
        self.fail(kind(self.frame.path, expected, got))

    def has_failed_before(self, faults: list[Fault]) -> bool:
        """Whether it had already failed when these faults were found."""
        return len(self.faults) > len(faults)

    def _need(self, faults: list[Fault] | None) -> None:
        if faults is not None:
            self.fail(*faults)

    def _need_known(self, faults: list[Fault] | None) -> None:
        """Like ``_need``, for a member that must not exist: the fault names those that may."""
        known = tuple(part_map(self.schema.get("properties")))
        if faults is not None:
            self.fail(*(msgspec.structs.replace(fault, known=known) for fault in faults))

    def _on_contained_verdict(self, faults: list[Fault] | None) -> None:
        if faults is not None:
            return
        self.contained += 1
        most = limit(self.schema, "maxContains")
        if most is not None and self.contained == int(most) + 1:
            self.fail(
                Fault(self.frame.path, f"an array with at most {most:g} items of that kind", f"more than {most:g}")
            )

    def _exclude(self, excluded: _SchemaVerdict) -> None:
        if excluded.fits is True:
            self.fail(Fault(self.frame.path, "something that the schema does not exclude", self.frame.got))

    def _parts_at(self, step: str | int, kind: str) -> Iterator[Any]:
        schema = self.schema
        if isinstance(step, int):
            prefix = part_list(schema.get("prefixItems"))
            if step < len(prefix):
                yield prefix[step]
            elif isinstance(schema.get("items"), dict | bool):
                yield schema["items"]
            return
        is_named = False
        properties = part_map(schema.get("properties"))
        judge = self.frame.judge
        is_left_out = kind == "null" and judge.lenient and not self.frame.path
        if step in properties:
            is_named = True
            if not (is_left_out and step not in part_list(schema.get("required"))):
                yield properties[step]
        for pattern, part in part_map(schema.get("patternProperties")).items():
            if matches(pattern, step):
                is_named = True
                yield part
        if not is_named and "additionalProperties" in schema:
            yield schema["additionalProperties"]

    def _end_faults(self, value: Any) -> Iterator[Fault]:
        schema, frame, choices = self.schema, self.frame, self.choices
        if choices is not None and equality_key(value) not in map(equality_key, choices):
            yield WrongChoice(frame.path, alternatives_of(choices), show(value))
            return
        expected: Iterator[str] = iter(())
        match frame.kind:
            case "number":
                if self.types and not any(is_of(type_, frame.kind, value) for type_, _ in self.types):
                    yield Fault(frame.path, self._expected_type(), frame.got)
                    return
                expected = scalar_faults(schema, value)
            case "string":
                expected = string_faults(schema, value, formats=frame.judge.formats)
            case "object":
                yield from self._missing_faults()
                yield from self._too_few_faults()
            case "array":
                yield from self._too_few_faults()
                yield from self._contains_faults()
        for words in expected:
            yield Fault(frame.path, words, show(value))

    def _expected_type(self) -> str:
        return " or ".join(words for _, words in self.types)

    def _too_few_faults(self) -> Iterator[Fault]:
        container, unit, word, _ = _CONTAINERS[self.frame.kind]
        least = limit(self.schema, word)
        if least is not None and self.frame.count < least:
            expected = f"{container} of at least {_count(least, unit)}"
            yield Fault(self.frame.path, expected, f"one of {_count(self.frame.count, unit)}")

    def _missing_faults(self) -> Iterator[Fault]:
        frame = self.frame
        names = [name for name in part_list(self.schema.get("required")) if isinstance(name, str)]
        for name, needed in part_map(self.schema.get("dependentRequired")).items():
            if name in frame.names:
                names += [each for each in part_list(needed) if isinstance(each, str)]
        for name in dict.fromkeys(names):
            if name not in frame.names:
                yield Fault((*frame.path, name), "a value")

    def _contains_faults(self) -> Iterator[Fault]:
        if "contains" not in self.schema:
            return
        least = limit(self.schema, "minContains")
        least = 1 if least is None else least
        if self.contained < least:
            yield Fault(
                self.frame.path, f"an array with at least {least:g} items of one kind", f"one with {self.contained}"
            )


def _count(number: float, unit: str) -> str:
    return f"{number:g} {unit}" if number == 1 else f"{number:g} {unit}s"


def _ignore(faults: list[Fault] | None) -> None:
    """For a verdict that is looked at later."""


def nearest(branches: list[list[Fault]], path: Path, latest: Sequence[Fault] = ()) -> list[Fault]:
    """The faults of the value at that path, which fits no branch. The branch that it fits best is taken as the one meant.

    If its tag fits no branch, none is meant, and the fault names every tag. ``latest``: the faults that came last.
    """
    if all(faults[0].path == path for faults in branches):
        firsts = [faults[0] for faults in branches]
        return firsts if any(fault.rule is not None for fault in firsts) else [_either(firsts, latest)]
    within = [faults for faults in branches if faults[0].path != path]
    wrong = [{fault.path: fault for fault in faults if _may_be_tag(fault, path)} for faults in within]
    shared = [[each[tag] for each in wrong] for tag in wrong[0] if all(tag in each for each in wrong)]
    tags = [_either(found, latest) for found in shared if len({fault.expected for fault in found}) > 1]
    return tags or min(zip(within, wrong, strict=True), key=lambda each: (len(each[0]), len(each[1])))[0]


def _may_be_tag(fault: Fault, path: Path) -> bool:
    return isinstance(fault, WrongChoice) and fault.path[:-1] == path


def _either(found: Sequence[Fault], latest: Sequence[Fault]) -> Fault:
    """One fault for several of the same value, of which the latest knows most."""
    expected = dict.fromkeys(fault.expected for fault in found)
    got = next((fault.got for fault in latest if fault.path == found[0].path), found[0].got)
    return msgspec.structs.replace(found[0], expected=" or ".join(expected), got=got)


def faults(schema: Any, value: Any, *, lenient: bool = True, formats: bool = False) -> list[Fault]:
    """The parts of the arguments that do not fit the schema, if any. ``formats``: judges dates and the like, too."""
    judge = Judge(schema, lenient=lenient, formats=formats)
    judge.read(value)
    return judge.faults


def outline_faults(schema: Any, value: Any) -> list[Fault]:
    """Which arguments are missing, and which are of another type. The tool's owner may be lenient about the rest."""
    judge = Judge(schema, lenient=True, outline=True)
    judge.read(value)
    return judge.faults


def argument_names(schema: Any) -> list[str]:
    """The names of the arguments that a tool was declared with."""
    return list(part_map(part_map(schema).get("properties")))


class StreamCheck:
    """Judges arguments while they are written. ``faults`` are certain: no text that follows can mend them.

    A name that comes twice in an object is a fault of its own kind (``duplicate``): JSON readers disagree about its
    meaning, so a verdict about the first value could be overturned. Text that is not JSON is not judged here.
    """

    def __init__(self, schema: Any, *, lenient: bool = True) -> None:
        self._judge = Judge(schema, eager=True, lenient=lenient)
        self._lenient = lenient
        self._argument_names = argument_names(schema)
        self._stream = JsonStream()
        self._names: list[set[str]] = []  # of every open value
        self._is_over = False
        self.has_begun = False
        self.duplicate: str | None = None
        """The name that came twice."""

    @property
    def faults(self) -> list[Fault]:
        return self._judge.faults

    @property
    def is_refused(self) -> bool:
        return bool(self.faults) or self.duplicate is not None

    def feed(self, text: str) -> bool:
        """Reads more of the text. Returns whether the call is refused."""
        self.has_begun = True
        if not self.is_refused and self._stream.error is None:
            try:
                self._apply(self._stream.feed(text))
            except WireError:
                pass  # not JSON, or beyond the limits of size: that is judged elsewhere
        return self.is_refused

    def end(self) -> bool:
        """The text is whole, which also completes a document that is just a number. Returns whether the call is refused."""
        try:
            value = self._stream.close()
        except WireError:
            return self.is_refused
        if not self._is_over and not self._names:
            self._apply([Change((), "set", value)])
        return self.is_refused

    @property
    def refusal(self) -> tuple[DiscardReason, str] | None:
        """Why the call is discarded, if it is."""
        if self.duplicate is not None:
            return "malformed", repeated_name(self.duplicate)
        return ("invalid", describe(self.faults, self._argument_names)) if self.faults else None

    def _apply(self, changes: list[Change]) -> None:
        for change in changes:
            if self._lenient and not change.path and change.value is None:
                self._judge.read({})  # some models write null for no arguments
                self._is_over = True
                return
            if change.kind != "close" and len(self._names) == len(change.path):
                self._begin(change)
            if self.is_refused:
                return
            if change.kind == "append":
                self._judge.append(change.value)
            elif change.kind != "open":
                self._end(change.value)

    def _begin(self, change: Change) -> None:
        step = change.path[-1] if change.path else None
        if isinstance(step, str):
            if step in self._names[-1]:
                self.duplicate = step
                return
            self._names[-1].add(step)
        self._names.append(set())
        got = "a string" if change.kind == "append" else show(change.value)
        self._judge.begin(step, kind_of(change.value), got)

    def _end(self, value: Any) -> None:
        self._names.pop()
        self._judge.end(value)
        self._is_over = not self._names
