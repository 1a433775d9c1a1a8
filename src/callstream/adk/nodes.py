"""The function nodes of a Workflow in a run that can go on in another process.

google-adk calls no plugin before a function node, so a node is put around each of them in the copy of the tree. It keeps
what the function gave, and gives that back when the run goes on: the function does not run again. One that was running
does so only where google-adk itself may run it again, because it has a ``retry_config`` or ``rerun_on_resume``; else the run
ends.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents.context import Context
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.workflow import BaseNode
from pydantic_core import PydanticSerializationError

from callstream.runtime import current_run
from callstream.runtime.continuing import Keeping

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
