"""When a tool is called in Python, finds the model's call that this is for.

A framework calls a tool without saying for which call. It may have changed the arguments: filled in defaults, stripped
text, made objects of them. So a Python call of a tool in a run is matched to one of the model's calls of that tool, each of
which is matched once: the one with the most similar arguments, and the first of those that are equally similar. It follows
that:

- a tool that has begun early is waited for, and does not run again;
- the tool of a call that was rejected does not run;
- a call whose tool has run is not undone when the run ends before its result was seen: see ``Ending``;
- the tool can find out its own call: ``current_call``.

A tool that is not called for the model, such as a helper of another tool, is not matched: there are no claims inside a tool.

In a run that can go on in another process, such a tool begins only when that has been recorded, and its result is recorded
when it has returned. A result that an earlier attempt recorded is given back, and the tool does not run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from callstream.calls import HAS_OUTCOME, REFUSED, Call, CallState
from callstream.errors import CallRejected, RunOver, ToolFailed, TransitionError, UsageError
from callstream.events import CallAwaiting, CallExecuting, CallProgressed, Question, ReplayRule
from callstream.runtime.continuing import ASKED_AS, INTERRUPTED, Replay
from callstream.runtime.core import RunCore
from callstream.runtime.early import EarlyRun, EarlyRuns
from callstream.runtime.log import is_being_cancelled
from callstream.runtime.ownloop import Work, run_in
from callstream.runtime.questions import Decision, QuestionRef, Questions
from callstream.tools import NOT_DONE, UNKNOWN, CallClaims, ClaimedCall, Joined, Reconcile, Streamed, Tool, running_for

logger = logging.getLogger("callstream")

RUNNING = (CallState.EXECUTING, CallState.RUNNING_EARLY)

QUESTION: Final = (
    "The process stopped while this tool ran. It may or may not have taken effect. May it run again? If it has taken "
    'effect, say no, with its result: {"confirmed": false, "payload": {"result": …}}.'
)


class EarlierCalls:
    """The calls of a run's earlier attempts, if it goes on in another process. Each one's outcome is given back once.

    A tool that was running when its process died may have taken effect. It is settled by the rule that was in force when it
    began, which a newer build cannot loosen: the tool runs again, its ``reconcile`` function finds out what happened, a
    person decides, or the call counts as interrupted.
    """

    def __init__(self, run: RunCore, questions: Questions) -> None:
        self._run = run
        self._questions = questions

    def has(self, call_id: str) -> bool:
        """Whether an earlier attempt made the call, and nothing has been given back for it yet."""
        return self._run.replay is not None and self._run.replay.has(call_id)

    def asks(self, call_id: str, tool: Tool[Any] | None) -> bool:
        """Whether the host should ask a person what becomes of the call, because its tool was running. True only once."""
        replay = self._run.replay
        if replay is None or not replay.has(call_id) or self._run.call(call_id).state is not CallState.EXECUTING:
            return False
        if tool is None or not tool.replay == replay.rules.get(call_id) == "ask":
            return False
        replay.begun.add(call_id)
        return True

    async def resolve(
        self,
        call_id: str,
        tool: Tool[Any] | None,
        *,
        is_safe: bool = False,
        as_result: Callable[[Any], Any] = lambda found: found,
    ) -> Call | None:
        """The call with its outcome, or running if its tool has to run again; None if it has to run like any other.

        ``tool``: the call's tool as it is now. ``is_safe``: a host vouches that running it again is harmless. ``as_result``
        turns what ``reconcile`` finds into a result.
        """
        run, replay = self._run, self._run.replay
        if replay is None or not replay.has(call_id):
            return None
        if run.call(call_id).state in RUNNING:
            now: ReplayRule = "safe" if is_safe else "unsafe" if tool is None else tool.replay
            began_as = replay.rules.get(call_id, "unsafe")
            reconcile = None if tool is None else tool.reconcile
            await self._resolve_running(run.call(call_id), now if now == began_as else "unsafe", reconcile, as_result)
        elif run.call(call_id).state is CallState.AWAITING and call_id in replay.asked:
            await self._ask(run.call(call_id), replay)
        call = run.call(call_id)
        if call.state not in HAS_OUTCOME and call.state not in RUNNING:
            return None
        (replay.given if call.state in HAS_OUTCOME else replay.begun).add(call_id)
        return call

    async def _resolve_running(
        self, call: Call, rule: ReplayRule, reconcile: Reconcile | None, as_result: Callable[[Any], Any]
    ) -> None:
        run, replay = self._run, self._run.replay
        if rule == "safe":
            return
        if rule == "ask" and call.state is CallState.EXECUTING and replay is not None:
            await self._ask(call, replay)
            return
        if rule == "reconcile" and reconcile is not None:
            found = reconcile(call)
            found = await found if inspect.isawaitable(found) else found
            if found is NOT_DONE:
                return
            if found is not UNKNOWN:
                await run.complete(call.call_id, as_result(found))
                return
        logger.warning("run %s: tool %s was interrupted, and its outcome is unknown", run.run_id, call.name)
        run.engine.observers.tool_interrupted(run, call)
        await run.fail(call.call_id, INTERRUPTED)

    async def _ask(self, call: Call, replay: Replay) -> None:
        """Asks a person to decide, and waits for that. An earlier attempt may have asked already."""
        run, call_id = self._run, call.call_id
        if call.state is not CallState.AWAITING:
            replay.asked[call_id] = run.engine.new_id("call")
            question = Question("confirmation", QUESTION, metadata={ASKED_AS: replay.asked[call_id]})
            await run.record([CallAwaiting(call_id, question, is_paused=True)])
        asked = QuestionRef(replay.asked[call_id], run.thread_id, run.principal)
        deciding = asyncio.ensure_future(self._decision(call, asked))
        undo = run.on_stop(lambda reason: deciding.cancel())
        if run.is_ending:  # it may have begun to end since it was last written to
            deciding.cancel()
        try:
            decision = await deciding
        except (asyncio.CancelledError, RunOver):
            if not run.is_elsewhere:
                await self._questions.withdraw(asked, run.call(call_id), INTERRUPTED)
            if is_being_cancelled():
                raise
            raise RunOver(f"run {run.run_id!r} was ended while a person was asked about tool {call.name!r}") from None
        finally:
            undo()
        payload = decision.said.get("payload")
        if decision.is_yes:
            await run.record([CallExecuting(call_id, "ask")])
        elif isinstance(payload, dict) and "result" in payload:
            await run.complete(call_id, payload["result"])
        else:
            await run.fail(call_id, REFUSED)

    async def _decision(self, call: Call, asked: QuestionRef) -> Decision:
        run = self._run
        about = {"tool": call.name, "arguments": call.args, "why": QUESTION}
        await self._questions.ask(asked, about, Question("confirmation", QUESTION, about=call.call_id))
        names = {"threadId": asked.thread_id, "toolCallId": asked.question_id, "message": QUESTION}
        await run.record([CallProgressed(call.call_id, {"asks": names})])
        logger.warning("run %s: tool %s was interrupted; a person is asked about it", run.run_id, call.name)
        return Decision.of(await self._questions.answer(asked))


def outcome_of(call: Call) -> Any:
    """What the tool of a call returned in an earlier attempt. If it failed, raises an exception in place of its error."""
    if call.state is CallState.COMPLETED:
        return call.result
    if call.error in (INTERRUPTED, REFUSED):
        raise CallRejected(call.call_id, call.name, call.error, reason="interrupted")
    raise ToolFailed(call.name, call.error or "")


class Claims:
    """The claims of one run. Tools may be called in any thread."""

    def __init__(self, run: RunCore, early: EarlyRuns, earlier: EarlierCalls) -> None:
        self._run = run
        self._early = early
        self._earlier = earlier
        self._claimed: set[str] = set()
        self._delivered: set[str] = set()
        self._lock = threading.Lock()

    def find(self, tool: Tool[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ClaimedCall | None:
        """The model's call that this Python call of the tool is for, which is claimed by it; None if there is none.

        Raises CallRejected if the tool must not run for it.
        """
        run = self._run
        if run.outcome is not None:
            return None
        with self._lock:
            waiting = [call for call in run.calls if call.call_id not in self._claimed and self._may_mean(tool, call)]
            if not waiting:
                return None
            call = max(waiting, key=lambda each: self._likeness(tool, each, args, kwargs))  # the first of equals
            self._claimed.add(call.call_id)
        early = self._early.begun(call.call_id)
        joined: Joined | None = None if early is None else early.join()
        if joined is None and call.state is CallState.DISCARDED:
            raise run.rejection(call.call_id)
        if joined is None and self._is_recorded(call):
            function: Any = tool
            joined = _RecordedCall(run, self._earlier, call, partial(function, *args, **kwargs), tool)
        return ClaimedCall(call, joined)

    def _is_recorded(self, call: Call) -> bool:
        """Whether the run records that the tool begins and ends, because it can go on elsewhere."""
        keeping = self._run.keeping
        if keeping is None or keeping.is_given_up:
            return False
        return call.state is CallState.ARGS_COMPLETE or self._earlier.has(call.call_id)

    def mark_delivered(self, call_ids: Collection[str]) -> None:
        """Notes that the program has got these calls whole, and runs their tools by itself."""
        self._delivered |= set(call_ids)

    def handed_over(self) -> frozenset[str]:
        """The calls whose tools have run, or may have: a tool that is not one of this Callstream runs unobserved."""
        tools = self._run.engine.tools
        unseen = {call.call_id for call in self._run.calls if call.name not in tools}
        return frozenset(self._claimed | (self._delivered & unseen))

    def _may_mean(self, tool: Tool[Any], call: Call) -> bool:
        run = self._run
        early = self._early.begun(call.call_id)
        if early is not None:
            is_whole = not call.is_being_written or (run.rejected == "forward" and call.state is CallState.DISCARDED)
            return early.tool == tool and not early.is_joined and is_whole
        if run.engine.find_tool(call.name) != tool or run.hides(call.call_id):
            return False
        if self._earlier.has(call.call_id):
            return True
        if call.state is CallState.DISCARDED:
            return run.rejected == "forward" and run.tool_use.is_untold(call)
        return call.state in (CallState.ARGS_COMPLETE, CallState.EXECUTING)

    def _likeness(self, tool: Tool[Any], call: Call, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
        """How many arguments of a Python call of the tool are those that the model wrote, or their converted values."""
        try:
            bound = inspect.signature(tool).bind_partial(*args, **kwargs).arguments
        except TypeError:
            return -1
        written = call.args if isinstance(call.args, dict) else {}
        early: EarlyRun | None = self._early.begun(call.call_id)
        typed = early.arguments if early is not None and isinstance(early.arguments, dict) else {}
        values = {**{name: value for name, value in typed.items() if not isinstance(value, Streamed)}, **written}
        return sum(name in bound and _is_equal(bound[name], values[name], typed.get(name)) for name in values)


class _RecordedCall:
    """A tool that is called in Python for a call of a run that can go on in another process. See ``Joined``."""

    def __init__(
        self, run: RunCore, earlier: EarlierCalls, call: Call, function: Callable[[], Any], tool: Tool[Any]
    ) -> None:
        self._run = run
        self._earlier = earlier
        self._call = call
        self._function = function
        self._tool = tool

    async def wait(self) -> Any:
        """Runs the tool, in the event loop of its caller."""
        earlier = await self._there(self._begin)
        if earlier is not None:
            return _given_back(earlier)
        try:
            with running_for(self._call):
                made = self._function()
                value = await made if inspect.isawaitable(made) else [item async for item in made]
        except BaseException as error:
            await self._there(partial(self._fail, error))
            raise
        await self._there(partial(self._complete, value))
        return value

    def wait_here(self) -> Any:
        """Runs the tool, a plain function, in the thread of its caller."""
        earlier = run_in(self._run.loop, self._begin)
        if earlier is not None:
            return _given_back(earlier)
        try:
            with running_for(self._call):
                made = self._function()
                value = list(made) if inspect.isgenerator(made) else made
        except BaseException as error:
            run_in(self._run.loop, partial(self._fail, error))
            raise
        run_in(self._run.loop, partial(self._complete, value))
        return value

    async def _begin(self) -> Call | None:
        """The call with the outcome of an earlier attempt; None if its tool runs now, which is recorded."""
        earlier = await self._earlier.resolve(self._call.call_id, self._tool)
        if earlier is None:
            self._call = await self._run.execute(self._call.call_id)
        return earlier if earlier is not None and earlier.state in HAS_OUTCOME else None

    async def _complete(self, value: Any) -> None:
        try:
            await self._run.complete(self._call.call_id, value)
        except RunOver:
            pass  # the run's end has settled the call
        except TransitionError:
            raise
        except UsageError:
            assert self._run.keeping is not None, "it can go on elsewhere"
            await self._run.keeping.give_up(f"what tool {self._call.name} returned is not JSON")

    async def _fail(self, error: BaseException) -> None:
        if not self._run.is_ending:
            await self._run.fail(self._call.call_id, error)

    async def _there(self, work: Work[Any]) -> Any:
        """Does work on the event loop of the run."""
        loop = self._run.loop
        if loop is asyncio.get_running_loop():
            return await work()
        return await asyncio.to_thread(run_in, loop, work)


def _given_back(call: Call) -> Any:
    """What the caller of the tool gets. That may be a framework, so an interruption has to reach the model as a result."""
    try:
        return outcome_of(call)
    except CallRejected as interrupted:
        return str(interrupted)


def only_claim(call: Call, tool: Tool[Any], early: EarlyRun | None = None) -> CallClaims:
    """For a host that knows which call it runs: the tool that it calls is for that call, and may have begun early."""
    return lambda called, args, kwargs: ClaimedCall(call, early) if called == tool else None


def _is_equal(value: Any, written: Any, converted: Any) -> bool:
    try:
        return value in (written, converted) or bool(msgspec.to_builtins(value, enc_hook=_dump) == written)
    except (TypeError, ValueError):
        return False


def _dump(value: Any) -> Any:
    if not hasattr(value, "model_dump"):
        raise TypeError(f"{type(value).__name__} is not JSON")
    return value.model_dump(mode="json")
