"""Services of google-adk that count what they await, and say when a cancellation reached them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any


class Steps:
    """Calls ``then`` at the await of that number, the first being 1; ``interrupted`` counts calls that were cancelled."""

    def __init__(self, number: int = 0, then: Callable[[], object] | None = None) -> None:
        self._number = number
        self._then = then
        self.count = 0
        self.interrupted = 0

    def step(self) -> None:
        self.count += 1
        if self.count == self._number and self._then is not None:
            self._then()

    @property
    def has_come(self) -> bool:
        return self.count >= self._number


class Counted:
    """Awaits the coroutine and counts its awaits."""

    def __init__(self, work: Coroutine[Any, Any, Any], steps: Steps) -> None:
        self._work = work
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._work.__await__()
        thrown: BaseException | None = None
        while True:
            try:
                awaited = inner.send(None) if thrown is None else inner.throw(thrown)
            except StopIteration as end:
                return end.value
            self._steps.step()
            try:
                yield awaited
                thrown = None
            except asyncio.CancelledError as error:
                self._steps.interrupted += 1
                thrown = error
            except BaseException as error:  # noqa: BLE001  # as it came
                thrown = error


def stepping(service: Any, *names: str) -> Any:
    """The service, of a class of its own in which these methods count their awaits in ``service.steps``."""

    def counting(name: str) -> Any:
        method = getattr(type(service), name)

        async def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await Counted(method(self, *args, **kwargs), self.steps)

        return counted

    made = type(f"Stepping{type(service).__name__}", (type(service),), {name: counting(name) for name in names})
    service.__class__ = made
    service.steps = Steps()
    return service
