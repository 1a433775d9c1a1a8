"""Asking the model again: what the tap does with an answer whose calls were all refused.

The program gets none of them, so it would take the answer for the model's last word and stop. The tap sends the request once
more, continued by the calls and their refusals, and the SDK gets the model's next answer instead of the first: a streamed
one as its continuation (``wire/joining.py``), since the first one's text has already arrived. In the journal both are
responses of the same run. A call that was refused too often, or whose refusal cannot be sent to the model, raises
``CallRejected``. With ``Settings.cut_refused`` the first answer is not read to its end.

Programs that inform the model themselves are left alone: hosts, and runs with ``rejected="forward"``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

from callstream.calls import Refusal
from callstream.events import TextAppended
from callstream.tap.exchange import Exchange, Place, Reading
from callstream.wire.joining import Joint
from callstream.wire.requests import Request

logger = logging.getLogger("callstream")

Ask: TypeAlias = Callable[[Exchange], Awaitable[Any]]
"""Sends a request, and returns the HTTP library's answer, whose body the tap reads like any other."""

_OK = 200
_REFUSALS = (400, 422)
"""The statuses with which servers refuse a conversation that is not in the form they expect."""


class Again:
    """Asks the model again about one answer. ``ask`` is None where that is not possible."""

    def __init__(self, reading: Reading, ask: Ask | None) -> None:
        self.reading = reading
        self._ask = ask

    @property
    def may_ask(self) -> bool:
        """Whether the model can be asked once more."""
        return self._ask is not None and bool(self.reading.often)

    async def answer(self) -> Any:
        """The model's next answer, as one of the HTTP library. Raises CallRejected if there is none."""
        run, provider, often = self.reading.run, self.reading.provider, self.reading.often
        refused = self.reading.refused()
        if self._ask is None:
            raise self._error(refused, "the model cannot be asked again here")
        if not often:
            raise self._error(refused, "the model was asked again already, and this was its answer")
        run.tool_use.mark_asked(refused)
        for request in await self._requests(refused):
            logger.info("run %s: asking the model again, since none of its calls can run", run.run_id)
            run.engine.observers.asked_again(run, provider.wire)
            answer = await self._ask(Exchange(provider, request, Place(run), [], [], often=often - 1))
            if answer.status_code == _OK:
                return answer
            await answer.stream.aclose()
            if answer.status_code not in _REFUSALS:
                raise self._error(refused, f"the model was asked again; its provider answered {answer.status_code}")
        raise self._error(refused, "the model cannot be asked again")

    async def _requests(self, refused: Sequence[Refusal]) -> list[Request]:
        """The requests to try, best first: with the calls and their refusals as results, or with notes."""
        provider, run, asked = self.reading.provider, self.reading.run, self.reading.asked
        written = [run.tool_use.as_written(each) for each in refused if each.name]
        calls = [call for call in written if call is not None]
        made = []
        if len(calls) == len(refused):
            made.append(provider.ask_again(Request(asked.path, asked.body), await self._said(), calls))
        notes = {each.wire_id: each.text for each in refused}
        made.append(provider.add_notes(Request(asked.path, asked.body), notes))
        return list({request.body: request for request in made if request is not None}.values())

    async def _said(self) -> str:
        run, response_id = self.reading.run, self.reading.response_id
        records = [record async for record in run.engine.journal.read(run.run_id)]
        texts = [record.event for record in records if record.response_id == response_id]
        return "".join(event.text for event in texts if isinstance(event, TextAppended))

    def _error(self, refused: Sequence[Refusal], note: str) -> Exception:
        error = self.reading.rejection(refused[0])
        error.add_note(note)
        return error


class AskingBody:
    """A streamed answer, and the one that continues it if the model has to be asked again."""

    def __init__(
        self, again: Again, joint: Joint | None, source: Any, close_source: Callable[[], Awaitable[None]]
    ) -> None:
        reading = self._reading = again.reading
        self._again = again
        self._joint = joint
        self._is_left = False
        self._is_over = False
        self._ending: asyncio.Future[None] | None = None
        self._second: Any = None
        self._passed = b"", b""  # the first bytes, and the last that left
        self._first = reading.streamed(source, close_source, on_end=self._first_ended)
        if joint is not None and reading.drops_rejected:
            self._first.drop = joint.drop
        self._collapser = self._first.collapser
        self.loop = self._first.loop
        may_cut = joint is not None and (again.may_ask or reading.says)
        self._stop_looking = reading.run.on_discard(lambda: self.loop.call_soon(self._look)) if may_cut else None

    async def chunks(self, reader: object = None) -> AsyncGenerator[bytes, None]:
        """What the SDK reads: see ``TappedBody.chunks``."""
        has_refused = False
        held: list[bytes] = []  # where the wire has no joint: SDKs stop reading at the end of an answer
        async with aclosing(self._first.chunks(reader)) as chunks:
            async for data in chunks:
                has_refused = has_refused or self._reading.has_refused
                if not has_refused or data == self._collapser.keep_alive:
                    self._passed = (self._passed[0] or data, data)
                    yield data
                elif self._joint is None:
                    held.append(data)
                elif left := self._joint.first(data):
                    self._passed = (self._passed[0] or left, left)
                    yield left
        try:
            if self._reading.wants_another:
                async with aclosing(self._ask_again()) as chunks:
                    async for data in chunks:
                        yield data
            elif left := b"".join(held) if self._joint is None else self._end_of_first(self._joint):
                yield left
        except BaseException as error:
            await self._tell_end(error)
            raise
        await self._tell_end(None)

    def _end_of_first(self, joint: Joint) -> bytes:
        saying = self._reading.said()
        if saying is not None and self._first.was_cut:
            return joint.cut(saying, self._collapser.next_number, self._collapser.items, self._passed)
        return joint.unjoined() if saying is None else joint.say(saying, self._collapser.next_number)

    async def _ask_again(self) -> AsyncGenerator[bytes, None]:
        asking = asyncio.ensure_future(self._again.answer())
        try:
            while not (await asyncio.wait({asking}, timeout=self._first.limits.keep_alive_every))[0]:
                yield self._collapser.keep_alive
        finally:
            asking.cancel()
        self._second = await asking
        assert self._joint is not None
        self._joint.continue_at(self._collapser.next_number, self._collapser.items)
        try:
            async with aclosing(aiter(self._second.stream)) as chunks:
                async for data in chunks:
                    joined = data if data == self._collapser.keep_alive else self._joint.second(data)
                    if joined:
                        yield joined
            if left := self._joint.second_ended():
                yield left
        finally:
            await self._second.stream.aclose()

    def _look(self) -> None:
        if self._reading.is_lost():
            self._first.cut()

    async def _first_ended(self, error: BaseException | None) -> None:
        """The first answer was read to its end, or broke off: everything ends there unless another answer follows."""
        if self._stop_looking is not None:
            self._stop_looking()
        if error is not None or self._is_left or not self._reading.wants_another:
            await self._tell_end(error)

    def _tell_end_later(self) -> None:
        if not self._is_over:
            self._ending = asyncio.ensure_future(self._tell_end(None))

    async def _tell_end(self, error: BaseException | None) -> None:
        self._is_over = True
        if error is None and self._first.is_delivered:
            self._reading.mark_delivered()
        await self._reading.tell_end(error)

    async def aclose(self) -> None:
        self._is_left = True
        await self._first.aclose()
        if self._second is not None:
            await self._second.stream.aclose()
        await self._tell_end(None)

    def abandon(self) -> None:
        """See ``TappedBody.abandon``."""
        self._is_left = True
        self._first.abandon()
        try:
            self.loop.call_soon_threadsafe(self._tell_end_later)
        except RuntimeError:
            pass  # the loop is closed, and its tasks with it
