"""Guards: checks that a team puts between its agents and their tools, made while a call is being written.

A guard gets a call as far as it has been written and says what to do about it: nothing, or a ``Verdict``. ``Rules`` are
guards from a file. Laws for all of them:

- A finished field is judged at once, growing text each time it has grown by a quarter, and the whole call at its end; so
  nothing passes that a guard would refuse at the end, and most of it is refused long before.
- A call that a guard watches reaches the program whole, after its verdict, or not at all.
- Only one question is under way at a time, about everything that has come so far: a slow guard is asked less often.
- A plain function runs in a thread, as hooks do, so a slow one delays only its own call.
- A guard that fails refuses the call. So does a question that no one can be asked, or that no one answers in time, and a
  pattern that takes too long: some take hours over a few dozen characters, and the model chooses these.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path as FilePath
from time import monotonic
from typing import Any, Final, Literal, TypeAlias

import msgspec

from callstream.calls import Call
from callstream.errors import MissingExtra, Reject, UsageError, WireError
from callstream.hooks.dispatch import HookThread
from callstream.jsontext.path import Path, parse_path
from callstream.tools import AbortSignal, Hook, Hooks
from callstream.tools.delta import ArgsDelta
from callstream.tools.tool import check_takes, is_generator, is_of_kind

logger = logging.getLogger("callstream.guards")

Action: TypeAlias = Literal["deny", "cut", "ask", "log"]

APPROVAL: Final = "callstream_approval"
"""The name of the call that asks a person about another. Guards do not judge their own questions."""
_DEPTH: Final = 4
"""How deep JSON inside strings is searched."""
_LOOK_SECONDS: Final = 0.5
"""How long the patterns of all rules may take each time that a call is looked at: nothing else runs meanwhile."""
_SLOW_SECONDS: Final = 2.0
"""The log names a guard that takes longer to answer: its calls wait for it."""
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)


class Verdict(msgspec.Struct, frozen=True):
    """``deny``: the tool does not run, and the model is told the reason. ``cut``: the same, and the rest of the response is
    not awaited, where the tap can ask the model again or a gateway can add a sentence. ``ask``: a person decides when the
    call is whole. ``log``: the reason is logged, and nothing else happens.
    """

    action: Action
    reason: str


def deny(reason: str) -> Verdict:
    """The tool does not run; the model is told why."""
    return Verdict("deny", reason)


def cut(reason: str) -> Verdict:
    """The tool does not run; the model is told why, and its response is cut short."""
    return Verdict("cut", reason)


def ask(reason: str) -> Verdict:
    """A person decides, when the call is whole."""
    return Verdict("ask", reason)


class GuardedCall(msgspec.Struct, frozen=True):
    """A call as far as it has been written.

    ``args``: the arguments as far as they are known; a string that is being written shows its beginning. ``finished``: the
    names of arguments that will no longer change. ``changed``: those that have changed since the guard was last asked.
    """

    call_id: str
    name: str
    args: Any
    finished: frozenset[str | int] = frozenset()
    changed: frozenset[str | int] = frozenset()
    is_complete: bool = False


Guard: TypeAlias = Callable[[GuardedCall], Verdict | None | Awaitable[Verdict | None]]
"""A plain function runs in a thread, unless it has an attribute ``is_quick`` that is true; an async one runs on the event
loop. A guard with a method ``watches``, which gets the name of a tool, watches only tools for which that returns true."""
Approve: TypeAlias = Callable[[Call, Verdict], Awaitable[str | None]]
"""Asks a person about a whole call. Returns None if the tool may run, otherwise the reason why not."""


# -- rules -------------------------------------------------------------------------------------------------------------


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``tool``: a regular expression for the whole name. ``field``: an argument's name or JSON path; without it, all text.

    ``pattern``: the rule applies if this is found. ``unless``: it applies if this does not match the whole value. With
    neither it applies to every call of the tool. ``message`` is for the model.
    """

    name: str
    tool: str = ".*"
    field: str | None = None
    pattern: str | None = None
    unless: str | None = None
    action: Action = "deny"
    message: str | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    rules: list[Rule]


class Rules:
    """A guard made of rules. The first that denies decides; otherwise the first that asks."""

    is_quick = True  # it has its own limit, and a thread would cost more than most rules

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = [_Compiled(rule) for rule in rules]

    @classmethod
    def load(cls, path: str | FilePath) -> Rules:
        """The rules in a YAML or JSON file. UsageError if they cannot be read."""
        try:
            content = FilePath(path).read_bytes()
            read = _read_json if str(path).endswith(".json") else _read_yaml
            return cls(msgspec.convert(read(path, content), _File).rules)
        except UsageError:
            raise
        except (OSError, ValueError) as error:
            raise UsageError(f"could not read the rules in {path}: {error}") from error
        except ImportError as error:
            raise MissingExtra(f"reading {path} needs PyYAML", "guards", error) from error

    def watches(self, tool_name: str) -> bool:
        until = monotonic() + _LOOK_SECONDS
        try:
            return any(rule.tool.fullmatch(tool_name, timeout=_left(until)) for rule in self._rules)
        except TimeoutError:
            return True  # so the call will be refused

    def __call__(self, call: GuardedCall) -> Verdict | None:
        """Raises TimeoutError if the patterns take too long."""
        until = monotonic() + _LOOK_SECONDS
        applying = [
            rule
            for rule in self._rules
            if rule.tool.fullmatch(call.name, timeout=_left(until)) and rule.applies(call, until)
        ]
        for action in ("cut", "deny", "ask", "log"):
            for rule in applying:
                if rule.action == action:
                    return Verdict(rule.action, rule.message)
        return None


def _read_json(path: str | FilePath, content: bytes) -> Any:
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise _broken(path, error.lineno, error.colno, error.msg) from error


def _read_yaml(path: str | FilePath, content: bytes) -> Any:
    import yaml  # type: ignore[import-untyped]

    try:
        return yaml.safe_load(content)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise _broken(path, mark.line + 1, mark.column + 1, error.problem) from error
    except yaml.reader.ReaderError as error:
        lines = content.decode(errors="replace")[: error.position].split("\n")
        raise _broken(path, len(lines), len(lines[-1]) + 1, error.reason) from error


def _broken(path: str | FilePath, line: int, column: int, problem: str) -> UsageError:
    return UsageError(f"could not read the rules in {path}, line {line}, column {column}: {problem}")


class _Compiled:
    """A rule that can be applied."""

    def __init__(self, rule: Rule) -> None:
        self.action = rule.action
        self.message = rule.message or f"the rule {rule.name!r} does not allow it"
        self.tool = _compile(rule, "tool", rule.tool)
        self._path = _path_of(rule)
        self._pattern: Any = None if rule.pattern is None else _compile(rule, "pattern", rule.pattern)
        self._unless: Any = None if rule.unless is None else _compile(rule, "unless", rule.unless)
        if self._unless is not None and (self._path is None or self._pattern is not None):
            raise UsageError(f"rule {rule.name!r}: expected 'unless' with a field and without a pattern")

    def applies(self, call: GuardedCall, until: float) -> bool:
        if self._pattern is None and self._unless is None:
            return call.is_complete or self.action in ("deny", "cut")
        if self._unless is not None:
            return self._is_other(call, until)
        return any(self._pattern.search(text, timeout=_left(until)) for text in texts_in(self._looked_at(call)))

    def _is_other(self, call: GuardedCall, until: float) -> bool:
        """Whether a finished value is not among those that are allowed."""
        assert self._path is not None
        if not call.is_complete and self._path[0] not in call.finished:
            return False
        value = _value_at(call.args, self._path)
        return not all(self._unless.fullmatch(text, timeout=_left(until)) for text in _own_texts(value))

    def _looked_at(self, call: GuardedCall) -> Any:
        """The part of the arguments that may have become a reason since the last time."""
        if self._path is not None:
            return _value_at(call.args, self._path) if call.is_complete or self._path[0] in call.changed else None
        if isinstance(call.args, dict) and not call.is_complete:
            return {name: call.args[name] for name in call.changed if name in call.args}
        return call.args


_NO_NAME: Final = re.compile(r"[.\[\]*]|^\s|\s$")
"""In a field that is not a path, these are slips: a path without its ``$``, or a space."""


def _path_of(rule: Rule) -> Path | None:
    if rule.field is None:
        return None
    if not rule.field.startswith("$") and (not rule.field or _NO_NAME.search(rule.field)):
        raise UsageError(
            f"rule {rule.name!r}: expected field as the name of an argument, or a JSON path, such as $.items[0].path or "
            f"$['a name'], got {rule.field!r}, which would match nothing"
        )
    try:
        path = parse_path(rule.field) if rule.field.startswith("$") else (rule.field,)
    except WireError as error:
        raise UsageError(f"rule {rule.name!r}: {error}") from error
    return path or None


def _compile(rule: Rule, field: str, pattern: str) -> Any:
    """Like ``re.compile``, but with patterns that accept a time limit."""
    try:
        import regex  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra("rules need regex, whose patterns have a time limit", "guards", error) from error
    try:
        return regex.compile(pattern, regex.DOTALL)
    except regex.error as error:
        raise UsageError(f"rule {rule.name!r}: {field} is not a regular expression: {error}") from error


def _left(until: float) -> float:
    """The seconds left, always more than zero: zero would mean no limit for a pattern."""
    left = until - monotonic()
    if left <= 0:
        raise TimeoutError("the patterns took too long")
    return left


def _value_at(value: Any, path: Path) -> Any:
    for step in path:
        try:
            value = value[step]
        except (LookupError, TypeError):
            return None
    return value


def _own_texts(value: Any) -> Iterator[str]:
    """The texts of a value, unchanged; for an array or object, those in it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _own_texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _own_texts(each)
    elif value is not None:
        yield json.dumps(value)


def texts_in(value: Any, depth: int = 0) -> Iterator[str]:
    """All texts of a value, names included, and the text hidden in them: escaped text, and JSON inside a string."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from texts_in(each, depth)
    elif isinstance(value, list):
        for each in value:
            yield from texts_in(each, depth)
    elif isinstance(value, str):
        yield value
        if depth < _DEPTH and "\\" in value:
            plain = _ESCAPE.sub(_unescaped, value)
            if plain != value:
                yield from texts_in(plain, depth + 1)
    elif value is not None:
        yield json.dumps(value)


def _unescaped(match: re.Match[str]) -> str:
    wide, narrow, other = match.groups()
    return {"n": "\n", "t": "\t", "r": "\r"}.get(other, other) if other else chr(int(wide or narrow, 16))


# -- at work -----------------------------------------------------------------------------------------------------------


class Guards:
    """The guards of a Callstream. ``approve`` asks people; ``patience`` is how many seconds a verdict may take."""

    def __init__(self, guards: Iterable[Guard] = ()) -> None:
        self._guards = tuple(map(_checked, guards))
        self._slow: set[int] = set()
        self.approve: Approve | None = None
        self.patience = 290.0

    def __bool__(self) -> bool:
        return bool(self._guards)

    def watches(self, tool_name: str) -> bool:
        return any(_watches(guard, tool_name) for guard in self._guards)

    def hooks_for(self, tool_name: str) -> Hooks | None:
        """The hooks of one call of that tool; None if no guard watches it."""
        guards = [guard for guard in self._guards if _watches(guard, tool_name)]
        if not guards:
            return None
        watch = _Watch(self, guards)
        grown, completed = (Hook(hook, is_async=True, is_vital=True) for hook in (watch.grown, watch.completed))
        return Hooks(args_delta=(grown,), args_complete=(completed,))

    async def ask(self, guard: Hook, call: GuardedCall) -> Any:
        """The guard's answer. Raises any error of the guard, and TimeoutError if it takes too long."""
        noticing = asyncio.get_running_loop().call_later(_SLOW_SECONDS, self._notice, guard, call)
        try:
            async with asyncio.timeout(self.patience):
                verdict = guard.function(call) if guard.is_async else await _asked_in_thread(guard, call)
                return await verdict if inspect.isawaitable(verdict) else verdict
        finally:
            noticing.cancel()

    def _notice(self, guard: Hook, call: GuardedCall) -> None:
        if id(guard) not in self._slow:
            self._slow.add(id(guard))
            logger.warning(
                "guard %s takes longer than %g seconds to answer, and calls wait for it: now call %s of tool %s "
                "(this is logged once)",
                guard.name,
                _SLOW_SECONDS,
                call.call_id,
                call.name,
            )


def _checked(guard: Any) -> Hook:
    """The guard, if it can be called with a call and is not a generator."""
    if not callable(guard):
        raise UsageError(f"expected guards, which are called with a call, got {guard!r}")
    if is_generator(guard):
        raise UsageError(f"guard {guard!r} is a generator; a guard returns its verdict, so it must not yield")
    check_takes(guard, 1, "a guard that takes one argument, a GuardedCall")
    is_on_loop = is_of_kind(inspect.iscoroutinefunction, guard) or getattr(guard, "is_quick", False) is True
    return Hook(guard, is_on_loop)


def _asked_in_thread(guard: Hook, call: GuardedCall) -> asyncio.Future[Any]:
    """Asks in a thread that ends with the answer: a guard that never answers does not hold up other questions."""
    thread = HookThread(f"callstream guard {guard.name} of call {call.call_id}")
    answer = thread.submit(guard.function, call)
    thread.close()
    return answer


def _watches(guard: Hook, tool_name: str) -> bool:
    watches = getattr(guard.function, "watches", None)
    return tool_name != APPROVAL and (watches is None or bool(watches(tool_name)))


class _Watch:
    """The guards over one call."""

    def __init__(self, guards: Guards, watching: Sequence[Hook]) -> None:
        self._guards = guards
        self._watching = watching
        self._changed: set[str | int] = set()
        self._finished: set[str | int] = set()
        self._length = 0
        self._next_look = 0.0
        self._logged: set[str] = set()
        self._question: Verdict | None = None

    async def grown(self, delta: ArgsDelta, signal: AbortSignal) -> None:
        self._length += len(delta.text)
        is_due = self._length >= self._next_look
        for change in delta.changes:
            if change.path:
                self._changed.add(change.path[0])
                if len(change.path) == 1 and change.kind in ("close", "set"):
                    self._finished.add(change.path[0])
                    is_due = True
        if is_due:
            self._next_look = self._length * 1.25
            await self._judge(
                GuardedCall(delta.call_id, delta.tool_name, delta.args, frozenset(self._finished), self._take_changed())
            )

    async def completed(self, call: Call, signal: AbortSignal) -> None:
        args = call.args
        names = frozenset(args) if isinstance(args, dict) else frozenset()
        await self._judge(GuardedCall(call.call_id, call.name, args, names, names, is_complete=True))
        if self._question is None:
            return
        approve = self._guards.approve
        if approve is None:
            raise Reject(f"{self._question.reason}; a person would have to approve it, and nobody can be asked here")
        try:
            async with asyncio.timeout(self._guards.patience):
                refused = await approve(call, self._question)
        except TimeoutError:
            refused = f"{self._question.reason}; nobody approved it within {self._guards.patience:g} seconds"
        if refused is not None:
            raise Reject(refused)

    def _take_changed(self) -> frozenset[str | int]:
        changed, self._changed = frozenset(self._changed), set()
        return changed

    async def _judge(self, call: GuardedCall) -> None:
        for guard in self._watching:
            verdict = await self._verdict(guard, call)
            if verdict is None:
                continue
            if verdict.action in ("deny", "cut"):
                raise Reject(verdict.reason, cut=verdict.action == "cut")
            if verdict.action == "ask":
                self._question = self._question or verdict
            elif verdict.reason not in self._logged:
                self._logged.add(verdict.reason)
                logger.warning("call %s of tool %s: %s", call.call_id, call.name, verdict.reason)

    async def _verdict(self, guard: Hook, call: GuardedCall) -> Verdict | None:
        try:
            verdict = await self._guards.ask(guard, call)
            if verdict is not None and not isinstance(verdict, Verdict):
                raise TypeError(f"expected a Verdict or None, got {verdict!r:.100}")
        except Exception as error:
            logger.exception(
                "a guard failed, so call %s of tool %s is refused: %s", call.call_id, call.name, guard.name
            )
            raise Reject("the call could not be checked, so it did not run") from error
        return verdict
