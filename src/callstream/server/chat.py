"""The routes of the AI SDK's chat: send, resume, stop, load."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from hashlib import sha256
from http import HTTPStatus
from itertools import groupby
from typing import Any, Final, get_args

import msgspec
from ag_ui.core import RunAgentInput, ToolMessage
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callstream import codec
from callstream.agui.messages import since_spoken
from callstream.calls import CallState
from callstream.errors import Compacted, UsageError
from callstream.events import Record, RunEnded, in_order
from callstream.journal import Journal, RunRow, history
from callstream.server.requests import (
    Problem,
    check_ids,
    choice,
    json_body,
    json_response,
    parse_input,
    remote_parent,
)
from callstream.server.routes import IdRoute, RunRoutes, StreamRoute
from callstream.server.streams import Unfinished
from callstream.uistream import (
    DONE,
    HEADERS,
    ChatTurn,
    Chunk,
    ChunkTranslator,
    Merger,
    Sdk,
    begins_turn,
    encode_sse,
    read_request,
    ui_messages,
)
from callstream.view import RunView

_SDKS: Final = {str(sdk): sdk for sdk in get_args(Sdk)}
_HELD_SECONDS: Final = 0.25
"""How long text may be held back so that it can be sent in longer pieces."""


class ChatRoutes:
    """``POST /ui`` is what ``useChat`` sends to, ``GET /ui/{chat_id}/stream`` what it resumes from.

    ``?sdk=5``, ``6`` or ``7`` names the major version of the client's ``ai`` package, which its requests do not contain.
    """

    def __init__(self, runs: RunRoutes) -> None:
        self._runs = runs
        self._journal = runs.journal
        self._access = runs.access
        self._settings = runs.settings
        self._view = runs.view

    def routes(self) -> list[Route]:
        guarded = self._runs.guarded
        return [
            Route("/ui", guarded(self.send), methods=["POST"]),
            StreamRoute("/ui/{chat_id}/stream", guarded(self.resume)),
            IdRoute("/ui/{chat_id}/stop", guarded(self.stop), methods=["POST"]),
            IdRoute("/ui/{chat_id}/messages", guarded(self.messages), methods=["GET"]),
        ]

    async def send(self, request: Request) -> Response:
        """Runs the agent. If the client leaves the stream, the run continues and its stream can be resumed."""
        principal = await self._access.principal(request)
        sdk = _sdk(request)
        body = await json_body(request, self._settings)
        run_id = await self._run_id(body)
        try:
            asked = read_request(body, run_id[-8:])
        except UsageError as error:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "wrong_input", str(error)) from None
        run_input = parse_input(codec.encode({**asked.run_input, "runId": run_id}), self._settings)
        check_ids(run_input)
        if asked.continues is not None and not await self._journal.runs(run_id=run_id, limit=1):
            await self._check_answers(run_input, principal)
        with self._runs.permit(principal) as permit, remote_parent(request.headers):
            run_id = await self._runs.start(run_input, principal)
            rows = await self._access.runs_of(asked.chat_id, principal)
            frames = await self._whole_run(rows, run_id, sdk, asked.continues)
            return self._runs.stream(frames, run_id, permit, HEADERS)

    async def _check_answers(self, run_input: RunAgentInput, principal: str | None) -> None:
        """Refuses a request whose answers all come too late, as from a stale browser tab: a run would do nothing.

        Results of the server's own tools do not count as answers. Whether unknown ids are refused is up to the agent.
        """
        await self._access.check_thread(run_input.thread_id, principal)
        answers = [each.tool_call_id for each in since_spoken(run_input.messages) if isinstance(each, ToolMessage)]
        answers += [entry.interrupt_id for entry in run_input.resume or ()]
        awaiting = await self._journal.calls(thread_id=run_input.thread_id, states=[CallState.AWAITING])
        if not answers or {call.call_id for call in awaiting} & {*answers}:
            return
        last = await self._journal.call(answers[-1])
        if last is not None and (run_input.resume or last.name in {tool.name for tool in run_input.tools or ()}):
            message = "This has been answered already; load the chat's messages again."
            raise Problem(HTTPStatus.CONFLICT, "answer_refused", message)

    async def _run_id(self, body: Any) -> str:
        """The same id for a request that is sent again, so that it does not run twice.

        A new id if the run has ended and another answer is wanted: the run failed, or the user asked to regenerate.
        """
        run_id = f"ui-{sha256(codec.encode(body)).hexdigest()[:24]}"
        rows = await self._journal.runs(run_id=run_id, limit=1)
        outcome = rows[0].outcome if rows else None
        is_again = isinstance(body, dict) and body.get("trigger") == "regenerate-message"
        return (
            run_id
            if outcome is None or (outcome == "finished" and not is_again)
            else f"{run_id}-{uuid.uuid4().hex[:8]}"
        )

    async def stop(self, request: Request) -> Response:
        """Stops the chat's active run; with ``X-Run-Id`` only that one."""
        principal = await self._access.principal(request)
        rows = await self._access.runs_of(request.path_params["chat_id"], principal)
        row = rows[0]
        if row.outcome is not None or (request.headers.get("x-run-id") or row.run_id) != row.run_id:
            return json_response({"stopped": False})
        await self._runs.stop_run(row, "stopped by the client")
        return json_response({"stopped": True})

    async def resume(self, request: Request) -> Response:
        """The turn that is being answered, from its beginning; 204 if none is.

        With ``X-Run-Id``, only that run, even if it has ended: for a client that already shows the turn's earlier runs and
        lost the stream of this one.
        """
        principal = await self._access.principal(request)
        sdk = _sdk(request)
        run_id = request.headers.get("x-run-id")
        with self._runs.permit(principal) as permit:
            rows = await self._access.known_runs(request.path_params["chat_id"], principal)
            if run_id is not None and any(row.run_id == run_id for row in rows):
                return self._runs.stream(await self._whole_run(rows, run_id, sdk), run_id, permit, HEADERS)
            if run_id is not None or not rows or rows[0].outcome is not None:
                return Response(status_code=HTTPStatus.NO_CONTENT)
            turn = await self._turn(rows)
            translator = ChunkTranslator(turn.message_id, self._view, sdk=sdk)
            frames = _replay(self._journal, turn, translator)
            return self._runs.stream(frames, rows[0].run_id, permit, HEADERS)

    async def _whole_run(
        self, rows: Sequence[RunRow], run_id: str, sdk: Any, message_id: str | None = None
    ) -> AsyncGenerator[bytes, None]:
        """A run from its beginning, for a client that has the earlier runs of its turn. ``rows``: the newest first."""
        place = [row.run_id for row in rows].index(run_id)
        turn = await self._turn(rows[place:])
        translator = ChunkTranslator(message_id or turn.message_id, self._view, sdk=sdk)
        translator.skip(turn.runs[:-1])
        return _rest(self._journal, run_id, translator, Merger(), 0)

    async def messages(self, request: Request) -> Response:
        """The messages for a page that loads: all except the one that ``resume`` sends."""
        principal = await self._access.principal(request)
        sdk = _sdk(request)
        rows = await self._access.known_runs(request.path_params["chat_id"], principal)
        views = await _views(self._journal, rows[::-1])
        return json_response(await asyncio.to_thread(ui_messages, views, self._view, sdk=sdk))

    async def _turn(self, rows: Sequence[RunRow]) -> ChatTurn:
        """The turn to which the first row belongs. ``rows``: the newest first."""
        count, runs = 0, list[RunView]()
        for row in rows:
            count += 1
            runs = await _views(self._journal, [row])
            if begins_turn(runs[0]):
                break
        return ChatTurn(runs if count == 1 else await _views(self._journal, rows[:count][::-1]))


async def _views(journal: Journal, rows: Sequence[RunRow]) -> list[RunView]:
    """The runs as they stand, the oldest first. Each run's state starts from the state of the run before it."""
    views: dict[str, RunView] = {}
    state: Any = msgspec.UNSET
    async with aclosing(history(journal, rows)) as batches:
        async for records in batches:
            for run_id, of_run in groupby(records, key=lambda record: record.run_id):
                view = views.setdefault(run_id, RunView(state=state))
                for record in of_run:
                    view.feed(record)
                state = view.state
            await asyncio.sleep(0)  # reading from memory never waits, so other tasks would not get a turn
    return [views[row.run_id] for row in rows if row.run_id in views]


async def _replay(journal: Journal, turn: ChatTurn, translator: ChunkTranslator) -> AsyncGenerator[bytes, None]:
    """A turn so far, then its last run live."""
    merger, last = Merger(), turn.runs[-1]
    run_id, seq, is_over = last.run_id or "", last.seq, not turn.is_active
    chunks = await asyncio.to_thread(translator.replay, turn.runs)
    yield encode_sse([*merger.feed(chunks), *merger.flush()])
    turn.runs.clear()
    if is_over:
        yield DONE
        return
    try:
        async for frame in _rest(journal, run_id, translator, merger, seq):
            yield frame
    except Compacted:
        raise Unfinished from None  # it ended just now and was compacted; the next request finds all of it


async def _rest(
    journal: Journal, run_id: str, translator: ChunkTranslator, merger: Merger, after: int
) -> AsyncGenerator[bytes, None]:
    """Everything after a record, to the run's end; raises ``Unfinished`` if the client cannot be shown all of it."""
    loop = asyncio.get_running_loop()
    async with aclosing(journal.batches(run_id, after)) as batches:
        coming = asyncio.ensure_future(anext(batches, None))
        held_since = loop.time()
        try:
            while True:
                wait = None if merger.is_empty else max(0.0, held_since + _HELD_SECONDS - loop.time())
                done, _ = await asyncio.wait({coming}, timeout=wait)
                if not done:
                    yield encode_sse(merger.flush())
                    held_since = loop.time()
                    continue
                records: Sequence[Record] | None = coming.result()
                if records is None:
                    raise Unfinished
                if merger.is_empty:
                    held_since = loop.time()
                chunks = merger.feed(_fed(translator, records))
                if translator.is_lost:
                    yield encode_sse([*chunks, *merger.flush()])
                    raise Unfinished
                if isinstance(records[-1].event, RunEnded):
                    yield encode_sse([*chunks, *merger.flush()]) + DONE
                    return
                if chunks:
                    yield encode_sse(chunks)
                coming = asyncio.ensure_future(anext(batches, None))
        finally:
            if not coming.done():
                coming.cancel()
                await asyncio.wait({coming})


def _fed(translator: ChunkTranslator, records: Sequence[Record]) -> list[Chunk]:
    """The chunks of the records, up to a record after which the client has to reconnect."""
    chunks: list[Chunk] = []
    for record in in_order(records):
        chunks += translator.feed(record)
        if translator.is_lost:
            break
    return chunks


def _sdk(request: Request) -> Any:
    return _SDKS[choice(request.query_params, "sdk", tuple(_SDKS)) or "6"]
