from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from callstream import errors
from callstream.calls import (
    FINAL,
    TRANSITIONS,
    Call,
    CallState,
    Ledger,
    Refusal,
    advanced,
    next_state,
    numbered,
    opened,
    refusal,
)
from callstream.errors import TransitionError, UsageError
from callstream.events import (
    ArgsAppended,
    CallAwaiting,
    CallCompleted,
    CallDiscarded,
    CallExecuting,
    CallFailed,
    CallProgressed,
    CallReleased,
    CallReturned,
    CallRunningEarly,
    CallSigned,
    CallStarted,
    DiscardReason,
    Encoding,
)

EVENTS: list[Any] = [
    CallStarted("c", "write"),
    CallSigned("c", "sig"),
    ArgsAppended("c", "{}"),
    CallCompleted("c", "{}"),
    CallDiscarded("c", "truncated", "cut"),
    CallExecuting("c"),
    CallRunningEarly("c"),
    CallAwaiting("c"),
    CallReturned("c", {"ok": True}),
    CallFailed("c", "broken"),
    CallReleased("c"),
    CallProgressed("c", {"done": 1}),
]
ALLOWED = {
    "started": {"CallSigned", "ArgsAppended", "CallCompleted", "CallDiscarded"},
    "args_streaming": {"CallSigned", "ArgsAppended", "CallCompleted", "CallRunningEarly", "CallDiscarded"},
    "args_complete": {
        "CallSigned",
        "CallRunningEarly",
        "CallExecuting",
        "CallAwaiting",
        "CallReturned",
        "CallFailed",
        "CallReleased",
        "CallDiscarded",
    },
    "running_early": {
        "CallSigned",
        "ArgsAppended",
        "CallCompleted",
        "CallProgressed",
        "CallReturned",
        "CallFailed",
        "CallDiscarded",
    },
    "executing": {"CallProgressed", "CallAwaiting", "CallReturned", "CallFailed"},
    "awaiting": {"CallProgressed", "CallExecuting", "CallReturned", "CallFailed", "CallDiscarded"},
}


@pytest.mark.parametrize("state", list(CallState))
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_transitions_only_by_table(state: CallState, event: Any) -> None:
    """Every state times every event, against a list that was written down apart from the table."""
    call = Call("c", "write", state)
    if type(event).__name__ in ALLOWED.get(state, set()):
        after = advanced(call, event, at=2.0)
        assert after.state is TRANSITIONS[state, type(event)]
        assert after.updated_at == 2.0
    else:
        with pytest.raises(TransitionError, match=f"'c' is {state}; {type(event).__name__} is not allowed"):
            next_state(call, event)


def test_transitions_only_by_table_and_final_is_final() -> None:
    assert {before for before, _ in TRANSITIONS} == set(CallState) - FINAL


def test_what_events_leave_in_the_row() -> None:
    call = opened(CallStarted("c", "write", "p", "s1", "json", "m"), run_id="r", thread_id="t", at=1.0)
    assert (call.run_id, call.thread_id, call.provider_id, call.signature, call.message_id) == (
        "r",
        "t",
        "p",
        "s1",
        "m",
    )
    assert advanced(call, CallSigned("c", "s2")).signature == "s2"
    dropped = advanced(call, CallDiscarded("c", "malformed", "no JSON"))
    assert (dropped.reason, dropped.detail, dropped.is_final) == ("malformed", "no JSON", True)
    ready = Call("c", "write", CallState.ARGS_COMPLETE)
    assert advanced(ready, CallReturned("c", [1])).result == [1]
    assert advanced(ready, CallFailed("c", "broken")).error == "broken"


def test_args_are_there_only_when_they_are_complete() -> None:
    assert Call("c", "write", CallState.ARGS_COMPLETE, args_json='{"a": 1}').args == {"a": 1}
    assert Call("c", "write", CallState.ARGS_STREAMING, args_json='{"a": 1}').args is None
    assert Call("c", "write", CallState.COMPLETED).args is None
    assert Call("c", "write", CallState.RUNNING_EARLY, args_json='{"a": 1').args is None
    assert Call("c", "write", CallState.RUNNING_EARLY, args_json='{"a": 1}').args == {"a": 1}


def test_a_call_that_runs_early_goes_on_being_written() -> None:
    ledger = Ledger()
    for event in (
        CallStarted("c", "write"),
        ArgsAppended("c", '{"a":'),
        CallRunningEarly("c"),
        ArgsAppended("c", " 1}"),
    ):
        call = ledger.apply(event)
    assert (call.state, call.ran_early, call.is_being_written) == (CallState.RUNNING_EARLY, True, True)
    call = ledger.apply(CallCompleted("c", '{"a": 1}'))
    assert (call.state, call.args, call.is_being_written) == (CallState.RUNNING_EARLY, {"a": 1}, False)
    for late in (ArgsAppended("c", "!"), CallCompleted("c", "{}")):
        with pytest.raises(TransitionError, match="have ended"):
            ledger.apply(late)
    done = ledger.apply(CallReturned("c", 5))
    assert (done.state, done.ran_early, done.args) == (CallState.COMPLETED, True, {"a": 1})


def test_a_tool_that_ran_early_is_not_said_never_to_have_run() -> None:
    for reason in ("truncated", "invalid", "malformed", "aborted"):
        call = Call("c", "write", CallState.DISCARDED, reason=reason, ran_early=True)  # type: ignore[arg-type]
        assert "does not count" in refusal(call)
        assert "did not run" not in refusal(call)


def test_args_of_a_discarded_call_are_there_if_it_was_rejected_whole() -> None:
    def discarded(text: str, reason: DiscardReason, encoding: Encoding = "json") -> Call:
        return Call("c", "write", CallState.DISCARDED, args_json=text, reason=reason, encoding=encoding)

    assert discarded('{"a": 1}', "rejected").args == {"a": 1}
    assert discarded('{"a": 1', "rejected").args is None
    assert discarded("12", "rejected").args is None
    assert discarded('"free text"', "rejected", "text").args == "free text"
    assert discarded('{"a": 1}', "truncated").args is None


@pytest.mark.parametrize(
    ("reason", "detail", "sentence"),
    [
        ("rejected", "no title", "no title"),
        ("rejected", None, "the call was rejected"),
        ("truncated", None, "the arguments of write were cut off, so it did not run; call it again, with shorter arg"),
        ("malformed", "no comma", "the arguments of write cannot be read (no comma), so it did not run; call it again"),
        ("interrupted", "ValueError: the password is 1234", "write did not run: the call was interrupted"),
    ],
)
def test_a_refusal_is_a_sentence_for_the_model(reason: DiscardReason, detail: str | None, sentence: str) -> None:
    call = Call("c", "write", CallState.DISCARDED, reason=reason, detail=detail)
    assert refusal(call).startswith(sentence)
    assert str(Refusal("c", "write", None, reason, refusal(call))) == refusal(call)


def test_one_id_is_kept_or_numbered() -> None:
    assert numbered("0", []) == "0"
    assert numbered("0", ["0"]) == "0~2"
    assert numbered("0", ["0", "0~2", "0~3"]) == "0~4"
    ledger = Ledger(used=["0"])
    assert [ledger.name_for("0"), ledger.name_for("0"), ledger.name_for("1")] == ["0~2", "0~3", "1"]


def test_ledger_collects_the_text_of_open_calls() -> None:
    ledger = Ledger()
    ledger.apply(CallStarted("a", "write"), run_id="r", thread_id="t")
    ledger.apply(CallStarted("b", "write"))
    for piece in ('{"x"', ": 1}"):
        ledger.apply(ArgsAppended("a", piece))
    ledger.apply(ArgsAppended("b", '{"y'))
    assert ledger["a"].state is CallState.ARGS_STREAMING
    assert ledger.apply(CallCompleted("a")).args == {"x": 1}
    assert ledger.apply(CallDiscarded("b", "truncated")).args_json == '{"y'
    ledger.apply(CallExecuting("a"))
    assert [call.call_id for call in ledger.open_calls()] == ["a"]
    ledger.apply(CallAwaiting("a"))
    assert ledger.open_calls() == []
    assert [call.call_id for call in ledger] == ["a", "b"]
    assert "a" in ledger


def test_a_lent_text_counts_as_far_as_it_was_recorded() -> None:
    class Read:
        def __init__(self, text: str) -> None:
            self.text = text

        def join(self) -> str:
            return self.text

    ledger = Ledger()
    for call_id, text in (("a", '{"x": "é"}'), ("b", '{"y": "é", "z"')):
        ledger.lend(call_id, Read(text))
        ledger.apply(CallStarted(call_id, "write"))
    ledger.apply(ArgsAppended("a", '{"x": '))
    ledger.apply(ArgsAppended("a", '"é"}'))
    ledger.apply(ArgsAppended("b", '{"y": "é'))
    assert ledger.apply(CallCompleted("a")).args == {"x": "é"}
    assert ledger.apply(CallDiscarded("b", "interrupted")).args_json == '{"y": "é'


def test_ledger_knows_its_calls() -> None:
    ledger = Ledger()
    with pytest.raises(UsageError, match="no call 'a' in this run; it has none"):
        ledger["a"]
    ledger.apply(CallStarted("a", "write"))
    with pytest.raises(TransitionError, match="has started already"):
        ledger.apply(CallStarted("a", "write"))
    earlier = Call("old", "approve", CallState.AWAITING)
    ledger.adopt(earlier)
    assert ledger["old"] is earlier
    assert ledger.apply(CallReturned("old", "yes")).state is CallState.COMPLETED
    assert ledger.name_for("old") == "old~2"


def test_the_table_in_the_documentation_is_the_table_in_the_code() -> None:
    path = Path(__file__).parent.parent / "docs" / "transitions.py"
    spec = importlib.util.spec_from_file_location("transitions", path)
    assert spec is not None
    assert spec.loader is not None
    transitions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(transitions)
    page = transitions.PAGE.read_text(encoding="utf-8")
    assert transitions.with_table(page) == page, "run: python docs/transitions.py"
    assert transitions.table() in page


def test_errors_say_whose_fault_it_is_and_what_happened() -> None:
    assert str(errors.WireError("expected a value", position=3)) == "expected a value (at position 3)"
    compacted = errors.Compacted("r", 5, 3, 9)
    assert (compacted.run_id, compacted.after, compacted.first, compacted.last) == ("r", 5, 3, 9)
    assert "records 3 to 9 were folded" in str(compacted)
    assert errors.Reject("no").reason == "no"
    rejected = errors.CallRejected("c", "write", "no")
    assert (rejected.call_id, rejected.name, rejected.reason, rejected.detail) == ("c", "write", "rejected", None)
    assert str(rejected) == "no"
    assert rejected.__notes__ == ["call 'c' of tool 'write' was discarded (rejected)"]
    assert errors.CallRejected("c", "write", "cut off", reason="truncated", detail="cut").detail == "cut"
    assert errors.CallIdTaken("c").call_id == "c"
    for error in (errors.WireError, errors.UsageError, errors.JournalError, errors.Reject, errors.CallRejected):
        assert issubclass(error, errors.CallstreamError)


def test_the_idempotency_key_is_that_of_the_call_in_its_run() -> None:
    first = Call("c", "pay", CallState.EXECUTING, run_id="r")
    again = Call("c", "pay", CallState.COMPLETED, run_id="r", updated_at=1.0)
    assert first.idempotency_key == again.idempotency_key == "r/c"
    assert Call("c", "pay", CallState.EXECUTING, run_id="other").idempotency_key != first.idempotency_key
