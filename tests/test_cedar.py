"""Cedar policies as a guard: what they refuse, how early, and that nothing passes by what Cedar cannot represent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream import UsageError
from callstream.guards import GuardedCall, Verdict
from callstream.guards.cedar import CedarPolicies
from tests.test_guards import judged, whole

POLICIES = """
@id("all") permit (principal, action == Action::"call", resource);

@id("outside") @message("Write in the project only.")
forbid (principal, action, resource == Tool::"write") unless { context.args.path like "project/*" };

@id("force") @message("Do not force-push.") @action("cut")
forbid (principal, action, resource == Tool::"bash") when { context.args.command like "*push*--force*" };

@id("large") @message("Ask before you pay.") @action("ask")
forbid (principal, action, resource == Tool::"pay")
when { context.args.amount > 100 && !(context.args has approved_by) };

@id("sudo") @message("Never as root.")
forbid (principal, action, resource == Tool::"pay") when { context.args has as_root };
"""
GUARD = CedarPolicies(POLICIES)


def written(name: str, args: dict[str, Any], *finished: str) -> GuardedCall:
    return GuardedCall("c1", name, args, frozenset(finished), frozenset(finished))


@pytest.mark.parametrize(
    ("name", "args", "verdict"),
    [
        ("write", {"path": "project/x", "text": "…"}, None),
        ("write", {"path": "/etc/passwd", "text": "…"}, Verdict("deny", "Write in the project only.")),
        ("bash", {"command": "git push origin --force"}, Verdict("cut", "Do not force-push.")),
        ("pay", {"amount": 5}, None),
        ("pay", {"amount": 500}, Verdict("ask", "Ask before you pay.")),
        ("pay", {"amount": 500, "approved_by": "ann"}, None),
        ("pay", {"amount": 500, "as_root": True}, Verdict("deny", "Never as root.")),
        ("pay", {"amount": 5, "as_root": None}, None),  # null is nothing
        ("look", {"deep": {"a": [1, "x", True, None], "b": 1.25}}, None),
    ],
)
def test_verdicts_over_whole_calls(name: str, args: dict[str, Any], verdict: Verdict | None) -> None:
    assert GUARD(whole(name, args)) == verdict


@pytest.mark.parametrize(
    "path",
    [
        7,  # Cedar skips a policy that fails, and would permit the call
        {"__entity": {"type": "Tool", "id": "x"}},
        {"__extn": {"fn": "unknown", "arg": "path"}},
        {"deep": [{"__expr": "x"}]},
        2**70,
        1e-9,
    ],
)
def test_what_cannot_be_judged_is_refused(path: Any) -> None:
    found = GUARD(whole("write", {"path": path, "text": "…"}))
    assert found is not None
    assert found.action == "deny"
    assert "could not be judged" in found.reason


def test_what_no_policy_looks_at_may_be_anything() -> None:
    args = {"path": "project/x", "more": {"__entity": "x"}, "large": 2**70, "fine": 0.123456789}
    assert GUARD(whole("write", args)) is None


@pytest.mark.parametrize("args", [{"__entity": {"type": "Tool", "id": "x"}}, [1], "text"])
def test_arguments_that_are_no_record_are_unknown(args: Any) -> None:
    call = GuardedCall("c1", "write", args, is_complete=True)
    assert GUARD(call) == Verdict("deny", "the call could not be judged, because of its arguments")
    assert GUARD(GuardedCall("c1", "look", args, is_complete=True)) is None
    assert GUARD(GuardedCall("c1", "write", args)) is None


def test_what_no_policy_permits_is_refused_at_once() -> None:
    guard = CedarPolicies('permit (principal, action, resource == Tool::"look");')
    assert guard(GuardedCall("c1", "write", {})) == Verdict("deny", "no policy permits this call")
    assert guard(whole("look", {})) is None


def test_a_call_is_refused_as_soon_as_nothing_could_change_that() -> None:
    assert GUARD(written("write", {"path": "/etc"})) is None  # it may go on
    refused = GUARD(written("write", {"path": "/etc/passwd", "text": "A lo"}, "path"))
    assert refused == Verdict("deny", "Write in the project only.")
    assert GUARD(written("write", {"path": "project/x", "text": "A lo"}, "path")) is None


def test_an_argument_that_may_still_come_is_not_taken_for_missing_nor_for_there() -> None:
    assert GUARD(written("pay", {"amount": 500}, "amount")) is None
    only_missing = CedarPolicies(
        'permit (principal, action, resource); forbid (principal, action, resource) unless { context.args has "why" };'
    )
    assert only_missing(written("pay", {"amount": 500}, "amount")) is None
    assert only_missing(whole("pay", {"amount": 500})) == Verdict("deny", "policy policy1 forbids this call")
    always = CedarPolicies(
        "permit (principal, action, resource);"
        '@id("a") forbid (principal, action, resource) when { context.args has why && context.args.amount == 5 };'
        '@id("b") forbid (principal, action, resource) when { !(context.args has why) && context.args.amount == 5 };'
    )
    assert always(written("pay", {"amount": 5}, "amount")) == Verdict("deny", "policy a forbids this call")


def test_policies_that_look_at_all_arguments_together_wait_for_the_whole_call() -> None:
    guard = CedarPolicies(
        'permit (principal, action, resource) when { context.args == {"a": 1} };'
        "forbid (principal, action, resource) when { context.args has a && context.args has b && context.args has c"
        " && context.args has d && context.args.e == 1 };"
    )
    assert guard(written("look", {"b": 2}, "b")) is None
    assert guard(whole("look", {"b": 2})) is not None


def test_many_arguments_that_may_come_are_waited_for() -> None:
    tests = " && ".join(f"context.args has {name}" for name in "abcd")
    guard = CedarPolicies(f"forbid (principal, action, resource) when {{ {tests} }};")
    assert guard(written("look", {"x": 2}, "x")) is None
    assert guard(whole("look", {"x": 2})) is not None


ARGS = st.dictionaries(
    st.sampled_from(["path", "command", "amount", "approved_by", "as_root", "other"]),
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["project/x", "/etc", "push --force"]),
)


@given(st.sampled_from(["write", "bash", "pay", "look"]), ARGS)
def test_what_is_refused_early_is_refused_in_the_end(name: str, args: dict[str, Any]) -> None:
    end = GUARD(whole(name, args))
    names = list(args)
    for count in range(len(names) + 1):
        begun = {each: args[each] for each in names[: count + 1]}
        early = GUARD(written(name, begun, *names[:count]))
        assert early is None or (end is not None and end.action in ("deny", "cut"))


async def test_a_call_is_refused_while_it_is_written() -> None:
    text = json.dumps({"path": "/etc/passwd", "text": "x" * 2000})
    pieces = [text[start : start + 10] for start in range(0, len(text), 10)]
    reason, after = await judged(GUARD, "write", pieces)
    assert reason == "Write in the project only."
    assert after < 10
    assert await judged(GUARD, "look", pieces) == (None, len(pieces))


def test_entities_and_principal(tmp_path: Path) -> None:
    policies, entities = tmp_path / "p.cedar", tmp_path / "e.json"
    policies.write_text(
        '@id("files") permit (principal == Agent::"coder", action, resource in Group::"files");', encoding="utf-8"
    )
    group = {"type": "Group", "id": "files"}
    entities.write_text(json.dumps([{"uid": {"type": "Tool", "id": "write"}, "attrs": {}, "parents": [group]}]))
    guard = CedarPolicies.load(policies, entities=entities, principal='Agent::"coder"')
    assert guard(whole("write", {})) is None
    assert guard(whole("bash", {})) is not None
    assert CedarPolicies.load(policies, entities=entities)(whole("write", {})) is not None


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ("permit (princ", "p.cedar: Cedar does not accept the policies"),
        ('@action("log") forbid (principal, action, resource);', r'policy policy0: expected @action\("deny"\)'),
        ('@id("p") @action("ask") permit (principal, action, resource);', "policy p permits, so it cannot have"),
    ],
)
def test_policies_that_are_wrong_are_one_sentence(policies: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "p.cedar"
    file.write_text(policies)
    with pytest.raises(UsageError, match=message):
        CedarPolicies.load(file)


def test_policies_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="could not read Cedar policies"):
        CedarPolicies.load(tmp_path / "none.cedar")
