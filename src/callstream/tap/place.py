"""Where a response belongs: to the run of the task or thread that asks for it, and to its host's model call."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from callstream.runtime import ModelCall, Run, current_model_call, current_run
from callstream.runtime.ownloop import may_wait_for

logger = logging.getLogger("callstream")


class Place(NamedTuple):
    """Where a response belongs. ``beside`` is its run if that cannot be reached from here, so it gets one of its own."""

    run: Run | None
    model_call: ModelCall | None = None
    beside: Run | None = None

    @classmethod
    def current(cls) -> Place:
        model_call = current_model_call.get()
        if model_call is not None and model_call.run.outcome is None:
            return cls(model_call.run, model_call)
        return cls(current_run())

    def of_host(self) -> Place | None:
        """The same, for a model of a host's: what no agent asks is guarded like all else, and not shown.

        None outside of a run, where there is nothing to guard.
        """
        if self.model_call is not None:
            return self
        return None if self.run is None else Place(self.run, ModelCall(self.run, reports=True, withholds=True))

    def for_blocking_caller(self, own_loop: asyncio.AbstractEventLoop) -> Place:
        """The same, unless the event loop of the run is blocked, which would then never answer. The own loop is not."""
        run = self.run
        if run is None or run.loop is own_loop or may_wait_for(run.loop):
            return self
        logger.warning(
            "a sync client blocks the event loop of run %s, so its response is a run of its own, in the same thread: "
            "use 'with cs.run(…)' for the run, or asyncio.to_thread for the call of the client",
            run.run_id,
        )
        return Place(None, beside=run)
