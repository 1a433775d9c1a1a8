"""``ADKAgent``: an agent of google-adk behind AG-UI.

``run`` starts a run in the journal, lets google-adk work on it, and yields what a follower of the journal sees. There is
only one emitter, so a client that joins later is shown the same as the first one.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Self, TypeAlias, Unpack
from weakref import WeakKeyDictionary

from ag_ui.core import BaseEvent, RunAgentInput, ToolMessage
from ag_ui.core import Event as AnyEvent
from google.adk.agents.base_agent import BaseAgent
from google.adk.apps import App
from google.adk.artifacts import InMemoryArtifactService
from google.adk.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from google.adk.memory import InMemoryMemoryService
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.workflow import BaseNode
from pydantic import TypeAdapter

from callstream.adk.agentrun import AgentRun, ClientTurn
from callstream.adk.calls import CREDENTIAL
from callstream.adk.history import messages_in
from callstream.adk.plugin import CallstreamPlugin, HostedPlugin
from callstream.adk.services import KeptSession, ResumedSessions, shielded
from callstream.adk.settings import AgentOptions, complete
from callstream.adk.tapping import client_toolsets, structured_agents, tap_tree
from callstream.adk.threads import IdleThreads, ThreadKey, Threads, public_state
from callstream.agui import AguiEvent, Conversation, Translator, View, encode, encode_sse
from callstream.agui.events import MessagesSnapshot, RunError
from callstream.agui.messages import Metadata, answers_in, called_in, digest_of, lost_answers, without_answers_to
from callstream.agui.presentation import OlderClient, Predictions, Presentation, Presenter
from callstream.calls import Call
from callstream.callstream import Callstream
from callstream.errors import AnswerRefused, JournalError, RunOver, TooMany, UsageError
from callstream.events import InputKept, Record, RunStarted
from callstream.journal import Journal, RunRow, history
from callstream.runtime import Driver, DriverSettings, Limit, Run, RunRequest, StartedRun
from callstream.runtime.answers import Directory
from callstream.runtime.continuing import OnDivergence, pack
from callstream.runtime.driver import AppRuns
from callstream.runtime.run import journal_obstacles

logger = logging.getLogger("callstream")

_EVENT: TypeAdapter[Any] = TypeAdapter(AnyEvent)


class ADKAgent:
    """``ADKAgent(adk_agent=agent, app_name="app")``; ``AgentOptions`` lists the other parameters.

    The agent that runs is a copy of the one given, with the tap in its models. Without ``callstream`` calls are
    journaled in memory, unless ``callstream serve`` runs the agent. The iterator of ``run`` owns the run: closing the
    iterator stops it. ``owns_callstream`` and ``owns_sessions`` say whether the agent made these itself, in memory.
    """

    def __init__(
        self, adk_agent: BaseNode | None = None, app_name: str | None = None, **options: Unpack[AgentOptions]
    ) -> None:
        if isinstance(adk_agent, App):
            raise UsageError("ADKAgent needs adk_agent, an agent of google-adk, got an App: use ADKAgent.from_app")
        if not isinstance(adk_agent, BaseNode):
            raise UsageError(f"ADKAgent needs adk_agent, an agent of google-adk, got {type(adk_agent).__name__}")
        name = app_name or adk_agent.name
        self._build(App.model_construct(name=name, root_agent=adk_agent, plugins=[]), options)
        self._app_is_named = app_name is not None

    @classmethod
    def from_app(cls, app: App, **options: Unpack[AgentOptions]) -> Self:
        """An agent of an App, with the App's plugins, resumability and other settings."""
        if not isinstance(app, App):
            raise UsageError(f"ADKAgent.from_app needs an App of google-adk, got {type(app).__name__}")
        made = cls.__new__(cls)
        made._build(app, options)
        made._app_is_named = True
        return made

    def _build(self, app: App, options: AgentOptions) -> None:
        settings = self._settings = complete(options)
        self._predictions = Predictions(settings["predict_state"])
        plugins = [plugin for plugin in app.plugins if not isinstance(plugin, CallstreamPlugin)]
        registered = next((plugin for plugin in app.plugins if isinstance(plugin, CallstreamPlugin)), None)
        theirs = registered.callstream if registered is not None else None
        if theirs is not None and not isinstance(theirs, Callstream):
            raise UsageError("expected the App's CallstreamPlugin to have a callstream.Callstream")
        self.callstream: Callstream = settings["callstream"] or theirs or Callstream()
        self.owns_callstream = settings["callstream"] is None and theirs is None
        plugin = self._plugin = HostedPlugin(self.callstream, registered, settings)
        assert app.root_agent is not None
        self.root_agent: BaseNode = tap_tree(app.root_agent, self.callstream)
        """The copy that runs."""
        self._app = app.model_copy(update={"root_agent": self.root_agent, "plugins": [plugin, *plugins]})
        in_memory = settings["use_in_memory_services"]
        self._artifacts = shielded(settings["artifact_service"] or (InMemoryArtifactService() if in_memory else None))
        self._memory = shielded(settings["memory_service"] or (InMemoryMemoryService() if in_memory else None))
        credentials = settings["credential_service"] or (InMemoryCredentialService() if in_memory else None)
        self._credentials = shielded(credentials)
        self.owns_sessions = settings["session_service"] is None
        self._keep_sessions_in(settings["session_service"] or InMemorySessionService())
        self._toolsets = list(client_toolsets(self.root_agent))
        self._silent = frozenset() if settings["show_structured_output"] else structured_agents(self.root_agent)
        self._runners: dict[str, Runner] = {}
        self._active: set[Run] = set()
        self._app_runs = AppRuns()
        self._limit = Limit(settings["max_concurrent_executions"])
        self._drivers: WeakKeyDictionary[asyncio.AbstractEventLoop, Driver] = WeakKeyDictionary()
        self._closings = 0
        self.continues = settings["continues"]
        """Whether its runs are kept so that another process can continue them; set by a server that takes over runs."""
        self.on_divergence: OnDivergence = "fail"
        """What happens if a run that continues here sends a model a different request than before."""
        self.max_attempts = 3

    def keep_in(self, journal: Journal | None, session_service: BaseSessionService | None) -> None:
        """Sets where calls and sessions are kept if the constructor was not given a place. None: they stay in memory.

        To be called before the first run. The caller closes what it passes here, as with the constructor.
        """
        if journal is not None:
            self.callstream.journal = journal
            self.owns_callstream = False
        if session_service is not None:
            self.owns_sessions = False
        self._keep_sessions_in(session_service or self._threads.service)

    @property
    def sessions_are_in_memory(self) -> bool:
        """Whether no other process can see its sessions."""
        return isinstance(self._threads.service, InMemorySessionService)

    def _keep_sessions_in(self, sessions: BaseSessionService) -> None:
        if isinstance(sessions, InMemorySessionService) and self.callstream.journal.is_persistent:
            logger.warning(
                "google-adk's sessions are in memory and the journal is not: after a restart, calls that await an answer "
                "cannot be answered. Give the agent a session_service."
            )
        self._threads = Threads(shielded(sessions), thread_is_session=self._settings["use_thread_id_as_session_id"])
        self._idle = self._idle_threads()

    def _idle_threads(self) -> IdleThreads | None:
        """Forgets idle threads, or adds them to the memory service; None if neither is wanted."""
        settings = self._settings
        owns_sessions = self.owns_sessions and settings["delete_session_on_cleanup"]
        remembers = settings["memory_service"] is not None and settings["save_session_to_memory_on_cleanup"]
        has_work = self.owns_callstream or owns_sessions or remembers
        if settings["session_timeout_seconds"] is None or not has_work:
            return None
        return IdleThreads(
            settings["session_timeout_seconds"],
            self.callstream.journal,
            self._threads,
            self._memory if remembers else None,
            owns_journal=self.owns_callstream,
            owns_sessions=owns_sessions,
            clock=time.monotonic,
        )

    # -- a run --

    async def run(self, input: RunAgentInput) -> AsyncGenerator[BaseEvent, None]:  # noqa: A002  the name that callers use
        """The AG-UI events of one run. An error is logged, and is its last event, RUN_ERROR."""
        batches = self._batches(input)
        async with aclosing(batches):
            async for events, _ in batches:
                for event in events:
                    yield _EVENT.validate_json(encode(event))

    async def run_sse(self, run_input: RunAgentInput, *, once: bool = False) -> AsyncGenerator[bytes, None]:
        """The same as server-sent events, without the detour through pydantic models.

        ``once``: a request that is sent again is shown the run that it began the first time.
        """
        app_name, user_id, thread_id = self._thread_of(run_input)
        request = RunRequest(thread_id, run_input.run_id, digest_of(run_input), user_id, app_name) if once else None
        batches = self._batches(run_input, request)
        async with aclosing(batches):
            async for events, seq in batches:
                if events:
                    yield encode_sse(events, seq)

    async def _batches(self, run_input: RunAgentInput, request: RunRequest | None = None) -> EventBatches:
        """Iterating this owns the run: closing it stops the run."""
        driver, thread = self._driver(), self._thread_of(run_input)
        translator = Translator(self.view)
        translator.answers = [answer.call_id for answer in answers_in(run_input)]
        presentation: Presenter = self.presentation(run_input)
        if run_input.protocol_version is None:
            presentation = OlderClient(presentation)
        try:
            run_id = await driver.begin(partial(self._start, run_input, self._closings), request=request, turn=thread)
        except TooMany as full:
            why = f"There are {full.most} runs already; try again later." if full.most else "No runs are taken here."
            yield _refusal("too_many_runs", why)
            return
        except AnswerRefused as refused:
            yield _refusal("answer_refused", str(refused))
            return
        except Exception:  # the journal's, or whatever a session service raises
            logger.exception("a run of thread %s could not be started", run_input.thread_id)
            yield _refusal("failed", "The run could not be started.")
            return
        async with driver.watch(run_id) as task:
            try:
                async with aclosing(self.callstream.journal.follow(run_id)) as records:  # type: ignore[type-var]
                    while (record := await _next(records, task)) is not None:
                        events = translator.feed(record)
                        if translator.snapshot_at is not None:
                            snapshot = await self._snapshot(record, run_input, thread, translator.doubted)
                            translator.place(snapshot, events)
                        yield presentation.show(events), record.seq
                # A stream that merely stops looks like success.
                if unfinished := translator.end():
                    yield presentation.show(unfinished), None
            except JournalError:
                yield presentation.show(translator.end()), None
                raise
            if task is not None:
                await asyncio.wait({task})

    async def _snapshot(
        self, record: Record, run_input: RunAgentInput, thread: ThreadKey, doubted: Collection[str]
    ) -> MessagesSnapshot | None:
        """The thread up to a record, including the client's own messages.

        ``doubted``: if there are any, None unless one of these calls has another answer than the client's.
        """
        directory = Directory(self.callstream.journal, run_input.thread_id, thread[1])
        calls = {call_id: await directory.find(call_id) for call_id in doubted}
        lost = lost_answers(run_input, calls)
        if doubted and not lost:
            return None
        own = without_answers_to(lost, run_input.messages)
        conversation = await self._conversation(thread, record)
        return conversation.snapshot(
            message.model_dump(mode="json", by_alias=True, exclude_none=True) for message in own
        )

    def _driver(self) -> Driver:
        """Closing an iterator stops its run, and waits for that."""
        loop = asyncio.get_running_loop()
        if loop not in self._drivers:
            settings = DriverSettings(leave_seconds=0.0, leave_reason="closed")
            self._drivers[loop] = Driver(self.callstream.engine, settings, self._limit)
        return self._drivers[loop]

    async def _start(self, run_input: RunAgentInput, closings: int) -> StartedRun:
        if self._closings != closings:
            raise RunOver("the agent was closed while the run waited for its thread")
        return await self.begin(run_input)

    # -- a run that a server drives and follows --

    async def begin(
        self, run_input: RunAgentInput, principal: str | None = None, *, exclusive: bool = False
    ) -> StartedRun:
        """Starts a run and leaves the work on it to the caller. ``principal``: the run's owner, if a server knows it.

        ``exclusive``: raises ThreadBusy if the thread has an active run. Raises AnswerRefused if the client sends only
        answers, and one of them cannot be given to google-adk.
        """
        thread = self._thread_of(run_input, principal)
        app_name, user_id, _ = thread
        engine = self.callstream.engine
        if self._idle is not None:
            self._idle.use(thread)
            await engine.journal.open()
            await self._idle.forget({run_input.thread_id, *(run.thread_id for run in self._active)})
        turn = ClientTurn(run_input, thread, engine.journal, self._threads, self._app_runs)
        await turn.read(self.root_agent, seeds=self._settings["seed_first_run_history"])
        given_up = tuple(await self.callstream.orphaned_calls.find(run_input.thread_id, user_id, turn.runs))
        credentials = await turn.credentials()
        began = time.time()
        run = await Run.start(
            engine,
            RunStarted(run_input.thread_id, user_id, self._input_to_keep(turn, credentials), exclusive),
            run_input.run_id,
            kept=self._all_input(run_input, turn.heard)
            if self.continues and self.can_continue and not credentials
            else None,
            as_current=False,
            host_traces=True,
            numbered=True,
        )
        self._app_runs.add(app_name, run.run_id, began, time.time())
        run.directory.own_runs = turn.directory.own_runs
        if app_name not in self._runners:
            self._runners[app_name] = self._new_runner(app_name, self._threads.service)
        return self._started(run, turn, self._runners[app_name], given_up)

    def _started(self, run: Run, turn: ClientTurn, runner: Runner, given_up: tuple[Call, ...] = ()) -> StartedRun:
        self._active.add(run)
        thread = turn.thread  # nothing else of the turn is kept alive by the run
        run.on_stop(lambda reason: self._release(run, thread))
        work = AgentRun(run, turn, runner, self._plugin, self._settings, self._predictions, given_up=given_up)
        return StartedRun(run, work.work, thread)

    # -- a run of another process that continues here --

    @property
    def can_continue(self) -> bool:
        """Whether another process could continue its runs: it can find both the journal and the sessions."""
        return not self.obstacles

    @property
    def obstacles(self) -> list[str]:
        """Why no other process could continue its runs; empty if one could."""
        sessions = ["google-adk's sessions are in memory"] if self.sessions_are_in_memory else []
        return [*journal_obstacles(self.callstream.journal), *sessions]

    @property
    def apps(self) -> frozenset[str]:
        """The names under which its runs are kept."""
        return frozenset({self._app.name})

    def _all_input(self, run_input: RunAgentInput, heard: frozenset[str]) -> InputKept:
        """All input except the credentials of earlier turns: clients send them with every run, and the session has them."""
        kept = run_input.model_dump(mode="json", by_alias=True, exclude_none=True)
        names = called_in(run_input.messages)
        for message in kept["messages"]:
            if names.get(message.get("toolCallId")) == CREDENTIAL:
                message["content"] = ""
        data = {"input": kept, "heard": sorted(heard)}
        return InputKept(self._app.name, pack(json.dumps(data).encode()), attempts=self.max_attempts)

    async def go_on(self, run_id: str) -> StartedRun:
        """Continues a run that this process has taken over from one that died or handed it over.

        Raises CannotGoOn if that is not possible; then the run has ended.
        """
        engine, on_divergence = self.callstream.engine, self.on_divergence
        run = await Run.go_on(engine, run_id, on_divergence=on_divergence, host_traces=True)
        replay = run.replay
        assert replay is not None, "it goes on"
        kept = json.loads(replay.run_input)
        run_input = RunAgentInput.model_validate(kept["input"])
        thread = self._thread_of(run_input, run.principal)
        before = None if replay.session is None else KeptSession.read(replay.session)
        sessions = ResumedSessions(self._threads.service, before)
        threads = Threads(sessions, thread_is_session=self._settings["use_thread_id_as_session_id"])
        turn = ClientTurn(run_input, thread, engine.journal, threads, self._app_runs)
        turn.heard = frozenset(kept["heard"])
        return self._started(run, turn, self._new_runner(thread[0], sessions), run.given_up)

    def _release(self, run: Run, thread: ThreadKey) -> None:
        self._active.discard(run)
        if self._idle is not None:
            self._idle.use(thread)

    async def import_thread(self, thread_id: str, principal: str | None = None) -> None:
        """Imports a thread from its session if the journal has never had a run of it. Beginning a run does so too."""
        run_input = RunAgentInput(thread_id=thread_id, run_id="", messages=[])
        thread = self._thread_of(run_input, principal)
        turn = ClientTurn(run_input, thread, self.callstream.journal, self._threads, self._app_runs)
        await turn.import_thread(self.root_agent)

    def presentation(self, run_input: RunAgentInput | None = None) -> Presentation:
        """How one stream shows the translator's events: that of the request ``run_input``, or of a client that joins."""
        messages = run_input.messages if run_input is not None else ()
        answered = frozenset(message.tool_call_id for message in messages if isinstance(message, ToolMessage))
        known = frozenset(called_in(messages))
        streams = self._settings["streaming_function_call_arguments"]
        return Presentation(self._predictions, streams_arguments=streams, answered=answered, known=known)

    @property
    def name(self) -> str:
        """The app's name."""
        return self._app.name

    @property
    def view(self) -> View:
        """What clients get to see."""
        return View(
            errors=self._settings["show_errors"],
            emit_interrupt_outcome=self._settings["emit_interrupt_outcome"],
            silent=self._silent,
            nested=self._settings["show_nested_agents"],
            emit_messages_snapshot=self._settings["emit_messages_snapshot"],
        )

    def _input_to_keep(self, turn: ClientTurn, credentials: set[str]) -> dict[str, Any]:
        """The part of its input that a run keeps, with the names of the client's tools as the model knows them."""
        kept = turn.input_to_keep(credentials)
        names = [tool.name for tool in turn.run_input.tools or ()]
        if names:
            if not self._toolsets and isinstance(self.root_agent, BaseAgent):
                logger.warning("the client sent tools, but no agent has an AGUIToolset in its tools")
            known = dict.fromkeys([*names, *(toolset.named(name) for toolset in self._toolsets for name in names)])
            kept["tools"] = [{"name": name} for name in known]
        return kept

    # -- who and where --

    def user_of(self, run_input: RunAgentInput) -> str:
        """The user who owns the run."""
        if self._settings["user_id"]:
            return self._settings["user_id"]
        if self._settings["user_id_extractor"] is not None:
            return str(self._settings["user_id_extractor"](run_input))
        return f"thread_user_{run_input.thread_id}"

    def app_of(self, run_input: RunAgentInput) -> str:
        """The name of the app that the run's session belongs to."""
        if not self._app_is_named and self._settings["app_name_extractor"] is not None:
            return str(self._settings["app_name_extractor"](run_input))
        return self._app.name

    def _thread_of(self, run_input: RunAgentInput, principal: str | None = None) -> ThreadKey:
        return self.app_of(run_input), principal or self.user_of(run_input), run_input.thread_id

    def _new_runner(self, app_name: str, sessions: BaseSessionService) -> Runner:
        return Runner(
            app=self._app,
            app_name=app_name,
            session_service=sessions,
            artifact_service=self._artifacts,
            memory_service=self._memory,
            credential_service=self._credentials,
            plugin_close_timeout=self._settings["plugin_close_timeout"],
        )

    # -- what is known about a thread --

    async def thread_state(
        self,
        thread_id: str,
        *,
        app_name: str | None = None,
        user_id: str | None = None,
        run_input: RunAgentInput | None = None,
    ) -> Any:
        """State and messages of a thread, in AG-UI's form; None if there is no such thread.

        ``app_name`` and ``user_id`` are only used if the agent has no app and user of its own. ``run_input`` is passed to
        the extractors.
        """
        run_input = run_input or RunAgentInput(thread_id=thread_id, run_id="", messages=[])
        if user_id is None or self._settings["user_id"] or self._settings["user_id_extractor"] is not None:
            user_id = self.user_of(run_input)
        if app_name is None or self._app_is_named or self._settings["app_name_extractor"] is not None:
            app_name = self.app_of(run_input)
        thread = (app_name, user_id, thread_id)
        session = await self._threads.find(thread)
        if session is None:
            return None
        conversation = await self._conversation(thread)
        if not conversation.messages:
            is_forgotten = await self.callstream.journal.has_forgotten(thread_id, user_id)
            return {"state": public_state(session.state), "messages": [] if is_forgotten else messages_in(session)}
        snapshot = _EVENT.validate_json(encode(conversation.snapshot())).model_dump(mode="json", by_alias=True)
        return {"state": public_state(session.state), "messages": snapshot["messages"]}

    async def own_runs(self, rows: Sequence[RunRow]) -> list[RunRow]:
        """The rows that belong to the agent's app; all of them if each request names its app."""
        if not self._app_is_named and self._settings["app_name_extractor"] is not None:
            return list(rows)
        return await self._app_runs.of(self._app.name, rows, self.callstream.journal)

    async def _conversation(self, thread: ThreadKey, last: Record | None = None) -> Conversation:
        """The thread as it stands, or up to a record."""
        journal = self.callstream.journal
        app_name, user_id, thread_id = thread
        await journal.open()
        conversation = Conversation(self.view)
        rows = await self._app_runs.of(app_name, await journal.runs(thread_id=thread_id, principal=user_id), journal)
        if last is not None:
            rows = rows[[row.run_id for row in rows].index(last.run_id) :]
        async for records in history(journal, rows[::-1]):
            conversation.apply(
                each for each in records if last is None or each.run_id != last.run_id or each.seq <= last.seq
            )
        return conversation

    def get_capabilities(self) -> dict[str, Any] | None:
        """The capabilities that the application declared for the agent; None if it declared none."""
        return copy.deepcopy(self._settings["capabilities"])

    # -- the end --

    async def close(self) -> None:
        """Closes the runners, and the Callstream if it is the agent's own.

        Active runs are handed over to another process if one can continue them; others are stopped.
        """
        await self.rest()
        if self.owns_callstream:
            await self.callstream.aclose()

    async def rest(self) -> None:
        """The same, but the Callstream stays open: the next run opens toolsets and plugins again."""
        self._closings += 1
        if (driver := self._drivers.get(asyncio.get_running_loop())) is not None:
            await driver.hand_over("closed")
        for run in list(self._active):
            await run.stop("closed")
        if self._idle is not None:
            await self._idle.wait()
        for runner in self._runners.values():
            await runner.close()
        self._runners.clear()


# -- what ADKAgent.run yields --

_LAST_RECORD_SECONDS = 1.0
"""How long to wait for a record that was written before the journal failed."""


EventBatches: TypeAlias = AsyncGenerator[tuple[Sequence[AguiEvent], int | None], None]
"""The events of each record, with its number; None for events that do not come from a record."""


def _refusal(code: str, message: str) -> tuple[list[AguiEvent], None]:
    return [RunError(message=message, code=code, metadata=Metadata(0))], None


async def _next(records: AsyncIterator[Record], task: asyncio.Task[None] | None) -> Record | None:
    """The next record of a run. Raises JournalError if the journal did not accept the run's end, so that none can come."""
    if task is None:
        return await anext(records, None)
    limit = asyncio.timeout(None)

    def give_up(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and isinstance(done.exception(), JournalError):
            limit.reschedule(asyncio.get_running_loop().time() + _LAST_RECORD_SECONDS)

    try:
        async with limit:
            task.add_done_callback(give_up)
            return await anext(records, None)
    except TimeoutError:
        raise JournalError("the journal did not take the end of the run") from None
    finally:
        task.remove_done_callback(give_up)
