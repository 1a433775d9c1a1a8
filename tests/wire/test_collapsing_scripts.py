"""Scripted responses of every shape: whatever is collapsed, the SDK is told the same, in the same order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st

from callstream.errors import UsageError
from callstream.events import CallCompleted
from callstream.testing import Failure, Finish, Parallel, Text, Thought, ToolCall, Truncated, encode
from callstream.wire import WIRES, decoder_for
from tests.decoding import Folded, calls, cut, fed
from tests.wire.collapsing import named, no, tapped, told_by

values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**6) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=2),
    max_leaves=4,
)
names = st.sampled_from(["write", "read", "other"])


@st.composite
def a_call(draw: st.DrawFn) -> ToolCall:
    return ToolCall(
        draw(names),
        draw(st.dictionaries(st.text("abc", min_size=1, max_size=3), values, max_size=3)),
        call_id=draw(st.sampled_from([None, ""])),
        size=draw(st.integers(1, 9)),
        streamed=draw(st.booleans()),
        text=draw(st.sampled_from([None, None, None, "{no}", '{"a": "x\ny"}'])),
    )


steps = st.lists(
    st.builds(Text, st.text("hi ", min_size=1, max_size=6), size=st.just(3))
    | st.builds(Thought, st.text("hm ", min_size=1, max_size=6), size=st.just(3), signature=st.just("c2ln"))
    | a_call()
    | st.builds(Parallel, st.lists(a_call(), min_size=2, max_size=3)),
    min_size=1,
    max_size=5,
)
ends = st.builds(Finish) | st.just(Finish("length")) | st.builds(Failure, st.just("overloaded")) | st.builds(Truncated)


BARE = ToolCall("write", {}, streamed=False)


def sent(call: Folded) -> tuple[str, str]:
    """A call as an SDK has it, which does not judge how the response ended. No text means no arguments."""
    return call.name, call.text or "{}"


@pytest.mark.parametrize("wire", WIRES)
@given(script=steps, end=ends, collapsed=st.sets(names), cuts=st.lists(st.integers(0), max_size=5))
@example(script=[BARE, BARE], end=Failure("overloaded"), collapsed={"write"}, cuts=[])
@example(script=[BARE, BARE], end=Truncated(), collapsed={"write"}, cuts=[])
@example(script=[BARE, BARE, Text("hi")], end=Finish("length"), collapsed={"write"}, cuts=[])
def test_rewritten_script_tells_the_same(
    wire: str, script: list[Any], end: Any, collapsed: set[str], cuts: list[int]
) -> None:
    try:
        body = b"".join(encode(wire, [*script, end]))
    except UsageError:  # a wire that carries values cannot carry malformed text
        reject()
    collapse = named(*collapsed)
    result = tapped(wire, cut(body, [place % (len(body) + 1) for place in cuts]), collapse)
    assert tapped(wire, [body], no).body == body
    assert tapped(wire, [body], collapse).outputs == result.outputs
    again, error = fed(decoder_for(wire), [result.body])
    before, after = told_by(result.events, result.error), told_by(again, error)
    came = calls(result.events)
    left_out = [call.name in collapsed and call.outcome != "completed" for call in came]
    assert list(map(sent, calls(again))) == [sent(call) for call, out in zip(came, left_out, strict=True) if not out]
    whole = [(call[0], call[2]) for call in before.calls]
    believed = [(call[0], call[2]) for call in after.calls]
    # Where a bad end has cost the last call, the one before is the last now, and another tap would not believe its end.
    assert believed == whole or (end != Finish() and left_out[-1] and believed == whole[:-1])
    assert (after.text, after.finishes, after.error) == (before.text, before.finishes, before.error)
    assert after.reasoning == before.reasoning
    ids = {event.call_id for event in result.events if isinstance(event, CallCompleted)}
    assert set(result.call_ids) <= ids
    assert len(result.call_ids) == sum(call[0] in collapsed for call in before.calls)
