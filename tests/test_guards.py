"""Guards: what rules find, when they are asked, and that nothing passes them."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callstream import Callstream, Settings, UsageError, tool
from callstream.events import ArgsAppended, CallCompleted, CallStarted
from callstream.guards import Guard, GuardedCall, Rule, Rules, Verdict, ask, deny, texts_in
from tests.clock import jumping

SECRET = "sk-live-4f9a"
NO_SECRETS = Rules([Rule(name="secrets", pattern="sk-live-[0-9a-f]{4}", message="Do not send keys.")])


def whole(name: str, args: Any) -> GuardedCall:
    return GuardedCall("c1", name, args, frozenset(args), frozenset(args), is_complete=True)


async def judged(guard: Guard, name: str, pieces: list[str]) -> tuple[str | None, int]:
    """Why the call was refused, and after how many pieces; None if its tool may run."""
    async with Callstream("memory:", guards=[guard]) as cs, cs.run("thread") as run:
        await run.record([CallStarted("c1", name)])
        for number, piece in enumerate(pieces, 1):
            await run.record([ArgsAppended("c1", piece)])
            for _ in range(20):
                if run.call("c1").reason is not None:
                    break
                await asyncio.sleep(0)
            if run.call("c1").reason is not None:
                return run.call("c1").detail, number
        await run.record([CallCompleted("c1", "".join(pieces))])
        call = await run.settled("c1")
        return call.detail if call.reason is not None else None, len(pieces)


# -- rules --


@pytest.mark.parametrize(
    ("rule", "name", "args", "applies"),
    [
        (Rule(name="r", tool="Bash|shell"), "shell", {}, True),
        (Rule(name="r", tool="Bash|shell"), "shell_2", {}, False),
        (Rule(name="r", field="command", pattern="rm -rf"), "Bash", {"command": "cd /; rm -rf ."}, True),
        (Rule(name="r", field="command", pattern="rm -rf"), "Bash", {"note": "rm -rf"}, False),
        (Rule(name="r", field="$.a[1].b", pattern="^x$"), "t", {"a": [0, {"b": "x"}]}, True),
        (Rule(name="r", field="$.a[1].b", pattern="^x$"), "t", {"a": "text"}, False),
        (Rule(name="r", field="a", pattern="x"), "t", {"a": {"deep": ["x"]}}, True),
        (Rule(name="r", field="$", pattern="x"), "t", {"a": "x"}, True),
        (Rule(name="r", pattern="x"), "t", {"x": 1}, True),
        (Rule(name="r", pattern="^17$"), "t", {"n": [17]}, True),
        (Rule(name="r", field="path", unless="project/.*"), "t", {"path": "/etc/passwd"}, True),
        (Rule(name="r", field="path", unless="project/.*"), "t", {"path": "project/a\nb"}, False),
        (Rule(name="r", field="path", unless="project/.*"), "t", {"path": ["project/a", "/etc/b"]}, True),
        (Rule(name="r", field="path", unless="project/.*"), "t", {}, False),
        (Rule(name="r", field="n", unless="[0-9]"), "t", {"n": {"a": 5, "b": 17}}, True),
    ],
)
def test_rules_say_where_they_apply(rule: Rule, name: str, args: Any, applies: bool) -> None:
    assert (Rules([rule])(whole(name, args)) is not None) is applies


def test_denying_comes_before_asking_and_asking_before_the_log() -> None:
    rules = [Rule(name=action, action=action, message=action) for action in ("log", "ask", "deny")]
    assert Rules(rules)(whole("t", {})) == deny("deny")
    assert Rules(rules[:2])(whole("t", {})) == ask("ask")
    assert Rules(rules[:1])(whole("t", {})) == Verdict("log", "log")


def test_a_rule_without_a_message_names_itself() -> None:
    assert Rules([Rule(name="no shell")])(whole("t", {})) == deny("the rule 'no shell' does not allow it")


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_rules_are_loaded_from_a_file(suffix: str, tmp_path: Path) -> None:
    rules = {
        "rules": [{"name": "pushes", "tool": "Bash", "field": "command", "pattern": "push --force", "action": "ask"}]
    }
    file = tmp_path / f"rules.{suffix}"
    file.write_text(json.dumps(rules), encoding="utf-8")  # which is YAML, too
    loaded = Rules.load(file)
    assert (loaded.watches("Bash"), loaded.watches("Read")) == (True, False)
    verdict = loaded(whole("Bash", {"command": "git push --force"}))
    assert verdict is not None
    assert verdict.action == "ask"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("rules: [{tool: x}]", "missing required field `name`"),
        ("rules: [{name: x, patern: y}]", "unknown field `patern`"),
        ("rules: [{name: x, action: explode}]", "explode"),
        ("rules: [{name: x, pattern: '('}]", "rule 'x': pattern is not a regular expression"),
        ("rules: [{name: x, field: '$['}]", "rule 'x': expected"),
        ("rules: [{name: x, unless: y}]", "expected 'unless' with a field"),
        ("rules: [{name: x, field: 'items[0].path', pattern: y}]", "got 'items[0].path', which would match nothing"),
        ("rules: [{name: x, field: 'items.*', pattern: y}]", "which would match nothing"),
        ("rules: [{name: x, field: 'content ', pattern: y}]", "got 'content ', which would match nothing"),
        ("rules: [{name: x, field: '', pattern: y}]", "got '', which would match nothing"),
        ("rules: [{name: x, field: '$.items[*]', pattern: y}]", "in the JSON path"),
        ("rules: [{name: x, unless: y, field: a, pattern: b}]", "without a pattern"),
        ("[", "could not read the rules"),
        ("rules: 2001-99-99", "could not read the rules in .*: month must be in 1..12"),
    ],
)
def test_what_is_wrong_with_rules_is_said(content: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=complaint.replace("(", r"\(").replace("[", r"\[")):
        Rules.load(file)


@pytest.mark.parametrize(
    ("suffix", "content", "complaint"),
    [
        ("yaml", b"rules:\n  - name: x\n   pattern: [y\n", "line 3, column 4: expected <block end>, but found "),
        ("yaml", b"rules: [", "line 1, column 9: expected the node content, but found '<stream end>'"),
        ("yaml", b"rules:\n\t- name: x", "line 2, column 1: found character '\\t' that cannot start any token"),
        ("yaml", b"rules: *x", "line 1, column 8: found undefined alias 'x'"),
        (
            "yaml",
            b"rules: !!python/name:os.system x",
            "line 1, column 8: could not determine a constructor for the tag",
        ),
        ("yaml", b"rules:\n\n- \xff", "line 3, column 3: invalid start byte"),
        ("yaml", b"rules:\n- \x01", "line 2, column 3: special characters are not allowed"),
        ("json", b'{"rules": [\n  {]}', "line 2, column 4: Expecting property name enclosed in double quotes"),
    ],
)
def test_where_a_file_of_rules_is_broken_is_said_in_one_line(
    suffix: str, content: bytes, complaint: str, tmp_path: Path
) -> None:
    file = tmp_path / f"rules.{suffix}"
    file.write_bytes(content)
    with pytest.raises(UsageError) as raised:
        Rules.load(file)
    assert str(raised.value).startswith(f"could not read the rules in {file}, {complaint}")
    assert "\n" not in str(raised.value)


def test_a_json_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_bytes(b"\xff{}")
    with pytest.raises(UsageError, match=r"could not read the rules in .*rules\.json: 'utf-8' codec"):
        Rules.load(file)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"could not read the rules in nowhere\.yaml"):
        Rules.load("nowhere.yaml")


def test_what_is_no_guard_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expected guards, which are called with a call, got 'rules\.yaml'"):
        Callstream("memory:", guards=["rules.yaml"])  # type: ignore[list-item]


class _Twice:
    def __call__(self, call: GuardedCall, context: Any) -> None: ...


@pytest.mark.parametrize("guard", [lambda call, context: None, lambda: None, _Twice()], ids=["two", "none", "object"])
def test_a_guard_that_cannot_take_a_call_is_refused_when_it_is_made(guard: Any) -> None:
    with pytest.raises(UsageError, match=r"expected a guard that takes one argument, a GuardedCall, got .* with \("):
        Callstream("memory:", guards=[guard])


def _yields(call: GuardedCall) -> Any:
    yield None


def test_a_guard_that_is_a_generator_is_refused_when_it_is_made() -> None:
    with pytest.raises(UsageError, match=r"guard .*_yields.* is a generator; a guard returns its verdict"):
        Callstream("memory:", guards=[_yields])


def test_guards_may_take_more_where_that_has_a_default() -> None:
    Callstream("memory:", guards=[lambda call, strict=True: None, _taken := max])
    assert _taken is max  # a function in C that does not tell what it takes


# -- hidden text --


@pytest.mark.parametrize(
    "value",
    [
        SECRET,
        "".join(f"\\u{ord(letter):04x}" for letter in SECRET),
        "".join(f"\\x{ord(letter):02x}" for letter in SECRET),
        json.dumps({"key": SECRET}),
        json.dumps({"key": json.dumps([json.dumps(SECRET)])}),
        json.dumps({"key": "".join(f"\\u{ord(letter):04x}" for letter in SECRET)}),
        {"deep": [{"er": SECRET}]},
        {SECRET: 1},
        f"a\\n{SECRET}",
    ],
)
def test_a_secret_is_found_however_it_is_written(value: Any) -> None:
    assert NO_SECRETS(whole("t", {"a": value})) == deny("Do not send keys.")


def test_texts_of_all_kinds_of_values() -> None:
    value = {"a": [1, True, None, "x\\ty"], "b": {}}
    assert list(texts_in(value)) == ["a", "1", "true", "x\\ty", "x\ty", "b"]


# -- while a call is written --


@pytest.mark.parametrize("split", range(1, len(json.dumps({"body": f"key {SECRET}!"}))))
async def test_a_secret_split_anywhere_never_passes(split: int) -> None:
    text = json.dumps({"body": f"key {SECRET}!"})
    reason, _ = await judged(NO_SECRETS, "send", [text[:split], text[split:]])
    assert reason == "Do not send keys."


FORMS = {
    "JSON in a string": lambda secret: json.dumps({"key": secret}),
    "JSON in JSON in a string": lambda secret: json.dumps({"key": json.dumps([secret])}),
    "escaped": lambda secret: "".join(f"\\u{ord(letter):04x}" for letter in secret),
    "nested": lambda secret: {"deep": [{"er": f"a {secret}"}]},
    "a name": lambda secret: {secret: 1},
}


@pytest.mark.parametrize("form", FORMS)
async def test_a_secret_in_another_form_never_passes_wherever_it_is_split(form: str) -> None:
    plain = json.dumps({"note": "x", "body": FORMS[form](SECRET)})
    for text in (plain, plain.replace(SECRET, "".join(f"\\u{ord(letter):04X}" for letter in SECRET))):
        for split in range(1, len(text)):
            assert (await judged(NO_SECRETS, "send", [text[:split], text[split:]]))[0] == "Do not send keys."


@given(before=st.text(max_size=40), after=st.text(max_size=40), size=st.integers(1, 9))
async def test_nothing_passes_that_would_be_refused_whole(before: str, after: str, size: int) -> None:
    text = json.dumps({"to": "x", "body": before + SECRET + after})
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    reason, _ = await judged(NO_SECRETS, "send", pieces)
    assert reason == "Do not send keys."


async def test_a_finished_field_is_judged_before_the_next_is_written() -> None:
    text = json.dumps({"path": "/etc/passwd", "content": "x" * 4000})
    pieces = [text[start : start + 8] for start in range(0, len(text), 8)]
    guard = Rules([Rule(name="paths", field="path", unless="project/.*")])
    reason, count = await judged(guard, "write", pieces)
    assert reason == "the rule 'paths' does not allow it"
    assert count <= 4


async def test_growing_text_is_judged_while_it_grows() -> None:
    text = json.dumps({"body": "x" * 500 + SECRET + "y" * 8000})
    pieces = [text[start : start + 8] for start in range(0, len(text), 8)]
    reason, count = await judged(NO_SECRETS, "send", pieces)
    assert reason == "Do not send keys."
    assert count < len(pieces) / 8


async def test_long_text_is_not_looked_at_again_for_each_piece() -> None:
    looks = []

    def guard(call: GuardedCall) -> None:
        looks.append(call)

    text = json.dumps({"body": "x" * 20_000})
    assert await judged(guard, "send", [text[start : start + 8] for start in range(0, len(text), 8)]) == (None, 2502)
    assert len(looks) < 60
    assert looks[-1] == whole("send", {"body": "x" * 20_000})


async def test_a_guard_may_be_a_function_of_any_kind() -> None:
    async def slow(call: GuardedCall) -> Verdict | None:
        return deny("no") if call.is_complete else None

    assert await judged(slow, "send", ["{}"]) == ("no", 1)
    assert await judged(lambda call: None, "send", ["{}"]) == (None, 1)


@pytest.mark.parametrize("guard", [lambda call: 1 / 0, lambda call: "deny"])
async def test_a_guard_that_fails_refuses(guard: Any, caplog: pytest.LogCaptureFixture) -> None:
    reason, _ = await judged(guard, "send", ["{}"])
    assert reason == "the call could not be checked, so it did not run"
    assert "a guard failed" in caplog.text


async def cancelled(call: GuardedCall) -> None:
    """Waits for something that somebody else has cancelled."""
    waiting = asyncio.get_running_loop().create_future()
    waiting.cancel()
    await waiting


async def late(call: GuardedCall) -> None:
    await asyncio.sleep(9)


@pytest.mark.parametrize("guards", [[cancelled], [late] * 4], ids=["cancelled", "late together"])
@jumping
async def test_no_call_goes_on_without_its_guards_whatever_is_said_of_hooks_that_fail(guards: list[Guard]) -> None:
    settings = Settings(on_hook_error="isolate")
    async with Callstream("memory:", guards=guards, settings=settings) as cs, cs.run("thread") as run:
        cs.engine.guards.patience = 10
        await run.record([CallStarted("c1", "send"), CallCompleted("c1", "{}")])
        assert (await run.settled("c1")).reason == "interrupted"


# -- guards that are slow --


def in_pieces(args: Any) -> list[str]:
    text = json.dumps(args)
    return [text[start : start + 8] for start in range(0, len(text), 8)]


async def test_a_plain_function_runs_in_a_thread_with_the_context_of_the_call() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    seen: set[tuple[bool, str]] = set()

    def guard(call: GuardedCall) -> Verdict | None:
        seen.add((threading.current_thread() is threading.main_thread(), variable.get()))
        return deny("no") if call.is_complete else None

    variable.set("kept")
    assert (await judged(guard, "send", in_pieces({"body": "x" * 40})))[0] == "no"
    assert seen == {(False, "kept")}


async def test_a_guard_that_blocks_stops_nothing_but_its_own_call() -> None:
    begun, go = threading.Event(), threading.Event()

    def guard(call: GuardedCall) -> None:
        if call.name == "slow":
            begun.set()
            assert go.wait(20)

    async with Callstream("memory:", guards=[guard]) as cs, cs.run("thread") as run:
        await run.record([CallStarted("c1", "slow"), CallCompleted("c1", "{}")])
        assert await asyncio.to_thread(begun.wait, 20)
        await run.record([CallStarted("c2", "quick"), CallCompleted("c2", "{}")])
        assert (await run.settled("c2")).reason is None
        go.set()
        assert (await run.settled("c1")).reason is None


async def test_a_plain_function_that_gives_something_to_await_is_awaited() -> None:
    async def later() -> Verdict:
        return deny("later")

    assert (await judged(lambda call: later(), "send", ["{}"]))[0] == "later"


async def test_a_guard_that_never_answers_refuses_when_its_time_is_up(caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()

    def stuck(call: GuardedCall) -> None:
        go.wait(60)

    async with Callstream("memory:", guards=[stuck]) as cs, cs.run("thread") as run:
        cs.engine.guards.patience = 0.05
        await run.record([CallStarted("c1", "send"), CallCompleted("c1", "{}")])
        call = await run.settled("c1")
        assert (call.reason, call.detail) == ("rejected", "the call could not be checked, so it did not run")
    go.set()
    assert "stuck" in caplog.text


@jumping
async def test_a_slow_guard_is_asked_about_the_newest_text_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[GuardedCall] = []

    async def slow(call: GuardedCall) -> None:
        asked.append(msgspec.structs.replace(call, args=dict(call.args)))
        await asyncio.sleep(3)

    args = {f"field {number}": "x" * 50 for number in range(30)}
    async with Callstream("memory:", guards=[slow]) as cs, cs.run("thread") as run:
        for call_id in ("c1", "c2"):
            asked.clear()
            await run.record([CallStarted(call_id, "send")])
            for piece in in_pieces(args):
                await run.record([ArgsAppended(call_id, piece)])
                await asyncio.sleep(0.04)
            await run.record([CallCompleted(call_id, json.dumps(args))])
            assert (await run.settled(call_id)).reason is None
            # That of the beginning, one each 3 s of 11 in which the text came, one about all of it, and that of the end.
            assert len(asked) <= 1 + 4 + 1 + 1
            assert [len(call.args) for call in asked] == sorted({len(call.args) for call in asked[:-1]}) + [30]
    assert caplog.text.count("takes longer than 2 seconds") == 1
    assert "test_a_slow_guard_is_asked_about_the_newest_text_and_named_once.<locals>.slow" in caplog.text


SLOW = "(a|aa)+$"
"""Doubles its time with every letter that is followed by something else than the end."""


@pytest.mark.parametrize(
    "rule",
    [
        Rule(name="slow", pattern=SLOW),
        Rule(name="slow", field="body", unless=SLOW),
        Rule(name="slow", tool=f"send|{SLOW}"),
    ],
    ids=["pattern", "unless", "tool"],
)
async def test_a_pattern_that_takes_too_long_refuses_the_call(rule: Rule) -> None:
    text = json.dumps({"body": "a" * 80 + "!"})
    began = monotonic()
    reason, _ = await judged(Rules([rule]), "a" * 80 + "!", [text])
    assert reason == "the call could not be checked, so it did not run"
    assert monotonic() - began < 20


async def test_a_guard_that_logs_lets_pass_and_says_it_once(caplog: pytest.LogCaptureFixture) -> None:
    guard = Rules([Rule(name="all", action="log", pattern="x", message="an x")])
    assert (await judged(guard, "send", ['{"a": "x', 'xxxxxxxxxxxxxxxxx"}']))[0] is None
    assert caplog.text.count("an x") == 1


async def test_a_question_that_nobody_can_be_asked_is_a_refusal() -> None:
    reason, _ = await judged(lambda call: ask("risky"), "send", ["{}"])
    assert reason == "risky; a person would have to approve it, and nobody can be asked here"


async def test_arguments_that_are_no_json_are_no_fault_of_the_guard() -> None:
    assert (await judged(NO_SECRETS, "send", ['{"a": nope}']))[0] is not None


async def test_a_tool_of_ones_own_is_guarded_too() -> None:
    @tool
    async def send(body: str) -> str:
        return "sent"

    async with Callstream("memory:", tools=[send], guards=[NO_SECRETS]) as cs, cs.run("thread") as run:
        await run.record([CallStarted("c1", "send"), CallCompleted("c1", json.dumps({"body": SECRET}))])
        [result] = await run.run_tools()
        assert (result.text, result.is_error) == ("Do not send keys.", True)
