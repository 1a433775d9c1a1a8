"""A provider that serves bodies byte for byte, for streams that a script cannot express."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from callstream.errors import UsageError
from callstream.testing.encoders import ENCODERS
from callstream.testing.httpserver import HttpAnswer, ReceivedRequest
from callstream.testing.provider import ProviderServer, Route


class BodiesProvider(ProviderServer):
    """Answers each request with the next of ``bodies``, and with the last of them from then on.

    A body is the frames of a stream, each sent as it is. A request for another form of answer is an error.
    """

    def __init__(self, wire: str, bodies: Iterable[Sequence[bytes]], *, port: int = 0) -> None:
        super().__init__(wire, port=port)
        self._bodies = list(bodies)
        if not self._bodies:
            raise UsageError("expected at least one body to answer with")
        self._next = 0

    async def answer(self, request: ReceivedRequest, route: Route) -> HttpAnswer:
        if route.form != "events":
            raise UsageError(f"expected a request for a stream, got one for the form {route.form!r}")
        body = self._bodies[min(self._next, len(self._bodies) - 1)]
        self._next += 1
        return HttpAnswer(200, [("content-type", ENCODERS[self.wire].stream_type)], body)
