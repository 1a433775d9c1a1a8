"""Asking providers to stream arguments, and what happens where one refuses to be asked.

Gateways and older servers refuse a request with a field that they do not know, and name it: with whatever status, or with
an error as the first event of a stream. Such a request is sent once more as the SDK made it. If it is not refused then, the
field was the reason, and that place is not asked again.

One that was signed, body included, is refused without a word about the field. So where a place says that a request
is not authorised, it is sent as the SDK made it, too, once for each place.
"""

from __future__ import annotations

import logging
from typing import Any

from callstream.wire.provider import Provider
from callstream.wire.requests import Asks, Request

logger = logging.getLogger("callstream")

_UNAUTHORISED = (401, 403)
_REFUSALS = (400, 422, 500, *_UNAUTHORISED)
"""The statuses with which servers refuse a field."""


class Asking:
    """Remembers which places have refused. All clients of a Callstream share it."""

    def __init__(self) -> None:
        self._refused: set[str] = set()
        self._unauthorised: set[str] = set()
        self._accepted: set[str] = set()

    def add_to(self, request: Request, provider: Provider, asks: Asks, url: Any, *, by_beta: bool = False) -> Request:
        """The request that asks, or the request itself where there is nothing to ask."""
        if _place(url) in self._refused:
            return request
        return (provider.ask_by_beta if by_beta else provider.ask_for_pieces)(request, asks)

    def is_accepted(self, url: Any) -> bool:
        """Whether the place has answered a request that asked."""
        return _place(url) in self._accepted

    def accept(self, url: Any) -> None:
        self._accepted.add(_place(url))

    def may_be_signed(self, url: Any, status: int) -> bool:
        """Whether a request that was refused so is worth sending as the SDK made it. Once for each place."""
        place = _place(url)
        if status not in _UNAUTHORISED or place in self._unauthorised or place in self._accepted:
            return False
        self._unauthorised.add(place)
        return True

    def remember(self, url: Any, status: int) -> None:
        """A request was refused, and had that status when it was sent again without asking."""
        place = _place(url)
        if status not in _REFUSALS and place not in self._refused:
            self._refused.add(place)
            logger.warning("%s refuses to be asked for streamed arguments; it is not asked again", place)


def names_field(provider: Provider, body: bytes) -> bool:
    """Whether an error names what was asked, in whatever form: gateways wrap errors in errors."""
    field = provider.pieces_field
    return field is not None and field.search(body) is not None


def _place(url: Any) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}{url.path}"
