"""Which script answers a request."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias, cast

from callstream.errors import UsageError
from callstream.testing.httpserver import ReceivedRequest
from callstream.testing.script import Script, checked, scripts_in

ScriptFunction: TypeAlias = Callable[[ReceivedRequest], Script | Awaitable[Script]]
Scripting: TypeAlias = Script | Sequence[Script] | ScriptFunction
"""One script for every request, a list of scripts for one request each, or a function of the request."""


class Scripts:
    """Gives each request its script. Scripts that no function makes are checked at once."""

    def __init__(self, scripting: Scripting) -> None:
        self._one: Script | None = None
        self._function: ScriptFunction | None = None
        self._rest: Iterator[Script] = iter(())
        self._count = 0
        if callable(scripting):
            self._function = scripting
            return
        scripts = scripts_in(scripting)
        if scripts is None:
            self._one = cast(Script, scripting)
        else:
            self._rest = iter(scripts)
            self._count = len(scripts)
        for script in scripts or [cast(Script, scripting)]:
            checked(script)

    @property
    def are_one(self) -> bool:
        """Whether every request gets the same script."""
        return self._one is not None

    async def next_for(self, request: ReceivedRequest) -> Script:
        if self._one is not None:
            return self._one
        if self._function is not None:
            made = self._function(request)
            script = await made if inspect.isawaitable(made) else made
            if scripts_in(script) is not None:
                raise UsageError("expected one script from the function of a request, got a list of scripts")
            return script
        for script in self._rest:
            return script
        raise UsageError(f"expected {self._count} requests, one a script, got another: {request!r}")
