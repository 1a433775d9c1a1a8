"""A guard of Cedar policies, which judges a call by its finished arguments while the rest is still unknown.

The request is ``Action::"call"`` by ``Agent::"model"``, or another principal that the application names, on
``Tool::"<its name>"``, and ``context.args`` are the arguments. Cedar's own rules hold: a call that no policy permits is
refused, and so is one that a policy forbids. A policy may say what happens (``@action("deny")``, ``"cut"`` or ``"ask"``)
and what the model is told (``@message("…")``).

While a call is being written, an unfinished argument is an unknown in Cedar's partial evaluation, and one that has not
begun may be missing in the end: where policies ask whether it exists, both cases are tried. The call is refused early if
nothing that follows could change that; it is permitted only when it is whole. Values that Cedar cannot represent stay
unknown to the end, and a call whose verdict depends on one is refused: fractions of more than four digits, very large
numbers, objects that Cedar would read as its own escapes. Null counts as missing. A call on which a policy fails with an
error is refused as well, although Cedar itself would skip that policy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path as FilePath
from typing import Any, Final

import msgspec

from callstream.errors import MissingExtra, UsageError
from callstream.guards import Action, GuardedCall, Verdict

_ACTIONS: Final = ("deny", "cut", "ask")
_ARGS: Final = {".": {"left": {"Var": "context"}, "attr": "args"}}
_ESCAPES: Final = ("__entity", "__extn", "__expr")
_LARGEST: Final = 2**63 - 1
_FRACTION: Final = re.compile(r"-?\d{1,14}\.\d{1,4}")
_MOST_TRIED: Final = 3
"""How many arguments that may be missing in the end are tried both ways. With more, a call is only judged when whole."""


class CedarPolicies:
    """``policies``: in Cedar's language. ``entities`` that they name, such as groups of tools, in Cedar's JSON form."""

    is_quick = True  # Cedar has no loops

    def __init__(
        self, policies: str, *, entities: Sequence[Mapping[str, Any]] = (), principal: str = 'Agent::"model"'
    ) -> None:
        try:
            import cedarpy
        except ImportError as error:
            raise MissingExtra("Cedar policies need cedarpy", "cedar", error) from error
        self._cedar: Any = cedarpy
        try:
            written = json.loads(cedarpy.policies_to_json_str(policies))
            self._all = cedarpy.PolicySet.from_str(policies)
            self._entities = cedarpy.Entities.from_json_str(json.dumps(list(entities)))
            found = {name: _Policy.read(name, policy) for name, policy in written["staticPolicies"].items()}
            asking = {name for name, policy in found.items() if policy.action == "ask"}
            kept = {name: policy for name, policy in written["staticPolicies"].items() if name not in asking}
            self._strict = cedarpy.PolicySet.from_json_str(json.dumps({**written, "staticPolicies": kept}))
        except ValueError as error:
            raise UsageError(f"Cedar does not accept the policies: {error}") from error
        self._policies = found
        self._asks = bool(asking)
        self._named = _Named(written["staticPolicies"])
        self._request = {"principal": principal, "action": 'Action::"call"'}

    @classmethod
    def load(
        cls, path: str | FilePath, *, entities: str | FilePath | None = None, principal: str = 'Agent::"model"'
    ) -> CedarPolicies:
        """The policies in a file, and the entities in another one. UsageError if they cannot be read."""
        try:
            policies = FilePath(path).read_text(encoding="utf-8")
            known = () if entities is None else json.loads(FilePath(entities).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"could not read Cedar policies: {error}") from error
        try:
            return cls(policies, entities=known, principal=principal)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error

    def __call__(self, call: GuardedCall) -> Verdict | None:
        if call.is_complete:
            return self._judge_whole(call)
        if call.changed and not call.changed & call.finished:
            return None  # nothing new is known
        return self._judge_early(call)

    # -- a whole call --

    def _judge_whole(self, call: GuardedCall) -> Verdict | None:
        args = _representable(call.args) if _has_names(call.args) else _unknown("args")
        refused = self._refusal(call, self._strict, args)
        return refused or (self._refusal(call, self._all, args) if self._asks else None)

    def _refusal(self, call: GuardedCall, policies: Any, args: Any) -> Verdict | None:
        unknown = sorted(_unknowns_in(args))
        judge = self._cedar.is_authorized_partial if unknown else self._cedar.is_authorized
        result = judge(self._about(call, args), policies, self._entities)
        if result.diagnostics.errors:
            return Verdict("deny", f"the call could not be judged: {self._readable(result.diagnostics.errors[0])}")
        if result.decision == self._cedar.Decision.Allow:
            return None
        if result.decision == self._cedar.Decision.NoDecision:
            return Verdict("deny", f"the call could not be judged, because of its {', '.join(unknown)}")
        return self._verdict(result.diagnostics.must_be_determining if unknown else result.diagnostics.reasons)

    # -- a call that is being written --

    def _judge_early(self, call: GuardedCall) -> Verdict | None:
        args = call.args
        if not _has_names(args) or not self._named.is_all:
            return None
        known = _representable({name: value for name, value in args.items() if name in call.finished})
        known |= {name: _unknown(name) for name in args if name not in call.finished}
        missing = [name for name in self._named.tested if name not in args]
        if len(missing) > _MOST_TRIED:
            return None
        known |= {name: _unknown(name) for name in self._named.used if name not in args and name not in missing}
        causes: list[set[str]] = []
        for some in _subsets(missing):
            tried = known | {name: _unknown(name) for name in some}
            result = self._cedar.is_authorized_partial(self._about(call, tried), self._strict, self._entities)
            if result.diagnostics.errors or result.decision != self._cedar.Decision.Deny:
                return None
            causes.append(set(result.diagnostics.must_be_determining))
        return self._verdict(sorted(set.intersection(*causes) or set.union(*causes)))

    # -- words --

    def _about(self, call: GuardedCall, args: Any) -> dict[str, Any]:
        return {**self._request, "resource": f"Tool::{json.dumps(call.name)}", "context": {"args": args}}

    def _verdict(self, causes: Iterable[str]) -> Verdict:
        policies = [self._policies[name] for name in causes]
        for action in ("cut", "deny", "ask"):
            for policy in policies:
                if policy.action == action:
                    return Verdict(policy.action, policy.message)
        return Verdict("deny", "no policy permits this call")

    def _readable(self, error: str) -> str:
        return re.sub(r"`(policy\d+)`", lambda match: f"`{self._policies[match[1]].name}`", error)


class _Policy(msgspec.Struct, frozen=True):
    name: str
    action: Action
    message: str

    @classmethod
    def read(cls, number: str, written: Mapping[str, Any]) -> _Policy:
        annotations = written.get("annotations", {})
        name, action = annotations.get("id", number), annotations.get("action", "deny")
        if action not in _ACTIONS:
            raise UsageError(f'policy {name}: expected @action("deny"), "cut" or "ask", got {action!r}')
        if "action" in annotations and written["effect"] == "permit":
            raise UsageError(f"policy {name} permits, so it cannot have an @action")
        return cls(name, action, annotations.get("message", f"policy {name} forbids this call"))


class _Named:
    """The arguments that policies name: those whose values are ``used``, and those whose existence is ``tested``.

    ``is_all``: policies look at the arguments in no other way, such as at all of them together.
    """

    def __init__(self, policies: Mapping[str, Any]) -> None:
        self.used: set[str] = set()
        self.tested: set[str] = set()
        self.is_all = True
        for policy in policies.values():
            self._look(policy["conditions"])

    def _look(self, node: Any) -> None:
        if isinstance(node, list):
            for each in node:
                self._look(each)
        elif isinstance(node, dict):
            for operator, operands in node.items():
                if operator in (".", "has") and operands["left"] == _ARGS:
                    (self.used if operator == "." else self.tested).add(operands["attr"])
                elif (operator, operands) == ("Var", "context"):
                    self.is_all = False
                else:
                    self._look(operands)


# -- arguments in Cedar's form --


def _has_names(value: Any) -> bool:
    """Whether Cedar reads the value as a record of arguments."""
    return isinstance(value, dict) and not any(escape in value for escape in _ESCAPES)


def _unknown(name: str) -> dict[str, Any]:
    return {"__extn": {"fn": "unknown", "arg": name}}


def _unknowns_in(args: Mapping[str, Any]) -> Iterator[str]:
    if args == _unknown("args"):
        yield "arguments"
    else:
        yield from (name for name, value in args.items() if value == _unknown(name))


def _representable(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments without nulls, with an unknown instead of each value that Cedar cannot represent."""
    found = {}
    for name, value in args.items():
        if value is not None:
            try:
                found[name] = _cedar_of(value)
            except ValueError:
                found[name] = _unknown(name)
    return found


def _cedar_of(value: Any) -> Any:
    match value:
        case dict():
            if not _has_names(value):
                raise ValueError("Cedar would read it as an entity, or as a value of an extension")
            return {name: _cedar_of(each) for name, each in value.items() if each is not None}
        case list():
            return [_cedar_of(each) for each in value if each is not None]
        case float():
            if not _FRACTION.fullmatch(repr(value)):
                raise ValueError("a decimal has four digits")
            return {"__extn": {"fn": "decimal", "arg": repr(value)}}
        case int() if not isinstance(value, bool) and not -_LARGEST <= value <= _LARGEST:
            raise ValueError("a long has 64 bits")
    return value


def _subsets(names: Sequence[str]) -> Iterator[Iterable[str]]:
    yield from chain.from_iterable(combinations(names, count) for count in range(len(names) + 1))
