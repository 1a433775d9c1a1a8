"""Random scenes, played through the real runtime, before a client that forgives nothing."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from callstream.agui import AguiEvent, Conversation, Translator, View, encode, merge
from callstream.agui.events import ToolCallArgs, ToolCallEnd, ToolCallStart
from callstream.testing import Failure, Finish, Parallel, Text, Thought, ToolCall, Truncated
from callstream.testing.encoders import ENCODERS
from callstream.wire import WIRES
from tests.agui.judge import Judge
from tests.agui.model import StrictClient, brings, fold
from tests.agui.scenes import (
    CLIENT_TOOL,
    CRASHED_TOOL,
    FATES,
    REJECTED_TOOL,
    Break,
    Overheard,
    Play,
    Respond,
    Scene,
    State,
    Stop,
    Together,
    kill_last,
    play,
)
from tests.agui.scenes import events_of as scene_events
from tests.agui.test_client import accepted, joined_body
from tests.examples import examples

# -- scenes ------------------------------------------------------------------------------------------------------------

words = st.text(max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(["write", "lookup", CLIENT_TOOL, REJECTED_TOOL, CRASHED_TOOL])
calls = st.builds(
    ToolCall, names, st.dictionaries(st.text(min_size=1, max_size=5), values, max_size=3), size=st.integers(1, 9)
) | st.builds(ToolCall, names, st.just({"whole": 1}), streamed=st.just(False))
texts = st.text(min_size=1, max_size=20)
sizes = st.none() | st.integers(1, 6)
steps = st.lists(
    st.builds(Text, texts, sizes)
    | st.builds(Thought, texts, sizes)
    | calls
    | st.builds(Parallel, st.lists(calls, min_size=2, max_size=3)),
    max_size=4,
)
unfinished = st.builds(ToolCall, names, st.just({"text": "." * 40}), size=st.just(5), stop_after=st.integers(1, 3))
endings = (
    st.just([Finish()])
    | st.tuples(unfinished, st.sampled_from([Finish("length"), Truncated(), Failure("overloaded")])).map(list)
    | st.just([Failure("overloaded")])
)
responses = st.builds(
    lambda script, ending, wire, fates, stop_at: Respond([*script, *ending], wire, fates, stop_at),
    steps,
    endings,
    st.sampled_from([wire for wire in WIRES if ENCODERS[wire].streams_arguments]),
    st.lists(st.sampled_from(FATES), min_size=1, max_size=4),
    st.none() | st.none() | st.integers(0, 25),
)
pointers = st.sampled_from(["", "/a", "/b", "/a/0", "/a/-", "/b/c", "/x/y"])
operations = st.builds(
    lambda op, path, value, origin: {"op": op, "path": path, "value": value, "from": origin},
    st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
    pointers,
    values,
    pointers,
).map(
    lambda operation: {
        name: value
        for name, value in operation.items()
        if name in ("op", "path")
        or (name == "value" and operation["op"] in ("add", "replace", "test"))
        or (name == "from" and operation["op"] in ("move", "copy"))
    }
)
# Three things that the standard forbids are not refused by the official client: it makes a circle of a value that is
# moved into itself, puts null in the place of the whole state if the value that is to take it does not exist, and takes
# a member that is added to a whole state which is no object or array.
operations = operations.filter(
    lambda step: "from" not in step or (step["path"] != "" and not step["path"].startswith(step["from"]))
).filter(lambda step: step["path"] != "" or step["op"] == "test" or isinstance(step.get("value"), dict | list))
states = st.builds(State, st.dictionaries(st.sampled_from("ab"), values)) | st.builds(
    State, patch=st.lists(operations, max_size=3)
)
acts = (
    responses
    | responses
    | responses
    | states
    | st.builds(Together, responses, responses)
    | st.builds(Overheard, texts)
    | st.sampled_from([Break(), Stop()])
)


def _play(acts: list[Any], says: str | None, answers: int) -> Play:
    """Without a message of the user, the first one read from a request is taken for it; scenes are not about that."""
    return Play([act for act in acts if says or not isinstance(act, Overheard)], says, answers)


plays = st.builds(_play, st.lists(acts, max_size=4), st.none() | texts, st.integers(0, 3))
views = st.builds(
    View,
    reasoning=st.booleans(),
    errors=st.booleans(),
    emit_interrupt_outcome=st.just(False),
    client_tools=st.just(frozenset({CLIENT_TOOL})),
)
# The official client takes no run that leaves an interrupt open, so these are always answered.
answering = st.builds(_play, st.lists(acts, max_size=3), st.none() | texts, st.just(99))
asking = st.builds(View, emit_interrupt_outcome=st.just(True), client_tools=st.just(frozenset({CLIENT_TOOL})))
scenes = st.builds(play, st.lists(plays, min_size=1, max_size=3), views) | st.builds(
    play, st.lists(answering, min_size=1, max_size=3), asking
)


def events_of(scene: Scene, number: int) -> list[AguiEvent]:
    groups = scene_events(scene.runs[number].records, scene.view, scene.earlier(number))
    return [event for events in groups for event in events]


def watched(scene: Scene, runs: int | None = None) -> StrictClient:
    """The client that saw every run from its beginning."""
    client = StrictClient()
    for number, run in enumerate(scene.runs[:runs]):
        fold(events_of(scene, number), brings(client, run.sent))
    return client


def messages_of(conversation: Conversation) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = json.loads(encode(conversation.snapshot()))["messages"]
    return messages


# -- what holds for all of them ----------------------------------------------------------------------------------------


def numbers(events: list[AguiEvent]) -> list[int]:
    """Those of the events' records. The end of a client's call comes later than its record."""
    own = {
        event.tool_call_id
        for event in events
        if isinstance(event, ToolCallStart) and event.tool_call_name == CLIENT_TOOL
    }
    shown = [event for event in events if not isinstance(event, ToolCallEnd) or event.tool_call_id not in own]
    return [event.metadata.seq for event in shown if event.metadata is not None]


@given(scenes)
def test_closed_before_finished_and_every_other_rule(scene: Scene) -> None:
    for number, run in enumerate(scene.runs):
        events = events_of(scene, number)
        assert all(event.metadata is not None for event in events)
        seqs = numbers(events)
        assert seqs == sorted(seqs)
        assert seqs[-1] == run.records[-1].seq
    client = watched(scene)
    assert client.ended is not None
    assert messages_of(Conversation.of(scene.earlier(len(scene.runs)), scene.view)) == client.messages


@given(scenes)
def test_one_id_and_the_executed_arguments_in_the_events(scene: Scene) -> None:
    client = watched(scene)
    for call_id, executed in scene.executed.items():
        call = client.call(call_id)
        assert call is not None
        assert json.loads(call["function"]["arguments"]) == executed


@given(scenes, st.data())
def test_join_mid_arguments_of_any_scene(scene: Scene, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(scene.runs) - 1), "run")
    run = scene.runs[number]
    seen = data.draw(st.integers(1, len(run.records)), "records that were missed")
    whole = watched(scene, number + 1)

    conversation = Conversation.of([*scene.earlier(number), *run.records[:seen]], scene.view)
    prelude = conversation.prelude()
    fresh = fold(prelude)
    if seen > len(run.sent):  # until then the sender knows more than the journal
        translator = Translator(scene.view)
        so_far = brings(watched(scene, number), run.sent)
        fold([event for record in run.records[:seen] for event in translator.feed(record)], so_far)
        assert (fresh.messages, fresh.state) == (so_far.messages, so_far.state)
        assert fresh.open.keys() == so_far.open.keys()
    rest = [event for record in run.records[seen:] for event in conversation.feed(record)]
    fold(rest, fresh)
    assert (fresh.messages, fresh.state, fresh.ended) == (whole.messages, whole.state, whole.ended)

    # The same for a client that kept what it had when its connection broke, some records before.
    broken_at = data.draw(st.integers(0, seen), "records that it had")
    translator = Translator(scene.view)
    kept = brings(watched(scene, number), run.sent)
    fold([event for record in run.records[:broken_at] for event in translator.feed(record)], kept)
    kept.open.clear()
    kept.is_running = False
    fold(rest, fold(prelude, kept))
    assert (kept.messages, kept.state, kept.ended) == (whole.messages, whole.state, whole.ended)


@given(scenes)
def test_slow_reader_merged_folds_to_the_same(scene: Scene) -> None:
    client = StrictClient()
    for number, run in enumerate(scene.runs):
        events = events_of(scene, number)
        merged = merge(events)
        assert merge(merged) == merged
        assert len(merged) <= len(events)
        seqs = numbers(merged)
        assert seqs == sorted(seqs)
        fold(merged, brings(client, run.sent))
    whole = watched(scene)
    assert (client.messages, client.state, client.ended) == (whole.messages, whole.state, whole.ended)


@given(scenes)
def test_compaction_preserves_fold_of_the_conversation(scene: Scene) -> None:
    compacted = [record for run in scene.runs for record in run.compacted]
    before = Conversation.of(scene.earlier(len(scene.runs)), scene.view)
    after = Conversation.of(compacted, scene.view)
    assert without_metadata(messages_of(after)) == without_metadata(messages_of(before))
    assert after.state == before.state
    assert after.prelude()[-1] == before.prelude()[-1]


def without_metadata(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_metadata(item) for name, item in value.items() if name != "metadata"}
    return [without_metadata(item) for item in value] if isinstance(value, list) else value


@given(scenes)
def test_a_stream_that_has_to_end_says_so(scene: Scene) -> None:
    [*_, run] = scene.runs
    for seen in {1, len(run.records) // 2 or 1, len(run.records)}:
        translator = Translator(scene.view)
        client = brings(watched(scene, len(scene.runs) - 1), run.sent)
        for record in run.records[:seen]:
            fold(translator.feed(record), client)
        ended = client.ended
        fold(translator.end(), client)
        assert client.ended is not None
        assert client.ended == ended or client.ended["code"] == "incomplete"
        assert translator.end() == []


# -- runs that went on in another process ------------------------------------------------------------------------------


def shown(messages: list[dict[str, Any]]) -> Any:
    """Messages without metadata, and without reasoning that was emptied because a client keeps the last that it has."""
    return without_metadata([each for each in messages if each["role"] != "reasoning" or each["content"]])


def same(client: StrictClient, other: StrictClient) -> bool:
    assert shown(client.messages) == shown(other.messages)
    assert client.state == other.state
    assert without_metadata(client.ended) == without_metadata(other.ended)
    return True


@given(scenes, st.data())
def test_a_run_that_went_on_elsewhere_ends_as_if_nothing_had_been_void(scene: Scene, data: st.DataObject) -> None:
    [*_, run] = scene.runs
    killed, valid = kill_last(scene, data.draw(st.integers(1, len(run.records) - 1), "records before the kill"))
    whole = watched(valid)
    assert same(watched(killed), whole)

    earlier, records = scene.earlier(len(scene.runs) - 1), killed.runs[-1].records
    seen = data.draw(st.integers(len(run.sent) + 1, len(records)), "records that were missed")
    conversation = Conversation.of([*earlier, *records[:seen]], scene.view)
    prelude = conversation.prelude()
    rest = [event for record in records[seen:] for event in conversation.feed(record)]
    assert same(fold(rest, fold(prelude)), whole)
    assert without_metadata(messages_of(conversation)) == without_metadata(whole.messages)

    # The same for a client that kept what it had when its connection broke, but for reasoning that it does not drop.
    broken_at = data.draw(st.integers(0, seen), "records that it had")
    kept = brings(watched(scene, len(scene.runs) - 1), run.sent)
    for events in list(scene_events(records, scene.view, earlier))[:broken_at]:
        fold(events, kept)
    kept.open.clear()
    kept.is_running = False
    fold(rest, fold(prelude, kept))
    kept.messages = [each for each in kept.messages if each["role"] != "reasoning" or "-void-" not in each["id"]]
    assert same(kept, whole)


# -- the same before the official client, for fewer of them ------------------------------------------------------------


@examples(40)
@given(scene=scenes)
def test_official_client_accepts_any_scene(judge: Judge, scene: Scene) -> None:
    whole = watched(scene)
    verdicts = judge(*scene.steps())
    for verdict in verdicts:
        accepted(verdict)
    assert verdicts[-1]["messages"] == whole.messages
    assert verdicts[-1]["state"] == whole.state


@examples(40)
@given(scene=scenes, data=st.data())
def test_join_mid_arguments_of_any_scene_by_the_official_client(
    judge: Judge, scene: Scene, data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, len(scene.runs) - 1))
    seen = data.draw(st.integers(1, len(scene.runs[number].records)))
    whole = watched(scene, number + 1)
    [verdict] = judge({"how": "connect", "body": joined_body(scene, number, seen)})
    accepted(verdict)
    assert verdict["messages"] == whole.messages
    assert verdict["state"] == whole.state


@examples(100)
@given(state=st.dictionaries(st.sampled_from("ab"), values), patches=st.lists(st.lists(operations, max_size=3)))
def test_official_client_patches_state_as_the_fold_does(
    judge: Judge, state: dict[str, Any], patches: list[list[dict[str, Any]]]
) -> None:
    scene = play([Play([State(state), *(State(patch=patch) for patch in patches)])])
    [verdict] = judge(*scene.steps())
    accepted(verdict)
    assert verdict["state"] == Conversation.of(scene.runs[0].records).state


def test_args_are_sent_once() -> None:
    scene = play([Play([Respond([ToolCall("write", {"a": "b" * 50}, size=3)])])])
    [run] = scene.runs
    translator = Translator()
    events = [event for record in run.records for event in translator.feed(record)]
    deltas = [event.delta for event in events if isinstance(event, ToolCallArgs)]
    assert json.loads("".join(deltas)) == {"a": "b" * 50}
    assert len(deltas) > 10
