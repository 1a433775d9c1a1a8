"""Drives the hooks of a tool as a model would, but without one: for unit tests of tools.

::

    driven = await stream_args(write_document, {"title": "Tides", "content": "The moon pulls."})
    assert driven.ready
    assert await driven.run() == {"words": 3}
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from callstream import codec
from callstream.calls import Call, Ledger
from callstream.errors import InvalidArguments, UsageError
from callstream.events import ArgsAppended, CallCompleted, CallDiscarded, CallStarted, Encoding
from callstream.hooks import CallHooks, HookSettings, Outcome
from callstream.runtime.barrier import rejection
from callstream.runtime.engine import Toolbox
from callstream.tools import Progress, Tool, is_tool

CALL_ID = "call_1"


async def stream_args(
    tool: Tool[Any],
    args: Mapping[str, Any] | str,
    size: int = 8,
    *,
    stop_after: int | None = None,
    encoding: Encoding = "json",
    settings: HookSettings | None = None,
) -> Driven:
    """Streams arguments to the hooks of a tool, ``size`` characters per delta, and waits until the hooks have settled.

    ``args`` are values, or the argument text itself as a model wrote it: text that is not a JSON object ends in an
    abort (``malformed``), as it would from a provider, and so do arguments that do not fit the tool's annotations
    (``invalid``); with ``check="stream"`` that happens at the delta with the fault. With ``stop_after`` only that many
    deltas come, and the call is given up as ``truncated``. ``encoding="text"`` is for free-text tools, whose input is one
    string.

    The hooks run as they do in an application: in order, through the same dispatcher, under the same limits. Only the
    merging of waiting deltas is switched off, so a hook sees every piece. An error raised by a hook is not raised here: it
    is the ``error`` of the outcome. The tool does not run before ``Driven.run``, not even one with a ``Streamed``
    parameter: use ``Streamed.of(…, aborted="truncated")`` to test what such a tool does when it is aborted.
    """
    if not is_tool(tool):
        raise UsageError(f"expected a tool, made with @tool, got {tool!r}")
    if size < 1:
        raise UsageError(f"expected size to be at least 1, got {size}")
    if encoding == "text" and not isinstance(args, str):
        raise UsageError(f"expected the input of a free-text tool, a string, got {args!r:.80}")
    text = args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)
    pieces = [text[at : at + size] for at in range(0, len(text), size)][:stop_after]
    ledger = Ledger()
    call = ledger.apply(CallStarted(CALL_ID, tool.__name__, encoding=encoding))
    unmerged = msgspec.structs.replace(
        (settings or HookSettings()).for_tool(tool),
        queue_deltas=len(pieces) + 1,
        queue_chars=len(text) + 1,
        merge_after=math.inf,
    )
    hooks = CallHooks(call, tool.hooks, unmerged)
    check = tool.arguments.stream_check() if tool.check == "stream" and encoding == "json" else None
    deltas: list[str] = []
    try:
        for piece in pieces:
            deltas.append(piece)
            call = ledger.apply(ArgsAppended(CALL_ID, piece))
            if check is not None:
                check.feed(piece)
                if check.refusal is not None:
                    hooks.abort(call, *check.refusal, is_recorded=False)
                    break
            hooks.push(piece)
            await asyncio.sleep(0)
        else:
            event = CallDiscarded(CALL_ID, "truncated") if stop_after is not None else _end(tool, text, encoding)
            call = ledger.apply(event)
            if isinstance(event, CallCompleted):
                hooks.complete(call)
            else:
                hooks.abort(call, event.reason)
        outcome = await hooks.settled()
    except BaseException:
        await hooks.aclose()
        raise
    if not outcome.ready and not call.is_final:
        call = ledger.apply(CallDiscarded(CALL_ID, outcome.reason, outcome.detail))  # type: ignore[arg-type]
    return Driven(tool, call, outcome, deltas, hooks)


class Driven:
    """The result of streaming arguments to a tool's hooks.

    ``outcome`` is that of the hooks (``kind`` is ``ready``, ``rejected``, ``failed`` or ``aborted``). ``call`` is the call
    as the journal would have it. ``deltas`` are the pieces of text that were streamed. ``progress`` are the reports of the
    tool when it ran.
    """

    def __init__(self, tool: Tool[Any], call: Call, outcome: Outcome, deltas: list[str], hooks: CallHooks) -> None:
        self.call = call
        self.outcome = outcome
        self.deltas = deltas
        self.progress: list[Any] = []
        self._tool = tool
        self._hooks = hooks

    @property
    def ready(self) -> bool:
        """Whether the tool may run."""
        return self.outcome.ready

    async def run(self) -> Any:
        """Runs the tool with the arguments, and returns its result or raises its error.

        Raises CallRejected if an application would not have run it. It runs only once.
        """
        if not self.ready:
            raise rejection(self.call, self.outcome.error)
        if not self._hooks.claim():
            raise UsageError(f"call {self.call.call_id!r} of tool {self.call.name!r} was run before")
        return await Toolbox().call_tool(self._tool, self.call, Progress(self.progress.append))

    def __repr__(self) -> str:
        return f"<Driven {self.call.name} in {len(self.deltas)} deltas: {self.outcome.kind}>"


def _end(tool: Tool[Any], text: str, encoding: Encoding) -> CallCompleted | CallDiscarded:
    if encoding == "text":
        return CallCompleted(CALL_ID, json.dumps(text))
    if mistake := codec.mistake_in(text):
        return CallDiscarded(CALL_ID, "malformed", mistake)
    args = json.loads(text)
    if not isinstance(args, dict):
        return CallDiscarded(CALL_ID, "malformed", "the arguments are not an object")
    try:
        tool.arguments.convert(args, check_names=False)
    except InvalidArguments as invalid:
        return CallDiscarded(CALL_ID, "invalid", invalid.detail)
    return CallCompleted(CALL_ID, text)
