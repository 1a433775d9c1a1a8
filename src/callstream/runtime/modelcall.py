"""One call of a model by a host, so that a response is read in one place only.

A host (a framework's plugin) opens a model call before its framework asks the model; the tap, if the request passes it,
marks it as read. The host looks at the framework's own partial events only where the call stayed unmarked.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

from callstream.runtime.response import Response

if TYPE_CHECKING:
    from callstream.runtime.run import Run


class ModelCall:
    """``collapses`` says of which tools the calls should reach the SDK whole; None leaves it to the tap's setting.

    ``refuses``: the host refuses rejected calls itself, before their tools run, so they may be forwarded. ``reports``:
    the host reports the run's input and the results of its tools itself, so requests are not read for them.
    ``streams``: of which tools the provider may be asked to stream the arguments; None leaves it to the tap's setting.
    ``withholds``: the application may still change the answer, so the host records it when that has been done.
    """

    def __init__(
        self,
        run: Run,
        *,
        author: str | None = None,
        collapses: Callable[[str], bool] | None = None,
        refuses: bool = False,
        reports: bool = False,
        new_call_id: Callable[[], str] | None = None,
        streams: Callable[[str], bool] | None = None,
        withholds: bool = False,
    ) -> None:
        self.run = run
        self.author = author
        self.collapses = collapses
        self.refuses = refuses
        self.reports = reports
        self.new_call_id = new_call_id
        self.streams = streams
        self.withholds = withholds
        self.read_by_tap = False
        self.responses: list[Response] = []
        """The responses that were read for it, in order: more than one where the host asked again by itself."""


current_model_call: ContextVar[ModelCall | None] = ContextVar("callstream_model_call", default=None)
