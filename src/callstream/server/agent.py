"""What the server serves: an agent, defined by its methods and not by the framework behind it.

``Agent`` is what an application writes: ``run(input)``. It works inside a run of the journal, so the traffic of a tapped
SDK client in it is journaled automatically; AG-UI events that it yields are journaled too. ``Host`` is for agents that
start runs of the journal themselves, as ``ADKAgent`` does.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import msgspec
from ag_ui.core import AssistantMessage, RunAgentInput, ToolMessage, UserMessage
from pydantic import BaseModel

from callstream.agui import Reader, View
from callstream.agui.messages import as_history, called_in, digest_of, result_value, since_spoken
from callstream.agui.presentation import Presenter
from callstream.calls import CANCELLED, CallState
from callstream.callstream import Callstream
from callstream.errors import CallIdTaken, CallRejected, UsageError
from callstream.events import CallStarted, InputKept, MessageReceived, RunEvent, RunStarted
from callstream.journal import RunRow
from callstream.runtime import Run, StartedRun
from callstream.runtime.answers import Directory
from callstream.runtime.continuing import OnDivergence, pack
from callstream.runtime.questions import check_answer
from callstream.runtime.run import check_journal

logger = logging.getLogger("callstream.server")

_NUMBERED: Final = re.compile(r".+~\d+", re.DOTALL)


@runtime_checkable
class Host(Protocol):
    """An agent that does its own journaling."""

    @property
    def callstream(self) -> Callstream: ...

    @property
    def view(self) -> View: ...

    async def begin(self, run_input: RunAgentInput, principal: str | None, *, exclusive: bool) -> StartedRun: ...

    def presentation(self, run_input: RunAgentInput | None) -> Presenter | None:
        """How a stream's events are changed before they are shown; None if they are shown as they are."""


@runtime_checkable
class Importer(Protocol):
    """A host that may know threads that are older than the journal."""

    async def import_thread(self, thread_id: str, principal: str | None) -> None:
        """Imports such a thread of that principal into the journal, unless there is none or the journal already has it."""


@runtime_checkable
class AppHost(Protocol):
    """The host of one app, which may share its journal with other apps that use the same thread ids."""

    def app_of(self, run_input: RunAgentInput) -> str: ...

    async def own_runs(self, rows: Sequence[RunRow]) -> list[RunRow]:
        """The rows that belong to the app, in their original order."""


@runtime_checkable
class Successor(Protocol):
    """A host that can continue the runs of processes that have died.

    ``apps``: the apps whose runs it can continue. ``continues``: keep what other processes need to continue its own runs.
    """

    apps: frozenset[str]
    can_continue: bool
    continues: bool
    on_divergence: OnDivergence
    max_attempts: int

    async def go_on(self, run_id: str) -> StartedRun: ...


@runtime_checkable
class Agent(Protocol):
    """Works on one run. The AG-UI events that it yields are journaled, and so is everything that passes through the tap:
    each response should take only one of the two ways. An exception fails the run.
    """

    def run(self, input: RunAgentInput) -> AsyncIterator[Any]: ...  # noqa: A002  the name that callers use


AgentFunction: TypeAlias = Callable[[RunAgentInput], AsyncIterator[Any] | Awaitable[Any]]
"""An agent may also be a plain function: an async generator, or a coroutine."""


def host_of(
    agent: Host | Agent | AgentFunction, callstream: Callstream | None, name: str = "", *, continues: bool = False
) -> Host:
    """The agent as the server uses it. ``name``: the name under which its runs are continued, if it ``continues``."""
    if isinstance(agent, Host):
        if callstream is not None and callstream is not agent.callstream:
            raise UsageError("the agent has a Callstream of its own; give the server none, or the same")
        return agent
    function = function_of(agent)
    if callstream is None:
        raise UsageError("this agent does not journal by itself: give the server its Callstream, callstream=…")
    if not isinstance(callstream, Callstream):
        raise UsageError(f"expected a Callstream, got {type(callstream).__name__}")
    if continues:
        check_journal(callstream.journal)
    return FunctionHost(function, callstream, name, can_continue=continues)


def function_of(agent: Agent | AgentFunction) -> AgentFunction:
    """The function that runs the agent. Raises ``UsageError`` if it cannot be called with the input alone."""
    function = agent.run if isinstance(agent, Agent) else agent
    if not _accepts_input(function):
        raise UsageError(
            "expected an agent: an object with run(input), or a function that can be called with the input alone; "
            f"got {_described(function)}"
        )
    return function


def _accepts_input(function: Any) -> bool:
    """Whether it can be called with one argument: a class's own ``run`` cannot, nor can an ASGI application."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:
        return True  # it has no signature to inspect
    return True


def _described(found: Any) -> str:
    """What is no agent: what its program wrote, with its parameters if it has any."""
    if not callable(found):
        return type(found).__name__
    parameters = [each.replace(annotation=each.empty) for each in inspect.signature(found).parameters.values()]
    name = getattr(found, "__qualname__", None) or type(found).__qualname__
    return f"{name.rpartition('<locals>.')[2]}{inspect.Signature(parameters)}"


class FunctionHost:
    """Gives an ``Agent`` a run to work in, with the client's messages and answers in it."""

    def __init__(
        self, function: AgentFunction, callstream: Callstream, name: str = "", *, can_continue: bool = False
    ) -> None:
        self._function = function
        self.callstream = callstream
        self.view = View()
        self.apps = frozenset({name})
        self.can_continue = can_continue
        self.obstacles = [] if can_continue else ["it is a function that create_app(…, continues=True) does not serve"]
        self.continues = False
        self.on_divergence: OnDivergence = "fail"
        self.max_attempts = 3

    def presentation(self, run_input: RunAgentInput | None) -> None:
        """An agent's events are shown as they are."""

    async def begin(self, run_input: RunAgentInput, principal: str | None, *, exclusive: bool) -> StartedRun:
        since = since_spoken(run_input.messages)
        kept: dict[str, Any] = {
            "messages": [message.model_dump(mode="json", by_alias=True) for message in since],
            "tools": [{"name": tool.name} for tool in run_input.tools or ()],
            "digest": digest_of(run_input),
        }
        past = [
            message for message in run_input.messages if message not in since or not isinstance(message, UserMessage)
        ]
        is_new = bool(past) and await self._is_new(run_input.thread_id, principal)
        if is_new:
            kept["history"] = as_history(past)
        run = await Run.start(
            self.callstream.engine,
            RunStarted(run_input.thread_id, principal, kept, exclusive),
            run_input.run_id,
            kept=self._all_input(run_input) if self.continues else None,
            as_current=False,
            numbered=True,
        )
        return StartedRun(run, partial(self._work, run, run_input, is_new=is_new))

    async def _is_new(self, thread_id: str, principal: str | None) -> bool:
        """Whether the journal has never had a run of the thread."""
        journal = self.callstream.journal
        await journal.open()
        has_run = await journal.runs(thread_id=thread_id, principal=principal, limit=1)
        return not has_run and not await journal.has_forgotten(thread_id, principal)

    def _all_input(self, run_input: RunAgentInput) -> InputKept:
        (name,) = self.apps
        data = pack(run_input.model_dump_json(by_alias=True, exclude_none=True).encode())
        return InputKept(name, data, attempts=self.max_attempts)

    async def go_on(self, run_id: str) -> StartedRun:
        """Continues a run that this process has taken over. Raises CannotGoOn if that is not possible."""
        run = await Run.go_on(self.callstream.engine, run_id, on_divergence=self.on_divergence)
        replay = run.replay
        assert replay is not None, "it goes on"
        run_input = RunAgentInput.model_validate_json(replay.run_input)
        return StartedRun(run, partial(self._work, run, run_input, is_new=True))

    async def _work(self, run: Run, run_input: RunAgentInput, *, is_new: bool) -> None:
        """``is_new``: the client's messages, which the agent reads, may contain calls that the journal does not know."""
        client_tools = frozenset(tool.name for tool in run_input.tools or ())
        if run.keeping is not None:
            run.keeping.elsewhere = client_tools
        async with run:
            await self.callstream.orphaned_calls.tell(run.given_up)
            for message in since_spoken(run_input.messages):
                if isinstance(message, UserMessage):
                    await run.record([_message_received(message)])
            brought = called_in(run_input.messages) if is_new else {}
            answers = [
                answer
                for answer in _answers_in(run_input)
                if answer.call_id not in brought or await run.directory.find(answer.call_id) is not None
            ]
            left_to_agent = await _record_answers(run, answers, client_tools)
            made: Any = self._function(await _restore_ids(run_input, run.directory))
            if inspect.isawaitable(made):
                made = await made
            elif not isinstance(made, AsyncIterable):
                raise UsageError(
                    f"expected the agent to give an async iterator or an awaitable, got {type(made).__name__}"
                )
            if isinstance(made, AsyncIterable):
                await _record_yielded(run, made)
            for answer in left_to_agent:
                call = run.call(answer.call_id)
                if call.state is not CallState.AWAITING:
                    continue
                if call.name in self.callstream.tools:
                    logger.warning(
                        "run %s: the agent did not take the answer to call %s of tool %s, which still awaits one",
                        run.run_id,
                        call.call_id,
                        call.name,
                    )
                else:
                    await run.answer(answer.call_id, answer.result, error=answer.error, message_id=answer.message_id)
            await _await_client(run, client_tools)


class AnswersHost(FunctionHost):
    """Records answers to questions that are asked beside a run. The asking process finds them in the journal."""

    def __init__(self, callstream: Callstream) -> None:
        super().__init__(_do_nothing, callstream)

    async def begin(self, run_input: RunAgentInput, principal: str | None, *, exclusive: bool) -> StartedRun:
        for answer in _answers_in(run_input):
            check_answer(answer.call_id, answer.result, answer.error)
        return await super().begin(run_input, principal, exclusive=exclusive)


async def _do_nothing(run_input: RunAgentInput) -> None:
    """The agent of a run in which there is nothing to do but record."""


class _Answer(msgspec.Struct, frozen=True):
    """A client's answer to a call that awaits it, given as a tool message or as the answer to an interrupt."""

    call_id: str
    result: Any
    error: str | None
    message_id: str | None = None


def _answers_in(run_input: RunAgentInput) -> Iterator[_Answer]:
    for message in since_spoken(run_input.messages):
        if isinstance(message, ToolMessage):
            text = message.content
            result = result_value(text) if isinstance(text, str) else text
            yield _Answer(message.tool_call_id, result, message.error, message.id)
    for entry in run_input.resume or ():
        yield _Answer(entry.interrupt_id, entry.payload, CANCELLED if entry.status == "cancelled" else None)


def answered_in(run_input: RunAgentInput) -> list[str]:
    """The calls that the input answers, if it contains nothing but answers."""
    if any(isinstance(message, UserMessage) for message in since_spoken(run_input.messages)):
        return []
    return [answer.call_id for answer in _answers_in(run_input)]


async def _record_answers(run: Run, answers: Iterable[_Answer], client_tools: frozenset[str]) -> list[_Answer]:
    """Records the results of the client's own tools, and returns the other answers under their calls' ids.

    The other answers are left to the agent, which knows what it asked. It takes up the call with ``run.resume`` and runs
    or refuses it. A call that it does not touch gets the answer as its result, unless the tool is one of the Callstream's
    own: such a tool has to run, and an answer cannot stand in for what it returns.
    """
    others = []
    for answer in answers:
        call = await run.resume(answer.call_id)
        if call is None:
            continue  # it has been answered already
        if call.name in client_tools:
            await run.answer(call.call_id, answer.result, error=answer.error, message_id=answer.message_id)
        else:
            others.append(msgspec.structs.replace(answer, call_id=call.call_id))
    return others


async def _await_client(run: Run, client_tools: frozenset[str]) -> None:
    """Makes calls of tools that the client brought wait for its answer."""
    for call in run.calls:
        if call.state is CallState.ARGS_COMPLETE and call.name in client_tools:
            try:
                await run.await_answer(call.call_id)
            except CallRejected as dropped:
                # Its hooks rejected it. The client learns this from the call's result.
                logger.info("run %s: %s", run.run_id, dropped)


def _message_received(message: UserMessage) -> MessageReceived:
    content = message.content
    if isinstance(content, str):
        return MessageReceived("user", content, message.id)
    parts = [part.model_dump(mode="json") for part in content]
    texts = [part["text"] for part in parts if part.get("type") == "text"]
    kinds = tuple(str(part.get("type")) for part in parts if part.get("type") != "text")
    return MessageReceived("user", "\n".join(texts), message.id, kinds)


# -- recording what an agent yields --
#
# An agent names its calls as it likes, and many count them from 0. Inside Callstream, and for its clients, each has a
# unique call_id; the agent gets its own ids back.


async def _record_yielded(run: Run, events: AsyncIterable[Any]) -> None:
    """Records AG-UI events until there are no more; a None among them is ignored."""
    reader = Reader()
    call_ids: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        close = getattr(events, "aclose", None)  # generators have it, iterators need not
        if close is not None:
            stack.push_async_callback(close)
        async for event in events:
            if event is not None:
                await _record(run, reader.read(_as_dict(event)), call_ids)
    await _record(run, reader.end(), call_ids)


async def _record(run: Run, events: Sequence[RunEvent], call_ids: dict[str, str]) -> None:
    while events:
        for event in events:
            if isinstance(event, CallStarted):
                call_ids[event.call_id] = await run.free_call_id(event.call_id)
        try:
            await run.record([_rename(event, call_ids) for event in events])
        except CallIdTaken:
            continue  # Another process took this id first. Nothing was stored, and the next free one is tried.
        return


def _rename(event: RunEvent, call_ids: Mapping[str, str]) -> RunEvent:
    call_id = call_ids.get(getattr(event, "call_id", ""))
    return event if call_id is None else msgspec.structs.replace(event, call_id=call_id)


async def _restore_ids(run_input: RunAgentInput, directory: Directory) -> RunAgentInput:
    """The input with the agent's own ids for calls that have a different id in the journal."""
    wire_ids: dict[str, str] = {}
    for call_id in {getattr(named, field) for named, field in _call_ids(run_input)}:
        call = await directory.find_by_call_id(call_id) if _NUMBERED.fullmatch(call_id) else None
        if call is not None and call.provider_id is not None:
            wire_ids[call_id] = call.provider_id
    if not wire_ids:
        return run_input
    copied = run_input.model_copy(deep=True)
    for named, field in _call_ids(copied):
        call_id = getattr(named, field)
        setattr(named, field, wire_ids.get(call_id, call_id))
    return copied


def _call_ids(run_input: RunAgentInput) -> Iterator[tuple[BaseModel, str]]:
    """Where the input names calls: each object that holds a call id, and the name of the field."""
    for message in run_input.messages:
        if isinstance(message, ToolMessage):
            yield message, "tool_call_id"
        elif isinstance(message, AssistantMessage):
            yield from ((call, "id") for call in message.tool_calls or ())
    yield from ((entry, "interrupt_id") for entry in run_input.resume or ())


def _as_dict(event: Any) -> dict[str, Any]:
    if isinstance(event, dict):
        return event
    if isinstance(event, BaseModel):
        return event.model_dump(mode="json", by_alias=True, exclude_none=True)
    raise UsageError(f"expected the agent to yield AG-UI events, got {type(event).__name__}")
