"""``ADKAgent``: an agent of google-adk behind AG-UI.

``run`` starts a run in the journal, lets google-adk work on it, and yields what a follower of the journal sees: there is
one emitter, and what a client was shown is what another client, joining later, is shown.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Self, Unpack
from weakref import WeakKeyDictionary

from ag_ui.core import BaseEvent, Message, RunAgentInput, ToolMessage, UserMessage
from ag_ui.core import Event as AnyEvent
from google.adk.agents.base_agent import BaseAgent
from google.adk.apps import App
from google.adk.artifacts import InMemoryArtifactService
from google.adk.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from google.adk.memory import InMemoryMemoryService
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session
from google.adk.workflow import BaseNode
from pydantic import TypeAdapter

from callstream.adk.agentrun import AgentRun, HostedPlugin
from callstream.adk.answers import answers_in, check_answers
from callstream.adk.calls import CREDENTIAL
from callstream.adk.contents import messages_in
from callstream.adk.history import import_session
from callstream.adk.plugin import CallstreamPlugin
from callstream.adk.presentation import AgentStream, EventBatches, Predictions, Presentation, ShownEvent
from callstream.adk.resuming import KeptSession, ResumedSessions
from callstream.adk.services import shielded
from callstream.adk.settings import AgentOptions, complete
from callstream.adk.tapping import client_toolsets, server_tools, structured_agents, tap_tree
from callstream.adk.threads import IdleThreads, SessionMemory, ThreadKey, Threads, passed_over, public_state, split
from callstream.agui import Conversation, Translator, View, encode_sse, for_older_client
from callstream.agui.events import encode
from callstream.agui.messages import as_history, called_in, digest_of, since_spoken
from callstream.calls import Call
from callstream.callstream import Callstream
from callstream.errors import RunOver, UsageError
from callstream.events import InputKept, MessageReceived, Record, RunStarted
from callstream.journal import Journal, RunRow, history
from callstream.runtime import Driver, DriverSettings, Run, RunRequest, Seats, StartedRun
from callstream.runtime.answers import Directory
from callstream.runtime.continuing import OnDivergence, pack
from callstream.runtime.driver import AppRuns

logger = logging.getLogger("callstream")

_EVENT: TypeAdapter[Any] = TypeAdapter(AnyEvent)


class _TurnDirectory(Directory):
    """The directory of one turn before its run begins: each id is looked for once."""

    def __init__(self, journal: Journal, thread_id: str, principal: str | None) -> None:
        super().__init__(journal, thread_id, principal)
        self._found: dict[str, Call | None] = {}

    async def find(self, named: str) -> Call | None:
        if named not in self._found:
            self._found[named] = await super().find(named)
        return self._found[named]


class _ClientTurn:
    """What a client brings to a thread, with what the journal and google-adk have of it, which are read once.

    The request is refused by it, and the run begins by it. ``heard``: see ``ADKAgent._heard``. ``history``: what it has of a
    conversation that began elsewhere.
    """

    def __init__(
        self,
        given: RunAgentInput,
        thread: ThreadKey,
        directory: Directory,
        find_session: Callable[[], Awaitable[Session | None]],
    ) -> None:
        self.given = given
        self.app_name, self.user_id, _ = thread
        self.directory = directory
        self.runs: Sequence[RunRow] = ()
        self.heard: frozenset[str] = frozenset()
        self.history: Sequence[Message] = ()
        self._find_session = find_session
        self._session: Session | None = None
        self._has_session = False

    async def session(self) -> Session | None:
        """google-adk's, before the run begins; None if there is none."""
        if not self._has_session:
            self._session = await self._find_session()
            self._has_session = True
        return self._session

    def new_session(self) -> Session:
        return Session(id=self.given.thread_id, app_name=self.app_name, user_id=self.user_id)

    async def credentials(self) -> set[str]:
        """The ids by which the client answers calls with a credential."""
        since = since_spoken(self.given.messages)
        names = [message.tool_call_id for message in since if isinstance(message, ToolMessage)]
        calls = {named: await self.directory.find(named) for named in names}
        return self.told_credentials() | {
            named for named, call in calls.items() if call is not None and call.name == CREDENTIAL
        }

    def told_credentials(self) -> set[str]:
        """Calls for a credential by what the client's messages say, in what it brings from elsewhere."""
        brought = called_in(self.history)
        return {named for named, name in brought.items() if name == CREDENTIAL}


class ADKAgent:
    """``ADKAgent(adk_agent=agent, app_name="app")``; ``AgentOptions`` lists the other parameters.

    The agent that runs is a copy of the one given, with the tap in its models. Without ``callstream`` calls are
    journaled in memory, unless ``callstream serve`` runs the agent. The iterator of ``run`` owns the run: closing the
    iterator stops it. ``owns_callstream`` and ``owns_sessions`` say whether it has made these itself, in memory.
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
        given = next((plugin for plugin in app.plugins if isinstance(plugin, CallstreamPlugin)), None)
        theirs = given.callstream if given is not None else None
        if theirs is not None and not isinstance(theirs, Callstream):
            raise UsageError("expected the App's CallstreamPlugin to have a callstream.Callstream")
        self.callstream: Callstream = settings["callstream"] or theirs or Callstream()
        self.owns_callstream = settings["callstream"] is None and theirs is None
        asks = settings["stream_arguments"]
        plugin = (
            HostedPlugin(self.callstream, stream_arguments=asks)
            if given is None
            else HostedPlugin.like(given, self.callstream, stream_arguments=asks)
        )
        plugin.join_text = settings["join_text"]
        if settings["trust_mcp_hints"]:
            plugin.trust_mcp_hints()
        self._plugin = plugin
        assert app.root_agent is not None
        self.root_agent: BaseNode = tap_tree(app.root_agent, self.callstream)
        """The copy that runs."""
        self._app = app.model_copy(update={"root_agent": self.root_agent, "plugins": [plugin, *plugins]})
        in_memory = settings["use_in_memory_services"]
        self._artifacts = shielded(settings["artifact_service"] or (InMemoryArtifactService() if in_memory else None))
        self._memory = shielded(settings["memory_service"] or (InMemoryMemoryService() if in_memory else None))
        remembers = settings["memory_service"] is not None and settings["save_session_to_memory_on_cleanup"]
        self._session_memory = SessionMemory(self._memory) if self._memory is not None and remembers else None
        credentials = settings["credential_service"] or (InMemoryCredentialService() if in_memory else None)
        self._credentials = shielded(credentials)
        self.owns_sessions = settings["session_service"] is None
        self._keep_sessions_in(settings["session_service"] or InMemorySessionService())
        self._toolsets = list(client_toolsets(self.root_agent))
        self._silent = frozenset() if settings["show_structured_output"] else structured_agents(self.root_agent)
        self._runners: dict[str, Runner] = {}
        self._active: set[Run] = set()
        self._app_runs = AppRuns()
        self._seats = Seats(settings["max_concurrent_executions"])
        self._drivers: WeakKeyDictionary[asyncio.AbstractEventLoop, Driver] = WeakKeyDictionary()
        self._closings = 0
        self.continues = settings["continues"]
        """Whether its runs are kept so that another process can go on with them; a server that takes runs over says so."""
        self.on_divergence: OnDivergence = "fail"
        self.max_attempts = 3
        """What becomes of one of them that goes on here and asks a model something else than before."""

    def keep_in(self, journal: Journal | None, session_service: BaseSessionService | None) -> None:
        """Says where calls and sessions are kept that would be in memory because the agent was not told. None: they are.

        To be called before the first run. What is given is the caller's to close, as what the constructor is given.
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
        """What forgets idle threads, or puts them into memory; None if neither is wanted."""
        settings = self._settings
        owns_sessions = self.owns_sessions and settings["delete_session_on_cleanup"]
        has_work = self.owns_callstream or owns_sessions or self._session_memory is not None
        if settings["session_timeout_seconds"] is None or not has_work:
            return None
        return IdleThreads(
            settings["session_timeout_seconds"],
            self.callstream.journal,
            self._threads,
            self._session_memory,
            owns_journal=self.owns_callstream,
            owns_sessions=owns_sessions,
            clock=time.monotonic,
        )

    # -- a run --

    async def run(self, input: RunAgentInput) -> AsyncGenerator[BaseEvent, None]:  # noqa: A002  the name that callers use
        """The AG-UI events of one run. What goes wrong in it is its last event, RUN_ERROR, and is logged."""
        batches = self._batches(input)
        async with aclosing(batches):
            async for events, _ in batches:
                for event in _for_client(input, events):
                    yield _EVENT.validate_json(encode(event))  # type: ignore[arg-type]

    async def run_sse(self, given: RunAgentInput, *, once: bool = False) -> AsyncGenerator[bytes, None]:
        """The same as server-sent events, without the detour through the models.

        ``once``: a request that is sent again is shown the run that it has begun before.
        """
        whose = (self.user_of(given), self.app_of(given))
        request = RunRequest(given.thread_id, given.run_id, digest_of(given), *whose) if once else None
        batches = self._batches(given, request)
        async with aclosing(batches):
            async for events, seq in batches:
                if events:
                    yield encode_sse(_for_client(given, events), seq)  # type: ignore[arg-type]

    def _batches(self, given: RunAgentInput, request: RunRequest | None = None) -> EventBatches:
        driver, user_id = self._driver(), self.user_of(given)

        async def thread_at(record: Record) -> Conversation:
            return await self._conversation(self.app_of(given), given.thread_id, user_id, record)

        stream = AgentStream(
            self.callstream.journal,
            driver,
            Translator(self.view),
            self.presentation(given),
            thread_at,
            given.messages,
            ends_with_snapshot=self._settings["emit_messages_snapshot"],
        )
        turn = (self.app_of(given), user_id, given.thread_id)
        start = partial(self._start, given, self._closings)
        return stream.batches(given.thread_id, partial(driver.begin, start, request=request, turn=turn))

    def _driver(self) -> Driver:
        """Closing an iterator stops its run, and waits for that."""
        loop = asyncio.get_running_loop()
        if loop not in self._drivers:
            settings = DriverSettings(leave_seconds=0.0, leave_reason="closed")
            self._drivers[loop] = Driver(self.callstream.engine, settings, self._seats)
        return self._drivers[loop]

    async def _start(self, given: RunAgentInput, closings: int) -> StartedRun:
        if self._closings != closings:
            raise RunOver("the agent was closed while the run waited for its thread")
        return await self.begin(given)

    # -- a run that a server drives and follows --

    async def begin(self, given: RunAgentInput, principal: str | None = None, *, exclusive: bool = False) -> StartedRun:
        """Starts a run and leaves the work on it to the caller. ``principal``: whose run it is, if a server knows.

        ``exclusive``: raises ThreadBusy if the thread has an active run. Raises AnswerRefused if the client brings nothing
        but answers, and one of them cannot be given to google-adk.
        """
        user_id = principal or self.user_of(given)
        thread = (self.app_of(given), user_id, given.thread_id)
        if self._idle is not None:
            self._idle.use(thread)
            await self.callstream.journal.open()
            await self._idle.forget({given.thread_id, *(run.thread_id for run in self._active)})
        turn = await self._turn(given, thread)
        await self._check_answers(turn)
        given_up = tuple(await self._plugin.left_behind.find(given.thread_id, user_id, turn.runs))
        credentials = await turn.credentials()
        began = time.time()
        run = await self.callstream.begin(
            RunStarted(given.thread_id, user_id, self._input_to_keep(turn, credentials), exclusive),
            given.run_id,
            kept=self._all_input(given, turn.heard) if self._can_keep and not credentials else None,
            as_current=False,
            host_traces=True,
            numbered=True,
        )
        self._app_runs.add(thread[0], run.run_id, began, time.time())
        run.directory.own_runs = turn.directory.own_runs
        self._add(run, thread)
        work = AgentRun(self._runner(thread[0]), self._plugin, self._threads, self._settings, self._predictions, given)
        return StartedRun(run, partial(work.work, run, user_id, given_up, turn.heard), thread)

    def _add(self, run: Run, thread: ThreadKey) -> None:
        self._active.add(run)
        run.on_stop(lambda reason: self._release(run, thread))

    # -- a run of another process, which goes on here --

    @property
    def can_continue(self) -> bool:
        """Whether another process could go on with its runs: journal and sessions are where that one finds them."""
        journal = self.callstream.journal
        return journal.is_persistent and not journal.redacts and not self.sessions_are_in_memory

    @property
    def _can_keep(self) -> bool:
        return self.continues and self.can_continue

    @property
    def apps(self) -> frozenset[str]:
        """The names under which its runs are kept."""
        return frozenset({self._app.name})

    def _all_input(self, given: RunAgentInput, heard: frozenset[str]) -> InputKept:
        """All but the credentials of earlier turns: clients send them with every run, and the session has them."""
        run_input = given.model_dump(mode="json", by_alias=True, exclude_none=True)
        names = called_in(given.messages)
        for message in run_input["messages"]:
            if names.get(message.get("toolCallId")) == CREDENTIAL:
                message["content"] = ""
        data = {"input": run_input, "heard": sorted(heard)}
        return InputKept(self._app.name, pack(json.dumps(data).encode()), attempts=self.max_attempts)

    async def go_on(self, run_id: str) -> StartedRun:
        """Goes on with a run that this process has taken over from one that died or handed it over.

        Raises CannotGoOn if that is not possible; the run has ended then.
        """
        engine, on_divergence = self.callstream.engine, self.on_divergence
        run = await Run.go_on(engine, run_id, on_divergence=on_divergence, host_traces=True)
        replay = None if run.keeping is None else run.keeping.replay
        assert replay is not None, "it goes on"
        kept = json.loads(replay.run_input)
        given = RunAgentInput.model_validate(kept["input"])
        thread = (self.app_of(given), run.principal or self.user_of(given), given.thread_id)
        before = None if replay.session is None else KeptSession.read(replay.session)
        sessions = ResumedSessions(self._threads.service, before)
        threads = Threads(sessions, thread_is_session=self._settings["use_thread_id_as_session_id"])
        self._add(run, thread)
        runner = self._new_runner(thread[0], sessions)
        work = AgentRun(runner, self._plugin, threads, self._settings, self._predictions, given)
        return StartedRun(run, partial(work.work, run, thread[1], (), frozenset(kept["heard"])), thread)

    def _release(self, run: Run, thread: ThreadKey) -> None:
        self._active.discard(run)
        if self._idle is not None:
            self._idle.use(thread)

    async def import_thread(self, thread_id: str, principal: str | None = None) -> None:
        """Imports a thread of which the journal has never had a run from its session. Beginning a run does so too."""
        given = RunAgentInput(thread_id=thread_id, run_id="", messages=[])
        await self.callstream.journal.open()
        await self._import(self._new_turn(given, (self.app_of(given), principal or self.user_of(given), thread_id)))

    def _new_turn(self, given: RunAgentInput, thread: ThreadKey) -> _ClientTurn:
        app_name, user_id, thread_id = thread
        directory = _TurnDirectory(self.callstream.journal, thread_id, user_id)
        return _ClientTurn(given, thread, directory, partial(self._threads.find, app_name, user_id, thread_id))

    async def _turn(self, given: RunAgentInput, thread: ThreadKey) -> _ClientTurn:
        journal, turn = self.callstream.journal, self._new_turn(given, thread)
        await journal.open()
        turn.runs = await journal.runs(thread_id=given.thread_id, principal=turn.user_id)
        if await self._import(turn, turn.runs):
            turn.runs = await journal.runs(thread_id=given.thread_id, principal=turn.user_id)
        turn.directory.own_runs = frozenset(row.run_id for row in turn.runs)
        turn.heard = await self._heard(turn)
        await self._look_for_history(turn)
        return turn

    async def _import(self, turn: _ClientTurn, runs: Sequence[RunRow] | None = None) -> bool:
        """Whether the journal has more of the thread now: it was imported, or has begun meanwhile. ``runs``: those that the
        journal has, if they are known.
        """
        journal, thread_id, user_id = self.callstream.journal, turn.given.thread_id, turn.user_id
        if await self._has_run(turn, runs):
            return False
        try:
            session = await turn.session()
        except Exception:  # noqa: BLE001  # whatever a session service raises, the run meets it again and fails by it
            return False
        if session is None or not session.events or await journal.has_forgotten(thread_id, user_id):
            return False
        if await self._has_run(turn, None):  # the session was looked for later, and has what that run has said
            return True
        await import_session(journal, session, thread_id, server_tools(self.root_agent))
        return True

    async def _has_run(self, turn: _ClientTurn, runs: Sequence[RunRow] | None) -> bool:
        journal, known = self.callstream.journal, runs
        for limit in (1, None):  # most often, the newest is the app's
            if runs is None:
                known = await journal.runs(thread_id=turn.given.thread_id, principal=turn.user_id, limit=limit)
            rows = (known or ())[:limit]
            if not rows or await self._app_runs.of(turn.app_name, rows, journal):
                return bool(rows)
        return False

    async def _heard(self, turn: _ClientTurn) -> frozenset[str]:
        """The messages of a user, beside answers, that runs of the thread have had although its session is gone."""
        since = since_spoken(turn.given.messages)
        said = {message.id for message in since if isinstance(message, UserMessage)}
        if not said or not any(isinstance(message, ToolMessage) for message in since):
            return frozenset()
        session = await turn.session()
        if session is not None and session.events:
            return frozenset()
        journal = self.callstream.journal
        rows = await self._app_runs.of(turn.app_name, turn.runs, journal)
        events = [record.event for record in await journal.read_whole([row.run_id for row in rows])]
        return frozenset(said & {event.message_id for event in events if isinstance(event, MessageReceived)})

    async def _look_for_history(self, turn: _ClientTurn) -> None:
        """Finds what the client brings to a thread that is new here, and with which the session will begin.

        An answer in it after which a person has said something is a part of it.
        """
        journal, messages = self.callstream.journal, turn.given.messages
        if not self._settings["seed_first_run_history"] or len(since_spoken(messages)) == len(messages):
            return
        if await self._has_run(turn, turn.runs) or await journal.has_forgotten(turn.given.thread_id, turn.user_id):
            return
        try:
            session = await turn.session()
        except Exception:  # noqa: BLE001  # the run meets it again and fails by it
            return
        if session is None or not session.events:
            turn.heard = passed_over(messages)
            turn.history, _ = split(messages, session or turn.new_session(), turn.heard)

    async def _check_answers(self, turn: _ClientTurn) -> None:
        # The last message need not be a result: clients put one beside its call, before what the model has said since.
        given = turn.given
        if not given.resume and (not given.messages or isinstance(given.messages[-1], UserMessage)):
            return
        session = await turn.session() or turn.new_session()
        past, new = split(given.messages, session, turn.heard)
        if not any(isinstance(message, UserMessage) for message in new):
            brought = past if self._settings["seed_first_run_history"] else ()
            await check_answers(turn.directory, session, self.root_agent, list(answers_in(given, new)), brought)

    def presentation(self, given: RunAgentInput | None = None) -> Presentation:
        """How one stream shows the translator's events: the stream of the request ``given``, or one that joins."""
        messages = given.messages if given is not None else ()
        answered = frozenset(message.tool_call_id for message in messages if isinstance(message, ToolMessage))
        known = frozenset(called_in(messages))
        streams = self._settings["streaming_function_call_arguments"]
        return Presentation(self._predictions, streams_arguments=streams, answered=answered, known=known)

    @property
    def name(self) -> str:
        """The app's."""
        return self._app.name

    @property
    def view(self) -> View:
        """What clients are shown."""
        return View(
            errors=self._settings["show_errors"],
            emit_interrupt_outcome=self._settings["emit_interrupt_outcome"],
            silent=self._silent,
            nested=self._settings["show_nested_agents"],
        )

    def _input_to_keep(self, turn: _ClientTurn, credentials: set[str]) -> dict[str, Any]:
        """What of its input a run keeps: the messages since the model's last, since the others are in the runs before; where
        there are none, those too.

        And the app's name, and the names of the client's tools, as the model knows them. Answers to calls for
        ``credentials`` are left out.
        """
        given = turn.given
        since = [
            message
            for message in since_spoken(given.messages)
            if not (isinstance(message, ToolMessage) and message.tool_call_id in credentials)
        ]
        kept: dict[str, Any] = {
            "messages": [message.model_dump(mode="json", by_alias=True) for message in since],
            "digest": digest_of(given),
            "app": self.app_of(given),
        }
        if turn.history:
            shown = [
                message
                for message in turn.history
                if not (isinstance(message, ToolMessage) and message.tool_call_id in credentials)
            ]
            kept["history"] = as_history(shown)
        names = [tool.name for tool in given.tools or ()]
        if names:
            if not self._toolsets and isinstance(self.root_agent, BaseAgent):
                logger.warning("the client sent tools, but no agent has an AGUIToolset in its tools")
            known = dict.fromkeys([*names, *(toolset.named(name) for toolset in self._toolsets for name in names)])
            kept["tools"] = [{"name": name} for name in known]
        return kept

    # -- who and where --

    def user_of(self, given: RunAgentInput) -> str:
        """Whose run it is."""
        if self._settings["user_id"]:
            return self._settings["user_id"]
        if self._settings["user_id_extractor"] is not None:
            return str(self._settings["user_id_extractor"](given))
        return f"thread_user_{given.thread_id}"

    def app_of(self, given: RunAgentInput) -> str:
        """The name of the app that the run's session belongs to."""
        if not self._app_is_named and self._settings["app_name_extractor"] is not None:
            return str(self._settings["app_name_extractor"](given))
        return self._app.name

    def _runner(self, app_name: str) -> Runner:
        if app_name not in self._runners:
            self._runners[app_name] = self._new_runner(app_name, self._threads.service)
        return self._runners[app_name]

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

    # -- what is known of a thread --

    async def thread_state(
        self,
        thread_id: str,
        *,
        app_name: str | None = None,
        user_id: str | None = None,
        given: RunAgentInput | None = None,
    ) -> Any:
        """State and messages of a thread, as AG-UI writes them; None if there is no such thread.

        ``app_name`` and ``user_id`` count only where the agent has no app and user of its own. ``given`` is
        what the extractors are asked with.
        """
        given = given or RunAgentInput(thread_id=thread_id, run_id="", messages=[])
        if user_id is None or self._settings["user_id"] or self._settings["user_id_extractor"] is not None:
            user_id = self.user_of(given)
        if app_name is None or self._app_is_named or self._settings["app_name_extractor"] is not None:
            app_name = self.app_of(given)
        session = await self._threads.find(app_name, user_id, thread_id)
        if session is None:
            return None
        conversation = await self._conversation(app_name, thread_id, user_id)
        if not conversation.messages:
            is_forgotten = await self.callstream.journal.has_forgotten(thread_id, user_id)
            return {"state": public_state(session.state), "messages": [] if is_forgotten else messages_in(session)}
        snapshot = _EVENT.validate_json(encode(conversation.snapshot())).model_dump(mode="json", by_alias=True)
        return {"state": public_state(session.state), "messages": snapshot["messages"]}

    async def own_runs(self, rows: Sequence[RunRow]) -> list[RunRow]:
        """Those of the rows that are of the agent's app; all, if it is each request that names the app."""
        if not self._app_is_named and self._settings["app_name_extractor"] is not None:
            return list(rows)
        return await self._app_runs.of(self._app.name, rows, self.callstream.journal)

    async def _runs(self, app_name: str, thread_id: str, user_id: str) -> list[RunRow]:
        """The runs of a thread of the app, the newest first."""
        journal = self.callstream.journal
        return await self._app_runs.of(app_name, await journal.runs(thread_id=thread_id, principal=user_id), journal)

    async def _conversation(
        self, app_name: str, thread_id: str, user_id: str, last: Record | None = None
    ) -> Conversation:
        """The thread as it is, or up to a record."""
        journal = self.callstream.journal
        await journal.open()
        conversation = Conversation(self.view)
        rows = await self._runs(app_name, thread_id, user_id)
        if last is not None:
            rows = rows[[row.run_id for row in rows].index(last.run_id) :]
        async for records in history(journal, rows[::-1]):
            conversation.apply(
                each for each in records if last is None or each.run_id != last.run_id or each.seq <= last.seq
            )
        return conversation

    def get_capabilities(self) -> dict[str, Any] | None:
        """What the application said that the agent can do; None if it said nothing."""
        return copy.deepcopy(self._settings["capabilities"])

    # -- the end --

    async def close(self) -> None:
        """Closes the runners, and the Callstream if it is the agent's own.

        Active runs are handed over to another process if one can go on with them; others are stopped.
        """
        await self.rest()
        if self.owns_callstream:
            await self.callstream.aclose()

    async def rest(self) -> None:
        """The same without the Callstream: the next run opens toolsets and plugins again."""
        self._closings += 1
        if (driver := self._drivers.get(asyncio.get_running_loop())) is not None:
            await driver.hand_over("closed")
        for run in list(self._active):
            await run.stop("closed")
        if self._session_memory is not None:
            await self._session_memory.wait()
        for runner in self._runners.values():
            await runner.close()
        self._runners.clear()


def _for_client(given: RunAgentInput, events: list[ShownEvent]) -> list[ShownEvent]:
    """A client that declares no version of the protocol is older than AG-UI 1.0."""
    return events if given.protocol_version is not None else for_older_client(events)
