"""google-adk's side of a run that goes on in another process: its session, and what its tools did beside their results.

The session has what the run has written to it before its process died. The run works again from its beginning, so it is
given the session as it was then; what it appends again is in the store already and is not stored twice, and what is new
is stored.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from google.adk.agents.context import Context
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.exit_loop_tool import exit_loop
from google.adk.tools.tool_context import ToolContext
from google.adk.tools.transfer_to_agent_tool import transfer_to_agent
from google.adk.workflow import BaseNode
from pydantic_core import PydanticSerializationError, to_jsonable_python

from callstream.events import SessionKept
from callstream.runtime import current_run
from callstream.runtime.claims import QUESTION, REFUSED
from callstream.runtime.continuing import Keeping, pack, unpack


class KeptSession(msgspec.Struct, frozen=True):
    """A session before a run wrote to it: how many events it had, and its state."""

    session_id: str
    events: int
    state: dict[str, Any]

    @classmethod
    def read(cls, kept: SessionKept) -> KeptSession:
        return msgspec.json.decode(unpack(kept.data), type=cls)


def keep_session(session: Session) -> SessionKept:
    state = to_jsonable_python(dict(session.state), fallback=repr)
    return SessionKept(pack(msgspec.json.encode(KeptSession(session.id, len(session.events), state))))


class ResumedSessions(BaseSessionService):
    """The session of one run that goes on, as that run knows it; all others as they are."""

    def __init__(self, inner: BaseSessionService, before: KeptSession | None) -> None:
        self._inner = inner
        self._before = before
        self._stored: Session | None = None
        self._known: Session | None = None
        self._again: list[Event] = []
        """What the run had appended before, and has not yet appended again."""
        self._invocations: dict[str, str] = {}
        """The ids of earlier attempts by those of this one: google-adk continues a turn by its id."""

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        before = self._before
        if before is None or session_id != before.session_id:
            return await self._inner.get_session(
                app_name=app_name, user_id=user_id, session_id=session_id, config=config
            )
        if self._known is None:
            self._stored = await self._inner.get_session(app_name=app_name, user_id=user_id, session_id=session_id)
            if self._stored is None:
                return None
            self._again = self._stored.events[before.events :]
            self._known = self._stored.model_copy(
                update={"events": self._stored.events[: before.events], "state": dict(before.state)}
            )
        events = list(self._known.events)
        if config is not None and config.after_timestamp is not None:
            events = [event for event in events if event.timestamp >= config.after_timestamp]
        if config is not None and config.num_recent_events is not None:
            events = events[-config.num_recent_events :] if config.num_recent_events else []
        return self._known.model_copy(update={"events": events, "state": dict(self._known.state)})

    async def append_event(self, session: Session, event: Event) -> Event:
        known, stored = self._known, self._stored
        if known is None or stored is None or session.id != known.id:
            return await self._inner.append_event(session, event)
        if event.partial:
            return event
        appended = await super().append_event(session, event)
        await super().append_event(known, appended)
        while not self._is_stored(appended):
            known_as = self._invocations.get(appended.invocation_id, appended.invocation_id)
            try:
                await self._inner.append_event(stored, appended.model_copy(update={"invocation_id": known_as}))
            except Exception:
                later = await self._read_late(stored)
                if later is None:
                    raise
                stored = later
                continue
            break
        return appended

    async def _read_late(self, stored: Session) -> Session | None:
        """The session, if the former owner has stored something since: it was stopped, and has come back in the middle of a
        write.

        That was done before, too. Services refuse what is appended to a session that has changed, each with an error of its
        own.
        """
        found = await self._inner.get_session(app_name=stored.app_name, user_id=stored.user_id, session_id=stored.id)
        known = {event.id for event in stored.events}
        late = [] if found is None else [event for event in found.events if event.id not in known]
        if found is None or not late:
            return None
        self._again += late
        self._stored = found
        return found

    def _is_stored(self, event: Event) -> bool:
        key = _key(event)
        for place, other in enumerate(self._again):
            if other.author == event.author and _key(other) == key:
                del self._again[place]
                event.id, event.timestamp = other.id, other.timestamp
                self._invocations[event.invocation_id] = other.invocation_id
                return True
        return False

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        try:
            return await self._inner.create_session(
                app_name=app_name, user_id=user_id, state=state, session_id=session_id
            )
        except Exception:
            # The former owner may have made it meanwhile.
            found = session_id and await self.get_session(app_name=app_name, user_id=user_id, session_id=session_id)
            if not found:
                raise
            return found

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        return await self._inner.list_sessions(app_name=app_name, user_id=user_id)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        await self._inner.delete_session(app_name=app_name, user_id=user_id, session_id=session_id)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        return await self._inner.get_user_state(app_name=app_name, user_id=user_id)


def _key(event: Event) -> str:
    """What an event says; of one that says nothing, what it changes."""
    if event.content is not None and event.content.parts:
        # A store of JSON may give keys back in another order.
        return json.dumps(event.content.model_dump(mode="json", exclude_none=True), sort_keys=True)
    return json.dumps(sorted(event.actions.state_delta))


# -- what a tool did beside its result --


def kept_actions(actions: EventActions) -> str | None:
    """What a tool has asked of google-adk beside returning, to be kept; None if that is nothing."""
    done = actions.model_dump(mode="json", exclude_defaults=True, by_alias=False, fallback=repr)
    return pack(json.dumps(done).encode()) if done else None


def do_again(data: str, context: ToolContext) -> None:
    """Asks the same of google-adk for a tool that does not run again."""
    done = EventActions.model_validate_json(unpack(data))
    for name in done.model_fields_set - {"state_delta"}:
        setattr(context.actions, name, getattr(done, name))
    for key, value in done.state_delta.items():
        context.state[key] = value


# -- a tool that was running --

_HARMLESS = ("readOnlyHint", "read_only_hint", "idempotentHint", "idempotent_hint")
"""By the names that versions of mcp have for them."""


def is_harmless(tool: BaseTool) -> bool:
    """Whether it is one of an MCP server, which says that it changes nothing, or the same when it runs again."""
    hints = getattr(getattr(tool, "raw_mcp_tool", None), "annotations", None)
    return any(getattr(hints, name, None) is True for name in _HARMLESS)


def is_hosts_own(tool: BaseTool) -> bool:
    """Whether it does nothing but tell google-adk what comes next."""
    return getattr(tool, "func", None) in (transfer_to_agent, exit_loop)


_ASKED = {"error": "interrupted: the process stopped while this tool ran. A person is asked what becomes of it."}


def ask_about(context: ToolContext) -> dict[str, Any]:
    """Has google-adk ask a person whether the tool may run again. Returns what stands for its result until then."""
    context.request_confirmation(hint=QUESTION)
    context.actions.skip_summarization = True
    return _ASKED


def decision_about(context: ToolContext) -> dict[str, Any] | None:
    """What a person who was asked has said that the tool came to; None if nobody was, or if the tool is to run."""
    decided, named = context.tool_confirmation, context.function_call_id
    if decided is None or decided.confirmed or named is None:
        return None
    asked = (event.actions.requested_tool_confirmations.get(named) for event in reversed(context.session.events))
    if next((each.hint for each in asked if each is not None), None) != QUESTION:
        return None
    if not isinstance(decided.payload, dict) or "result" not in decided.payload:
        return {"error": REFUSED}
    result = decided.payload["result"]
    return result if isinstance(result, dict) else {"result": result}


# -- function nodes of a Workflow, in a run that can go on in another process ------------------------------------------
# google-adk calls no plugin before a function node, so a node is put around each of them in the copy of the tree. It keeps
# what the function gave, and gives that back when the run goes on: the function does not run again. One that was running
# does so only where google-adk itself may run it again, because it has a ``retry_config`` or ``rerun_on_resume``; else the
# run ends.


_MADE_UP = {"id", "timestamp", "invocation_id"}


class KeptNode(BaseNode):
    """A function node, and what it gives."""

    inner: BaseNode

    @classmethod
    def around(cls, node: BaseNode) -> KeptNode:
        return cls(
            name=node.name,
            description=node.description,
            rerun_on_resume=node.rerun_on_resume,
            wait_for_output=node.wait_for_output,
            retry_config=node.retry_config,
            timeout=node.timeout,
            state_schema=node.state_schema,
            inner=node,
        )

    async def _run_impl(self, *, ctx: Context, node_input: Any) -> AsyncGenerator[Any, None]:
        run = current_run()
        keeping = None if run is None else run.keeping
        nth, kept = (0, None) if keeping is None else keeping.next_step(ctx.node_path)
        if kept is not None:
            events = _again(kept)
        elif keeping is not None:
            events = self._run_kept(keeping, nth, ctx, node_input)
        else:
            events = self.inner.run(ctx=ctx, node_input=node_input)
        async for event in events:
            yield event

    async def _run_kept(self, keeping: Keeping, nth: int, ctx: Context, node_input: Any) -> AsyncGenerator[Event, None]:
        may_repeat = self.rerun_on_resume or self.retry_config is not None
        await keeping.begin_step(ctx.node_path, nth, "safe" if may_repeat else "unsafe")
        given = _Given()
        output: Event | None = None
        try:
            async for event in self.inner.run(ctx=ctx, node_input=node_input):
                given.add(event)
                if output is not None:
                    yield output
                output = event if event.output is not None else None
                if output is None:
                    yield event
        except BaseException:
            keeping.repeat_step(ctx.node_path)
            raise
        given.add_rest(ctx, output)
        if given.mistake is None:
            await keeping.end_step(ctx.node_path, nth, json.dumps(given.events).encode())
        else:
            await keeping.give_up(f"what node {self.name} gave is no JSON: {given.mistake}")
        if output is not None:  # what follows the node begins when its output is kept
            yield output


class _Given:
    """What a function has given, as JSON, taken before google-adk writes into it."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.mistake: PydanticSerializationError | None = None
        self._has_output = self._has_route = False

    def add(self, event: Event) -> None:
        self._has_output |= event.output is not None or bool(event.node_info.message_as_output)
        self._has_route |= event.actions.route is not None
        try:
            self.events.append(event.model_dump(mode="json", exclude=_MADE_UP, exclude_none=True))
        except PydanticSerializationError as error:
            self.mistake = error

    def add_rest(self, ctx: Context, held: Event | None) -> None:
        """What the function left in its context. ``held``: its output, which has taken some of it along."""
        taken = EventActions() if held is None else held.actions
        changes = ctx.actions.state_delta
        left = EventActions(
            state_delta={key: changes[key] for key in changes if key not in taken.state_delta},
            artifact_delta=dict(ctx.actions.artifact_delta),
            route=None if self._has_route else ctx.route,
        )
        output = None if self._has_output else ctx.output
        if output is not None or left != EventActions():
            self.add(Event(output=output, actions=left))


async def _again(kept: bytes) -> AsyncGenerator[Event, None]:
    for event in json.loads(kept):
        yield Event.model_validate(event)
